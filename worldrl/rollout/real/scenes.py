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

from worldrl.core.observation import IMAGE, camera_of
from worldrl.core.rng import numpy_stream
from worldrl.rollout.camera import Camera, HandCamera, camera_now
from worldrl.rollout.real.embedded import embedded_options
from worldrl.rollout.real.execution import TrueRun, point_names, points_in
from worldrl.rollout.real.slots import EnvSlot
from worldrl.rollout.real.specs import EpisodeSpec


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
    def of(cls, run: TrueRun, every: int, image: str = IMAGE) -> Views:
        """Take every ``every``-th frame of a run, in the view ``image``."""
        rows = slice(None, None, every)
        frame, camera = run.episode.sheet([image])[rows], run.cameras[image].at(rows)
        return cls(run.episode.task, frame, run.point[rows], run.names, camera)


def scattered_views(
    tasks: Sequence[str], count: int, *, image_size: int, seed: int, style: str = "default", image: str = IMAGE
) -> Iterator[Views]:
    """Draw ``count`` scenes of each single-arm task of the embedded suite, and render them.

    ``seed`` is of these draws only, independent of episodes. Yields one record per task, in the view ``image``.
    """
    images = (IMAGE,) if image == IMAGE else (IMAGE, image)
    with closing(EnvSlot(embedded_options(tasks, image_size, images=images))) as slot:
        for task in tasks:
            slot.reset(EpisodeSpec(task, 0, seed, style=style))
            yield _scattered(slot.env, task, count, numpy_stream(seed, "scattered", task), image)


def _scattered(env: Any, task: str, count: int, generator: np.random.Generator, image: str) -> Views:
    from worldrl_envs.arrangements import draw_arrangement
    from worldrl_envs.tasks import get_task

    names, spec = point_names(task), get_task(task)
    camera = camera_of(image, env.unwrapped.cameras)
    frames, points, places = list[Any](), list[Any](), list[Camera]()
    for _ in range(count):
        obs, info = env.unwrapped.arrange(draw_arrangement(spec, generator=generator))
        frames.append(obs[image])
        points.append(points_in(names, info | obs))
        places.append(camera_now(env, camera))
    seen = places[0] if image == IMAGE else HandCamera.of(places)
    return Views(task, np.stack(frames), np.stack(points), names, seen)
