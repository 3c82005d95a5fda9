"""Which of a suite's observations is which of a policy's features; what does not fit is said with both sides.

A suite shows ``image``, ``command``, and where it can ``wrist_image`` and ``state``. A policy's features have names of their
own data set. What is unmistakable is matched by itself: the only camera, a camera with *wrist* in its name, LIBERO's
``image`` and ``image2``, an 8-number ``observation.state``, ``observation.command``. The rest the folder's ``worldrl.json``
must say, because a wrong guess looks like a bad policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from worldrl.core.errors import SettingError
from worldrl.data.lerobot_format import camera_role
from worldrl.policies.lerobot_folder import OURS, Feature, LerobotFolder

IMAGE, WRIST, COMMAND, STATE = "image", "wrist_image", "command", "state"
SHOWN = (IMAGE, COMMAND)
"""What every suite shows, imagination too."""
LIBERO_STATE = 8
"""Numbers of LIBERO's state."""

Shapes = Mapping[str, tuple[int, ...]]


def guess_source(name: str, feature: Feature, cameras: int) -> str | None:
    """What a feature unmistakably is; None where nothing is sure."""
    last = name.rpartition(".")[2]
    if feature.kind == "VISUAL":
        role = camera_role(name, cameras)
        return None if role is None else {"scene": IMAGE, "wrist": WRIST}[role]
    if last == COMMAND:
        return COMMAND
    return STATE if last == STATE and feature.shape == (LIBERO_STATE,) else None


def match_inputs(folder: LerobotFolder) -> dict[str, str]:
    """Name each feature's source.

    Raises:
        SettingError: a feature cannot be placed, or two share a source; with the ``worldrl.json`` to write.
    """
    cameras = sum(feature.kind == "VISUAL" for feature in folder.inputs.values())
    found = {
        name: folder.sources.get(name) or guess_source(name, feature, cameras)
        for name, feature in folder.inputs.items()
    }
    valid = (IMAGE, WRIST, COMMAND, STATE)
    placed = [source for source in found.values() if source in valid]
    if len(placed) < len(found) or len(set(placed)) < len(placed):
        raise SettingError(f"{folder.path}: its inputs cannot be placed\n{side_by_side(folder, {}, found)}")
    return {name: str(source) for name, source in found.items()}


def require_fit(folder: LerobotFolder, sources: Mapping[str, str], shown: Shapes, action_size: int, where: str) -> None:
    """Refuse a policy whose spec is not the suite's.

    Args:
        folder: the policy.
        sources: of :func:`match_inputs`.
        shown: shapes of what the suite shows, pictures ``(Y, X, 3)``.
        action_size: numbers of the suite's actions.
        where: name of the suite, for people.

    Raises:
        SettingError: an input is not shown or has another shape, or actions have another size.
    """
    fits = all(shown.get(source) == _suite_shape(folder.inputs[name]) for name, source in sources.items())
    if not fits or folder.action_size != action_size:
        table = side_by_side(folder, {**shown, "action": (action_size,)}, sources)
        raise SettingError(f"{folder.path} does not fit {where}\n{table}")


def _suite_shape(feature: Feature) -> tuple[int, ...]:
    """The shape under which a suite shows a feature: pictures have their channels last."""
    return (*feature.shape[1:], feature.shape[0]) if feature.kind == "VISUAL" else feature.shape


def side_by_side(folder: LerobotFolder, shown: Shapes, sources: Mapping[str, str | None]) -> str:
    """Both specs as a table, and the nearest adapter."""
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
    """What to write into the folder so that the inputs fit as far as shapes tell, or that nothing does."""
    if shown and shown.get("action") not in (None, (folder.action_size,)):
        return "none: actions of another size mean another robot; train the policy on this suite's demonstrations"
    left = dict(shown) or {IMAGE: (), WRIST: (), COMMAND: (), STATE: (LIBERO_STATE,)}
    chosen: dict[str, str] = {}
    for name, feature in folder.inputs.items():
        visual = feature.kind == "VISUAL"
        same = [
            s
            for s in left
            if s != "action" and (s in (IMAGE, WRIST)) == visual and left[s] in ((), _suite_shape(feature))
        ]
        if not same:
            return (
                f"none: nothing of {name}'s kind and shape is shown; train the policy without it, or on pictures of "
                "this suite's size"
            )
        chosen[name] = same[0]
        left.pop(same[0])
    return f"write {json.dumps({'inputs': chosen})} to {folder.path / OURS}"
