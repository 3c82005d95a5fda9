"""Camera images without multisampling: drawn at twice the size, then area-averaged.

The OpenGL context belongs to the thread of the first image, and workers must be spawned: a process that was forked
after it would wait in OpenGL for ever, so it gets an error instead.
"""

import os
import sys

import cv2
import numpy as np
from numpy.typing import NDArray

from worldrl_envs.engine import mujoco, rendering_error
from worldrl_envs.errors import RenderingError

SUPERSAMPLE = 2
MIN_SIZE = 8  # pixels
MAX_SIZE = 512  # pixels; the model's off-screen buffer is 1024 wide and twice this is drawn
FORKED = (
    "rendering: this process was forked from one that had drawn with OpenGL, where drawing would hang. Start it by spawn: "
    "gymnasium.make_vec(..., vector_kwargs={'context': 'spawn'}), or multiprocessing.get_context('spawn')"
)


class Camera:
    """Draws a simulation's cameras as square images of `size` pixels, as the model observes each."""

    def __init__(self, model: mujoco.MjModel, size: int) -> None:
        self._model, self._size = model, size
        self._renderer: mujoco.Renderer | None = None

    def draw(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Image from the named camera, uint8[size, size, 3]; RenderingError without OpenGL, or forked after drawing."""
        if _past.forked_after_drawing:
            raise RenderingError(FORKED)
        if self._renderer is None:
            self._renderer = _open_renderer(self._model, SUPERSAMPLE * self._size)
        self._renderer.update_scene(data, camera)
        pixels = self._renderer.render()
        return np.asarray(cv2.resize(pixels, (self._size, self._size), interpolation=cv2.INTER_AREA), np.uint8)

    def close(self) -> None:
        """Free the OpenGL context; the next image makes a new one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _open_renderer(model: mujoco.MjModel, side: int) -> mujoco.Renderer:
    try:
        renderer = mujoco.Renderer(model, side, side)
    except Exception as error:  # MuJoCo, PyOpenGL and drivers raise whatever they met
        raise rendering_error(error) from error
    _past.drawn = True
    return renderer


class _Past:
    """What happened before this process was forked, if it was."""

    drawn = False  # Whether this process, or one that it was forked from, opened a renderer of this package
    forked_after_drawing = False

    def fork(self) -> None:
        """Called in a forked child. EGL's display counts too: other MuJoCo renderers opened it."""
        display = getattr(sys.modules.get("mujoco.egl"), "EGL_DISPLAY", None)
        self.forked_after_drawing |= self.drawn or display is not None


_past = _Past()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_past.fork)
