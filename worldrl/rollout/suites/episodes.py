"""Whole episodes in an external simulator's suite: one batched decision for all slots, distributed over the workers.

A round is: fill the empty slots with the next episodes, ask the actor once for all running rows, execute each row's
actions until they are used up or the episode ends. The list of episodes and the number of slots alone decide which rows
share a decision, so neither the number of workers nor a lost one changes a bit. Images are rendered only where the
actor needs them or an episode is recorded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import suite_actions
from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.core.types import Episode
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, ImaginedPlanActor, PolicyActor
from worldrl.rollout.agents.vector_agent import VectorActor
from worldrl.rollout.real.recording import Recording
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec, spec_of
from worldrl.simulators.pool import SimulatorPool, Start

Actions = dict[int, NDArray[np.float32]]


@dataclass
class EpisodeTiming:
    """Time of playing (s): decisions, and waiting for the simulators."""

    decide_s: float = 0.0
    simulate_s: float = 0.0
    steps: int = 0


@dataclass
class _Run:
    """One running episode."""

    position: int
    row: Row
    recording: Recording
    steps: int = 0


class _Decider(Protocol):
    """Chooses the next actions ``[L, A]`` of each slot; see :class:`Actor` for ``images_needed``."""

    images_needed: int

    def begin(self, row: Row) -> None: ...

    def decide(self, runs: Mapping[int, _Run]) -> Actions: ...


class _Expert:
    """The suite's own expert, in the simulator's worker; noise on its motion is drawn here."""

    images_needed = 0

    def __init__(self, pool: SimulatorPool, noise: float) -> None:
        self._pool, self._noise = pool, noise

    def begin(self, row: Row) -> None:
        row.actor_state = numpy_stream(row.spec.seed, "act", ExpertActor.kind, *row.spec.stream_names)

    def decide(self, runs: Mapping[int, _Run]) -> Actions:
        return {slot: self._with_noise(action, runs[slot])[None] for slot, action in self._pool.expert(runs).items()}

    def _with_noise(self, action: NDArray[np.float32], run: _Run) -> NDArray[np.float32]:
        if not self._noise:
            return action
        motion = np.clip(action[:-1] + self._noise * run.row.actor_state.normal(size=len(action) - 1), -1, 1)
        return np.append(motion, action[-1]).astype(np.float32)  # no noise on the gripper


class _InProcess:
    """An actor in this process, one decision for all slots."""

    def __init__(self, actor: Actor) -> None:
        self._actor, self.images_needed = actor, actor.images_needed

    def begin(self, row: Row) -> None:
        self._actor.begin(row)

    def decide(self, runs: Mapping[int, _Run]) -> Actions:
        slots = sorted(runs)
        return dict(zip(slots, self._actor.act([runs[slot].row for slot in slots]), strict=True))


def _decider(actor: AnyActor | VectorActor, pool: SimulatorPool) -> _Decider:
    if isinstance(actor, PolicyActor | ImaginedPlanActor | VectorActor):
        return _InProcess(actor.build())
    if isinstance(actor, ExpertActor) and not actor.blind and not actor.goal_offset:
        return _Expert(pool, actor.noise)
    raise SettingError(
        f"actor: {actor} cannot act in {pool.launch.name}; give a policy, imagined rollouts, or its expert, whose only variation is noise"
    )


@dataclass(frozen=True)
class Rules:
    """How episodes are run.

    ``horizon`` holds control steps by task; ``cameras`` the launched cameras in the order of an episode's frames. An
    episode ends ``hold_steps`` after its first success. Frames are stored for the positions ``record``.
    """

    horizon: Mapping[str, int]
    cameras: tuple[str, ...] = ()
    hold_steps: int = 0
    record: Collection[int] = ()


def play_episodes(
    pool: SimulatorPool,
    specs: Sequence[EpisodeSpec],
    actor: AnyActor | VectorActor,
    rules: Rules,
    spent: EpisodeTiming | None = None,
) -> Iterator[Episode | EpisodeOutcome]:
    """Run episodes, each from its stored initial state, in the running workers of a suite.

    The time is added to ``spent``. Yields one record for each episode, in the order in which they end. Raises
    SettingError (an episode has no stored state, or images are needed and no camera was launched). Raises WorkerError
    (a worker failed, or an episode lost its worker too often).
    """
    decider = _decider(actor, pool)
    if (decider.images_needed or rules.record) and not rules.cameras:
        raise SettingError(f"cameras: {pool.launch.name} was started without, but images are needed")
    instruction = {task["name"]: task["instruction"] for task in pool.suite["tasks"]}
    waiting = deque(enumerate(specs))
    running: dict[int, _Run] = {}
    account = EpisodeTiming() if spent is None else spent
    while waiting or running:
        began_s = time.monotonic()
        _fill(pool, running, waiting, decider, rules, instruction)
        account.simulate_s += time.monotonic() - began_s
        yield from _round(pool, running, decider, rules, account)


def _fill(
    pool: SimulatorPool,
    running: dict[int, _Run],
    waiting: deque[tuple[int, EpisodeSpec]],
    decider: _Decider,
    rules: Rules,
    instruction: Mapping[str, str],
) -> None:
    """Start the next episodes in the empty slots."""
    empty = [slot for slot in range(pool.slots) if slot not in running][: len(waiting)]
    fresh = {slot: waiting.popleft() for slot in empty}
    starts: dict[int, Start] = {}
    for slot, (_, spec) in fresh.items():
        if spec.init_id is None:
            raise SettingError(f"{spec.describe()}: {pool.launch.name} begins at stored initial states; give init_id")
        starts[slot] = Start(spec.task, spec.init_id, spec.seed)
    actions = suite_actions(pool.suite)
    rows = pool.reset(starts, render=bool(decider.images_needed or rules.record)) if starts else {}
    for slot, (position, spec) in fresh.items():
        given = str(rows[slot].get("instruction", instruction[spec.task]))
        row = Row(spec, None, rows[slot], spec.instruction or given)
        recording = Recording(
            spec,
            cameras=rules.cameras,
            keep=position in rules.record,
            hold_steps=rules.hold_steps,
            restarted=False,
            actions=actions,
        )
        recording.observe(row.obs, _info(rows[slot]))
        decider.begin(row)
        running[slot] = _Run(position, row, recording)


def _round(
    pool: SimulatorPool, running: dict[int, _Run], decider: _Decider, rules: Rules, spent: EpisodeTiming
) -> Iterator[Episode | EpisodeOutcome]:
    """Decide once and execute the decision; yields the episodes that end.

    Steps without images in between go to the workers in one message.
    """
    began_s, spec = time.monotonic(), suite_actions(pool.suite)
    left = decider.decide(running)
    spent.decide_s += time.monotonic() - began_s
    while left:
        count = _together(pool, running, left, decider, rules)
        # The next decision needs images of the newest observations.
        needed = {slot for slot, actions in left.items() if count + decider.images_needed > len(actions)}
        rendered = {slot for slot in left if running[slot].position in rules.record or slot in needed}
        taken = {slot: spec.within(actions[:count]) for slot, actions in left.items()}
        began_s = time.monotonic()
        stepped = pool.steps(taken, render=rendered)
        spent.simulate_s += time.monotonic() - began_s
        for slot, rows in stepped.items():
            spent.steps += len(rows)
            _note(running[slot], rows, taken[slot], left[slot], rules)
            left[slot] = left[slot][len(rows) :]
            if running[slot].recording.ended:
                running[slot].recording.restarted = pool.finish(slot)
                yield _result(running.pop(slot), rules)
        left = {slot: actions for slot, actions in left.items() if slot in running and len(actions)}


def _together(pool: SimulatorPool, running: Mapping[int, _Run], left: Actions, decider: _Decider, rules: Rules) -> int:
    """Steps that all slots can take before one is rendered, recorded, or at the end of its actions or time.

    One at a time while a fulfilled task is held: it may be undone, and workers stop only at a success.
    """
    runs = [running[slot] for slot in left]
    if not pool.suite["several_steps"] or any(run.position in rules.record or run.recording.fulfilled for run in runs):
        return 1
    unrendered = min(len(actions) - max(0, decider.images_needed - 1) for actions in left.values())
    time_left = min(rules.horizon[run.row.spec.task] - run.steps for run in runs)
    return max(1, min(unrendered, time_left))


def _note(
    run: _Run, rows: Sequence[Mapping[str, Any]], taken: NDArray[np.float32], decided: NDArray[np.float32], rules: Rules
) -> None:
    """Record executed steps, and how many of their numbers were decided outside the robot's range."""
    for obs, action, wanted in zip(rows, taken, decided, strict=False):  # a task that is fulfilled ends them early
        run.row.see(obs)
        run.steps += 1
        over = run.steps >= rules.horizon[run.row.spec.task]
        run.recording.step(action, obs, _info(obs), env_ended=over, clipped=int((action != wanted).sum()))


def in_order(
    results: Iterator[Episode | EpisodeOutcome], specs: Sequence[EpisodeSpec]
) -> Iterator[Episode | EpisodeOutcome]:
    """Yield results in the order of their specs; earlier ones wait, at most as many as there are slots."""
    early: dict[tuple[str, int, int, int], Episode | EpisodeOutcome] = {}
    place = 0
    for result in results:
        early[(spec_of(result.meta) if isinstance(result, Episode) else result.spec).key] = result
        while place < len(specs) and specs[place].key in early:
            yield early.pop(specs[place].key)
            place += 1


def _info(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"is_success": row["success"], "contact": row["contact"]}


def _result(run: _Run, rules: Rules) -> Episode | EpisodeOutcome:
    if run.position in rules.record:
        return run.recording.episode(run.row.instruction)
    return run.recording.outcome()
