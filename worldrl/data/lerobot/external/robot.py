"""Whose robot an external dataset shows, recognised or stated, and which of its columns are that robot's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from worldrl.core.embodiment import AnyEmbodiment, JointEmbodiment, embodiment_from_json
from worldrl.core.errors import SettingError
from worldrl.data.lerobot.external.bounds import clipped, clips
from worldrl.data.lerobot.external.folder import ExternalFolder
from worldrl.data.lerobot.external.gripper import Ends, libero_ends, plain_ends, read_ends
from worldrl.data.lerobot.external.joints import (
    describe_joints,
    ends_for,
    gripper_faults,
    joint_faults,
    looks_like_changes,
    one_sided,
)
from worldrl.data.lerobot.external.libero import has_libero_numbers, libero_differences
from worldrl.data.lerobot.external.libero_robot import libero_embodiment
from worldrl.data.lerobot.external.measured_tool import describe_tool
from worldrl.data.lerobot.external.sample import SAMPLE_ROWS, Sample
from worldrl.data.lerobot.external.stated import Columns, Draft, by_name, labels_of, read_columns_of, unclear, wrong
from worldrl.data.lerobot.format import COMMAND, ROBOT_TYPE

LIBERO = "libero"


@dataclass(frozen=True)
class Body:
    """A robot, and the columns that hold its numbers."""

    robot: AnyEmbodiment  # whose actions these are
    state: tuple[Columns, ...]  # features of the measured numbers, in the robot's order
    action: tuple[Columns, ...]  # features of the action, likewise
    command: tuple[Columns, ...] = ()  # features of the command; empty where it follows from state or actions
    # Recorded numbers for open and for closed, of each gripper; None where they are the robot's own.
    gripper: Ends | None = None


def read_body(folder: ExternalFolder, stated: Mapping[str, Any], draft: Draft) -> Body:
    """Return the robot and its columns; ``draft`` receives what was assumed, and what is unknown.

    SettingError where what is stated is impossible, or no robot has such numbers; ArtefactError for an unreadable file.
    """
    state, action = (read_columns_of(folder, stated, name) for name in ("state", "action"))
    sample, given = Sample.read(folder, state, action, limit=SAMPLE_ROWS), stated.get("robot")
    if given is None and has_libero_numbers(sample):
        differences = libero_differences(folder.robot_type, sample)
        given = LIBERO
        if folder.robot_type == ROBOT_TYPE:
            return _lost_tool(folder, stated, Body(libero_embodiment(), state, action), draft)
        if differences:
            draft.ask(f"{differences}; whose robot it is must be said")
        else:
            draft.assume("the robot is LIBERO's, by 8 and 7 numbers and two opposite fingers (robot: 'libero')")
    if given is None:
        return _unknown(folder, stated, Body(libero_embodiment(), state, action), draft)
    robot = _stated_robot(folder, given, draft)
    draft.entries["robot"] = given
    own = isinstance(robot, JointEmbodiment)
    state, action = (
        by_name(folder, key, parts, names, own=own)
        for key, parts, names in (("state", state, robot.state_names), ("action", action, robot.actions.names))
    )
    body = Body(robot, state, action)
    _require_sizes(folder, body)
    command = read_command(folder, stated, robot)
    if robot == libero_embodiment():
        ends = libero_ends(folder, stated, sample.state, sample.action, draft)
        return replace(body, command=command, gripper=ends)
    ends = read_ends(folder, stated["gripper"], robot.actions.names) if "gripper" in stated else None
    body = replace(body, command=command, gripper=ends)
    return _held_against_rows(folder, stated, body, draft) if own else body


def _stated_robot(folder: ExternalFolder, given: Any, draft: Draft) -> AnyEmbodiment:
    if given == LIBERO:
        robot = libero_embodiment()
        if folder.fps != robot.control_hz:
            draft.assume(
                f"rows are LIBERO's control steps, {robot.control_hz:g} a second, though info.json says {folder.fps:g} fps"
            )
        return robot
    try:
        robot = embodiment_from_json(given)
        robot.actions  # noqa: B018, its ranges are checked
    except (AttributeError, KeyError, TypeError, ValueError) as reason:
        raise wrong(folder, "robot", f"'libero' or an embodiment ({reason})", given) from reason
    if robot.control_hz != folder.fps:
        raise wrong(folder, "robot", f"of control_hz {folder.fps:g}, as info.json says fps: every row is a step", given)
    return robot


def _held_against_rows(folder: ExternalFolder, stated: Mapping[str, Any], body: Body, draft: Draft) -> Body:
    """Compare a stated robot of joints with all rows, and describe it by them where it contradicts them."""
    robot = body.robot
    if not isinstance(robot, JointEmbodiment):
        return body
    sample = Sample.read(folder, body.state, body.action)
    if clips(folder, stated):
        sample = clipped(sample, robot.actions, body.gripper)
    if looks_like_changes(sample):
        draft.assume("actions are joint targets, though they do not follow the measured numbers (robot.kind: 'joints')")
    about_ends = gripper_faults(robot, sample, body.gripper)
    faults = about_ends or joint_faults(robot, sample, body.gripper, derived=not body.command)
    for fault in faults:
        draft.ask(fault)
    ends = ends_for(robot.names, sample) if about_ends else body.gripper
    if faults:
        draft.entries["robot"] = describe_joints(robot.names, sample, ends, folder.fps)
    for name in one_sided(robot, sample, body.gripper):
        draft.assume(f"{name} stays on one side of the middle of its stated ends, so it never opens or never closes")
    if ends is not None:
        draft.entries["gripper"] = plain_ends(ends, robot.names)
    elif about_ends:
        draft.entries.pop("gripper", None)
    return body


def _unknown(folder: ExternalFolder, stated: Mapping[str, Any], body: Body, draft: Draft) -> Body:
    """Ask for the robot, with joint targets as the data have them."""
    size, measured = (sum(part.size for part in parts) for parts in (body.action, body.state))
    about = f"(robot_type {folder.robot_type!r}, {measured} numbers of state, {size} of action, not LIBERO's)"
    names = labels_of(folder, body.action) or tuple(f"joint_{i}" for i in range(size))
    state = body.state
    if measured != size:
        known = set(names) <= set(labels_of(folder, state))
        state = by_name(folder, "state", state, names, own=True) if known else _part_of(folder, state, size, about)
        draft.entries["state"] = [_written(folder, part) for part in state]
    sample = Sample.read(folder, state, body.action)
    ends = read_ends(folder, stated["gripper"], names) if "gripper" in stated else ends_for(names, sample)
    draft.ask(f"the robot is unknown {about}")
    if looks_like_changes(sample):
        draft.ask(
            "the actions do not follow the measured numbers, so they are no joint targets, and changes are not read"
        )
    described = describe_joints(names, sample, ends, folder.fps)
    draft.entries["robot"] = described
    if ends is not None:
        draft.ask("which numbers of the gripper are open and closed is unknown (the larger one is taken for open)")
        draft.entries["gripper"] = plain_ends(ends, names)
    command = read_command(folder, stated, embodiment_from_json(described))
    return Body(embodiment_from_json(described), state, body.action, command, ends)


def _part_of(folder: ExternalFolder, state: tuple[Columns, ...], size: int, about: str) -> tuple[Columns, ...]:
    """Take the first numbers of a state that has more than the action."""
    if sum(part.size for part in state) < size:
        vectors = ", ".join(name for name, f in folder.features.items() if len(f.shape) == 1 and f.shape[0] >= size)
        raise unclear(
            folder,
            f"the robot is unknown {about}, and the state has fewer numbers than the action; name a state with as many "
            f"(features that have them: {vectors})",
            f'{{"state": "{vectors.split(", ")[0]}"}}',
        )
    kept: list[Columns] = []
    for part in state:
        room = size - sum(one.size for one in kept)
        kept += [replace(part, last=min(part.last, part.first + room))] if room else []
    return tuple(kept)


def _written(folder: ExternalFolder, part: Columns) -> str:
    whole = (part.first, part.last) == (0, folder.features[part.feature].shape[0])
    return part.feature if whole else f"{part.feature}[{part.first}:{part.last}]"


def _lost_tool(folder: ExternalFolder, stated: Mapping[str, Any], body: Body, draft: Draft) -> Body:
    """Ask for the robot of a recording of worldrl whose header is gone, as its commands show it."""
    draft.ask(
        f"robot_type {ROBOT_TYPE!r} says that worldrl recorded it, but the description of its robot is gone (an editing tool "
        "rewrote info.json), and it is not LIBERO's"
    )
    if COMMAND not in folder.features and "command" not in stated:
        raise unclear(
            folder,
            f"{draft.problems[-1]}; there is no {COMMAND!r} to read it from: edit a copy that keeps this column, or",
            '{"robot": "the embodiment in meta/info.json of the original folder"}',
        )
    stated = {"command": COMMAND, **stated}
    command = read_columns_of(folder, stated, "command")
    robot = describe_tool(Sample.read(folder, command, body.action), folder.fps)
    draft.entries |= {"robot": robot.to_json(), "command": stated["command"]}
    return replace(body, robot=robot, command=command)


def _require_sizes(folder: ExternalFolder, body: Body) -> None:
    """Refuse a state or an action of another size than the robot's, with the line that takes a part."""
    robot = body.robot
    for key, parts, names in (
        ("state", body.state, robot.state_names),
        ("action", body.action, robot.actions.names),
    ):
        size = sum(part.size for part in parts)
        if size > len(names):
            raise unclear(
                folder,
                f"{key} has {size} numbers, the robot {len(names)} ({', '.join(names)})",
                f'{{"{key}": ["{parts[0].feature}[0:{len(names)}]"]}}',
            )
        if size < len(names):
            raise SettingError(
                f"{folder.info}: {key} has {size} numbers, the robot {len(names)} ({', '.join(names)}); "
                f"name more columns as {key!r}, or another robot"
            )


def read_command(folder: ExternalFolder, stated: Mapping[str, Any], robot: AnyEmbodiment) -> tuple[Columns, ...]:
    """Return the features of the command; none where it follows from state or actions. SettingError if unknown."""
    if "command" in stated:
        own = isinstance(robot, JointEmbodiment)
        parts = by_name(folder, "command", read_columns_of(folder, stated, "command"), robot.command_names, own=own)
        if sum(part.size for part in parts) != len(robot.command_names):
            raise wrong(folder, "command", f"{len(robot.command_names)} numbers", stated["command"])
        return parts
    if isinstance(robot, JointEmbodiment) or robot == libero_embodiment():
        return ()
    raise unclear(folder, "what this robot was commanded is unknown", '{"command": "observation.command"}')
