"""What the page and the server send each other.

The page sends JSON text, ``{"do": NAME, ...}`` with the fields of :data:`REQUESTS`. The server answers with JSON text,
or with one binary message: length of the JSON head (4 bytes, little-endian), the head, then images as raw RGB, the
imagined frames before MuJoCo's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import SettingError, nearest
from worldrl.core.storage.typed import from_plain
from worldrl.play.session import Session, Worlds

GRIPPER = TOOL_ACTIONS.grippers[0]


@dataclass(frozen=True)
class StartRequest:
    """Begin a drive."""

    task: str
    index: int


@dataclass(frozen=True)
class DriveRequest:
    """Hold one action for a chunk."""

    action: tuple[float, ...]


@dataclass(frozen=True)
class PolicyRequest:
    """Let the policy drive one chunk."""


@dataclass(frozen=True)
class UndoRequest:
    """Keep so many chunks."""

    keep: int


@dataclass(frozen=True)
class SaveRequest:
    """Write the drive into the datasets."""


Request = StartRequest | DriveRequest | PolicyRequest | UndoRequest | SaveRequest
REQUESTS: Mapping[str, type[Request]] = {
    "start": StartRequest,
    "drive": DriveRequest,
    "policy": PolicyRequest,
    "undo": UndoRequest,
    "save": SaveRequest,
}


def decode_request(text: str) -> Request:
    """Read one request; SettingError for text that is none."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"message: is no JSON ({str(error)[:80]})") from error
    if not isinstance(fields, dict):
        raise SettingError(f"message: must be an object, got {type(fields).__name__}")
    name = fields.pop("do", None)
    if not isinstance(name, str) or name not in REQUESTS:
        raise SettingError(f"do: unknown request {str(name)[:40]!r}{nearest(str(name), REQUESTS)}")
    return from_plain(REQUESTS[name], fields, where=name)


def greeting(worlds: Worlds, token: str, session: Session, world_model: str, policy: str) -> dict[str, Any]:
    """Describe a session and what it can do; ``kept`` chunks follow, which the page shows at once."""
    from worldrl_envs.tasks import get_task

    robot, model = worlds.robot, worlds.model
    return {
        "kind": "hello",
        "token": token,
        "tasks": [{"name": name, "instruction": get_task(name).instruction} for name in worlds.tasks],
        "worldModel": world_model,
        "policy": policy,
        "controlHz": robot.control_hz,
        "chunkSteps": model.chunk_length,
        "chunkFrames": worlds.frames_per_chunk,
        "mostChunks": worlds.most_chunks,
        "metresPerStep": robot.step_m,
        "radiansPerStep": robot.step_rad,
        "threshold": worlds.rule.threshold,
        "started": session.started,
        "kept": len(session.chunks),
    }


def start_message(session: Session) -> bytes:
    """Show where a drive begins."""
    start = session.begun
    head = {
        "kind": "start",
        "task": start.spec.task,
        "index": start.spec.index,
        "instruction": start.record.instruction,
    }
    sheet = start.record.reference[None]
    return _packed(head, sheet, sheet)


def chunk_message(session: Session, number: int) -> bytes:
    """Show chunk ``number``, from 0."""
    chunk = session.chunks[number]
    head = {"kind": "chunk", "number": number, "by": chunk.by, "gripper": float(chunk.action[-1, GRIPPER])}
    return _packed(head | readings(session, number), chunk.sheets, chunk.real_sheets)


def readings(session: Session, number: int) -> dict[str, Any]:
    """Measurements of a chunk's frames; what the model does not predict is None."""
    chunk = session.chunks[number]
    spread = chunk.imagined.uncertainty if session.worlds.has_ensemble else None
    error, success = chunk.tool_error, session.first_success()
    return {
        "probability": _numbers(chunk.probability, 4),
        "uncertainty": None if spread is None else _numbers(spread[0].float().cpu().numpy(), 4),
        "psnr": _numbers(chunk.psnr, 2),
        "toolError": None if error is None else _numbers(error, 5),
        "solved": [bool(shown["success"]) for shown in chunk.real_frames],
        "imaginedSuccess": None if success is None or success > (number + 1) * len(chunk.action) else success,
    }


def _numbers(values: NDArray[Any], digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]


def _packed(head: Mapping[str, Any], imagined: NDArray[np.uint8], real: NDArray[np.uint8]) -> bytes:
    rows, columns = imagined.shape[1:3]
    text = json.dumps({**head, "rows": rows, "columns": columns, "frames": len(imagined)}).encode()
    return len(text).to_bytes(4, "little") + text + imagined.tobytes() + real.tobytes()
