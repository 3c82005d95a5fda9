"""What a gripper's numbers mean in an external dataset. Shapes: ``n`` rows, ``S`` state, ``A`` action, ``G`` grips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec, gripper_places
from worldrl.core.errors import SettingError, nearest
from worldrl.core.storage.typed import from_plain
from worldrl.data.lerobot.external.folder import ExternalFolder
from worldrl.data.lerobot.external.selection import OURS
from worldrl.data.lerobot.external.stated import Draft, wrong

SETTLED, APART_M = 5, 0.005
"""Rows after which the fingers have followed their command, and the least difference of their openings that tells (m)."""
SLACK = 0.05
"""How far numbers of a gripper may lie outside [0, 1] and still be taken for 0 closed and 1 open."""
BEYOND = 0.1
"""How far a command may lie beyond its ends and still be one of them: clipping or noise, not another unit."""
MOVING, IDLE = 0.02, 0.1
"""Least motion of a gripper, and least share of its numbers, that is not taken for noise."""

Ends = tuple[tuple[float, float], ...]
"""A recorded number for open and one for closed, of each gripper."""


def read_ends(folder: ExternalFolder, given: Any, names: tuple[str, ...]) -> Ends:
    """Return the stated ends: ``{"open": number, "closed": number}`` for all grippers, or such pairs by name.

    SettingError where no number is a gripper, a name is none of them, or a pair is none.
    """
    grippers = [names[place] for place in gripper_places(names)]
    if not grippers:
        raise SettingError(
            f"{folder.path / OURS}: gripper fits nothing: none of the robot's numbers is a gripper ({', '.join(names)}); "
            "give the gripper a name that ends in 'gripper' or 'gripper.pos' in robot.names, or remove the key"
        )
    if not isinstance(given, Mapping) or not given:
        raise wrong(folder, "gripper", '{"open": number, "closed": number}', given)
    if not all(isinstance(pair, Mapping) for pair in given.values()):
        return (_pair(folder, "gripper", given),) * len(grippers)
    for name in given:
        if name not in grippers:
            raise SettingError(f"{folder.path / OURS}: gripper: no gripper {name!r}{nearest(str(name), grippers)}")
    missing = [name for name in grippers if name not in given]
    if missing:
        raise wrong(folder, "gripper", f"a pair for each of {', '.join(grippers)}", given)
    return tuple(_pair(folder, f"gripper.{name}", given[name]) for name in grippers)


def _pair(folder: ExternalFolder, key: str, given: Mapping[str, Any]) -> tuple[float, float]:
    rule = '{"open": number, "closed": number}'
    if set(given) != {"open", "closed"}:
        raise wrong(folder, key, rule, given)
    pair = {
        name: from_plain(float, value, where=f"{folder.path / OURS}: {key}.{name}") for name, value in given.items()
    }
    if pair["open"] == pair["closed"] or not np.isfinite(list(pair.values())).all():
        raise wrong(folder, key, "two different finite numbers", given)
    return pair["open"], pair["closed"]


def plain_ends(ends: Ends, names: tuple[str, ...]) -> dict[str, Any]:
    """Write ends as ``worldrl.json`` has them."""
    pairs = [{"open": opened, "closed": closed} for opened, closed in ends]
    if all(pair == pairs[0] for pair in pairs):
        return pairs[0]
    return {names[place]: pair for place, pair in zip(gripper_places(names), pairs, strict=True)}


def needs_ends(column: NDArray[np.float32]) -> bool:
    """Whether targets ``[n]`` of a gripper are not 0 closed and 1 open: outside, or on one side of the middle."""
    least, greatest = float(column.min()), float(column.max())
    moves = greatest - least > max(MOVING, IDLE * max(abs(least), abs(greatest)))
    return least < -SLACK or greatest > 1 + SLACK or (moves and not least < 0.5 < greatest)


def data_ends(action: NDArray[np.float32], places: tuple[int, ...]) -> Ends | None:
    """Take the ends from actions ``[n, A]``, the larger for open; None where they are 0 closed and 1 open."""
    if not any(needs_ends(action[:, place]) for place in places):
        return None
    return tuple(_column_ends(action[:, place].astype(np.float64)) for place in places)


def _column_ends(column: NDArray[np.float64]) -> tuple[float, float]:
    """Least and greatest number, rounded outwards; 0 is the other end of a gripper that never moves."""
    least, greatest = float(column.min()), float(column.max())
    if greatest - least <= IDLE * max(abs(least), abs(greatest)):
        least, greatest = min(least, 0.0), max(greatest, 0.0)
    if least == greatest:
        return 1.0, 0.0
    digits = 1 - int(np.floor(np.log10(greatest - least)))
    unit = 10.0**-digits
    return round(float(np.ceil(greatest / unit)) * unit, max(0, digits)), round(
        float(np.floor(least / unit)) * unit, max(0, digits)
    )


def in_robots_numbers(values: NDArray[np.float32], ends: Ends | None, spec: ActionSpec) -> NDArray[np.float32]:
    """Map recorded numbers of grippers, in values ``[..., A]``, to the robot's own; the others stay as they are."""
    if ends is None:
        return values
    mapped, grippers = values.copy(), list(spec.grippers)
    opened, closed = np.array(ends, np.float32).T
    share = (values[..., grippers] - opened) / (closed - opened)
    mapped[..., grippers] = spec.gripper_open + share * (spec.gripper_closed - spec.gripper_open)
    return mapped


# --- LIBERO's, which its fingers tell ---


def libero_ends(
    folder: ExternalFolder,
    stated: Mapping[str, Any],
    state: NDArray[np.float32],
    action: NDArray[np.float32],
    draft: Draft,
) -> Ends:
    """Return LIBERO's ends: stated, read off the fingers, or asked for; SettingError where the fingers contradict."""
    measured = measured_gripper(state, action)
    if "gripper" not in stated:
        if measured is None:
            draft.ask(
                "the fingers do not show which gripper command closes (nothing is gripped, or they do not follow)"
            )
        else:
            draft.assume(f"gripper {measured[0]:g} opens and {measured[1]:g} closes, as the fingers show")
        found = measured or (-1.0, 1.0)
        draft.entries["gripper"] = {"open": found[0], "closed": found[1]}
        return (found,)
    ((opened, closed),) = ends = read_ends(folder, stated["gripper"], TOOL_ACTIONS.names)
    if measured is not None and (closed > opened) != (measured[1] > measured[0]):
        raise SettingError(
            f"{folder.path / OURS}: gripper says {opened:g} opens and {closed:g} closes, but the fingers do the opposite; "
            f'write {{"gripper": {{"open": {measured[0]:g}, "closed": {measured[1]:g}}}}}'
        )
    return ends


def measured_gripper(state: NDArray[np.float32], action: NDArray[np.float32]) -> tuple[float, float] | None:
    """Numbers for open and for closed, by ``state`` ``[n, 8]`` (two fingers last, m) and ``action`` ``[n, 7]``.

    None where commands (two sides of [-1, 1] or [0, 1]) or fingers do not show it.
    """
    command, opening = action[:, 6], state[:, 6] - state[:, 7]
    ends = (0.0 if command.min() > -0.5 else -1.0), 1.0
    if command.min() < ends[0] - BEYOND or command.max() > ends[1] + BEYOND:
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
