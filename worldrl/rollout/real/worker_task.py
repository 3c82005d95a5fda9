"""One worker's share of a real rollout: environments in lock-step, one batched decision per chunk.

A round is: fill the empty slots with the next episodes, ask each actor once for all of its running rows, execute each
row's actions until they are used up or the episode ends. The share and ``envs_per_worker`` alone decide which rows
share a batch, so a rerun decides on the same batches and gives the same bits.

Environments are made here, inside the worker, because a GL context must never be inherited; each slot reuses its
environment while the task stays the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.types import Episode
from worldrl.rollout.agents.actors import AnyActor, PolicyActor, actor_from_json, actor_to_json
from worldrl.rollout.real.recording import Recording
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.specs import EnvOptions, EpisodeOutcome, EpisodeSpec

Pulse = Callable[[str, int], None]
"""Called with the name of the next call and the position of its episode (-1 for none)."""


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
    def obs(self) -> str:
        """Observation mode: images are rendered only where a policy or a record needs them."""
        return "pixels" if self.record or any(isinstance(actor, PolicyActor) for actor in self.actors) else "state"


def make_env(options: EnvOptions, task: str, obs: str) -> Any:
    """Make one environment that continues after success; the recording ends episodes."""
    return gymnasium.make(
        options.env_id.format(task=task),
        max_episode_steps=options.max_steps.get(task),
        obs=obs,
        image_size=options.image_size,
        cameras=options.cameras,
        terminate_on_success=False,
        disable_env_checker=True,
        **({} if options.domain == "clean" else {"domain": options.domain}),
    )


class EnvSlot:
    """Holds one environment, made again only when the task changes."""

    def __init__(self, options: EnvOptions, obs: str) -> None:
        self._options, self._obs = options, obs
        self._task = ""
        self._env: Any = None

    def reset(self, spec: EpisodeSpec) -> tuple[Any, Any, dict[str, Any]]:
        """Start an episode; returns the environment, its first observation and info."""
        if spec.task != self._task:
            self.close()
            self._env, self._task = make_env(self._options, spec.task, self._obs), spec.task
        self._env.unwrapped.set_style(spec.style)
        options: dict[str, Any] = {"index": spec.index} if spec.init_id is None else {"init_id": spec.init_id}
        if spec.instruction is not None:
            options["instruction"] = spec.instruction
        return self._env, *self._env.reset(seed=spec.seed, options=options)

    def close(self) -> None:
        """Release the environment and its GL context."""
        if self._env is not None:
            self._env.close()
        self._env, self._task = None, ""


@dataclass
class Run:
    """One running episode."""

    item: Assignment
    row: Row
    recording: Recording
    spec: ActionSpec

    def execute(self, actions: NDArray[np.float32], pulse: Pulse) -> None:
        """Take the actions ``[L, A]`` one by one, each in the robot's range, until the episode ends."""
        for decided in actions:
            pulse("step", self.item.position)
            action = self.spec.within(decided)
            obs, _, terminated, truncated, info = self.row.env.step(action)
            self.row.see(obs)
            clipped = int((action != decided).sum())
            self.recording.step(action, obs, info, env_ended=terminated | truncated, clipped=clipped)
            if self.recording.ended:
                return


def begin(share: WorkerTask, slot: EnvSlot, actors: Sequence[Actor], item: Assignment, pulse: Pulse) -> Run:
    """Reset an environment to the episode's initial state."""
    pulse("make and reset the environment", item.position)
    env, obs, info = slot.reset(item.spec)
    row = Row(item.spec, env, obs, info["instruction"])
    recording = Recording(
        item.spec,
        cameras=share.env_options.cameras,
        keep=item.position in share.record,
        hold_steps=share.hold_steps,
        restarted=item.position in share.restarted,
        actions=share.env_options.actions,
        domain=share.env_options.domain,
    )
    recording.observe(obs, info)
    actors[item.actor].begin(row)
    return Run(item, row, recording, share.env_options.actions)


def decide(actors: Sequence[Actor], runs: Sequence[Run], pulse: Pulse) -> list[NDArray[np.float32]]:
    """Ask each actor once for all of its rows; returns each run's next actions ``[L, A]``."""
    actions: dict[int, NDArray[np.float32]] = {}
    for number, actor in enumerate(actors):
        own = [run for run in runs if run.item.actor == number]
        if own:
            pulse("act", own[0].item.position)
            chunk = actor.act([run.row for run in own])
            actions.update(zip((run.item.position for run in own), chunk, strict=True))
    return [actions[run.item.position] for run in runs]


def result(share: WorkerTask, run: Run) -> Episode | EpisodeOutcome:
    """Return the record or the outcome of an ended episode."""
    if run.item.position not in share.record:
        return run.recording.outcome()
    return run.recording.episode(run.row.instruction)


def run_share(share: WorkerTask, pulse: Pulse) -> Iterator[tuple[int, Episode | EpisodeOutcome]]:
    """Run every episode of a share; ``pulse`` is called before each call that may take long.

    Yields ``(position, result)`` as episodes end.
    """
    pulse("load the actors", -1)
    actors = [actor.build() for actor in share.actors]
    with ExitStack() as stack:
        used = min(share.envs_per_worker, len(share.episodes))  # a slot beyond the episodes would stay empty
        slots = [stack.enter_context(closing(EnvSlot(share.env_options, share.obs))) for _ in range(used)]
        yield from _rounds(share, actors, slots, pulse)


def _rounds(
    share: WorkerTask, actors: Sequence[Actor], slots: Sequence[EnvSlot], pulse: Pulse
) -> Iterator[tuple[int, Episode | EpisodeOutcome]]:
    waiting = deque(share.episodes)
    running: dict[int, Run] = {}
    while waiting or running:
        for number, slot in enumerate(slots):
            if number not in running and waiting:
                running[number] = begin(share, slot, actors, waiting.popleft(), pulse)
        batch = sorted(running)
        for number, actions in zip(batch, decide(actors, [running[n] for n in batch], pulse), strict=True):
            running[number].execute(actions, pulse)
            if running[number].recording.ended:
                ended = running.pop(number)
                yield ended.item.position, result(share, ended)
