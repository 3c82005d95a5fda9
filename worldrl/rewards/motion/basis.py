"""Constants of the rewards on decoded motion: bounds, noise floor and motion of one robot and one inverse dynamics.

They are measured once, on held-out real videos, and stored beside the weights. ``rewards`` names the functions
``f(q, dt, limits) -> [N]`` with these constants filled in.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, nearest
from worldrl.rewards.motion.executability import Constants, executability, position_limits, refit
from worldrl.rewards.motion.limits import JointLimits
from worldrl.rewards.motion.moving import block_speed, motion, motion_content, moving_executability

MotionReward = Callable[[Tensor, float, JointLimits], Tensor]
REAL_SHARE = 0.9
"""A video with this share of the median real motion earns the whole motion term; alignment may remove the rest."""


@dataclass(frozen=True)
class MotionBasis:
    """Constants of the motion rewards."""

    dt: float  # seconds between the frames of the measurement.
    limits: JointLimits  # bounds of the ``D`` coordinates.
    constants: Constants  # EVA's, with P0 re-fitted to the noise floor.
    motion_path: float  # motion content that earns all of the motion term, above the noise (s).
    motion_floor: float  # speed decoded from still videos, as a share of the velocity bounds.

    @property
    def rewards(self) -> Mapping[str, MotionReward]:
        """The rewards by name, each ``f(q, dt, limits) -> [N]``."""
        moving = {"reference": self.motion_path, "floor": self.motion_floor}
        return {
            "executability": partial(executability, constants=self.constants),
            "position_limits": position_limits,
            "motion": partial(motion, **moving),
            "moving_executability": partial(moving_executability, constants=self.constants, **moving),
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "limits": self.limits.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "MotionBasis":
        """Rebuild from :meth:`to_json`."""
        limits, constants = JointLimits.from_json(data["limits"]), Constants(**data["constants"])
        return cls(**{**data, "limits": limits, "constants": constants})


def check_terms(terms: Sequence[str], known: Collection[str]) -> None:
    """Refuse unknown terms with a SettingError that names the nearest one."""
    for name in terms:
        if name not in known:
            raise SettingError(f"rewards: unknown term {name!r}{nearest(name, known)}")


def check_frame_time(basis: MotionBasis | None, frame_s: float) -> None:
    """Refuse videos with another time ``frame_s`` between frames than the measurement had; SettingError."""
    if basis is not None and abs(frame_s - basis.dt) > 1e-6:
        raise SettingError(
            f"reward: the inverse dynamics is for frames {basis.dt:g} s apart, the videos' are {frame_s:g} s apart; "
            "train one with the world model's frame stride"
        )


def measure_basis(real: Tensor, still: Tensor, dt: float, limits: JointLimits) -> MotionBasis:
    """Measure the constants of an inverse dynamics on decodes ``[N, T, D]`` of real videos, as long as scored ones.

    ``still`` are those of their first frames, each repeated ``T`` times: motion there is noise.
    """
    floor = float(block_speed(still, dt, limits).mean(dim=1).median())
    content = float(motion_content(real, dt, limits, floor=floor).median())
    path = max(REAL_SHARE * content, torch.finfo(real.dtype).eps)
    return MotionBasis(dt, limits, refit(real, dt, limits), path, floor)
