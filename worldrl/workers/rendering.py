"""Which GL back end draws off screen in an environment: tried in a child process with a time limit.

A broken driver crashes or hangs instead of raising, so nothing is drawn in the process that asks.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

BACKENDS = ("egl", "osmesa")
"""In the order of preference: EGL needs no further package and uses a GPU where there is one."""

RENDER_PROGRAM = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><geom type='box' size='.2 .2 .2' rgba='1 0 0 1'/></worldbody></mujoco>"
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 32, 32) as renderer:
    renderer.update_scene(data)
    image = renderer.render()
raise SystemExit(0 if image.std() > 1 else "the rendered image is blank")
"""


def render_failure(python: str | Path, backend: str, timeout_s: float, program: str = RENDER_PROGRAM) -> str | None:
    """Return None where a back end renders, else the reason in one line.

    Args:
        python: interpreter of the environment.
        backend: value of MUJOCO_GL.
        timeout_s: how long it may take (s).
        program: draws one picture; its exit code tells.
    """
    environment = {**os.environ, "MUJOCO_GL": backend}
    command = [str(python), "-c", program]
    try:
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"no image within {timeout_s:g} s"
    if child.returncode == 0:
        return None
    lines = [line for line in child.stderr.splitlines() if line.strip() and not line.startswith(" ")]
    errors = [line for line in lines if "Error" in line and not line.startswith("Exception ignored")]
    return (errors or lines or [f"exit code {child.returncode}"])[0][:160]


def choose_backend(
    python: str | Path, timeout_s: float, backends: Sequence[str] = BACKENDS, program: str = RENDER_PROGRAM
) -> tuple[str | None, list[str]]:
    """Return the first back end that renders (None if none does), and why those before it do not.

    Args:
        python: interpreter of the environment.
        timeout_s: how long each may take (s).
        backends: values of MUJOCO_GL, in the order of preference.
        program: see :func:`render_failure`.
    """
    reasons: list[str] = []
    for backend in backends:
        reason = render_failure(python, backend, timeout_s, program)
        if reason is None:
            return backend, reasons
        reasons.append(f"{backend}: {reason}")
    return None, reasons
