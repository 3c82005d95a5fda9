"""Matching of a suite's observations with a policy's features; a mismatch is reported with both sides.

A suite shows ``image`` and ``command``; some show ``wrist_image``, for two arms ``left_wrist_image`` and
``right_wrist_image``, and ``state``. A policy's features have the names of its data set. Unambiguous ones are matched
automatically: a single camera, a camera with *wrist* in its name, LIBERO's ``image`` and ``image2``, the three cameras
of two arms, an ``observation.state`` of 8 numbers or of as many as there are joint targets, ``observation.command``.
For the others ``worldrl.json`` in the folder is required, because a wrong guess seems a bad policy.
"""

import json
from collections.abc import Mapping

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.data.lerobot.format import camera_role
from worldrl.policies.lerobot.folder import OURS, Feature, LerobotFolder

IMAGE, WRIST, COMMAND, STATE = "image", "wrist_image", "command", "state"
LEFT, RIGHT = "left_wrist_image", "right_wrist_image"
IMAGES = (IMAGE, WRIST, LEFT, RIGHT)
SHOWN = (IMAGE, COMMAND)  # observations of every suite, and of imagination
LIBERO_STATE = 8  # numbers of LIBERO's state
TWO_ARMED = {
    LEFT: ("left_wrist", "wrist_left", "left_hand", "left_camera"),
    RIGHT: ("right_wrist", "wrist_right", "right_hand", "right_camera"),
    IMAGE: ("head", "high"),
}
"""Words in the names of three cameras (ALOHA's, RoboTwin's own and its client's) by which they are identified."""

Shapes = Mapping[str, tuple[int, ...]]


def guess_source(name: str, feature: Feature, cameras: int, measured: int) -> str | None:
    """Unambiguous source of a feature, or None; ``cameras`` counts the policy's, ``measured`` the state's numbers."""
    last = name.rpartition(".")[2]
    if feature.kind == "VISUAL":
        if cameras == len(TWO_ARMED):
            return next((source for source, words in TWO_ARMED.items() if any(word in last for word in words)), None)
        role = camera_role(name, cameras)
        return None if role is None else {"scene": IMAGE, "wrist": WRIST}[role]
    if last == COMMAND:
        return COMMAND
    return STATE if last == STATE and feature.shape == (measured,) else None


def measured_size(actions: ActionSpec) -> int:
    """Numbers of a suite's ``state``: the measured joints of a robot with joint targets, or LIBERO's eight."""
    return actions.size if actions.absolute else LIBERO_STATE


def match_inputs(folder: LerobotFolder) -> dict[str, str]:
    """Name each feature's source; SettingError shows the ``worldrl.json`` to write where one is missing or shared."""
    cameras = sum(feature.kind == "VISUAL" for feature in folder.inputs.values())
    found = {
        name: folder.sources.get(name) or guess_source(name, feature, cameras, measured_size(folder.actions))
        for name, feature in folder.inputs.items()
    }
    placed = [source for source in found.values() if source in (*IMAGES, COMMAND, STATE)]
    if len(placed) < len(found) or len(set(placed)) < len(placed):
        raise SettingError(f"{folder.path}: its inputs cannot be placed\n{side_by_side(folder, {}, found)}")
    return {name: str(source) for name, source in found.items()}


def further(sources: Mapping[str, str]) -> tuple[str, ...]:
    """Sources besides those that every suite shows."""
    return tuple(source for source in sources.values() if source not in SHOWN)


def require_fit(folder: LerobotFolder, sources: Mapping[str, str], shown: Shapes, action_size: int, where: str) -> None:
    """Refuse a policy whose inputs or actions do not fit a suite, with a SettingError that names ``where``."""
    fits = all(shown.get(source) == _suite_shape(folder.inputs[name]) for name, source in sources.items())
    if not fits or folder.action_size != action_size:
        table = side_by_side(folder, {**shown, "action": (action_size,)}, sources)
        raise SettingError(f"{folder.path} does not fit {where}\n{table}")


def _suite_shape(feature: Feature) -> tuple[int, ...]:
    return (*feature.shape[1:], feature.shape[0]) if feature.kind == "VISUAL" else feature.shape


def side_by_side(folder: LerobotFolder, shown: Shapes, sources: Mapping[str, str | None]) -> str:
    """Both specifications as a table, and the nearest adapter."""
    rows = [("the policy takes", "the suite shows")]
    for name, feature in folder.inputs.items():
        source = sources.get(name)
        have = f"{source} {shown.get(source, 'not shown')}" if source and shown else (source or "?")
        rows.append((f"{name} {_suite_shape(feature)}", have))
    rows.append((f"action ({folder.action_size},)", f"action {shown.get('action', '')}" if shown else "action"))
    width = max(len(left) for left, _ in rows)
    lines = [f"  {left:<{width}} | {right}" for left, right in rows]
    return "\n".join([*lines, f"nearest adapter: {nearest_adapter(folder, shown)}"])


def nearest_adapter(folder: LerobotFolder, shown: Shapes) -> str:
    """The ``worldrl.json`` under which the shapes of the inputs fit, or why none does."""
    if shown and shown.get("action") not in (None, (folder.action_size,)):
        return "none: actions of another size mean another robot; train the policy on this suite's demonstrations"
    left = dict(shown) or {**dict.fromkeys((*IMAGES, COMMAND), ()), STATE: (measured_size(folder.actions),)}
    chosen: dict[str, str] = {}
    for name, feature in folder.inputs.items():
        visual = feature.kind == "VISUAL"
        same = [s for s in left if s != "action" and (s in IMAGES) == visual and left[s] in ((), _suite_shape(feature))]
        if not same:
            return (
                f"none: nothing of {name}'s kind and shape is shown; train the policy without it, or on images of "
                "this suite's size"
            )
        chosen[name] = same[0]
        left.pop(same[0])
    return f"write {json.dumps({'inputs': chosen})} to {folder.path / OURS}"
