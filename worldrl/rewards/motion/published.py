"""EVA's reward with the constants as published, for comparison with results of others.

It fits two AgileX PiPER arms of six joints (rad) and a gripper each (opening from 0 to 1), and no other robot.
"""

from collections.abc import Sequence

from torch import Tensor

from worldrl.core.actions import is_gripper
from worldrl.core.errors import SettingError
from worldrl.rewards.motion.executability import executability
from worldrl.rewards.motion.limits import JointLimits, piper_bimanual
from worldrl.rewards.motion.readout import Column

PUBLISHED_EXECUTABILITY = "published_executability"
PIPER = 2 * [*6 * ["joint"], "gripper"]  # kind of each column of the published bounds


def published_executability(q: Tensor, dt: float, limits: JointLimits) -> Tensor:
    """EVA's R of positions ``[N, T, 14]`` with the published constants, ``[N]`` in [0, 10]; ``limits`` is ignored."""
    return executability(q, dt, piper_bimanual())


def fits_published(columns: Sequence[Column]) -> bool:
    """Whether columns are positions of two arms of six joints and a gripper each, in this order."""
    kinds = ["gripper" if is_gripper(c.name) else "joint" if c.unit == "rad" else c.name for c in columns]
    return kinds == PIPER and len({c.vector for c in columns}) == 1 and columns[0].vector != "action"


def check_published(columns: Sequence[Column]) -> None:
    """Refuse an inverse dynamics of another robot with a SettingError."""
    if not fits_published(columns):
        raise SettingError(
            f"rewards: idm.{PUBLISHED_EXECUTABILITY} has the constants of two arms of six joints and a gripper each, and this inverse "
            f"dynamics reads {', '.join(column.label for column in columns)}; take idm.executability, whose constants are fitted to it"
        )
