"""Samples for supervised training from demonstrations: a frame and the chunk of actions that follows it.

A sample is a frame ``t`` of an episode and the actions ``t … t + L - 1``. Beyond the episode's end the chunk holds the
last action.

Shapes legend: ``M`` samples, ``T`` steps, ``L`` chunk, ``A`` numbers of an action and of a command, ``Y X`` pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.core.observation import STATE, camera_of
from worldrl.core.rng import Part
from worldrl.core.types import Episode, PolicyObs
from worldrl.policies.statistics import command_deviation, one_robot
from worldrl.policies.token.waypoint import waypoints_along


@dataclass(frozen=True)
class Samples:
    """Frames of demonstrations with their chunks, in memory."""

    image: Tensor  # uint8 ``[M, Y, X, 3]``.
    command: Tensor  # float32 ``[M, A]``.
    chunk: Tensor  # float32 ``[M, L, A]``; NaN where the actions are not to be imitated.
    instruction: tuple[str, ...]  # ``M`` texts, as recorded.
    task: tuple[str, ...]
    # int64 ``[M]``, index of the first sample of the same episode; None where episodes are not contiguous.
    first: Tensor | None = None
    # what is observed besides, by name (see :class:`~worldrl.core.types.PolicyObs`), a row per sample.
    more: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    # float32 ``[M, A]``, command at the next change of a gripper (``token/waypoint.py``); NaN, or None, where unknown.
    waypoint: Tensor | None = None

    def __len__(self) -> int:
        return len(self.instruction)

    @staticmethod
    def join(parts: "Sequence[Samples]") -> "Samples":
        """Concatenate samples."""
        image, command, chunk = (torch.cat([getattr(p, name) for p in parts]) for name in ("image", "command", "chunk"))
        instruction, task = (tuple(chain.from_iterable(getattr(p, n) for p in parts)) for n in ("instruction", "task"))
        more = {name: torch.cat([part.more[name] for part in parts]) for name in parts[0].more}
        waypoint = torch.cat([part.waypoints for part in parts])
        return Samples(image, command, chunk, instruction, task, more=more, waypoint=waypoint)

    @property
    def observed(self) -> PolicyObs:
        """What a policy observes in these frames."""
        return PolicyObs(self.image, self.command, self.instruction, self.more)

    @property
    def waypoints(self) -> Tensor:
        """Waypoints ``[M, A]``, NaN where unknown."""
        return torch.full_like(self.command, torch.nan) if self.waypoint is None else self.waypoint

    def select(self, index: Tensor) -> "Samples":
        """Take the samples of ``index``."""
        instruction, task = (tuple(texts[i] for i in index.tolist()) for texts in (self.instruction, self.task))
        more = {name: value[index] for name, value in self.more.items()}
        waypoint = None if self.waypoint is None else self.waypoint[index]
        frames = self.image[index], self.command[index], self.chunk[index]
        return Samples(*frames, instruction, task, more=more, waypoint=waypoint)

    def part(self, part: Part) -> "Samples":
        """Take a part's samples."""
        return self if part.count == 1 else self.select(torch.arange(len(self))[part.rows(len(self))])

    def back(self, index: Tensor, steps: int) -> Tensor:
        """The frame ``steps`` before each of ``index``, at the earliest its episode's first; SettingError: torn."""
        if self.first is None:
            raise SettingError(
                "samples: joined or selected ones have no frames before them; take those of make_samples"
            )
        return torch.maximum(index - steps, self.first[index])


def action_chunks(action: NDArray[np.float32], length: int, actions: ActionSpec) -> NDArray[np.float32]:
    """Chunk of every frame, float32 ``[T, length, A]``; beyond the end it holds the last action."""
    padded = np.concatenate([action, np.tile(actions.hold(action[-1]), (length - 1, 1))])
    windows = np.lib.stride_tricks.sliding_window_view(padded, length, axis=0)  # [T, A, length]
    return np.ascontiguousarray(windows.transpose(0, 2, 1))


def observed(episode: Episode, name: str) -> NDArray[Any]:
    """What an episode observed under a name, ``[T+1, ...]``: an image, or the state; ArtefactError where it did not."""
    return episode.state if name == STATE else episode.view(camera_of(name, episode.cameras))


def make_samples(episodes: Sequence[Episode], chunk_length: int, more: Sequence[str] = ()) -> Samples:
    """Make one sample per frame with an action; ``more`` names further observations. SettingError: no action.

    Raises ArtefactError: an episode has no main camera, or is of another robot.
    """
    used = [episode for episode in episodes if len(episode)]
    if not used:
        raise SettingError(f"episodes: need at least one action, got {len(episodes)} episodes without any")
    one_robot(used)
    deviation = command_deviation(used)
    return Samples(
        image=torch.from_numpy(np.concatenate([e.main_view[: len(e)] for e in used])),
        command=torch.from_numpy(np.concatenate([e.command[: len(e)] for e in used])),
        chunk=torch.from_numpy(np.concatenate([action_chunks(e.action, chunk_length, e.actions) for e in used])),
        instruction=tuple(e.instruction for e in used for _ in range(len(e))),
        task=tuple(e.task for e in used for _ in range(len(e))),
        more={name: torch.from_numpy(np.concatenate([observed(e, name)[: len(e)] for e in used])) for name in more},
        waypoint=torch.from_numpy(np.concatenate([waypoints_along(e.command, e.actions, deviation) for e in used])),
        first=torch.from_numpy(np.repeat(np.cumsum([0, *map(len, used[:-1])]), [len(e) for e in used])),
    )
