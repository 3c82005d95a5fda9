"""Frames of RoboTwin's evaluation client: decoded, checked and answered.

A client may send anything. Every fault is a :class:`FrameError`, whose text has a bounded length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.image_fit import Image
from worldrl.policies.remote.packing import FrameError, floats_of, image_of, map_of, pack, text_of, unpack, whole_of
from worldrl.workers.robotwin.facts import ARM_JOINTS, CLIENT_CAMERAS

IDENTIFIERS = ("message_id", "evaluation_id", "action_case_id", "trial_id")
COUNTS = ("repeat_index", "step")
STATE_PARTS = ("left_arm_joint_state", "left_ee_joint_state", "right_arm_joint_state", "right_ee_joint_state")
LENGTHS = (ARM_JOINTS, 1, ARM_JOINTS, 1)


def decode_frame(message: bytes) -> dict[str, Any]:
    """Unpack one frame; message type, identifiers and counts are checked, ``payload`` is a map.

    Raises FrameError (it is none).
    """
    frame = unpack(message)
    try:
        text_of(frame, "message_type")
        for name in IDENTIFIERS:
            _identifier(frame, name)
        for name in COUNTS:
            whole_of(frame, name)
        if frame.get("message_id") is None:
            raise FrameError("message_id: missing")
        return {**frame, "payload": map_of(frame, "payload")}
    except FrameError as error:
        raise FrameError(str(error), frame) from error


def _identifier(table: Mapping[str, Any], name: str) -> str | int | None:
    if table.get(name) is None:
        return None
    return text_of(table, name) if isinstance(table[name], str) else whole_of(table, name)


def state_of(observation: Mapping[str, Any]) -> NDArray[np.float32]:
    """Measured joints and grippers of an observation, float32 ``[14]``.

    Raises FrameError (a part is missing, of another length or not finite).
    """
    given = map_of(observation, "state")
    parts = [floats_of(f"observation.state.{name}", given.get(name, [])) for name in STATE_PARTS]
    found = [part.size for part in parts]
    if found != list(LENGTHS):
        raise FrameError(
            f"observation.state: {dict(zip(STATE_PARTS, found, strict=True))}, wanted are {LENGTHS} numbers"
        )
    return np.concatenate(parts)


def images_of(observation: Mapping[str, Any], fitted: Callable[[Image], Image]) -> dict[str, Image]:
    """Images of an observation, named as those of a bimanual policy; ``fitted`` brings each to the policy's size.

    Raises FrameError (the head camera's is missing, or one is no image).
    """
    vision, found = map_of(observation, "vision"), {}
    for camera, theirs in CLIENT_CAMERAS.items():
        image = map_of(vision, theirs).get("color")
        if image is None and camera != "head":
            continue
        checked = image_of(f"observation.vision.{theirs}.color", image)
        found["image" if camera == "head" else f"{camera}_image"] = fitted(checked)
    return found


def named_actions(chunk: NDArray[np.float32]) -> list[dict[str, list[float]]]:
    """Actions ``[L, 14]`` as the client's list of tables."""
    ends = np.cumsum(LENGTHS)[:-1]
    return [
        {name: part.tolist() for name, part in zip(STATE_PARTS, np.split(action, ends), strict=True)}
        for action in chunk
    ]


def encode_answer(request: Mapping[str, Any], kind: str, payload: Mapping[str, Any]) -> bytes:
    """Pack the answer to a request; it carries the request's identifiers, null where invalid."""
    return pack(_answer(request, kind, payload))


def text_refusal() -> str:
    """The answer to a text frame, as JSON text."""
    words = "a frame is binary MessagePack, this one is text; send the packed bytes as a binary frame"
    return json.dumps(_answer({}, "error", {"code": "invalid_frame", "message": words, "details": {}}))


def _answer(request: Mapping[str, Any], kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    frame = {name: _echo(request, name) for name in (*IDENTIFIERS, *COUNTS)}
    frame["step"] = frame["step"] if isinstance(frame["step"], int) else 0
    return {**frame, "message_type": kind, "sent_at": datetime.now(UTC).isoformat(), "payload": dict(payload)}


def _echo(request: Mapping[str, Any], name: str) -> str | int | None:
    try:
        return _identifier(request, name)
    except FrameError:
        return None
