"""One worker's share of a real rollout: environments in lock-step, one batched decision per chunk.

A round is: fill the empty slots with the next episodes, ask the actor once for all running rows, execute each
row's actions until they are spent or the episode ends. Which rows share a batch follows from the share and
``envs_per_worker`` alone, so a rerun decides on the same batches and gives the same bits.

Environments are made here, inside the worker, because a GL context must never be inherited; each slot keeps its
environment while the task stays the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl.core.types import Episode
from worldrl.rollout.actors import Actor, AnyActor, PolicyActor, Row, actor_from_json, actor_to_json
from worldrl.rollout.recording import Recording
from worldrl.rollout.specs import EnvOptions, EpisodeOutcome, EpisodeSpec

Pulse = Callable[[str, int], None]
"""Called with the name of the coming call and the position of its episode (-1 for none)."""


@dataclass(frozen=True)
class Share:
    """Everything a worker needs to know.

    Attributes:
        episodes: ``(position, spec)`` in the order in which they start.
        actor: who acts.
        env_options: how to make environments.
        envs_per_worker: slots stepped in lock-step.
        hold_steps: further steps after the first success before an episode ends.
        record: positions whose frames are kept; the others yield an outcome only.
        restarted: positions that an earlier worker lost.
    """

    episodes: Sequence[tuple[int, EpisodeSpec]]
    actor: AnyActor
    env_options: EnvOptions
    envs_per_worker: int
    hold_steps: int
    record: Collection[int]
    restarted: Collection[int] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "episodes": [[position, spec.to_json()] for position, spec in self.episodes],
            "actor": actor_to_json(self.actor),
            "env_options": self.env_options.to_json(),
            "envs_per_worker": self.envs_per_worker,
            "hold_steps": self.hold_steps,
            "record": sorted(self.record),
            "restarted": sorted(self.restarted),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Share:
        """Rebuild from :meth:`to_json`."""
        return cls(
            episodes=[(position, EpisodeSpec.from_json(spec)) for position, spec in data["episodes"]],
            actor=actor_from_json(data["actor"]),
            env_options=EnvOptions.from_json(data["env_options"]),
            envs_per_worker=data["envs_per_worker"],
            hold_steps=data["hold_steps"],
            record=frozenset(data["record"]),
            restarted=frozenset(data["restarted"]),
        )

    @property
    def obs(self) -> str:
        """Observation mode: images are rendered only where a policy or a record needs them."""
        return "pixels" if self.record or isinstance(self.actor, PolicyActor) else "state"


def make_env(options: EnvOptions, task: str, obs: str) -> Any:
    """Make one environment that goes on after success; this room ends episodes itself."""
    return gymnasium.make(
        options.env_id.format(task=task),
        max_episode_steps=options.max_steps.get(task),
        obs=obs,
        image_size=options.image_size,
        cameras=options.cameras,
        terminate_on_success=False,
        disable_env_checker=True,
    )


class EnvSlot:
    """Holds one environment, remade only when the task changes."""

    def __init__(self, options: EnvOptions, obs: str) -> None:
        self._options, self._obs = options, obs
        self._task = ""
        self._env: Any = None

    def reset(self, spec: EpisodeSpec) -> tuple[Any, Any, dict[str, Any]]:
        """Start an episode; returns the environment, its first observation and info."""
        if spec.task != self._task:
            self.close()
            self._env, self._task = make_env(self._options, spec.task, self._obs), spec.task
        self._env.unwrapped.set_style(spec.style or self._options.style)
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
    """One episode in flight."""

    position: int
    row: Row
    recording: Recording

    def execute(self, actions: NDArray[np.float32], pulse: Pulse) -> None:
        """Take the actions ``[L, 7]`` one by one, until the episode ends."""
        for action in actions:
            pulse("step", self.position)
            obs, _, terminated, truncated, info = self.row.env.step(action)
            self.row.obs = obs
            self.recording.step(action, obs, info, env_ended=terminated | truncated)
            if self.recording.ended:
                return


def begin(share: Share, slot: EnvSlot, actor: Actor, position: int, spec: EpisodeSpec, pulse: Pulse) -> Run:
    """Reset an environment to the episode's initial state."""
    pulse("make and reset the environment", position)
    env, obs, info = slot.reset(spec)
    row = Row(spec, env, obs, info["instruction"])
    recording = Recording(
        spec,
        cameras=share.env_options.cameras,
        keep=position in share.record,
        hold_steps=share.hold_steps,
        restarted=position in share.restarted,
    )
    recording.observe(obs, info)
    actor.begin(row)
    return Run(position, row, recording)


def result(share: Share, run: Run) -> Episode | EpisodeOutcome:
    """Return what was asked for of an ended episode."""
    if run.position not in share.record:
        return run.recording.outcome()
    style = run.row.spec.style or share.env_options.style
    return run.recording.episode(run.row.instruction, {"style": style})


def run_share(share: Share, pulse: Pulse) -> Iterator[tuple[int, Episode | EpisodeOutcome]]:
    """Run every episode of a share.

    Args:
        share: what to run.
        pulse: told before each call that may take long.

    Yields:
        ``(position, result)`` as episodes end.
    """
    pulse("load the actor", -1)
    actor = share.actor.build()
    slots = [EnvSlot(share.env_options, share.obs) for _ in range(share.envs_per_worker)]
    with ExitStack() as stack:
        for slot in slots:
            stack.callback(slot.close)
        yield from _rounds(share, actor, slots, pulse)


def _rounds(
    share: Share, actor: Actor, slots: Sequence[EnvSlot], pulse: Pulse
) -> Iterator[tuple[int, Episode | EpisodeOutcome]]:
    waiting = deque(share.episodes)
    running: dict[int, Run] = {}
    while waiting or running:
        for number, slot in enumerate(slots):
            if number not in running and waiting:
                running[number] = begin(share, slot, actor, *waiting.popleft(), pulse)
        batch = sorted(running)
        pulse("act", running[batch[0]].position)
        chunk = actor.act([running[number].row for number in batch])
        for number, actions in zip(batch, chunk, strict=True):
            running[number].execute(actions, pulse)
            if running[number].recording.ended:
                ended = running.pop(number)
                yield ended.position, result(share, ended)
