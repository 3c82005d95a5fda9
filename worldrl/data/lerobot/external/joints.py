"""A robot of joint targets in an external dataset: held against all rows, and described from them where nobody did.

The command of row ``t + 1`` is the target of row ``t``, followed exactly if each number's change between rows is at
most ``max_speed / control_hz``. Shapes: ``n`` rows, ``A`` numbers of an action, of a command and of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import gripper_places, joint_targets
from worldrl.core.embodiment import JOINTS, JointEmbodiment
from worldrl.data.lerobot.external.gripper import SLACK, Ends, data_ends, in_robots_numbers, needs_ends
from worldrl.data.lerobot.external.sample import Sample

MARGIN = 1.1
"""Proposed speeds are this many times the data's."""
TRACKED = 0.5
"""Correlation of targets with measured numbers below which the actions are hardly targets."""


def describe_joints(names: Sequence[str], sample: Sample, ends: Ends | None, control_hz: float) -> dict[str, Any]:
    """Describe joint targets as ``worldrl.json`` has them: ranges rounded outwards, speeds with a margin."""
    size, grippers = len(names), gripper_places(names)
    spec = joint_targets(tuple(names), (-1.0,) * size, (1.0,) * size)
    mapped = in_robots_numbers(sample.action, ends, spec).astype(np.float64)
    low, high = _ranges(mapped)
    for place in grippers:
        low[place], high[place] = min(low[place], 0.0), max(high[place], 1.0)
    fastest = largest_changes(sample, ends, tuple(names)) * control_hz * MARGIN
    speed = [_rounded(value if value > 0 else b - a, up=True) for value, a, b in zip(fastest, low, high, strict=True)]
    return {
        "kind": JOINTS,
        "names": list(names),
        "low": low,
        "high": high,
        "max_speed": speed,
        "control_hz": control_hz,
    }


def largest_changes(sample: Sample, ends: Ends | None, names: tuple[str, ...]) -> NDArray[np.float64]:
    """Largest change of each target within one row, from the last target or at first from the measured number: ``[A]``."""
    spec = joint_targets(names, (-1.0,) * len(names), (1.0,) * len(names))
    action, state = (in_robots_numbers(x, ends, spec).astype(np.float64) for x in (sample.action, sample.state))
    later = sample.within_episodes()
    begins = np.flatnonzero(np.diff(sample.episode, prepend=-1))
    changes = np.concatenate([action[later + 1] - action[later], action[begins] - state[begins]])
    return np.abs(changes).max(axis=0)


def gripper_faults(robot: JointEmbodiment, sample: Sample, ends: Ends | None) -> list[str]:
    """Say which grippers' numbers, mapped by the stated ends, are not 0 closed and 1 open."""
    mapped, faults = in_robots_numbers(sample.action, ends, robot.actions), list[str]()
    for place in robot.actions.grippers:
        name, column = robot.names[place], mapped[:, place]
        found = f"[{column.min():.6g}, {column.max():.6g}]"
        if ends is None and needs_ends(column):
            faults.append(
                f"which numbers of {name} are open and closed is unknown: 1 and 0 they are not, the data have {found}"
            )
        elif column.min() < -SLACK or column.max() > 1 + SLACK:
            faults.append(f"numbers of {name} must lie in [0 closed, 1 open], with the stated ends they are {found}")
    return faults


def one_sided(robot: JointEmbodiment, sample: Sample, ends: Ends | None) -> list[str]:
    """Names of grippers that move and never cross the middle of their stated ends; none where no ends are stated."""
    mapped = in_robots_numbers(sample.action, ends, robot.actions)
    found = [place for place in robot.actions.grippers if ends is not None and needs_ends(mapped[:, place])]
    return [
        robot.names[place]
        for place in found
        if mapped[:, place].min() >= -SLACK and mapped[:, place].max() <= 1 + SLACK
    ]


def joint_faults(robot: JointEmbodiment, sample: Sample, ends: Ends | None, *, derived: bool) -> list[str]:
    """Say in what a stated robot contradicts the data; a ``derived`` command must reach its target within a row."""
    mapped = in_robots_numbers(sample.action, ends, robot.actions)
    for i, (low, high) in enumerate(zip(robot.low, robot.high, strict=True)):
        name, least, greatest = robot.names[i], mapped[:, i].min(), mapped[:, i].max()
        if not low <= least <= greatest <= high:
            return [
                f"robot says {name} lies in [{low:g}, {high:g}], its targets reach [{least:.6g}, {greatest:.6g}] "
                "(clip_actions: true would move them to their bound)"
            ]
        if ends and i in robot.actions.grippers and (low < -1 or high > 2):
            return [f"{name} is mapped to [0 closed, 1 open], robot says [{low:g}, {high:g}]"]
    needed = largest_changes(sample, ends, robot.names) * robot.control_hz if derived else np.zeros(len(robot.names))
    for name, speed, needs in zip(robot.names, robot.max_speed, needed, strict=True):
        if needs > speed:
            return [
                f"recorded targets of {name} change by up to {needs:.6g} per second, robot.max_speed allows {speed:g}, so "
                "imagination could not follow them"
            ]
    return []


def looks_like_changes(sample: Sample) -> bool:
    """Whether the actions do not lie where the robot is measured to be: they are then changes, or in other units."""
    if sample.state.shape != sample.action.shape:
        return False
    later = sample.within_episodes()
    state, action = sample.state[later + 1].astype(np.float64), sample.action[later].astype(np.float64)
    moving = (state.std(axis=0) > 1e-6) & (action.std(axis=0) > 1e-6)
    found = [np.corrcoef(state[:, i], action[:, i])[0, 1] for i in np.flatnonzero(moving)]
    return len(found) > 0 and float(np.median(found)) < TRACKED


def ends_for(names: Sequence[str], sample: Sample) -> Ends | None:
    """The grippers' ends that the data show; None where their numbers lie in [0, 1], or there is none."""
    return data_ends(sample.action, gripper_places(names))


def _ranges(values: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """Ranges of columns, rounded outwards to a hundredth of them; a number that never moves gets a small one."""
    low, high = [], []
    for column in values.T:
        least, greatest = float(column.min()), float(column.max())
        if least == greatest:
            half = max(abs(least) / 100, 0.01)
            least, greatest = least - half, greatest + half
        unit = 10.0 ** (np.floor(np.log10(greatest - least)) - 2)
        low.append(_to_unit(least, unit, up=False))
        high.append(_to_unit(greatest, unit, up=True))
    return low, high


def _rounded(value: float, *, up: bool) -> float:
    return _to_unit(value, 10.0 ** (np.floor(np.log10(value)) - 2), up=up)


def _to_unit(value: float, unit: float, *, up: bool) -> float:
    """Round to a multiple of a power of ten, never inwards, and write it without the digits that division left."""
    digits = max(0, -round(float(np.log10(unit))))
    step = 1 if up else -1
    found = round(float((np.ceil if up else np.floor)(value / unit) * unit), digits)
    return found if step * (found - value) >= 0 else round(found + step * unit, digits)
