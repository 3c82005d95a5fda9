"""The scene camera as a pinhole: points of the world in the image, and back.

In the camera's frame x points right, y up, and the view direction is -z, as in MuJoCo. A *sight* is a point's place in
an image: (u, v, height). u points right and v down, in half image widths from the centre, so the image spans [-1, 1].
Height is above the world's ground (m). Height and not depth: objects on a table have one height wherever they are seen,
and their depth follows from it.

Shapes legend: leading axes are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Camera:
    """One fixed camera: position float64 ``[3]`` (m), rotation float64 ``[3, 3]`` with the camera's axes as columns.

    ``half_width`` is half the image's width at a depth of one metre (m), the tangent of half the field of view.
    """

    position: NDArray[np.float64]
    rotation: NDArray[np.float64]
    half_width: float

    def project(self, point: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the sight ``[..., 3]`` of points ``[..., 3]`` in the world (m)."""
        x, y, z = np.moveaxis((point - self.position) @ self.rotation, -1, 0)
        width = -z * self.half_width
        return np.stack([x / width, -y / width, np.asarray(point[..., 2], np.float64)], axis=-1)

    def unproject(self, sight: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the points ``[..., 3]`` in the world (m) of these sights; the camera must not be level."""
        u, v, height = np.moveaxis(np.asarray(sight, np.float64), -1, 0)
        own = np.stack([u * self.half_width, -v * self.half_width, -np.ones_like(u)], axis=-1)
        ray = own @ self.rotation.T
        return self.position + ((height - self.position[2]) / ray[..., 2])[..., None] * ray

    def depth(self, point: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the depth of points ``[..., 3]`` along the viewing direction (m)."""
        return -(point - self.position) @ self.rotation[:, 2]

    def across(self, error: NDArray[np.floating], point: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the part ``[..., 3]`` of an error (m) at a true point that images show: across the line of sight."""
        ray = np.asarray(point, np.float64) - self.position
        ray /= np.linalg.norm(ray, axis=-1, keepdims=True)
        return error - (error * ray).sum(axis=-1, keepdims=True) * ray


def scene_camera(env: Any) -> Camera:
    """Read the scene camera of the embedded suite's environment, placed by its visual style."""
    sim = env.unwrapped.sim
    number = sim.model.camera("scene").id
    return Camera(
        sim.data.cam_xpos[number].copy(),
        sim.data.cam_xmat[number].reshape(3, 3).copy(),
        float(np.tan(np.deg2rad(sim.model.cam_fovy[number]) / 2)),
    )
