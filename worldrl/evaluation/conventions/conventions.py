"""Other meanings that the numbers of recorded demonstrations may have: grippers, rotations, axes, delays, scales, images.

Each alternative is a function from the recorded numbers to the suite's, and the line of code that does the same where the data are
made or read. ``fit.py`` finds which alternatives hold.

Shapes legend: ``T`` steps, ``N`` demonstrations, ``Y X`` pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec

Actions = NDArray[np.float32]
Change = Callable[[NDArray[Any]], NDArray[Any]]
POSITION, TURN, GRIPPER, FINGERS = slice(0, 3), slice(3, 6), 6, slice(6, 8)
"""Places in an action ``[7]``; the first two and the last in a state ``[8]``."""
rotation: Any = Rotation
"""SciPy publishes no types."""


@dataclass(frozen=True)
class Alternative:
    """Another meaning of recorded numbers."""

    family: str  # of each family at most one alternative holds.
    name: str
    change: Change  # maps recorded numbers to the suite's.
    line: str  # the line of code for whatever made the data, or reads it.


# --- actions --------------------------------------------------------------------------------------------------------


def columns(part: int | slice | list[int], change: Change) -> Change:
    """Change some numbers of each action ``[T, A]``."""

    def apply(action: NDArray[Any]) -> NDArray[Any]:
        changed = action.copy()
        changed[:, part] = change(action[:, part])
        return changed

    return apply


def shifted(action: NDArray[Any], steps: int, spec: ActionSpec = TOOL_ACTIONS) -> NDArray[Any]:
    """Move actions that were recorded ``steps`` late (negative: early) to their own time; the ends hold still."""
    still = spec.hold(action[[0, -1]]).astype(action.dtype)
    if steps > 0:
        return np.concatenate([action[steps:], np.repeat(still[1:], steps, axis=0)])
    return np.concatenate([np.repeat(still[:1], -steps, axis=0), action[:steps]])


def from_euler(scale: float) -> Change:
    """Map Euler angles (fixed x, y, z; in units of ``scale`` rad) to rotation vectors in the same unit."""
    return lambda turn: (rotation.from_euler("xyz", turn * scale).as_rotvec() / scale).astype(turn.dtype)


def action_alternatives(rotation_scale: float, travel: float, turning: float) -> list[Alternative]:
    """Other meanings of recorded actions.

    ``rotation_scale`` is the rotation (rad) of action 1 in the suite. ``travel`` and ``turning`` are the lengths of the recorded path and
    angles over the replayed ones; they suggest scales.
    """
    gripper = [
        ("reversed: +1 opens", lambda g: -g, "action[..., 6] = -action[..., 6]"),
        ("0 opens, 1 closes", lambda g: 2 * g - 1, "action[..., 6] = 2 * action[..., 6] - 1"),
        ("0 closes, 1 opens", lambda g: 1 - 2 * g, "action[..., 6] = 1 - 2 * action[..., 6]"),
    ]
    found = [Alternative("gripper", name, columns(GRIPPER, change), line) for name, change, line in gripper]
    down = np.array([1.0, -1.0, -1.0], np.float32)
    turns: list[tuple[str, Change, str]] = [
        ("the other way round", lambda r: -r, "action[..., 3:6] = -action[..., 3:6]"),
        ("in the gripper's frame", lambda r: r * down, "action[..., 4:6] = -action[..., 4:6]"),
        ("in the order z, y, x", lambda r: r[:, ::-1], "action[..., 3:6] = action[..., [5, 4, 3]]"),
        (
            "Euler angles",
            from_euler(rotation_scale),
            'action[..., 3:6] = Rotation.from_euler("xyz", scale * action[..., 3:6]).as_rotvec() / scale',
        ),
    ]
    found += [Alternative("rotation", name, columns(TURN, change), line) for name, change, line in turns]
    half = np.array([-1.0, -1.0, 1.0], np.float32)
    axes: list[tuple[str, Change, str]] = [
        ("x and y reversed", lambda p: p * half, "action[..., 0:2] = -action[..., 0:2]"),
        ("y reversed", lambda p: p * np.array([1, -1, 1], np.float32), "action[..., 1] = -action[..., 1]"),
        ("x and y exchanged", lambda p: p[:, [1, 0, 2]], "action[..., 0:2] = action[..., [1, 0]]"),
    ]
    found += [Alternative("axes", name, columns(POSITION, change), line) for name, change, line in axes]
    found += delays(TOOL_ACTIONS)
    return [*found, *scale_alternatives(travel, turning)]


def delays(spec: ActionSpec) -> list[Alternative]:
    """Actions recorded up to two steps late or early."""
    found: list[Alternative] = []
    for steps in (1, 2, -1, -2):
        word = "late" if steps > 0 else "early"
        line = f"action = action[{steps}:]" if steps > 0 else f"observation = observation[{-steps}:]"
        name = f"recorded {abs(steps)} step{'s' if abs(steps) > 1 else ''} {word}"
        found.append(Alternative("delay", name, lambda a, steps=steps: shifted(a, steps, spec), line))
    return found


def scale_alternatives(travel: float, turning: float) -> list[Alternative]:
    """Factors by which the recorded motion is larger than the replayed one."""
    parts = (("position scale", POSITION, travel, "0:3"), ("rotation scale", TURN, turning, "3:6"))
    return [
        Alternative(
            family,
            f"too small by {factor:.3g}" if factor > 1 else f"too large by {1 / factor:.3g}",
            columns(part, lambda values, factor=factor: (values * factor).astype(values.dtype)),
            f"action[..., {text}] = {factor:.3g} * action[..., {text}]",
        )
        for family, part, measured, text in parts
        if math.isfinite(measured) and not 0.9 < measured < 1.1
        for factor in dict.fromkeys((measured, round_factor(measured)))
    ]


def round_factor(factor: float) -> float:
    """Round number or fraction nearest to a measured factor: conventions differ by those."""
    near = factor if factor > 1 else 1 / factor
    digits = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5)
    nearest = min((d * 10.0**p for d in digits for p in range(4)), key=lambda value: abs(math.log(value / near)))
    return nearest if factor > 1 else 1 / nearest


# --- states and images of the first frame ---------------------------------------------------------------------------


def other_sign(vector: NDArray[Any]) -> NDArray[Any]:
    """The same rotation from the other sign of its quaternion: the remaining angle of a full turn, in the other direction."""
    angle = np.linalg.norm(vector, axis=-1, keepdims=True)
    return vector * (1 - 2 * np.pi / np.maximum(angle, 1e-9))


def state_alternatives() -> list[Alternative]:
    """Other meanings of a recorded state ``[N, 8]``."""
    turns: list[tuple[str, Change, str]] = [
        ("of the other quaternion sign", other_sign, "quaternion = -quaternion  # before its axis-angle is taken"),
        (
            "Euler angles",
            from_euler(1.0),
            'state[..., 3:6] = Rotation.from_euler("xyz", state[..., 3:6]).as_rotvec()',
        ),
    ]
    found = [Alternative("state rotation", name, columns(TURN, change), line) for name, change, line in turns]
    fingers = np.array([1.0, -1.0], np.float32)
    change = columns(FINGERS, lambda values: values * fingers)
    found.append(Alternative("state fingers", "both positive", change, "state[..., 7] = -state[..., 7]"))
    millimetres = columns(POSITION, lambda values: values / 1000)
    found.append(Alternative("state position", "in millimetres", millimetres, "state[..., :3] /= 1000"))
    return found


def image_alternatives() -> list[Alternative]:
    """Orientations and colour orders of recorded images ``[N, Y, X, 3]``."""
    flips: dict[str, tuple[Change, str]] = {
        "upside down": (lambda i: i[:, ::-1], "image = image[::-1]"),
        "mirrored": (lambda p: p[:, :, ::-1], "image = image[:, ::-1]"),
        "turned by 180 degrees": (lambda p: p[:, ::-1, ::-1], "image = image[::-1, ::-1]"),
        "colours in the order blue, green, red": (lambda p: p[..., ::-1], "image = image[..., ::-1]"),
    }
    single = [Alternative("picture", name, change, line) for name, (change, line) in flips.items()]
    blue = single[-1]
    both = [
        replace(
            flip,
            name=f"{flip.name}, {blue.name}",
            change=lambda p, flip=flip: blue.change(flip.change(p)),
            line=f"{flip.line}[..., ::-1]",
        )
        for flip in single[:-1]
    ]
    return [*single, *both]
