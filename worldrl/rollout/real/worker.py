"""The worker's side of a share: it answers each request ``next`` by one result, as messages (see ``workers/link/server.py``).

::

    outcome   position, outcome
    episode   position, fields, arrays
    finished
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from worldrl.core.actions import ActionSpec
from worldrl.core.types import Episode
from worldrl.rollout.real.episodes import Result
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.real.worker_task import WorkerTask, run_share
from worldrl.workers.link.server import Answer
from worldrl.workers.link.wire import Arrays

_ARRAYS = ("frames", "state", "command", "action", "reward", "contact")


def encode_result(position: int, item: Result) -> Answer:
    """Header and arrays of one result."""
    if isinstance(item, EpisodeOutcome):
        return {"kind": "outcome", "position": position, "outcome": item.to_json()}, {}
    fields = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    arrays = {name: fields.pop(name) for name in _ARRAYS}
    fields["actions"] = item.actions.to_json()
    return {"kind": "episode", "position": position, "fields": fields}, arrays


def decode_result(header: Mapping[str, Any], arrays: Arrays) -> tuple[int, Result]:
    """Undo :func:`encode_result`."""
    if header["kind"] == "outcome":
        return header["position"], EpisodeOutcome.from_json(header["outcome"])
    fields = {**header["fields"], "cameras": tuple(header["fields"]["cameras"])}
    fields["actions"] = ActionSpec.from_json(fields["actions"])
    values: dict[str, Any] = {**fields, **arrays}
    return header["position"], Episode(**values)


class Share:
    """A share, :meth:`WorkerTask.to_json`, as the target of a worker process."""

    def __init__(self, share: dict[str, Any]) -> None:
        # Workers share the machine's cores; more torch threads than one each makes all of them slower.
        torch.set_num_threads(1)
        self._share = WorkerTask.from_json(share)

    def describe(self) -> dict[str, Any]:
        """Nothing: the parent knows the share."""
        return {}

    def serve(self, pulse: Callable[[str, int], None]) -> Share:
        """Begin to run the share; ``pulse`` receives the next call and its episode's position, -1 for none."""
        positions = {item.spec.key: item.position for item in self._share.episodes}

        def of_episode(call: str, spec: EpisodeSpec | None) -> None:
            pulse(call, -1 if spec is None else positions[spec.key])

        self._results = run_share(self._share, of_episode)
        return self

    def answer(self, header: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Run to the next result."""
        found = next(self._results, None)
        return ({"kind": "finished"}, {}) if found is None else encode_result(*found)

    def close(self) -> None:
        """Release the environments."""
        self._results.close()
