"""Agreement of views: how far apart two cameras' probes read the same object, in imagined and in real frames.

Each view has a probe of its own. A moving camera's readings become positions by its true place after the same actions,
so an imagined hand that is elsewhere counts as disagreement.

Shapes legend: ``F`` frames, ``P`` points, ``W`` further views, ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from worldrl.core.observation import IMAGE
from worldrl.evaluation.world_model.probe import Reader
from worldrl.evaluation.world_model.probe_frames import CENTIMETRES, spread
from worldrl.rollout.real.execution import GRIPPER, TrueRun


def views_apart(
    probes: Mapping[str, Reader], frames: Mapping[str, NDArray[np.uint8]], run: TrueRun, steps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Distances ``[F, W P]`` (cm) between what the main view and each further one say of the objects.

    ``frames`` are uint8 ``[F, Y, X, 3]`` by view, at the control steps ``[F]`` of a run. NaN for the gripper, and where
    a view does not show the point in reality.
    """
    true = spread(run, probes[IMAGE].names)[steps]
    places = {
        name: run.cameras[name].at(steps).unproject(probe.read(frames[name], run.episode.task))
        for name, probe in probes.items()
    }
    apart = []
    for name in [name for name in probes if name != IMAGE]:
        shown = np.isfinite(run.cameras[name].at(steps).project(true)).all(axis=-1)
        shown &= np.array([point != GRIPPER for point in probes[IMAGE].names])
        distance = CENTIMETRES * np.linalg.norm(places[name] - places[IMAGE], axis=-1)
        apart.append(np.where(shown, distance, np.nan))
    return np.concatenate(apart, axis=1)
