"""A policy behind the websocket protocol of RoboTwin's evaluation client (XPolicyLab), read at commit 7198143e890e.

Every message is one binary frame of MessagePack: ``message_type``, ``message_id``, ``evaluation_id``, ``action_case_id``,
``trial_id``, ``repeat_index``, ``step``, ``sent_at``, ``payload``. Arrays come as maps of their bytes (msgpack-numpy's form); only
numbers are taken. Requests and answers::

    hello → hello_ack      prepare_case → prepare_case_ack    reset → reset_result    infer → infer_result
    trial_end → trial_end_ack      heartbeat → heartbeat_ack    close → (the connection ends)      anything wrong → error

Frames are never unpickled, and nothing is answered to a connection that sends something else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import WorldrlError
from worldrl.core.extras import require
from worldrl.rollout.rows import Actor, Row
from worldrl.rollout.specs import EpisodeSpec
from worldrl.workers.robotwin_facts import ARM_JOINTS, CLIENT_CAMERAS, SIZE

ANSWERS = {
    "hello": "hello_ack",
    "prepare_case": "prepare_case_ack",
    "reset": "reset_result",
    "infer": "infer_result",
    "trial_end": "trial_end_ack",
    "heartbeat": "heartbeat_ack",
}
ECHOED = ("message_id", "evaluation_id", "action_case_id", "trial_id", "repeat_index", "step")
STATE_PARTS = ("left_arm_joint_state", "left_ee_joint_state", "right_arm_joint_state", "right_ee_joint_state")
LENGTHS = (ARM_JOINTS, 1, ARM_JOINTS, 1)
EXTRA = "robotwin"

logger = logging.getLogger(__name__)


class FrameError(WorldrlError, ValueError):
    """A frame or an observation is not one of the protocol; the text goes back to the client."""


def numbers(table: dict[Any, Any]) -> Any:
    """Turn msgpack-numpy's map of an array or a scalar into numpy; other maps stay.

    Raises:
        FrameError: it announces anything but numbers and bools, or its bytes do not fill it.
    """
    if b"nd" not in table:
        return table
    kind = table.get(b"type")
    dtype = np.dtype(kind.decode() if isinstance(kind, bytes) else str(kind))
    if table.get(b"kind") not in (None, b"", "") or dtype.kind not in "buif":
        raise FrameError(f"array of {kind!r}: only numbers and bools are taken")
    flat = np.frombuffer(table[b"data"], dtype)
    shape = tuple(table.get(b"shape", ())) if table[b"nd"] else ()
    if flat.size != int(np.prod(shape)):
        raise FrameError(f"array of shape {shape} comes with {flat.size} numbers")
    return flat.reshape(shape)


def decode_frame(message: bytes) -> dict[str, Any]:
    """Unpack one frame.

    Raises:
        FrameError: it is none.
    """
    try:
        frame = require("msgpack", extra=EXTRA).unpackb(message, raw=False, object_hook=numbers)
    except FrameError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise FrameError(f"not a MessagePack frame: {error}") from error
    if not isinstance(frame, dict) or "message_type" not in frame or "message_id" not in frame:
        raise FrameError("a frame needs message_type and message_id")
    return frame


def encode_answer(request: Mapping[str, Any], kind: str, payload: Mapping[str, Any]) -> bytes:
    """Pack the answer to a request; it carries the request's identifiers."""
    frame = {name: request.get(name) for name in ECHOED}
    frame |= {"message_type": kind, "sent_at": datetime.now(UTC).isoformat(), "payload": dict(payload)}
    frame["step"] = int(frame["step"] or 0)
    return require("msgpack", extra=EXTRA).packb(frame, use_bin_type=True)


def state_of(observation: Mapping[str, Any]) -> NDArray[np.float32]:
    """Measured joints and grippers of an observation, float32 ``[14]``.

    Raises:
        FrameError: a part is missing or of another length.
    """
    given = observation.get("state", {})
    parts = [np.asarray(given.get(name, []), np.float32).ravel() for name in STATE_PARTS]
    found = [part.size for part in parts]
    if found != list(LENGTHS):
        raise FrameError(
            f"observation.state: {dict(zip(STATE_PARTS, found, strict=True))}, wanted are {LENGTHS} numbers"
        )
    return np.concatenate(parts)


def pictures_of(observation: Mapping[str, Any], size: tuple[int, int]) -> dict[str, NDArray[np.uint8]]:
    """Pictures of an observation under the names of a two-armed policy's observation, scaled to ``size`` (rows, columns).

    Raises:
        FrameError: the head camera's is missing or no picture.
    """
    vision, found, (rows, columns) = observation.get("vision", {}), {}, size
    for camera, theirs in CLIENT_CAMERAS.items():
        picture = np.asarray(vision.get(theirs, {}).get("color", []))
        if picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8:
            found["image" if camera == "head" else f"{camera}_image"] = cv2.resize(
                picture, (columns, rows), interpolation=cv2.INTER_AREA
            )
        elif camera == "head":
            raise FrameError(
                f"observation.vision.{theirs}.color: must be uint8 [Y, X, 3], it is {picture.dtype} {picture.shape}"
            )
    return found


def named_actions(chunk: NDArray[np.float32]) -> list[dict[str, list[float]]]:
    """Actions ``[L, 14]`` as the client's list of tables."""
    ends = np.cumsum(LENGTHS)[:-1]
    return [
        {name: part.tolist() for name, part in zip(STATE_PARTS, np.split(action, ends), strict=True)}
        for action in chunk
    ]


class Conversation:
    """One client's connection: it plays one episode after the other.

    Args:
        actor: decides; one at a time, whatever the number of connections.
        picture: rows and columns of the pictures that the policy sees.
        turn: held while the actor decides.
    """

    def __init__(self, actor: Actor, picture: tuple[int, int], turn: threading.Lock) -> None:
        self._actor, self._picture, self._turn = actor, picture, turn
        self._row: Row | None = None
        self._command: NDArray[np.float32] | None = None
        self._episodes = 0

    def answer(self, message: bytes) -> bytes | None:
        """Serve one frame; None ends the connection."""
        request = decode_frame(message)
        kind, payload = request["message_type"], request.get("payload") or {}
        if kind == "close":
            return None
        try:
            if kind not in ANSWERS:
                raise FrameError(f"unknown message_type {kind!r}")
            return encode_answer(request, ANSWERS[kind], self._serve(kind, payload))
        except Exception as error:  # the client hears of it; the server goes on for others
            logger.warning("%s: %s", kind, error)
            code = {"infer": "infer_failed", "reset": "reset_failed"}.get(str(kind), "invalid_frame")
            return encode_answer(request, "error", {"code": code, "message": str(error), "details": {}})

    def _serve(self, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "reset":
            self._begin(payload)
        if kind == "infer":
            return self._infer(payload)
        return {"ok": True}

    def _begin(self, payload: Mapping[str, Any]) -> None:
        action_type = payload.get("action_type", "joint")
        if action_type not in ("joint", "qpos"):
            raise FrameError(f"action_type: this policy gives joint targets, the client wants {action_type!r}")
        spec = EpisodeSpec(str(payload.get("task_name", "unnamed")), self._episodes, int(payload.get("seed", 0)))
        self._row, self._command = Row(spec, None, {}, str(payload.get("instruction", ""))), None
        self._episodes += 1
        self._actor.begin(self._row)

    def _infer(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        if self._row is None:
            raise FrameError("infer before reset")
        observation, began_s = payload.get("observation") or {}, time.monotonic()
        state = state_of(observation)
        command = state if self._command is None else self._command
        self._row.instruction = str(observation.get("instruction") or self._row.instruction)
        self._row.obs = {**pictures_of(observation, self._picture), "state": state, "command": command}
        with self._turn:
            chunk = self._actor.act([self._row])[0]
        if chunk.shape[1] != SIZE:
            raise FrameError(f"the policy's actions have {chunk.shape[1]} numbers, RoboTwin's {SIZE}")
        self._command = chunk[-1].astype(np.float32)  # the client executes the whole chunk
        return {"actions": named_actions(chunk), "latency_ms": 1000 * (time.monotonic() - began_s)}


def make_handler(actor: Actor, picture: tuple[int, int]) -> Callable[[Any], None]:
    """Return what a websocket server calls with each connection.

    Args:
        actor: decides.
        picture: rows and columns of the pictures that the policy sees.
    """
    turn = threading.Lock()

    def handle(connection: Any) -> None:
        conversation = Conversation(actor, picture, turn)
        for message in connection:
            if not isinstance(message, bytes):
                continue
            try:
                reply = conversation.answer(message)
            except FrameError as error:
                logger.warning("not a frame: %s", error)
                return
            if reply is None:
                return
            connection.send(reply)

    return handle
