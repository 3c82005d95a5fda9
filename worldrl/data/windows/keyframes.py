"""Keyframes: where a commanded gripper opens or closes, and where fingers come to touch a task object; without labels.

World models fail there first, so training windows and imagined rollouts start near them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.types import Episode

Kind = Literal["gripper", "contact", "parting"]


@dataclass(frozen=True, order=True)
class Keyframe:
    """One keyframe."""

    step: int  # the first frame (1..T) that shows the change; action `step - 1` produced it
    kind: Kind  # `"gripper"` (the commanded gripper changed sides), `"contact"` (contact began) or `"parting"`


def gripper_changes(command: NDArray[np.float32], actions: ActionSpec) -> NDArray[np.int64]:
    """Return the frames (1..T, ascending) at which a gripper of ``command [T+1, A]`` changed sides."""
    closed = actions.closed(command)
    return np.flatnonzero((closed[1:] != closed[:-1]).any(axis=1)) + 1


def contact_onsets(contact: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the frames at which ``contact [T+1]`` began, ascending; contact at frame 0 did not begin."""
    return np.flatnonzero(contact[1:] & ~contact[:-1]) + 1


def keyframes(episode: Episode) -> list[Keyframe]:
    """Return an episode's keyframes in order of time; both kinds may share a frame."""
    gripper = [Keyframe(int(step), "gripper") for step in gripper_changes(episode.command, episode.actions)]
    contact = [Keyframe(int(step), "contact") for step in contact_onsets(episode.contact)]
    return sorted(gripper + contact)
