"""A policy behind the websocket protocol of RoboTwin's evaluation client (XPolicyLab), at commit 7198143e890e.

Every message is one binary frame of MessagePack: ``message_type``, ``message_id``, ``evaluation_id``,
``action_case_id``, ``trial_id``, ``repeat_index``, ``step``, ``sent_at``, ``payload``. Arrays are maps of their bytes
(msgpack-numpy's form) and hold only numbers (``rollout.suites.policy_frames``). Requests and answers::

    hello → hello_ack      prepare_case → prepare_case_ack    reset → reset_result    infer → infer_result
    trial_end → trial_end_ack      heartbeat → heartbeat_ack    close → (the connection ends)      any fault → error

A text frame gets an ``error`` as text. The connection stays open after an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.instructions import MAX_CHARACTERS
from worldrl.policies.remote.packing import FrameError, map_of, text_of, whole_of
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.serving.server import Turn, logged
from worldrl.rollout.suites.policy_frames import (
    decode_frame,
    encode_answer,
    images_of,
    named_actions,
    state_of,
    text_refusal,
)
from worldrl.workers.robotwin.facts import SIZE

ANSWERS = {
    "hello": "hello_ack",
    "prepare_case": "prepare_case_ack",
    "reset": "reset_result",
    "infer": "infer_result",
    "trial_end": "trial_end_ack",
    "heartbeat": "heartbeat_ack",
}

logger = logging.getLogger(__name__)


class Conversation:
    """One client's connection, which plays one episode after the other.

    The actor decides for one connection at a time. ``side`` maps the client's numbers and images to the policy's, and
    back; ``turn`` is held while the actor decides.
    """

    greeting = None

    def __init__(self, actor: Actor, side: RobotSide, turn: Turn) -> None:
        self._actor, self._side, self._turn = actor, side, turn
        self._row: Row | None = None
        self._command: NDArray[np.float32] | None = None
        self._episodes = 0

    def answer(self, message: bytes | str) -> bytes | str | None:
        """Answer one frame; None ends the connection."""
        if isinstance(message, str):
            logger.warning("a text frame was refused; frames are binary MessagePack")
            return text_refusal()
        request: Mapping[str, Any] = {}
        kind = "frame"
        try:
            request = decode_frame(message)
            kind = request["message_type"]
            if kind == "close":
                return None
            if kind not in ANSWERS:
                raise FrameError(f"unknown message_type {kind!r}")
            return encode_answer(request, ANSWERS[kind], self._serve(kind, request["payload"]))
        except FrameError as error:
            return _refuse(error.frame or request, kind, error)
        except Exception as error:  # the client gets the error; the server continues for others
            return _refuse(request, kind, error)

    def _serve(self, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "reset":
            self._begin(payload)
        if kind == "infer":
            return self._infer(payload)
        return {"ok": True}

    def _begin(self, payload: Mapping[str, Any]) -> None:
        action_type = text_of(payload, "action_type", "joint")
        if action_type not in ("joint", "qpos"):
            raise FrameError(f"action_type: this policy gives joint targets, the client wants {action_type!r}")
        spec = EpisodeSpec(text_of(payload, "task_name", "unnamed"), self._episodes, whole_of(payload, "seed"))
        row = Row(spec, None, {}, text_of(payload, "instruction", "", MAX_CHARACTERS))
        self._actor.begin(row)
        self._row, self._command = row, None
        self._episodes += 1

    def _infer(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        if self._row is None:
            raise FrameError("infer before reset")
        observation, began_s = map_of(payload, "observation"), time.monotonic()
        state = self._side.numbers(state_of(observation))
        command = state if self._command is None else self._command
        self._row.instruction = text_of(observation, "instruction", "", MAX_CHARACTERS) or self._row.instruction
        self._row.obs = {**images_of(observation, self._side.image), "state": state, "command": command}
        with self._turn:
            chunk = self._actor.act([self._row])[0]
        if chunk.shape[1] != SIZE:
            raise FrameError(f"the policy's actions have {chunk.shape[1]} numbers, RoboTwin's {SIZE}")
        self._command = chunk[-1].astype(np.float32)  # the client executes the whole chunk
        return {"actions": named_actions(self._side.targets(chunk)), "latency_ms": 1000 * (time.monotonic() - began_s)}


def robotwin_conversations(actor: Actor, side: RobotSide) -> Callable[[Turn], Conversation]:
    """Make the conversation of a new client; arguments as of :class:`Conversation`."""
    return lambda turn: Conversation(actor, side, turn)


def _refuse(request: Mapping[str, Any], kind: str, error: Exception) -> bytes:
    code = {"infer": "infer_failed", "reset": "reset_failed"}.get(kind, "invalid_frame")
    return encode_answer(request, "error", {"code": code, "message": logged(kind, error), "details": {}})
