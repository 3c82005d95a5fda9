"""Possible meanings of LIBERO's seven numbers in demonstrations, and the distance of a replayed tool from the recorded one.

Shapes legend: ``T`` steps, ``N`` demonstrations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.types import Episode
from worldrl.evaluation.conventions.conventions import (
    FINGERS,
    POSITION,
    TURN,
    Actions,
    Alternative,
    action_alternatives,
    rotation,
    state_alternatives,
)
from worldrl.evaluation.conventions.fit import MOVED, Fit, Match, part_match, rms
from worldrl.rollout.real.slots import Replay

ROTATION_M_PER_RAD = 0.1
"""Weight of a radian in a tracking error (m): about the length of a hand."""
STATE_PARTS: Mapping[str, slice] = {"state position": POSITION, "state rotation": TURN, "state fingers": FINGERS}


@dataclass(frozen=True)
class ToolFit(Fit):
    """How well demonstrations of a tool repeat."""

    position_m: float  # root mean square distance of replayed and recorded positions (m).
    rotation_rad: float  # the same for the rotations' angle (rad).
    opening_m: float  # the same for the distance of the fingers (m).
    travel: float = math.nan  # length of the recorded path over that of the replayed one; NaN without motion.
    turning: float = math.nan  # the same for the rotation angles.

    @property
    def error_m(self) -> float:
        """Tracking error in one number (m)."""
        return self.position_m + ROTATION_M_PER_RAD * self.rotation_rad + self.opening_m

    @property
    def cells(self) -> dict[str, str]:
        """Position, rotation and opening."""
        return {
            "position (cm)": f"{100 * self.position_m:.2f}",
            "rotation (rad)": f"{self.rotation_rad:.3f}",
            "opening (cm)": f"{100 * self.opening_m:.2f}",
        }


@dataclass(frozen=True)
class ToolConventions:
    """LIBERO's seven numbers, and the eight of its state; ``rotation_scale`` is the rotation (rad) of action 1 in the suite."""

    rotation_scale: float

    @property
    def spec(self) -> ActionSpec:
        """LIBERO's."""
        return TOOL_ACTIONS

    def alternatives(self, fit: ToolFit, actions: Sequence[Actions]) -> list[Alternative]:
        """Other meanings of actions ``[T, 7]``; the lengths of the paths suggest the scales."""
        return action_alternatives(self.rotation_scale, fit.travel, fit.turning)

    def unexercised(self, actions: Sequence[Actions]) -> list[str]:
        """Families without evidence, because the demonstrations never use that part of an action."""
        mean = np.abs(np.concatenate(actions)).mean(axis=0)
        unused = {"rotation": mean[TURN].max() < MOVED, "axes": mean[POSITION].max() < MOVED}
        return [family for family, absent in unused.items() if absent]

    def measure(self, replays: Sequence[Replay], demonstrations: Sequence[Episode], known: bool) -> ToolFit:
        """Compare replays with their recordings; with other initial states, both motions from their starts."""
        shown = (lambda state: state) if known else from_start
        mine = np.concatenate([shown(replay.state) for replay in replays]).astype(np.float64)
        theirs = np.concatenate([shown(episode.state) for episode in demonstrations]).astype(np.float64)
        turned = rotation.from_rotvec(mine[:, 3:6]).inv() * rotation.from_rotvec(theirs[:, 3:6])
        return ToolFit(
            successes=sum(replay.success for replay in replays),
            episodes=len(replays),
            position_m=rms(np.linalg.norm(mine[:, :3] - theirs[:, :3], axis=1)),
            rotation_rad=rms(turned.magnitude()),
            opening_m=rms((mine[:, 6] - mine[:, 7]) - (theirs[:, 6] - theirs[:, 7])),
            travel=_ratio(path_length([e.state for e in demonstrations]), path_length([r.state for r in replays])),
            turning=_ratio(turning([e.state for e in demonstrations]), turning([r.state for r in replays])),
            judged=known,
        )

    def states(self, recorded: NDArray[np.float32], suite: NDArray[np.float32]) -> Iterator[Match]:
        """Compare the parts of the first states ``[N, 8]``, each under its own alternatives."""
        for family, part in STATE_PARTS.items():
            yield part_match(family, part, recorded, suite, [a for a in state_alternatives() if a.family == family])


def from_start(state: NDArray[np.float32]) -> NDArray[np.float64]:
    """Positions and rotations of a tool ``[T+1, 8]`` relative to its first pose; the fingers unchanged."""
    exact = state.astype(np.float64)
    turns = rotation.from_rotvec(exact[:, 3:6])
    return np.concatenate([exact[:, :3] - exact[:1, :3], (turns * turns[0].inv()).as_rotvec(), exact[:, 6:]], axis=1)


def path_length(states: Sequence[NDArray[Any]]) -> float:
    """Path length of the tool in all episodes (m)."""
    return float(sum(np.linalg.norm(np.diff(state[:, :3], axis=0), axis=1).sum() for state in states))


def turning(states: Sequence[NDArray[Any]]) -> float:
    """Sum of the rotation angles of the tool in all episodes (rad)."""
    steps = [rotation.from_rotvec(state[:, 3:6].astype(np.float64)) for state in states]
    return float(sum((step[:-1].inv() * step[1:]).magnitude().sum() for step in steps))


def _ratio(recorded: float, replayed: float) -> float:
    return recorded / replayed if replayed > 1e-3 else float("nan")
