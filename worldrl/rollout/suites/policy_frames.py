"""Frames of RoboTwin's evaluation client: decoded, checked and answered.

A client may send anything. Every fault is a :class:`FrameError`, whose text has a bounded length.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import WorldrlError
from worldrl.core.extras import require
from worldrl.core.image_fit import Image
from worldrl.workers.link.wire import WireError, view
from worldrl.workers.robotwin.facts import ARM_JOINTS, CLIENT_CAMERAS

IDENTIFIERS = ("message_id", "evaluation_id", "action_case_id", "trial_id")
COUNTS = ("repeat_index", "step")
STATE_PARTS = ("left_arm_joint_state", "left_ee_joint_state", "right_arm_joint_state", "right_ee_joint_state")
LENGTHS = (ARM_JOINTS, 1, ARM_JOINTS, 1)
EXTRA = "robotwin"
MAX_TEXT = 256  # characters of a name or an identifier
MAX_ITEMS = 1 << 17  # values in a frame's lists and maps; arrays are sent as bytes, so a frame has a few dozen
MAX_SIDE = 4096  # pixels


class FrameError(WorldrlError, ValueError):
    """A frame or an observation is not one of the protocol; the text is sent back to the client.

    ``frame`` is its readable part, whose identifiers the answer repeats.
    """

    def __init__(self, text: str, frame: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.frame = frame or {}


def decode_frame(message: bytes) -> dict[str, Any]:
    """Unpack one frame; message type, identifiers and counts are checked, ``payload`` is a map.

    Raises FrameError (it is none).
    """
    frame = _unpack(message)
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


def _unpack(message: bytes) -> dict[str, Any]:
    msgpack, left = require("msgpack", extra=EXTRA), MAX_ITEMS

    def count(values: Any) -> Any:
        nonlocal left
        left -= 1 + len(values)
        if left < 0:
            raise FrameError(f"a frame holds at most {MAX_ITEMS} values; arrays travel as bytes")
        return numbers(values) if isinstance(values, dict) else values

    limits = {"max_array_len": MAX_ITEMS, "max_map_len": MAX_ITEMS}
    try:
        frame = msgpack.unpackb(message, raw=False, object_hook=count, list_hook=count, **limits)
    except FrameError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise FrameError(f"not a MessagePack frame: {reprlib.repr(str(error))}") from error
    if not isinstance(frame, dict):
        raise FrameError(f"a frame is a map, this is a {type(frame).__name__}")
    return frame


def numbers(table: dict[Any, Any]) -> Any:
    """Turn msgpack-numpy's map of an array or a scalar into numpy; other maps stay.

    Raises FrameError (it announces other values than numbers and bools, or its bytes do not fill it).
    """
    if b"nd" not in table:
        return table
    text, kind, data = (table.get(name) for name in (b"type", b"kind", b"data"))
    if not isinstance(data, bytes) or not isinstance(table[b"nd"], bool) or (isinstance(kind, bytes | str) and kind):
        raise FrameError("array: only numbers and bools are taken, in msgpack-numpy's form")
    try:
        dtype = text.decode(errors="replace") if isinstance(text, bytes) else text
        found = view("array", dtype, table.get(b"shape", []) if table[b"nd"] else [], data)
    except WireError as error:
        raise FrameError(str(error)) from error
    if found.nbytes != len(data):
        raise FrameError(f"array: {found.nbytes} bytes are announced, {len(data)} come")
    return found


def map_of(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A map within another, empty where it is missing or null; FrameError for anything else."""
    found = table.get(name)
    if found is not None and not isinstance(found, dict):
        raise _wrong(name, "a map", found)
    return found or {}


def text_of(table: Mapping[str, Any], name: str, missing: str | None = None, most: int = MAX_TEXT) -> str:
    """A text of at most ``most`` characters, ``missing`` where it is missing or null; else FrameError."""
    found = missing if table.get(name) is None else table[name]
    if not isinstance(found, str):
        raise _wrong(name, "text", found)
    if len(found) > most:
        raise FrameError(f"{name}: at most {most} characters, got {len(found)}; shorten it")
    return found


def whole_of(table: Mapping[str, Any], name: str) -> int:
    """A whole number, 0 where it is missing or null; FrameError for anything else."""
    found = 0 if table.get(name) is None else table[name]
    if isinstance(found, np.ndarray) and found.shape == () and found.dtype.kind in "ui":
        return int(found)  # a numpy scalar of the client's
    if not isinstance(found, int) or isinstance(found, bool):
        raise _wrong(name, "a whole number", found)
    return found


def _identifier(table: Mapping[str, Any], name: str) -> str | int | None:
    if table.get(name) is None:
        return None
    return text_of(table, name) if isinstance(table[name], str) else whole_of(table, name)


def _wrong(name: str, wanted: str, found: object) -> FrameError:
    kind = "missing" if found is None else type(found).__name__
    return FrameError(f"{name}: must be {wanted}, it is {kind}")


def state_of(observation: Mapping[str, Any]) -> NDArray[np.float32]:
    """Measured joints and grippers of an observation, float32 ``[14]``.

    Raises FrameError (a part is missing, of another length or not finite).
    """
    given = map_of(observation, "state")
    parts = [_floats(name, given.get(name, [])) for name in STATE_PARTS]
    found = [part.size for part in parts]
    if found != list(LENGTHS):
        raise FrameError(
            f"observation.state: {dict(zip(STATE_PARTS, found, strict=True))}, wanted are {LENGTHS} numbers"
        )
    return np.concatenate(parts)


def _floats(name: str, value: object) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(value, np.float32).ravel()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"observation.state.{name}: must be numbers, it is {type(value).__name__}") from error
    if not np.isfinite(found).all():
        raise FrameError(f"observation.state.{name}: must be finite")
    return found


def images_of(observation: Mapping[str, Any], fitted: Callable[[Image], Image]) -> dict[str, Image]:
    """Images of an observation, named as those of a two-armed policy; ``fitted`` brings each to the policy's size.

    Raises FrameError (the head camera's is missing, or one is no image).
    """
    vision, found = map_of(observation, "vision"), {}
    for camera, theirs in CLIENT_CAMERAS.items():
        image = map_of(vision, theirs).get("color")
        if image is None and camera != "head":
            continue
        found["image" if camera == "head" else f"{camera}_image"] = fitted(_image(theirs, image))
    return found


def _image(camera: str, image: object) -> NDArray[np.uint8]:
    shown = type(image).__name__
    if isinstance(image, np.ndarray):
        shown = f"{image.dtype} {image.shape}"
        inside = image.ndim == 3 and all(1 <= side <= MAX_SIDE for side in image.shape[:2])
        if image.dtype == np.uint8 and inside and image.shape[2] == 3:
            return image
    raise FrameError(
        f"observation.vision.{camera}.color: must be uint8 [Y, X, 3] of 1 to {MAX_SIDE} pixels per side, it is {shown}"
    )


def named_actions(chunk: NDArray[np.float32]) -> list[dict[str, list[float]]]:
    """Actions ``[L, 14]`` as the client's list of tables."""
    ends = np.cumsum(LENGTHS)[:-1]
    return [
        {name: part.tolist() for name, part in zip(STATE_PARTS, np.split(action, ends), strict=True)}
        for action in chunk
    ]


def encode_answer(request: Mapping[str, Any], kind: str, payload: Mapping[str, Any]) -> bytes:
    """Pack the answer to a request; it carries the request's identifiers, null where invalid."""
    return require("msgpack", extra=EXTRA).packb(_answer(request, kind, payload), use_bin_type=True)


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
