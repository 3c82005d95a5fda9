"""Possible meanings of absolute joint targets in demonstrations, such as the fourteen numbers of two arms.

The suite's order is arm after arm, joints (rad) and then the gripper (0 closed to 1 open). Recorded state, command and action have the
same numbers. A joint that was recorded with reversed sign therefore differs from its own measured state.

Shapes legend: ``T`` steps, ``N`` demonstrations, ``A`` numbers of an action and of a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.types import Episode
from worldrl.evaluation.conventions.conventions import Actions, Alternative, Change, columns, delays
from worldrl.evaluation.conventions.fit import MOVED, Fit, Match, part_match, rms
from worldrl.rollout.real.slots import Replay

JOINT_M_PER_RAD = 0.3
"""Weight of a radian of every joint in a tracking error (m): about half of an arm's reach."""
OPENING_M = 0.07
"""Weight of a gripper's whole opening (m): about the distance of open fingers."""
NEARER = 0.5
"""A joint counts as reversed where the error of its reversed targets is below this share of the error of its targets."""


@dataclass(frozen=True)
class JointFit(Fit):
    """How well demonstrations of joint targets repeat."""

    joint_rad: float  # root mean square difference of replayed and recorded joints (rad).
    opening: float  # the same of the grippers (1 is from closed to open).

    @property
    def error_m(self) -> float:
        """Tracking error in one number, about the distance of the hands (m)."""
        return JOINT_M_PER_RAD * self.joint_rad + OPENING_M * self.opening

    @property
    def cells(self) -> dict[str, str]:
        """Joints and grippers."""
        return {"joints (rad)": f"{self.joint_rad:.3f}", "grippers (0 to 1)": f"{self.opening:.3f}"}


@dataclass(frozen=True)
class JointConventions:
    """Joint targets of one or more arms; ``recorded`` are the measured numbers of each demonstration, ``[T+1, A]``."""

    spec: ActionSpec
    recorded: Sequence[NDArray[np.float32]]

    @property
    def joints(self) -> list[int]:
        """Places of the numbers that are not grippers."""
        return [place for place in range(self.spec.size) if place not in self.spec.grippers]

    def alternatives(self, fit: JointFit, actions: Sequence[Actions]) -> list[Alternative]:
        """Other meanings of actions ``[T, A]``."""
        found = [*self._units("action"), *self._orders("action"), *self._grippers("action")]
        if reversed_joints := self.reversed_joints(actions):
            found.append(self._sign("action", reversed_joints))
        return [Alternative("unit", *self._scaled()), *found, *delays(self.spec)]

    def unexercised(self, actions: Sequence[Actions]) -> list[str]:
        """Joints with targets that are always 0, where both signs are the same."""
        mean = np.abs(np.concatenate(actions)).mean(axis=0)
        return [f"sign of {self.spec.names[place]}" for place in self.joints if mean[place] < MOVED]

    def measure(self, replays: Sequence[Replay], demonstrations: Sequence[Episode], known: bool) -> JointFit:
        """Compare replays with their recordings; joints are absolute for every initial state."""
        mine = np.concatenate([replay.state for replay in replays]).astype(np.float64)
        theirs = np.concatenate([episode.state for episode in demonstrations]).astype(np.float64)
        return JointFit(
            successes=sum(replay.success for replay in replays),
            episodes=len(replays),
            joint_rad=rms((mine - theirs)[:, self.joints]),
            opening=rms((mine - theirs)[:, list(self.spec.grippers)]),
            judged=known,
        )

    def states(self, recorded: NDArray[np.float32], suite: NDArray[np.float32]) -> Iterator[Match]:
        """Compare the first states ``[N, A]``: all numbers in other orders, joints and grippers in other units."""
        everything = list(range(self.spec.size))
        yield part_match("state order", everything, recorded, suite, self._orders("state"))
        yield part_match("state unit", self.joints, recorded, suite, self._units("state"))
        yield part_match("state gripper", list(self.spec.grippers), recorded, suite, self._grippers("state"))

    def reversed_joints(self, actions: Sequence[Actions]) -> list[int]:
        """Places of the joints whose targets oppose the state measured one step later."""
        targets = np.concatenate(actions).astype(np.float64)
        measured = np.concatenate([state[1:] for state in self.recorded]).astype(np.float64)
        plain, turned = (np.abs(sign * targets - measured).mean(axis=0) for sign in (1, -1))
        return [place for place in self.joints if turned[place] < NEARER * plain[place]]

    # Below, ``what`` is "action" or "state".

    def _units(self, what: str) -> list[Alternative]:
        change = columns(self.joints, lambda a: np.deg2rad(a).astype(a.dtype))
        place = f"{what}[..., {self.joints}]"
        return [Alternative(_family(what, "unit"), "degrees", change, f"{place} = np.deg2rad({place})")]

    def _scaled(self) -> tuple[str, Change, str]:
        low, high = self.spec.bounds
        line = "action = low + (action + 1) / 2 * (high - low)  # the joints' limits"
        return "scaled to [-1, 1] by the limits", lambda a: low + (a + 1) / 2 * (high - low), line

    def _orders(self, what: str) -> list[Alternative]:
        first, *rest = self.spec.arms
        other = [place for arm in (*rest, first) for place in range(arm.start, arm.stop)]
        last = [int(place) for place in np.argsort([*self.joints, *self.spec.grippers])]
        orders = {"the last arm first": other, "all joints, then the grippers": last}
        return [
            Alternative(_family(what, "order"), name, lambda a, o=order: a[..., o], f"{what} = {what}[..., {order}]")
            for name, order in orders.items()
            if order != sorted(order)
        ]

    def _sign(self, what: str, places: list[int]) -> Alternative:
        names = ", ".join(self.spec.names[place] for place in places)
        line = f"{what}[..., {places}] = -{what}[..., {places}]"
        return Alternative(_family(what, "sign"), f"reversed: {names}", columns(places, lambda a: -a), line)

    def _grippers(self, what: str) -> list[Alternative]:
        place = f"{what}[..., {list(self.spec.grippers)}]"
        meanings: list[tuple[str, Change, str]] = [
            ("0 opens, 1 closes", lambda g: 1 - g, f"1 - {place}"),
            ("-1 opens, +1 closes", lambda g: (1 - g) / 2, f"(1 - {place}) / 2"),
            ("-1 closes, +1 opens", lambda g: (1 + g) / 2, f"(1 + {place}) / 2"),
            ("0 closes, 100 opens", lambda g: g / 100, f"{place} / 100"),
        ]
        return [
            Alternative(_family(what, "gripper"), name, columns(list(self.spec.grippers), change), f"{place} = {line}")
            for name, change, line in meanings
        ]


def _family(what: str, name: str) -> str:
    return name if what == "action" else f"{what} {name}"
