"""Test of the GL back ends in child processes: a broken driver crashes or hangs without an exception."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


RENDERER_PROGRAM = RENDER_PROGRAM.replace(
    "    image = renderer.render()\n",
    "    image = renderer.render()\n    from OpenGL import GL\n    print(GL.glGetString(GL.GL_RENDERER).decode())\n",
)
"""Prints the renderer's name, too."""

SAPIEN_DEVICE = "WORLDRL_SAPIEN_DEVICE"
SAPIEN_PROGRAM = f"""
import os, sapien
device = sapien.Device(os.environ["{SAPIEN_DEVICE}"])
scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(device)])
scene.set_ambient_light([0.5, 0.5, 0.5])
builder = scene.create_actor_builder()
builder.add_box_visual(half_size=[0.2, 0.2, 0.2], material=[1, 0, 0])
builder.build_static().set_pose(sapien.Pose([1, 0.3, 0]))
camera = scene.add_camera("camera", 32, 32, 1.0, 0.01, 10)
scene.update_render()
camera.take_picture()
raise SystemExit(0 if camera.get_picture("Color").std() > 0.01 else "the rendered image is blank")
"""
"""Renders through Vulkan, on the device that the variable names."""


def render_failure(
    python: str | Path, backend: str, timeout_s: float, program: str = RENDER_PROGRAM, variable: str = "MUJOCO_GL"
) -> str | None:
    """Return None if ``program``, given the back end in ``variable``, renders within ``timeout_s``, else the reason."""
    environment = {**os.environ, variable: backend}
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
    python: str | Path,
    timeout_s: float,
    backends: Sequence[str] = BACKENDS,
    program: str = RENDER_PROGRAM,
    variable: str = "MUJOCO_GL",
) -> tuple[str | None, list[str]]:
    """Return the first back end that renders, or None, and the failures before it; see :func:`render_failure`."""
    reasons: list[str] = []
    for backend in backends:
        reason = render_failure(python, backend, timeout_s, program, variable)
        if reason is None:
            return backend, reasons
        reasons.append(f"{backend}: {reason}")
    return None, reasons


def renderer_name(python: str | Path, timeout_s: float) -> str:
    """MuJoCo's renderer under the present variables: a GPU or a software renderer; empty if nothing renders."""
    command = [str(python), "-c", RENDERER_PROGRAM]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return child.stdout.strip() if child.returncode == 0 else ""


def current_renderer() -> str:
    """Renderer of this thread's GL context."""
    gl: Any = importlib.import_module("OpenGL.GL")
    return gl.glGetString(gl.GL_RENDERER).decode()
