"""One worker's share of a real rollout: its episodes, played in environments of the worker's own process.

The share and ``envs_per_worker`` alone decide which rows share a batch, so a rerun gives the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from worldrl.rollout.agents.actors import AnyActor, PolicyActor, actor_from_json, actor_to_json
from worldrl.rollout.real.episodes import Planned, Result, play
from worldrl.rollout.real.slots import EmbeddedSlots, Pulse
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec


@dataclass(frozen=True)
class Assignment:
    """One episode of a share: its position in the whole list of specs, and its actor's index in the share."""

    position: int
    spec: EpisodeSpec
    actor: int


@dataclass(frozen=True)
class WorkerTask:
    """Everything that a worker needs.

    ``episodes`` are in the order in which they start, ``envs_per_worker`` slots are stepped in lock-step. An episode
    ends ``hold_steps`` after its first success. Frames are stored for the positions ``record``; ``restarted`` are
    positions that an earlier worker lost.
    """

    episodes: Sequence[Assignment]
    actors: Sequence[AnyActor]
    env_options: EnvOptions
    envs_per_worker: int
    hold_steps: int
    record: Collection[int]
    restarted: Collection[int] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "episodes": [[item.position, item.spec.to_json(), item.actor] for item in self.episodes],
            "actors": [actor_to_json(actor) for actor in self.actors],
            "env_options": self.env_options.to_json(),
            "envs_per_worker": self.envs_per_worker,
            "hold_steps": self.hold_steps,
            "record": sorted(self.record),
            "restarted": sorted(self.restarted),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerTask:
        """Rebuild from :meth:`to_json`."""
        return cls(
            episodes=[Assignment(at, EpisodeSpec.from_json(spec), actor) for at, spec, actor in data["episodes"]],
            actors=[actor_from_json(actor) for actor in data["actors"]],
            env_options=EnvOptions.from_json(data["env_options"]),
            envs_per_worker=data["envs_per_worker"],
            hold_steps=data["hold_steps"],
            record=frozenset(data["record"]),
            restarted=frozenset(data["restarted"]),
        )

    @property
    def draws(self) -> bool:
        """Whether images are rendered: where a policy or a record needs them."""
        return bool(self.record) or any(isinstance(actor, PolicyActor) for actor in self.actors)


def run_share(share: WorkerTask, pulse: Pulse) -> Generator[tuple[int, Result]]:
    """Run every episode of a share; yields ``(position, result)`` as episodes end."""
    pulse("load the actors", None)
    actors = [actor.build() for actor in share.actors]
    lost = {item.spec.key for item in share.episodes if item.position in share.restarted}
    used = min(share.envs_per_worker, len(share.episodes))  # a slot beyond the episodes would stay empty
    planned = [
        Planned(item.position, item.spec, actors[item.actor], item.position in share.record) for item in share.episodes
    ]
    with closing(EmbeddedSlots(share.env_options, used, pulse=pulse, restarted=lost)) as slots:
        yield from play(slots, planned, hold_steps=share.hold_steps)
