"""Images of the simulator with positions of their objects: of scenes drawn at random, and of true runs.

Shapes legend: ``N`` images, ``P`` points (gripper, free objects, drawer), ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.observation import IMAGE
from worldrl.core.rng import numpy_stream
from worldrl.rollout.camera import Camera, scene_camera
from worldrl.rollout.real.execution import TrueRun, point_names, points_in
from worldrl.rollout.real.slots import EnvSlot
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec


@dataclass(frozen=True)
class Views:
    """Images of one task by one camera.

    ``frame`` is uint8 ``[N, Y, X, 3]``, ``point`` float32 ``[N, P, 3]`` the positions of the points ``names`` (m).
    """

    task: str
    frame: NDArray[np.uint8]
    point: NDArray[np.float32]
    names: tuple[str, ...]
    camera: Camera

    @classmethod
    def of(cls, run: TrueRun, every: int) -> Views:
        """Take every ``every``-th frame of a run."""
        frame = run.episode.main_view[::every]
        return cls(run.episode.task, frame, run.point[::every], run.names, run.cameras[IMAGE])


def scattered_views(
    tasks: Sequence[str], count: int, *, image_size: int, seed: int, style: str = "default"
) -> Iterator[Views]:
    """Draw ``count`` scenes of each one-armed task of the embedded suite, and render them.

    ``seed`` is of these draws only, independent of episodes. Yields one record per task.
    """
    with closing(EnvSlot(EnvOptions(image_size=image_size))) as slot:
        for task in tasks:
            slot.reset(EpisodeSpec(task, 0, seed, style=style))
            yield _scattered(slot.env, task, count, numpy_stream(seed, "scattered", task))


def _scattered(env: Any, task: str, count: int, generator: np.random.Generator) -> Views:
    from worldrl_envs.arrangements import draw_arrangement
    from worldrl_envs.tasks import get_task

    names, spec = point_names(task), get_task(task)
    shown = [env.unwrapped.arrange(draw_arrangement(spec, generator=generator)) for _ in range(count)]
    frame = np.stack([obs["image"] for obs, _ in shown])
    point = np.stack([points_in(names, info | obs) for obs, info in shown])
    return Views(task, frame, point, names, scene_camera(env))
