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
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import WorldrlError
from worldrl.core.extras import require
from worldrl.core.instructions import MAX_CHARACTERS
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.policy_frames import (
    EXTRA,
    FrameError,
    decode_frame,
    encode_answer,
    images_of,
    map_of,
    named_actions,
    state_of,
    text_of,
    text_refusal,
    whole_of,
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
LARGEST_FRAME = 2**26  # bytes
GOODBYE_S = 0.3
"""Time for clients to confirm that the server closes (s); after it their connections are cut."""
CLOSE_S = 0.8
"""Longest time of closing (s); a longer decision is abandoned."""
_LOGGED = 300  # characters of an error in the log

logger = logging.getLogger(__name__)


class Turn:
    """Held while the actor decides: one decision at a time, and none once the server closes."""

    def __init__(self) -> None:
        self._lock, self.closing = threading.Lock(), False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.closing:
            self._lock.release()
            raise FrameError("the server closes")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Conversation:
    """One client's connection, which plays one episode after the other.

    The actor decides for one connection at a time. ``side`` maps the client's numbers and images to the policy's, and
    back; ``turn`` is held while the actor decides.
    """

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


def _refuse(request: Mapping[str, Any], kind: str, error: Exception) -> bytes:
    """Log one line and return the answer; only a bug of the server's is logged with its place."""
    bug = None if isinstance(error, WorldrlError) else error
    words = _line(error if bug is None else f"{type(error).__name__}: {error}")
    logger.warning("%s: %s", _line(kind), words, exc_info=bug)
    code = {"infer": "infer_failed", "reset": "reset_failed"}.get(kind, "invalid_frame")
    return encode_answer(request, "error", {"code": code, "message": words, "details": {}})


def _line(what: object) -> str:
    """One line of bounded length, without control characters that a client chose."""
    text = "".join(character if character.isprintable() else " " for character in str(what)[: 2 * _LOGGED])
    return text if len(text) <= _LOGGED else f"{text[: _LOGGED - 3]}..."


def make_handler(actor: Actor, side: RobotSide, turn: Turn) -> Callable[[Any], None]:
    """Return the handler of a websocket server's connections; arguments as of :class:`Conversation`."""
    left = require("websockets.exceptions", extra=EXTRA).ConnectionClosed

    def handle(connection: Any) -> None:
        conversation = Conversation(actor, side, turn)
        try:
            for message in connection:
                reply = conversation.answer(message)
                if reply is None or turn.closing:
                    return
                connection.send(reply)
        except left as error:
            if not turn.closing:
                logger.warning("a client left: %s", _line(error))

    return handle


class PolicyServer:
    """Listens, and answers each connection in a thread of its own; a context manager.

    ``side`` is as of :class:`Conversation`. The server closes ``listening``, a bound socket.
    """

    def __init__(self, actor: Actor, side: RobotSide, listening: socket.socket) -> None:
        self.socket, self._turn, self._ended = listening, Turn(), threading.Event()
        self._open: dict[threading.Thread, Any] = {}
        self._websockets = require("websockets.sync.server", extra=EXTRA)
        self._server = self._websockets.serve(
            make_handler(actor, side, self._turn),
            sock=listening,
            max_size=LARGEST_FRAME,
            create_connection=self._connect,
            logger=_connection_logger(),
        )

    def _connect(self, *args: Any, **kwargs: Any) -> Any:
        """Make a connection, in its own thread, and store it until that ends."""
        connection = self._websockets.ServerConnection(*args, **kwargs)
        for thread in [thread for thread in list(self._open) if not thread.is_alive()]:
            self._open.pop(thread, None)
        self._open[threading.current_thread()] = connection
        return connection

    def serve_until_interrupted(self) -> None:
        """Serve until Ctrl-C, or until another thread calls :meth:`shutdown`.

        All threads are daemons, so a decision of several minutes cannot hold the process.
        """
        threading.Thread(target=self.serve_forever, daemon=True).start()
        with suppress(KeyboardInterrupt):
            self._ended.wait()

    def serve_forever(self) -> None:
        """Serve until another thread calls :meth:`shutdown`."""
        try:
            self._server.serve_forever()
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """Accept no more connections, send clients the end, and cut those that do not answer."""
        self._turn.closing = True
        began_s = time.monotonic()
        ending = threading.Thread(target=self._server.shutdown, daemon=True)
        ending.start()
        ending.join(GOODBYE_S)
        while time.monotonic() - began_s < CLOSE_S and (ending.is_alive() or self._busy()):
            for connection in self._busy():
                with suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_RDWR)
            time.sleep(0.02)

    def _busy(self) -> list[Any]:
        return [connection for thread, connection in list(self._open.items()) if thread.is_alive()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _OneLine(logging.Filter):
    """Logs an error without its traceback: a client's fault is no bug of the server's."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.msg, record.args = f"{record.getMessage()}: {_line(record.exc_info[1])}", ()
            record.exc_info = None
        return True


def _connection_logger() -> logging.Logger:
    found = logging.getLogger(f"{__name__}.connection")
    if not found.filters:
        found.addFilter(_OneLine())
    return found
