"""Cameras as pinholes: points of the world in the image, and back.

In the camera's frame x points right, y up, and the view direction is -z, as in MuJoCo. A *sight* is a point's place in
an image: (u, v, height). u points right and v down, in half image widths from the centre, so the image spans [-1, 1].
Height is above the world's ground (m). Height and not depth: objects on a table have one height wherever they are seen,
and their depth follows from it. A camera on a hand moves, and what the hand holds keeps its depth: its sights have that.

Shapes legend: leading axes are free; ``N`` frames, ``P`` points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    def at(self, frames: slice | NDArray[np.int64]) -> Camera:
        """Return the camera in some frames: a fixed one is the same in all."""
        return self

    def depth(self, point: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the depth of points ``[..., 3]`` along the viewing direction (m)."""
        return -((point - self.position) @ self.rotation)[..., 2]

    def across(self, error: NDArray[np.floating], point: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the part ``[..., 3]`` of an error (m) at a true point that images show: across the line of sight."""
        ray = np.asarray(point, np.float64) - self.position
        ray /= np.linalg.norm(ray, axis=-1, keepdims=True)
        return error - (error * ray).sum(axis=-1, keepdims=True) * ray


@dataclass(frozen=True, eq=False)
class HandCamera(Camera):
    """A moving camera: position ``[N, 1, 3]``, rotation ``[N, 3, 3]`` of each frame. Its sights are (u, v, depth)."""

    @classmethod
    def of(cls, cameras: Sequence[Camera]) -> HandCamera:
        """Join one camera's places in ``N`` frames."""
        position, rotation = (np.stack([getattr(one, name) for one in cameras]) for name in ("position", "rotation"))
        return cls(position[:, None], rotation, cameras[0].half_width)

    def project(self, point: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the sights of points ``[N, P, 3]``; NaN where the image does not show one."""
        depth = self.depth(point)
        sight = np.concatenate([super().project(point)[..., :2], depth[..., None]], axis=-1)
        shown = (depth > 0) & (np.abs(sight[..., :2]) <= 1).all(axis=-1)
        return np.where(shown[..., None], sight, np.nan)

    def unproject(self, sight: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the points of sights ``[N, P, 3]``."""
        u, v, depth = np.moveaxis(np.asarray(sight, np.float64), -1, 0)
        own = np.stack([u * self.half_width, -v * self.half_width, -np.ones_like(u)], axis=-1)
        return self.position + (depth[..., None] * own) @ self.rotation.swapaxes(1, 2)

    def at(self, frames: slice | NDArray[np.int64]) -> HandCamera:
        """Return the camera in some frames."""
        return replace(self, position=self.position[frames], rotation=self.rotation[frames])


def camera_now(env: Any, name: str = "scene") -> Camera:
    """Read a camera of the embedded suite's environment where it is now; a visual style places the scene's."""
    sim = env.unwrapped.sim
    number = sim.model.camera(name).id
    return Camera(
        sim.data.cam_xpos[number].copy(),
        sim.data.cam_xmat[number].reshape(3, 3).copy(),
        float(np.tan(np.deg2rad(sim.model.cam_fovy[number]) / 2)),
    )
