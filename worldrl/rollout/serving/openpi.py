"""A policy behind OpenPI's websocket protocol, as ``openpi-client`` 0.1.2 speaks it.

The server sends its metadata first. Then each binary message is one observation, and each answer
``{"actions": float32 [L, A], "server_timing": {"infer_ms", "prev_total_ms"}}``. A fault is answered as text, and the
connection stays open. The protocol has no reset: a connection is one episode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.instructions import MAX_CHARACTERS
from worldrl.core.observation import COMMAND, IMAGE, STATE, images_among
from worldrl.policies.lerobot.folder import is_lerobot_folder, read_lerobot_folder
from worldrl.policies.lerobot.inputs import match_inputs, measured_size
from worldrl.policies.remote.address import PROMPT
from worldrl.policies.remote.packing import FrameError, floats_of, image_of, pack, shown, text_of, unpack
from worldrl.policies.remote.policy import KIND, Served, served_metadata
from worldrl.rollout.agents.policy_folder import PolicyFacts
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.serving.server import Turn, logged


def served_keys(folder: Path, facts: PolicyFacts) -> dict[str, str]:
    """Names of what a policy wants → observations: images, the measured state, the command, the instruction.

    The names are those of OpenPI's LIBERO example, ``observation/command`` beside them.
    """
    names = [*images_among(facts.more), *((STATE,) if STATE in facts.more else ())]
    if not is_lerobot_folder(folder) or COMMAND in match_inputs(read_lerobot_folder(folder)).values():
        names.append(COMMAND)
    return {**{f"observation/{name}": name for name in names}, PROMPT: PROMPT}


class Conversation:
    """One client's connection. ``side`` maps the client's numbers and images to the policy's, and back."""

    def __init__(self, actor: Actor, side: RobotSide, served: Served, turn: Turn, number: int) -> None:
        self._actor, self._side, self._served, self._turn = actor, side, served, turn
        self._number = number
        self._row: Row | None = None
        self._last_s: float | None = None  # seconds of the request before, until its answer was packed
        self.greeting = pack(served_metadata(served))

    def answer(self, message: bytes | str) -> bytes | str:
        """Answer one observation with actions, or say in a text why not."""
        if isinstance(message, str):
            return logged("infer", FrameError("an observation is binary MessagePack, this message is text"))
        received_s = time.monotonic()
        try:
            actions, infer_s = self._infer(unpack(message))
        except Exception as error:  # the client gets the error; the server continues for others
            return logged("infer", error)
        timing = {"infer_ms": 1000 * infer_s}
        if self._last_s is not None:
            timing["prev_total_ms"] = 1000 * self._last_s
        reply = pack({"actions": actions, "server_timing": timing})
        self._last_s = time.monotonic() - received_s
        return reply

    def _infer(self, observation: Mapping[str, Any]) -> tuple[np.ndarray, float]:
        obs, instruction = self._observed(observation)
        began_s = time.monotonic()
        with self._turn:
            if self._row is None:
                self._row = Row(EpisodeSpec("served", self._number, 0), None, obs, instruction)
                self._actor.begin(self._row)
            self._row.obs, self._row.instruction = obs, instruction
            chunk = self._actor.act([self._row])[0]
        actions = self._side.targets(chunk).astype(np.float32)
        if not np.isfinite(actions).all():
            raise FrameError("the policy's actions hold numbers that are not finite")
        return actions, time.monotonic() - began_s

    def _observed(self, observation: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        keys = self._served.keys
        if missing := [name for name in keys if name not in observation]:
            sent = ", ".join(f"{name} {shown(value)}" for name, value in list(observation.items())[:16])
            raise FrameError(f"{missing[0]}: missing; the policy takes {', '.join(keys)}; sent were {sent or 'none'}")
        obs: dict[str, Any] = {COMMAND: np.zeros(self._served.actions.size, np.float32)}
        for name, source in keys.items():
            if source in (STATE, COMMAND):
                obs[source] = self._side.numbers(self._numbers(name, source, observation[name]))
            elif source != PROMPT:
                obs[source] = self._side.image(image_of(name, observation[name]))
        obs.setdefault(IMAGE, np.zeros((*self._served.image, 3), np.uint8))
        return obs, text_of(observation, PROMPT, most=MAX_CHARACTERS)

    def _numbers(self, name: str, source: str, value: object) -> np.ndarray:
        actions = self._served.actions
        size = measured_size(actions) if source == STATE else actions.size
        found = floats_of(name, value)
        if len(found) != size:
            raise FrameError(f"{name}: the policy takes {size} numbers, {len(found)} were sent")
        return found


def openpi_conversations(
    actor: Actor, side: RobotSide, folder: Path, facts: PolicyFacts, decoding: str
) -> Callable[[Turn], Conversation]:
    """Make the conversation of a new client; each has random streams of its own.

    ``decoding`` says how chunks are drawn; it belongs to the policy's identity.
    """
    served = Served(
        kind=KIND,
        keys=served_keys(folder, facts),
        image=facts.picture,
        actions=facts.actions,
        hash=f"{facts.hash}, {decoding}",
    )
    numbers = count()
    return lambda turn: Conversation(actor, side, served, turn, next(numbers))
