"""The range of a dataset's actions: the file's own, or what the user gives; what lies beyond is refused or clipped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.data.offline.columns import fault

BOUND_SLACK = 1e-4
"""How far an action may lie beyond its bounds, as a fraction of their half distance: rounding, not another unit."""


@dataclass(frozen=True)
class ActionRange:
    """What the user says of a dataset's actions."""

    low: Sequence[float] = ()  # lower bounds, one for all numbers or one each; none leaves the dataset's own
    high: Sequence[float] = ()  # upper bounds, likewise
    clip: bool = False  # move actions that lie beyond to their bound, instead of refusing the dataset

    def bounds(
        self, size: int, low: Sequence[float], high: Sequence[float]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the bounds of ``size`` numbers: the user's (else SettingError), or ``low`` and ``high``."""
        if not self.low and not self.high:
            return tuple(map(float, low)), tuple(map(float, high))
        found = {"action_low": tuple(self.low), "action_high": tuple(self.high)}
        for name, given in found.items():
            if len(given) not in (1, size):
                raise SettingError(
                    f"{name}={list(given)}: actions have {size} numbers; give one bound for all or one each, in both "
                    "action_low and action_high"
                )
        spread = [tuple(map(float, given)) * (size if len(given) == 1 else 1) for given in found.values()]
        return spread[0], spread[1]

    def applied(
        self, action: NDArray[np.float32], low: Sequence[float], high: Sequence[float]
    ) -> tuple[NDArray[np.float32], int]:
        """Return actions ``[N, A]`` within their bounds, and how many rows were clipped; as they are without ``clip``."""
        if not self.clip or action.ndim != 2 or action.shape[1] != len(low):
            return action, 0
        clipped = np.clip(action, np.asarray(low, np.float32), np.asarray(high, np.float32))
        return clipped, int((clipped != action).any(axis=1).sum())


def check_actions(
    action: NDArray[np.float32], low: Sequence[float], high: Sequence[float], *, source: str, episode: NDArray[np.int64]
) -> None:
    """Require finite bounds, low below high, and every action within them; ArtefactError names the first beyond."""
    below, above = np.asarray(low, np.float32), np.asarray(high, np.float32)
    bad = ~(np.isfinite(below) & np.isfinite(above) & (below < above))
    if bad.any():
        number = int(np.flatnonzero(bad)[0])
        raise fault(
            source, "all", "action", f"needs finite bounds, low below high; number {number} has [{below[number]:.6g}, "
            f"{above[number]:.6g}]. Give action_low and action_high, or leave a number that never changes out"
        )  # fmt: skip
    slack = BOUND_SLACK * (above - below) / 2
    beyond = (action < below - slack) | (action > above + slack)
    if beyond.any():
        row, number = np.argwhere(beyond)[0]
        raise fault(
            source,
            int(episode[row]),
            "action",
            f"is {action[row, number]:.6g} at number {number}, outside the action space's [{below[number]:.6g}, "
            f"{above[number]:.6g}], as in {int(beyond.any(axis=1).sum())} rows. Give the true bounds as action_low and "
            "action_high, or clip_actions=true to move what lies beyond to its bound",
        )
