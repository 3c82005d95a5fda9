"""A worker of the embedded suite: its share of the episodes, played in environments of its own process.

The share and ``envs_per_worker`` alone decide which rows share a batch, so a rerun gives the same bits. The worker
answers each request ``next`` by one result, as messages (see ``workers/link/server.py``)::

    outcome   position, outcome
    episode   position, fields, arrays
    finished
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import WorldrlError
from worldrl.core.types import Episode
from worldrl.rollout.agents.actors import AnyActor, PolicyActor, actor_from_json, actor_to_json, paths_read_by
from worldrl.rollout.real.episodes import Planned, Result, play
from worldrl.rollout.real.slots import EmbeddedSlots, Pulse
from worldrl.rollout.real.specs import EnvOptions, EpisodeOutcome, EpisodeSpec

if TYPE_CHECKING:
    from worldrl.workers.link.server import Answer
    from worldrl.workers.link.wire import Arrays


@dataclass(frozen=True)
class Assignment:
    """One episode of a share: its position in the whole list, and its actor's index in the share.

    Frames are stored where ``record``; ``restarted``: an earlier worker lost it.
    """

    position: int
    spec: EpisodeSpec
    actor: int
    record: bool
    restarted: bool = False


@dataclass(frozen=True)
class WorkerTask:
    """Everything that a worker needs.

    ``episodes`` are in the order in which they start, ``envs_per_worker`` slots are stepped in lock-step. An episode
    ends ``hold_steps`` after its first success.
    """

    episodes: Sequence[Assignment]
    actors: Sequence[AnyActor]
    env_options: EnvOptions
    envs_per_worker: int
    hold_steps: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "episodes": [asdict(item) for item in self.episodes],
            "actors": [actor_to_json(actor) for actor in self.actors],
            "env_options": self.env_options.to_json(),
            "envs_per_worker": self.envs_per_worker,
            "hold_steps": self.hold_steps,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerTask:
        """Rebuild from :meth:`to_json`."""
        made = {
            "episodes": [Assignment(**{**row, "spec": EpisodeSpec.from_json(row["spec"])}) for row in data["episodes"]],
            "actors": [actor_from_json(actor) for actor in data["actors"]],
            "env_options": EnvOptions.from_json(data["env_options"]),
        }
        return cls(**{**data, **made})

    @property
    def draws(self) -> bool:
        """Whether images are rendered: where a policy or a record needs them."""
        return any(item.record or isinstance(self.actors[item.actor], PolicyActor) for item in self.episodes)

    @property
    def reads(self) -> tuple[str, ...]:
        """Folders and files that the actors open, as their specs name them."""
        return tuple(dict.fromkeys(name for actor in self.actors for name in paths_read_by(actor)))


def run_share(share: WorkerTask, pulse: Pulse) -> Generator[tuple[int, Result]]:
    """Run every episode of a share; yields ``(position, result)`` as episodes end."""
    pulse("load the actors", None)
    actors = [actor.build() for actor in share.actors]
    planned = [Planned(item.position, item.spec, actors[item.actor], item.record) for item in share.episodes]
    lost = {item.spec.key for item in share.episodes if item.restarted}
    used = min(share.envs_per_worker, len(planned))  # a slot beyond the episodes would stay empty
    with closing(EmbeddedSlots(share.env_options, used, pulse=pulse, restarted=lost)) as slots:
        yield from play(slots, planned, hold_steps=share.hold_steps)


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
        """Run to the next result; Refusal for a deliberate error, which is no bug: one line."""
        from worldrl.workers.link.server import Refusal

        try:
            found = next(self._results, None)
        except WorldrlError as error:
            raise Refusal(str(error)) from error
        return ({"kind": "finished"}, {}) if found is None else encode_result(*found)

    def close(self) -> None:
        """Release the environments."""
        self._results.close()
