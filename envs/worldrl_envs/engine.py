"""MuJoCo, imported in one place: while it is imported it opens OpenGL, and where that is missing or misnamed it fails."""

import os
from textwrap import shorten

from worldrl_envs.errors import RenderingError

INSTALL = "apt-get install -y libegl1 libgl1-mesa-dri libglvnd0"
"""What brings EGL to a Debian or Ubuntu without a display."""


def rendering_error(reason: BaseException) -> RenderingError:
    """The error of a machine on which MuJoCo cannot draw: the back end, the reason in one line, and what to do."""
    text = shorten(str(reason), 160, placeholder=" ...")
    backend = os.environ.get("MUJOCO_GL") or "unset"
    other = os.environ.get("PYOPENGL_PLATFORM", "egl") != "egl"  # with it, EGL would be refused
    return RenderingError(
        f"rendering: no OpenGL context can be made (MUJOCO_GL is {backend}; {type(reason).__name__}: {text}). "
        f"Without a display install EGL and choose it: {INSTALL} && export MUJOCO_GL=egl"
        + (" && unset PYOPENGL_PLATFORM" if other else "")
    )


try:
    import mujoco
except ModuleNotFoundError:
    raise
except Exception as error:  # an unknown MUJOCO_GL, or a missing library: MuJoCo and PyOpenGL raise whatever they met
    raise rendering_error(error) from error

__all__ = ["INSTALL", "mujoco", "rendering_error"]
