"""Camera pictures without multisampling: drawn at twice the size, then area-averaged.

The OpenGL context is made at the first picture and belongs to the thread that made it, so
an environment must be built and drawn in the same worker, and workers must be spawned.
"""

import os

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

SUPERSAMPLE = 2
MAX_SIZE = 512  # pixels; the model's off-screen buffer is 1024 wide and twice this is drawn


class Camera:
    """Draws a simulation's cameras as square pictures.

    Args:
        model: The compiled model; its colours, lights and camera poses are read at each picture.
        size: Height and width of a picture, pixels.
    """

    def __init__(self, model: mujoco.MjModel, size: int) -> None:
        self._model, self._size = model, size
        self._renderer: mujoco.Renderer | None = None

    def draw(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture from the named camera, uint8[size, size, 3].

        Raises:
            RuntimeError: no OpenGL context can be made; says what to set.
        """
        if self._renderer is None:
            self._renderer = _open_renderer(self._model, SUPERSAMPLE * self._size)
        self._renderer.update_scene(data, camera)
        pixels = self._renderer.render()
        return np.asarray(cv2.resize(pixels, (self._size, self._size), interpolation=cv2.INTER_AREA), np.uint8)

    def close(self) -> None:
        """Free the OpenGL context; the next picture makes a new one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _open_renderer(model: mujoco.MjModel, side: int) -> mujoco.Renderer:
    try:
        return mujoco.Renderer(model, side, side)
    except mujoco.FatalError as error:
        backend = os.environ.get("MUJOCO_GL", "unset")
        raise RuntimeError(
            f"rendering: no OpenGL context could be made (MUJOCO_GL is {backend}). Without a display set "
            "MUJOCO_GL=egl or osmesa, or import worldrl_envs, before mujoco is first imported"
        ) from error
