"""Whose robot a foreign dataset shows, recognised or stated, and what its gripper's numbers mean.

Shapes legend: ``n`` rows looked at, ``S`` and ``A`` numbers of state and action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.embodiment import COMMAND_NAMES, STATE_NAMES, AnyEmbodiment, JointEmbodiment, embodiment_from_json
from worldrl.core.errors import SettingError
from worldrl.data.foreign_folder import ForeignFolder
from worldrl.data.foreign_rows import read_rows
from worldrl.data.foreign_stated import OURS, Columns, numbers, read_columns_of, unclear, wrong
from worldrl.data.libero_robot import libero_embodiment

LIBERO = "libero"
FINGER_M, OPPOSITE_M = 0.05, 0.02
"""Largest position of a LIBERO finger, and largest sum of the two (m), for the right one counts negative."""
SETTLED, APART_M = 5, 0.005
"""Rows after which the fingers have followed their command, and the least difference of their openings that tells (m)."""
SAMPLE_ROWS = 4000
"""Rows looked at to recognise a robot."""


@dataclass(frozen=True)
class Sample:
    """State and action of some episodes: float32 ``[n, S]`` and ``[n, A]``."""

    state: NDArray[np.float32]
    action: NDArray[np.float32]

    @classmethod
    def read(cls, folder: ForeignFolder, state: Sequence[Columns], action: Sequence[Columns]) -> Sample:
        """Read data files, the first ones, until there are :data:`SAMPLE_ROWS` rows."""
        parts: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        for file in dict.fromkeys(episode.file for episode in folder.episodes):
            table = read_rows(folder, file, [part.feature for part in (*state, *action)])
            parts.append((numbers(table, state, str(file)), numbers(table, action, str(file))))
            if sum(len(rows) for rows, _ in parts) >= SAMPLE_ROWS:
                break
        return cls(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))

    @property
    def is_libero(self) -> bool:
        """Whether these are LIBERO's sizes, and two opposite fingers end the state."""
        if (self.state.shape[1], self.action.shape[1]) != (len(STATE_NAMES), len(COMMAND_NAMES)):
            return False
        left, right = self.state[:, 6], self.state[:, 7]
        return bool(np.abs(left).max() < FINGER_M and np.abs(left + right).max() < OPPOSITE_M and np.ptp(left) > 0)


def read_robot(folder: ForeignFolder, stated: Mapping[str, Any], sample: Sample, assumed: list[str]) -> AnyEmbodiment:
    """Return the robot.

    Args:
        folder: the metadata.
        stated: of ``worldrl.json``.
        sample: by which LIBERO's is recognised.
        assumed: receives what was.

    Raises:
        SettingError: it is not stated and not recognised, or no embodiment, or of another rate than the folder.
    """
    given = stated.get("robot")
    if given is None and sample.is_libero:
        assumed.append("the robot is LIBERO's, by 8 and 7 numbers and two opposite fingers (robot: 'libero')")
        given = LIBERO
    if given is None:
        raise unclear(
            folder,
            f"the robot is unknown (robot_type {folder.robot_type!r}, {sample.state.shape[1]} numbers of state, "
            f"{sample.action.shape[1]} of action, not LIBERO's)",
            _joints_line(folder, sample),
        )
    if given == LIBERO:
        robot = libero_embodiment()
        if folder.fps != robot.control_hz:
            assumed.append(
                f"rows are LIBERO's control steps, {robot.control_hz:g} a second, though info.json says {folder.fps:g} fps"
            )
        return robot
    try:
        robot = embodiment_from_json(given)
        robot.actions  # noqa: B018, its ranges are checked
    except (AttributeError, KeyError, TypeError, ValueError) as reason:
        raise wrong(folder, "robot", f"'libero' or an embodiment ({reason!r})", given) from reason
    if robot.control_hz != folder.fps:
        raise wrong(folder, "robot", f"of control_hz {folder.fps:g}, as info.json says fps: every row is a step", given)
    return robot


def _joints_line(folder: ForeignFolder, sample: Sample) -> str:
    """An embodiment of joint targets with the data's own ranges, to be corrected by who knows the robot."""
    size = sample.action.shape[1]
    low, high = (np.round(edge, 2).tolist() for edge in (sample.action.min(axis=0), sample.action.max(axis=0)))
    labels = next(
        (f.labels for f in folder.features.values() if len(f.labels) == size), tuple(f"joint_{i}" for i in range(size))
    )
    joints = {"kind": "joints", "names": list(labels), "low": low, "high": high, "max_speed": [3.0] * size}
    return json.dumps({"robot": {**joints, "control_hz": folder.fps}})


def require_sizes(
    folder: ForeignFolder, robot: AnyEmbodiment, state: Sequence[Columns], action: Sequence[Columns]
) -> None:
    """Refuse a state or an action of another size than the robot's, with the line that takes a part."""
    for key, parts, names in (("state", state, robot.state_names), ("action", action, robot.actions.names)):
        size = sum(part.size for part in parts)
        if size != len(names):
            raise unclear(
                folder,
                f"{key} has {size} numbers, the robot {len(names)} ({', '.join(names)})",
                f'{{"{key}": ["{parts[0].feature}[0:{len(names)}]"]}}',
            )


def read_command(folder: ForeignFolder, stated: Mapping[str, Any], robot: AnyEmbodiment) -> tuple[Columns, ...]:
    """Return the features of the command; none where it follows from state or actions, as LIBERO's and that of joints.

    Raises:
        SettingError: another robot's is not stated, or has another size.
    """
    if "command" in stated:
        parts = read_columns_of(folder, stated, "command")
        if sum(part.size for part in parts) != len(robot.command_names):
            raise wrong(folder, "command", f"{len(robot.command_names)} numbers", stated["command"])
        return parts
    if isinstance(robot, JointEmbodiment) or robot == libero_embodiment():
        return ()
    raise unclear(folder, "what this robot was commanded is unknown", '{"command": "observation.command"}')


def read_gripper(
    folder: ForeignFolder, stated: Mapping[str, Any], robot: AnyEmbodiment, sample: Sample, assumed: list[str]
) -> tuple[float, float] | None:
    """Return an action's number for open and for closed: stated, or read off LIBERO's fingers; None of another robot.

    Raises:
        SettingError: not stated and not told by the fingers, or stated against them.
    """
    measured = measured_gripper(sample.state, sample.action) if robot == libero_embodiment() else None
    if "gripper" in stated:
        return _stated_gripper(folder, stated["gripper"], measured)
    if robot != libero_embodiment():
        return None  # the embodiment says what its grippers' numbers are
    if measured is None:
        raise unclear(
            folder,
            "the fingers do not show which gripper command closes (nothing is gripped, or they do not follow)",
            '{"gripper": {"open": -1, "closed": 1}}',
        )
    assumed.append(f"gripper {measured[0]:g} opens and {measured[1]:g} closes, as the fingers show")
    return measured


def _stated_gripper(folder: ForeignFolder, given: Any, measured: tuple[float, float] | None) -> tuple[float, float]:
    try:
        opened, closed = float(given["open"]), float(given["closed"])
    except (KeyError, TypeError, ValueError) as reason:
        raise wrong(folder, "gripper", '{"open": number, "closed": number}', given) from reason
    if opened == closed:
        raise wrong(folder, "gripper", "two different numbers", given)
    if measured is not None and (closed > opened) != (measured[1] > measured[0]):
        raise SettingError(
            f"{folder.path / OURS}: gripper says {opened:g} opens and {closed:g} closes, but the fingers do the opposite; "
            f'write {{"gripper": {{"open": {measured[0]:g}, "closed": {measured[1]:g}}}}}'
        )
    return opened, closed


def measured_gripper(state: NDArray[np.float32], action: NDArray[np.float32]) -> tuple[float, float] | None:
    """Read off the fingers which gripper command opens and which closes.

    Args:
        state: ``[n, 8]``, the last two the fingers (m).
        action: ``[n, 7]``, the last the command: two sides of [-1, 1], or of [0, 1].

    Returns:
        The numbers for open and for closed; None where the commands or the fingers do not tell.
    """
    command, opening = action[:, 6], state[:, 6] - state[:, 7]
    ends = (0.0 if command.min() > -0.5 else -1.0), 1.0
    if command.min() < ends[0] - 1e-3 or command.max() > ends[1] + 1e-3:
        return None
    high = command > sum(ends) / 2
    same = (
        np.lib.stride_tricks.sliding_window_view(high, SETTLED + 1) if len(high) > SETTLED else np.zeros((0, 1), bool)
    )
    last = opening[len(opening) - len(same) :]
    up, down = last[same.all(axis=1)], last[~same.any(axis=1)]
    if not len(up) or not len(down) or abs(up.mean() - down.mean()) < APART_M:
        return None
    return ends if down.mean() > up.mean() else (ends[1], ends[0])
