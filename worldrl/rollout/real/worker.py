"""The process around one share: messages to the parent, and an end whenever the parent ends.

Messages (see ``workers/wire.py``), all from worker to parent::

    pulse     call, position            the next call; at most every PULSE_S, always before slow calls
    outcome   position, outcome
    episode   position, fields, arrays
    finished
    failed    error, traceback          an exception; rerunning would raise it again

Ctrl-C reaches every process of a terminal; workers ignore it, because the parent stops them. A killed parent cannot, so
a thread waits for its end and exits: no worker outlives its parent.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

import torch

from worldrl.core.actions import ActionSpec
from worldrl.core.types import Episode
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.real.worker_task import WorkerTask, run_share
from worldrl.workers.link.wire import Arrays, encode

PULSE_S = 0.5
_FAST_CALLS = ("step", "act")
_ARRAYS = ("frames", "state", "command", "action", "reward", "contact")


def encode_result(position: int, item: Episode | EpisodeOutcome) -> bytes:
    """Pack one result."""
    if isinstance(item, EpisodeOutcome):
        return encode({"kind": "outcome", "position": position, "outcome": item.to_json()})
    fields = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    arrays = {name: fields.pop(name) for name in _ARRAYS}
    fields["actions"] = item.actions.to_json()
    return encode({"kind": "episode", "position": position, "fields": fields}, arrays)


def decode_result(header: dict[str, Any], arrays: Arrays) -> tuple[int, Episode | EpisodeOutcome]:
    """Unpack :func:`encode_result`'s header and arrays."""
    if header["kind"] == "outcome":
        return header["position"], EpisodeOutcome.from_json(header["outcome"])
    fields = {**header["fields"], "cameras": tuple(header["fields"]["cameras"])}
    fields["actions"] = ActionSpec.from_json(fields["actions"])
    values: dict[str, Any] = {**fields, **arrays}
    return header["position"], Episode(**values)


class Pulser:
    """Sends the parent the worker's next call and its episode's position, -1 for none."""

    def __init__(self, connection: Connection, share: WorkerTask) -> None:
        self._connection = connection
        self._positions = {item.spec.key: item.position for item in share.episodes}
        self._last_s = -PULSE_S

    def __call__(self, call: str, spec: EpisodeSpec | None) -> None:
        """Send a pulse, unless a fast call follows the last one closely."""
        now_s = time.monotonic()
        if call in _FAST_CALLS and now_s - self._last_s < PULSE_S:
            return
        self._last_s = now_s
        position = -1 if spec is None else self._positions[spec.key]
        self._connection.send_bytes(encode({"kind": "pulse", "call": call, "position": position}))


def worker_main(connection: Connection, share_json: str) -> None:
    """Run a share, :meth:`WorkerTask.to_json` as text, and send its results; the target of a spawned process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    # Workers share the machine's cores; more torch threads than one each makes all of them slower.
    torch.set_num_threads(1)
    try:
        share = WorkerTask.from_json(json.loads(share_json))
        for position, item in run_share(share, Pulser(connection, share)):
            connection.send_bytes(encode_result(position, item))
        connection.send_bytes(encode({"kind": "finished"}))
    except BrokenPipeError:
        return  # the parent stopped listening and has reported why
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        connection.send_bytes(encode({"kind": "failed", "error": text, "traceback": traceback.format_exc()}))
    connection.close()


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
