"""Joint limits: the bounds with which the rewards on decoded motion compare a trajectory.

Shapes legend: ``D`` joints (or other coordinates), ``T`` frames.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import SettingError

GRIPPER_WEIGHT = 0.2  # EVA's weight of a gripper beside 1 for an arm joint
SHARE, MARGIN = 0.999, 1.5  # measured bounds are ``MARGIN`` times the ``SHARE`` quantile of all real steps
STILL = 0.01
"""A coordinate whose range in all the data is smaller (units) is still. Also the least velocity bound (units/s)."""


@dataclass(frozen=True)
class JointLimits:
    """Bounds per coordinate, ``D`` each."""

    velocity: tuple[float, ...]  # largest absolute velocity (units/s).
    acceleration: tuple[float, ...]  # largest absolute acceleration (units/s²).
    low: tuple[float, ...]  # least position, minus infinity for no bound.
    high: tuple[float, ...]  # largest position.
    weight: tuple[float, ...]  # of each coordinate; only the proportions matter.

    def __post_init__(self) -> None:
        sizes = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(sizes.values())) != 1:
            raise SettingError(f"joint limits: every bound needs one number per coordinate, got {sizes}")
        if min(*self.velocity, *self.acceleration, *self.weight) <= 0:
            raise SettingError("joint limits: velocity, acceleration and weight must be positive")
        if any(low > high for low, high in zip(self.low, self.high, strict=True)):
            raise SettingError(f"joint limits: low {self.low} lies above high {self.high}")

    def __len__(self) -> int:
        return len(self.weight)

    def tensor(self, name: str, like: Tensor) -> Tensor:
        """One bound ``[D]`` like ``[..., D]``; SettingError: another number of coordinates."""
        if like.shape[-1] != len(self):
            raise SettingError(f"joint limits are of {len(self)} coordinates, the trajectory has {like.shape[-1]}")
        return like.new_tensor(getattr(self, name))

    def shares(self, like: Tensor) -> Tensor:
        """Weights ``[D]`` scaled to mean 1."""
        weight = self.tensor("weight", like)
        return weight / weight.mean()

    def drawn_in(self, margin: float) -> "JointLimits":
        """Move both ends of each position's range inwards by a share ``margin`` of its half; infinite ranges stay."""
        ranges = list(zip(self.low, self.high, strict=True))
        inward = [0.0 if high - low == float("inf") else margin * (high - low) / 2 for low, high in ranges]
        low, high = (
            [end + sign * by for end, by in zip(ends, inward, strict=True)]
            for ends, sign in ((self.low, 1), (self.high, -1))
        )
        return replace(self, low=tuple(low), high=tuple(high))

    def to_json(self) -> dict[str, list[float | None]]:
        """Return plain JSON values; a missing position bound is null."""
        inf = float("inf")
        return {name: [None if abs(x) == inf else x for x in values] for name, values in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "JointLimits":
        """Rebuild from :meth:`to_json`."""
        missing = {"low": float("-inf"), "high": float("inf")}
        values = {f.name: tuple(missing[f.name] if x is None else float(x) for x in data[f.name]) for f in fields(cls)}
        return cls(**values)

    @classmethod
    def measured(cls, trajectories: Sequence[Tensor], dt: float) -> "JointLimits":
        """Take the bounds from real trajectories ``[T, D]``; SettingError: none of three frames.

        Each coordinate is weighted with 1 / acceleration bound², so that units do not matter.
        """
        long = [q.double() for q in trajectories if len(q) >= 3]
        if not long:
            raise SettingError("joint limits: need a trajectory of at least three frames to measure them on")
        velocity = _bound([q.diff(dim=0) / dt for q in long], STILL)
        acceleration = _bound([q.diff(n=2, dim=0) / dt**2 for q in long], STILL / dt)
        low, high = torch.cat(long).aminmax(dim=0)
        # A still coordinate gets the loosest bounds: noise of decoded videos there would break every tight one.
        still = high - low < STILL
        room = ((MARGIN - 1) * (high - low)).clamp_min(STILL)
        velocity, acceleration, room = (torch.where(still, b.max(), b) for b in (velocity, acceleration, room))
        bounds = velocity, acceleration, low - room, high + room, acceleration.pow(-2)
        return cls(*(tuple(bound.tolist()) for bound in bounds))


def _bound(parts: Sequence[Tensor], least: float) -> Tensor:
    """``MARGIN`` times the ``SHARE`` quantile of absolute values ``[..., D]``, at least ``least``."""
    size = torch.cat(list(parts)).abs().sort(dim=0).values
    return (MARGIN * size[int(SHARE * (len(size) - 1))]).clamp_min(least)


def piper_bimanual() -> JointLimits:
    """EVA's published bounds of two AgileX PiPER arms (0.85 of the data sheet's velocity), without positions."""
    arm = [0.85 * speed for speed in (3.1416, 3.4034, 3.1416, 3.9270, 3.9270, 3.9270)]
    inf = float("inf")
    return JointLimits(
        velocity=tuple(2 * [*arm, 2.0]),
        acceleration=tuple(2 * [*6 * [5.0], 10.0]),
        low=14 * (-inf,),
        high=14 * (inf,),
        weight=tuple(2 * [*6 * [1.0], GRIPPER_WEIGHT]),
    )
