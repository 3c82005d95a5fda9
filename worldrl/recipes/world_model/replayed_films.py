"""Recorded episodes beside what a world model imagines for the same actions: outcomes, films, filmstrips."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl.core.types import Episode
from worldrl.evaluation.report.model import Filmstrip, Video
from worldrl.evaluation.world_model.rollout_error import Replay, outcomes, padded_actions, replay, whole_chunks
from worldrl.recipes.paired_films import pair_film, pair_strip
from worldrl.rewards.success import SuccessRule
from worldrl.world_models.loading import AnyVideoModel

NAMES = {True: "success", False: "failure"}


@dataclass(frozen=True)
class Replayed:
    """``E`` episodes and the same actions imagined."""

    episodes: Sequence[Episode]
    actions: NDArray[np.float32]  # ``[E, steps, A]``, whole chunks
    result: Replay
    imagined: NDArray[np.bool_]  # imagined to succeed ``[E]``
    fps: float  # frames of the films per second

    @property
    def actual(self) -> list[bool]:
        """Whether each real episode succeeds in the time that was imagined."""
        steps = self.actions.shape[1]
        return [one.first_success is not None and one.first_success <= steps for one in self.episodes]

    @property
    def titles(self) -> list[str]:
        """Task and both outcomes of each, for example ``PickRedCube: real success, imagined failure``."""
        return [
            f"{episode.task}: real {NAMES[real]}, imagined {NAMES[bool(success)]}"
            for episode, real, success in zip(self.episodes, self.actual, self.imagined, strict=True)
        ]

    def filmstrips(self) -> list[Filmstrip]:
        """One of each episode, real above imagined."""
        caption, stride = f"Real above imagined, same actions.{self._views}", self.result.frame_stride
        return [
            pair_strip(title, caption, real, imagined, stride=stride, first=stride)
            for title, real, imagined in self._pairs()
        ]

    def videos(self) -> list[Video]:
        """One of each episode, real beside imagined."""
        return [
            Video(title, f"Left: real. Right: imagined.{self._views}", pair_film(real, imagined, self.fps))
            for title, real, imagined in self._pairs()
        ]

    @property
    def _views(self) -> str:
        below = ", ".join(self.result.further)
        return f" Each from above: the main camera, {below}." if below else ""

    def _pairs(self) -> list[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
        """Title, real and imagined clip of each episode; further cameras stand below the main one."""
        pairs = [(self.result.real, self.result.imagined), *self.result.further.values()]
        real, imagined = (np.concatenate(views, axis=2) for views in zip(*pairs, strict=True))
        return list(zip(self.titles, real, imagined, strict=True))


def replayed(model: AnyVideoModel, episodes: Sequence[Episode], *, fps: float, seed: int, steps: int = 0) -> Replayed:
    """Imagine ``steps`` control steps of each episode's actions in whole chunks, 0 those of the longest episode.

    ``fps`` is the recording's control rate.
    """
    whole = whole_chunks(steps or max(map(len, episodes)), model.chunk_length)
    actions = np.stack([padded_actions(episode, whole) for episode in episodes])
    result = replay(model, episodes, actions, seed=seed)
    rule = SuccessRule.of(model.config.outcome)
    return Replayed(episodes, actions, result, outcomes(result, rule), fps / model.frame_stride)
