"""What the numbers of an action are: changes of a tool's pose (LIBERO's seven), or absolute targets of joints.

One mask says which numbers are targets; holding still, closed grippers and open fingers follow from it. Episodes and
policies carry an :class:`ActionSpec`, datasets and world models the whole embodiment; without one it is LIBERO's.
Shapes: ``A`` numbers of an action and of a command, ``G`` grippers, ``S`` measured numbers.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.storage.typed import from_plain

LEFT_FINGER, RIGHT_FINGER = 6, 7  # Where LIBERO's state has the two finger positions (m); the right one counts negative


@dataclass(frozen=True)
class ActionSpec:
    """The numbers of an action; a command has the same number of numbers."""

    names: tuple[str, ...]  # of the numbers, in order
    low: tuple[float, ...]  # least value of each
    high: tuple[float, ...]  # greatest value of each
    targets: tuple[bool, ...]  # which are absolute targets; the others are changes, and zero changes nothing
    grippers: tuple[int, ...]  # which are grippers
    gripper_open: float  # a gripper's number when it is commanded open
    gripper_closed: float  # its number when it is commanded closed
    # Difference in a gripper's measured opening that matters: about that between holding a small object and holding
    # nothing (m where two fingers are measured, else in the gripper's own unit).
    opening_unit: float

    def __post_init__(self) -> None:
        """Check lengths and order."""
        for name in ("low", "high", "targets"):
            if len(getattr(self, name)) != len(self.names):
                raise SettingError(
                    f"actions.{name}: needs one value for each of {self.names}, got {getattr(self, name)}"
                )
        if not all(
            map(math.isfinite, (*self.low, *self.high, self.gripper_open, self.gripper_closed, self.opening_unit))
        ):
            raise SettingError(f"actions: bounds and gripper values must be finite, got {self.low} and {self.high}")
        if any(low >= high for low, high in zip(self.low, self.high, strict=True)):
            raise SettingError(f"actions.low must lie below actions.high, got {self.low} and {self.high}")
        if any(not 0 <= place < len(self.names) for place in self.grippers):
            raise SettingError(f"actions.grippers: places among {len(self.names)} numbers, got {self.grippers}")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ActionSpec":
        """Rebuild from :meth:`to_json`; SettingError for an unknown field, another type or a wrong range."""
        return from_plain(cls, dict(data), where="actions")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("names", "low", "high", "targets", "grippers")}
        return {**asdict(self), **lists}

    @property
    def size(self) -> int:
        """How many numbers: ``A``."""
        return len(self.names)

    @property
    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Least and greatest actions, float32 ``[A]`` each."""
        return np.array(self.low, np.float32), np.array(self.high, np.float32)

    @property
    def absolute(self) -> bool:
        """Whether every number is a target: such a robot measures the very numbers of its command."""
        return all(self.targets)

    @property
    def targets_pose(self) -> bool:
        """Whether a number besides the grippers' is a target, so that an action depends on where the robot is."""
        return any(target for place, target in enumerate(self.targets) if place not in self.grippers)

    @property
    def unit(self) -> bool:
        """Whether every number lies in [-1, 1] as it is."""
        return set(self.low) == {-1.0} and set(self.high) == {1.0}

    @property
    def arms(self) -> tuple[slice, ...]:
        """Which numbers belong to each arm: those up to its gripper, and the last arm's to the end."""
        ends = [*(place + 1 for place in self.grippers[:-1]), self.size]
        return tuple(slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True))

    def scaled(self, action: Tensor) -> Tensor:
        """Scale actions ``[..., A]`` to [-1, 1] by their range, for a network."""
        if self.unit:
            return action  # bit for bit
        low, high = action.new_tensor(self.low), action.new_tensor(self.high)
        return 2 * (action - low) / (high - low) - 1

    def unscaled(self, scaled: Tensor) -> Tensor:
        """Invert :meth:`scaled`; what lies outside [-1, 1] takes the nearest end of the range."""
        if self.unit:
            return scaled.clamp(-1, 1)
        low, high = scaled.new_tensor(self.low), scaled.new_tensor(self.high)
        return (low + (scaled + 1) / 2 * (high - low)).clamp(low, high)

    def within(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take actions ``[..., A]`` to the range: what lies outside to its nearest end; what is not finite stays as it is."""
        return np.where(np.isfinite(action), np.clip(action, *self.bounds), action)

    def hold(self, command: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the null action: the targets in ``command`` ``[..., A]`` (a command or the last action), no changes."""
        return np.where(np.array(self.targets), command, np.float32(0))

    def closed(self, command: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return whether each gripper is commanded closed: nearer to closed than to open, bool ``[..., G]``."""
        middle = (self.gripper_open + self.gripper_closed) / 2
        beyond = command[..., list(self.grippers)] - np.float32(middle)
        return beyond >= 0 if self.gripper_closed > self.gripper_open else beyond <= 0

    def last_closing(self, command: NDArray[np.float32]) -> int:
        """Return the row of commands ``[N, A]`` in which a gripper was last commanded to close, having been open; -1 where none was."""
        closed = self.closed(command)
        closings = np.flatnonzero((closed[1:] & ~closed[:-1]).any(axis=1))
        return int(closings[-1]) + 1 if len(closings) else -1

    def opening(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """How far each gripper is really open by ``state`` ``[..., S]``, float32 ``[..., G]``: of two fingers in m."""
        if self.absolute:
            return state[..., list(self.grippers)]
        return (state[..., LEFT_FINGER] - state[..., RIGHT_FINGER])[..., None]


TOOL_ACTIONS = ActionSpec(
    names=("dx", "dy", "dz", "drx", "dry", "drz", "gripper"),
    low=(-1.0,) * 7,
    high=(1.0,) * 7,
    targets=(False,) * 6 + (True,),
    grippers=(6,),
    gripper_open=-1.0,
    gripper_closed=1.0,
    opening_unit=0.02,
)
"""LIBERO's seven numbers in [-1, 1]: Δposition, Δrotation, and the gripper's command."""


_QUANTITIES = "pos|position|qpos|opening|width|joint|target|command|cmd|state|action"
_GRIPPER = re.compile(rf".*gripper(?:[._/ -]?(?:{_QUANTITIES}|\d+))*")


def is_gripper(name: str) -> bool:
    """Whether a number's name says that it is a gripper: ``gripper``, ``gripper.pos``, ``main_gripper``, ``left_gripper.pos``."""
    return _GRIPPER.fullmatch(name.lower()) is not None


def gripper_places(names: Sequence[str]) -> tuple[int, ...]:
    """Which numbers are grippers, by their names."""
    return tuple(place for place, name in enumerate(names) if is_gripper(name))


def joint_targets(names: tuple[str, ...], low: tuple[float, ...], high: tuple[float, ...]) -> ActionSpec:
    """Describe absolute targets of joints (rad) and of grippers (0 closed to 1 open, see :func:`is_gripper`)."""
    return ActionSpec(names, low, high, (True,) * len(names), gripper_places(names), 1.0, 0.0, 0.25)


def suite_actions(described: Mapping[str, Any]) -> ActionSpec:
    """Return what a suite's actions are: targets of the ``joints`` that its worker describes, else LIBERO's seven."""
    if "joints" not in described:
        return TOOL_ACTIONS
    names, low, high = (tuple(described["joints"][key]) for key in ("names", "low", "high"))
    return joint_targets(names, low, high)
