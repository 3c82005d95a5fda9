# CPU image. Never built by CI.
#   docker build -t worldrl . && docker run --rm worldrl imagine preset=tiny
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends libegl1 libegl-mesa0 libgl1-mesa-dri libglvnd0 \
    && rm -rf /var/lib/apt/lists/*
ENV MUJOCO_GL=egl

RUN useradd --create-home worldrl && mkdir /worldrl && chown worldrl /worldrl
COPY --chown=worldrl . /worldrl
USER worldrl
WORKDIR /worldrl
RUN python -m venv .venv && .venv/bin/pip install --no-cache-dir -c constraints.txt -e .
ENV PATH=/worldrl/.venv/bin:$PATH
RUN worldrl doctor

ENTRYPOINT ["worldrl"]
CMD ["--help"]
