"""Choice of the recorded numbers that an inverse dynamics reads off the images, for any robot.

A choice is a text: ``state`` (all of it), ``state.x`` (by name), ``state.0:14`` (the first fourteen), and likewise
``command`` and ``action``. Positions belong to a frame; an action leads from one frame to the next.

Shapes legend: ``T`` actions of an episode, ``D`` columns.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import SettingError, nearest
from worldrl.core.types import Episode

UNITS = (("m", r"[xyz]|finger.*"), ("rad", r"r[xyz]|.*joint.*"))  # unit by name; other numbers have none


@dataclass(frozen=True)
class Column:
    """One recorded number: ``vector`` is ``state``, ``command`` or ``action``, ``index`` its place there."""

    vector: str
    index: int
    name: str

    @property
    def label(self) -> str:
        """Full name, for example ``state.x``."""
        return f"{self.vector}.{self.name}"

    @property
    def unit(self) -> str:
        """``m``, ``rad``, or empty for a share of a range (a gripper's command, a scaled change)."""
        return next((unit for unit, pattern in UNITS if re.fullmatch(pattern, self.name)), "")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def recorded_names(robot: AnyEmbodiment) -> dict[str, tuple[str, ...]]:
    """Names of each vector's numbers in a robot's episodes."""
    return {"state": robot.state_names, "command": robot.command_names, "action": robot.actions.names}


def choose_columns(target: Sequence[str], names: Mapping[str, Sequence[str]]) -> tuple[Column, ...]:
    """Columns that ``target`` names, in its order; SettingError: none, an unknown one, or one twice."""
    columns = [column for text in target for column in _chosen(text, names)]
    labels = [column.label for column in columns]
    if not columns:
        raise SettingError("target must name what is predicted, for example target=[state]")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise SettingError(f"target: {twice} is chosen twice; name each column once")
    return tuple(columns)


def _chosen(text: str, names: Mapping[str, Sequence[str]]) -> list[Column]:
    vector, _, rest = text.partition(".")
    if vector not in names:
        raise SettingError(f"target: unknown vector {vector!r} in {text!r}{nearest(vector, names)}")
    known = names[vector]
    if not rest:
        places = range(len(known))
    elif part := re.fullmatch(r"(\d*):(\d*)", rest):
        places = range(len(known))[int(part[1] or 0) : int(part[2] or len(known))]
    elif rest in known:
        places = [list(known).index(rest)]
    else:
        raise SettingError(f"target: {vector} has no column {rest!r}{nearest(rest, known)}")
    return [Column(vector, place, known[place]) for place in places]


def column_values(episode: Episode, columns: Sequence[Column], frame_stride: int = 1) -> NDArray[np.float32]:
    """Values ``[T+1, D]``, actions as means over ``frame_stride`` steps; NaN where no whole one follows."""
    vectors = {"state": episode.state, "command": episode.command, "action": _mean_actions(episode, frame_stride)}
    return np.stack([vectors[column.vector][:, column.index] for column in columns], axis=1).astype(np.float32)


def _mean_actions(episode: Episode, stride: int) -> NDArray[np.float32]:
    mean = np.full((len(episode) + 1, episode.action.shape[1]), np.nan, np.float32)
    if len(episode) >= stride:
        windows = np.lib.stride_tricks.sliding_window_view(episode.action, stride, axis=0)
        mean[: len(windows)] = windows.mean(axis=-1)
    return mean
