"""Errors of what a world model imagines besides the main image: further cameras' views, and the measured state.

Shapes legend: ``E`` episodes, ``T`` predicted frames, ``S`` measured numbers, ``W`` further views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.lookup import Lazy
from worldrl.evaluation.world_model.rollout_error import HORIZONS, Replay, pixel_error, psnr

transform: Any = Lazy("scipy.spatial.transform")
POSE = ("x", "y", "z", "rx", "ry", "rz")
"""Names of a measured tool pose: position (m), rotation vector (rad)."""
STATE_ERRORS = ("state_cm", "state_deg", "state_error")
"""Names that :func:`state_errors` uses."""


def further_errors(result: Replay, horizons: Sequence[int] = HORIZONS) -> dict[str, float]:
    """PSNR of each further view, and median errors of the measured state, at each horizon (control steps).

    A tool's pose has an error of position (cm) and of rotation (degrees); other numbers have the mean absolute error over
    all of them, in their own units.
    """
    values: dict[str, float] = {}
    for horizon in horizons:
        frame = horizon // result.frame_stride - 1
        if frame >= result.valid.shape[1] or not (rows := result.valid[:, frame]).any():
            continue
        for name, (real, imagined) in result.further.items():
            error = pixel_error(real[rows, frame, None], imagined[rows, frame, None])
            values[f"closed_loop.psnr@{horizon}.{name}"] = psnr(error.mean())
        for name, error in state_errors(result).items():
            values[f"closed_loop.{name}@{horizon}"] = float(np.median(error[rows, frame]))
    return values


def further_pixel_errors(result: Replay) -> NDArray[np.float64]:
    """Mean squared error ``[E, T, W]`` of each of the ``W`` further views on the [0, 1] scale."""
    errors = [pixel_error(real, imagined) for real, imagined in result.further.values()]
    return np.stack(errors, axis=-1) if errors else np.zeros((*result.real.shape[:2], 0))


def state_errors(result: Replay) -> dict[str, NDArray[np.float64]]:
    """Errors ``[E, T]`` of the measured state by name; none where the model does not predict it."""
    if result.state is None:
        return {}
    real, imagined = (part.astype(np.float64) for part in result.state)
    if result.state_names[: len(POSE)] != POSE:
        return {"state_error": np.abs(real - imagined).mean(axis=-1)}
    turns = [transform.Rotation.from_rotvec(part[..., 3:6].reshape(-1, 3)) for part in (real, imagined)]
    angle = (turns[0].inv() * turns[1]).magnitude().reshape(real.shape[:2])
    return {
        "state_cm": 100 * np.linalg.norm(real[..., :3] - imagined[..., :3], axis=-1),
        "state_deg": np.rad2deg(angle),
    }
