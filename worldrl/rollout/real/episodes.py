"""Whole episodes in simulators side by side: one batched decision for all running rows, then its actions.

A round is: fill the empty slots with the next episodes, ask each actor once for all of its running rows, execute each
row's actions until they are used up or the episode ends. The list of episodes and the number of slots alone decide which
rows share a decision, so a rerun gives the same bits. Images are rendered only where an actor needs them or an episode is
recorded.

::

    embedded suite   play() in each worker process, over environments in it (``real.slots``); episodes travel
    external suite   play() in this process, over the workers of a pool (``suites.episodes``); observations travel
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.image_fit import Fit
from worldrl.core.types import Episode
from worldrl.rollout.real.rows import Actor, Recording, Row, Takeover
from worldrl.rollout.real.slots import Actions, Observed, Slots, rewound
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec

Result = Episode | EpisodeOutcome
Order = Literal["spec", "completion"]


class Player(Protocol):
    """A suite that plays lists of episodes: the embedded one in worker processes of its own, or an external one."""

    def play(
        self,
        planned: Sequence[tuple[EpisodeSpec, Any]],
        *,
        hold_steps: int = 0,
        record: bool | Collection[int] = True,
        order: Order = "spec",
        horizon: Mapping[str, int] | None = None,
    ) -> Iterator[Result]:
        """Run episodes with their actors; each ends ``hold_steps`` after its first success.

        ``record`` is True for full episodes, False for outcomes, or the positions in ``planned`` to record in full.
        ``order`` is that of the list (buffers a few results), or as episodes end. ``horizon`` are time limits by task
        (control steps); None takes the suite's own.
        """
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a result states about assets, physics and drawing."""
        ...

    def layout(self, tasks: Collection[str]) -> DatasetLayout:
        """What a dataset of these tasks' episodes states about the suite."""
        ...

    def surroundings(self, *, images: bool) -> dict[str, Any]:
        """Processes and environments, and what a measurement ran in; ``images``: the actor receives some."""
        ...


class DatasetLayout(TypedDict):
    """What a dataset states about the suite; ``cameras`` are in the order of the frames' axis ``V``."""

    embodiment: AnyEmbodiment
    cameras: tuple[str, ...]
    image_size: int
    suite: str
    fit: Fit  # how the suite's own images became squares; ``refuse`` where it draws these.


def positions(record: bool | Collection[int], count: int) -> frozenset[int]:
    """Positions to record among so many."""
    return frozenset(record if not isinstance(record, bool) else range(count) if record else ())


@dataclass(frozen=True)
class Planned:
    """One episode to run: its position in the caller's list, who acts, and whether frames are stored."""

    position: int
    spec: EpisodeSpec
    actor: Actor
    record: bool


@dataclass
class EpisodeTiming:
    """Time of playing (s): decisions, and waiting for the simulators."""

    decide_s: float = 0.0
    simulate_s: float = 0.0
    steps: int = 0


@dataclass
class _Run:
    """One running episode."""

    plan: Planned
    row: Row
    recording: Recording
    horizon: int
    steps: int = 0

    def note(self, rows: Sequence[Observed], taken: NDArray[np.float32], decided: NDArray[np.float32]) -> None:
        """Record executed steps, and how many of their numbers were decided outside the robot's range."""
        for obs, action, wanted in zip(rows, taken, decided, strict=False):  # a task that is fulfilled ends them early
            self.row.see(obs)
            self.steps += 1
            over = self.steps >= self.horizon
            self.recording.step(action, obs, env_ended=over, clipped=int((action != wanted).sum()))

    def hand_over(self, takeover: Takeover, horizon: int) -> None:
        """Return to an earlier state, from which another actor has the task's whole time, ``horizon``."""
        obs = rewound(self.row.env, takeover.state)
        self.recording.rewind(obs, takeover.step)
        self.row.see(obs)
        self.row.takeover, self.steps = None, self.steps + 1
        self.plan, self.horizon = replace(self.plan, actor=takeover.actor), self.steps + horizon
        takeover.actor.begin(self.row)

    def result(self) -> Result:
        """The record or the outcome of the ended episode."""
        self.recording.planned, self.recording.monitored = self.row.planned, self.row.monitored
        return self.recording.episode(self.row.instruction) if self.plan.record else self.recording.outcome()


def play(
    slots: Slots, planned: Sequence[Planned], *, hold_steps: int, spent: EpisodeTiming | None = None
) -> Iterator[tuple[int, Result]]:
    """Run episodes, each until ``hold_steps`` steps after its first success or to its time limit.

    The time is added to ``spent``. Yields position and result of each, as they end.
    """
    waiting, running = deque(planned), dict[int, _Run]()
    account = EpisodeTiming() if spent is None else spent
    while waiting or running:
        began_s = time.monotonic()
        empty = [slot for slot in range(slots.slots) if slot not in running][: len(waiting)]
        for group in _groups(slots, empty):
            running |= _begin(slots, {slot: waiting.popleft() for slot in group}, hold_steps)
        account.simulate_s += time.monotonic() - began_s
        began_s = time.monotonic()
        decided = _decide(slots, running)
        account.decide_s += time.monotonic() - began_s
        for group in _groups(slots, sorted(running)):
            yield from _execute(slots, running, {slot: decided[slot] for slot in group}, account)


def _groups(slots: Slots, numbers: Sequence[int]) -> list[Sequence[int]]:
    return [[number] for number in numbers] if not slots.joint else [numbers] if numbers else []


def _begin(slots: Slots, fresh: Mapping[int, Planned], hold_steps: int) -> dict[int, _Run]:
    """Reset slots to their episodes' initial states."""
    render = any(plan.record or plan.actor.images_needed for plan in fresh.values())
    begun: dict[int, _Run] = {}
    for slot, obs in slots.reset({slot: plan.spec for slot, plan in fresh.items()}, render=render).items():
        plan = fresh[slot]
        row = Row(
            plan.spec, slots.env(slot), obs, plan.spec.instruction or str(obs["instruction"]), slot, slots.horizon(slot)
        )
        recording = Recording(
            plan.spec,
            cameras=slots.cameras,
            keep=plan.record,
            hold_steps=hold_steps,
            actions=slots.actions,
            domain=slots.domain,
        )
        recording.observe(obs)
        plan.actor.begin(row)
        begun[slot] = _Run(plan, row, recording, slots.horizon(slot))
    return begun


def _decide(slots: Slots, running: Mapping[int, _Run]) -> Actions:
    """Ask each actor once for all of its rows; returns each slot's next actions ``[L, A]``."""
    decided: Actions = {}
    for actor in dict.fromkeys(running[slot].plan.actor for slot in sorted(running)):
        own = [slot for slot in sorted(running) if running[slot].plan.actor is actor]
        slots.pulse("act", running[own[0]].row.spec)
        decided.update(zip(own, actor.act([running[slot].row for slot in own]), strict=True))
    handed = _hand_over(slots, running)
    return decided | _decide(slots, handed) if handed else decided


def _hand_over(slots: Slots, running: Mapping[int, _Run]) -> dict[int, _Run]:
    """The running episodes that another actor continues from an earlier state; none after its first success."""
    asked = {slot: run for slot, run in running.items() if run.row.takeover and not run.recording.fulfilled}
    for slot, run in asked.items():
        if run.row.takeover:
            run.hand_over(run.row.takeover, slots.horizon(slot))
    return asked


def _execute(
    slots: Slots, running: dict[int, _Run], left: Actions, spent: EpisodeTiming
) -> Iterator[tuple[int, Result]]:
    """Take the decided actions, each in the robot's range; yields the episodes that end."""
    while left:
        count = _together(slots, running, left)
        # The next decision needs images of the newest observations.
        rendered = {
            slot
            for slot, actions in left.items()
            if (plan := running[slot].plan).record or count + plan.actor.images_needed > len(actions)
        }
        taken = {slot: slots.actions.within(actions[:count]) for slot, actions in left.items()}
        began_s = time.monotonic()
        stepped = slots.steps(taken, render=rendered)
        spent.simulate_s += time.monotonic() - began_s
        for slot, rows in stepped.items():
            spent.steps += len(rows)
            running[slot].note(rows, taken[slot], left[slot])
            left[slot] = left[slot][len(rows) :]
            if running[slot].recording.ended:
                running[slot].recording.restarted = slots.finish(slot)
                ended = running.pop(slot)
                yield ended.plan.position, ended.result()
        left = {slot: actions for slot, actions in left.items() if slot in running and len(actions)}


def _together(slots: Slots, running: Mapping[int, _Run], left: Actions) -> int:
    """Steps that all slots can take before one is rendered, recorded, or at the end of its actions or time.

    One at a time while a fulfilled task is held: it may be undone, and simulators stop only at a success.
    """
    runs = [running[slot] for slot in left]
    if not slots.several_steps or any(run.plan.record or run.recording.fulfilled for run in runs):
        return 1
    unrendered = [len(left[slot]) - max(0, running[slot].plan.actor.images_needed - 1) for slot in left]
    return max(1, min(*unrendered, *(run.horizon - run.steps for run in runs)))
