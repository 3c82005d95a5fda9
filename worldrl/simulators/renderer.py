"""What the embedded suite draws with: tried in a child process, once, before a worker needs it; and what the user said of it.

A broken driver crashes or hangs instead of raising, and would take one worker after the other.
"""

from __future__ import annotations

import os
import sys
from functools import cache

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.core.storage.log import console
from worldrl.workers.link.rendering import BACKENDS, choose_backend, renderer_name

TIMEOUT_S = 300.0
"""How long a back end may take for one small picture (s): on a crowded machine minutes, and slow is not broken."""


def given_backend() -> str:
    """``MUJOCO_GL`` as the user has set it; empty where its present value is the embedded suite's own choice, or there is none.

    Importing ``worldrl_envs`` sets it, and so does :func:`embedded_drawing`: what they chose for this Python says nothing of a
    foreign suite's, which has its own MuJoCo and its own drivers' bindings. A value that neither chose was set by the user, be it
    in Python after that import.
    """
    from worldrl_envs import CHOSEN_BACKENDS, GIVEN_BACKEND

    present = os.environ.get("MUJOCO_GL", "")
    return (GIVEN_BACKEND or "") if present in CHOSEN_BACKENDS else present


@cache
def embedded_drawing() -> dict[str, str]:
    """Back end and renderer of the embedded suite; workers that start later draw with this back end.

    ``MUJOCO_GL`` decides where the user has set it; else the first of EGL and OSMesa that draws. A change is said, since
    pictures of two back ends differ a little.

    Raises:
        WorkerEnvironmentError: nothing draws.
    """
    from worldrl_envs import CHOSEN_BACKENDS

    given = given_backend()
    present = os.environ.get("MUJOCO_GL", "")
    if renderer := renderer_name(sys.executable, TIMEOUT_S):
        return {"render": present, "renderer": renderer}
    backend, reasons = choose_backend(sys.executable, TIMEOUT_S, (given,) if given else BACKENDS)
    if backend is None:
        raise WorkerEnvironmentError(
            f"rendering: nothing renders here ({'; '.join(reasons)}); install EGL or OSMesa, and let MUJOCO_GL name it where it is "
            "set: apt-get install -y libegl1 libgl1-mesa-dri libglvnd0"
        )
    if backend != present:
        console().print(f"rendering with {backend} ({'; '.join(reasons)})", markup=False, highlight=False)
    os.environ["MUJOCO_GL"] = backend
    CHOSEN_BACKENDS.add(backend)
    return {"render": backend, "renderer": renderer_name(sys.executable, TIMEOUT_S)}
