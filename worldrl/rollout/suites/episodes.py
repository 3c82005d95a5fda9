"""Whole episodes in an external simulator's suite: decided in this process, the simulators in the workers of a pool.

One decision is made for all slots of the pool, so neither the number of workers nor a lost one changes a bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import suite_actions
from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, ImaginedPlanActor, PolicyActor
from worldrl.rollout.agents.vector_agent import VectorActor
from worldrl.rollout.real.episodes import EpisodeTiming, Order, Planned, Result, play
from worldrl.rollout.real.rollouts import arranged
from worldrl.rollout.real.rows import Actor, Row
from worldrl.rollout.real.slots import Actions, Observed, silent
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.simulators.pool import SimulatorPool, Start

Key = tuple[str, int, int, int]
"""Of an episode, see :class:`~worldrl.rollout.real.specs.EpisodeSpec`."""


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


class SuiteSlots:
    """The slots of a pool; see :class:`~worldrl.rollout.real.slots.Slots`.

    ``horizon`` holds control steps by task. ``given`` maps an episode's key to a state of the simulator to begin at;
    other episodes begin at stored ones.
    """

    joint, domain, pulse = True, "clean", staticmethod(silent)

    def __init__(
        self,
        pool: SimulatorPool,
        cameras: tuple[str, ...] = (),
        *,
        horizon: Mapping[str, int],
        given: Mapping[Key, Sequence[float]] | None = None,
    ) -> None:
        self.pool, self.cameras, self._horizon, self._given = pool, cameras, horizon, given or {}
        self.slots, self.several_steps = pool.slots, bool(pool.suite["several_steps"])
        self.actions = suite_actions(pool.suite)
        self._instruction = {task["name"]: task["instruction"] for task in pool.suite["tasks"]}
        self._tasks: dict[int, str] = {}

    def reset(self, specs: Mapping[int, EpisodeSpec], *, render: bool) -> dict[int, Observed]:
        """Begin episodes; SettingError where one has no stored initial state."""
        rows = self.pool.reset({slot: self._start(spec) for slot, spec in specs.items()}, render=render)
        self._tasks |= {slot: spec.task for slot, spec in specs.items()}
        return {slot: {"instruction": self._instruction[self._tasks[slot]], **row} for slot, row in rows.items()}

    def _start(self, spec: EpisodeSpec) -> Start:
        if spec.key in self._given:
            return Start(spec.task, -1, spec.seed, tuple(self._given[spec.key]))
        if spec.init_id is None:
            name = self.pool.launch.name
            raise SettingError(f"{spec.describe()}: {name} begins at stored initial states; its number is missing")
        return Start(spec.task, spec.init_id, spec.seed)

    def steps(self, actions: Actions, *, render: Collection[int]) -> Mapping[int, Sequence[Observed]]:
        """Take actions, in one message to each worker."""
        return self.pool.steps(actions, render=render)

    def env(self, slot: int) -> None:
        """None: it is in a worker."""

    def horizon(self, slot: int) -> int:
        """As the suite limits the task."""
        return self._horizon[self._tasks[slot]]

    def finish(self, slot: int) -> bool:
        """Forget the episode."""
        return self.pool.finish(slot)


class _Expert:
    """The suite's own expert, in the simulator's worker; noise on its motion is drawn here."""

    images_needed = 0

    def __init__(self, pool: SimulatorPool, noise: float) -> None:
        self._pool, self._noise = pool, noise

    def begin(self, row: Row) -> None:
        row.actor_state = numpy_stream(row.spec.seed, "act", ExpertActor.kind, *row.spec.stream_names)

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        chosen = self._pool.expert([row.slot for row in rows])
        return np.stack([self._with_noise(chosen[row.slot], row) for row in rows])[:, None]

    def _with_noise(self, action: NDArray[np.float32], row: Row) -> NDArray[np.float32]:
        if not self._noise:
            return action
        motion = np.clip(action[:-1] + self._noise * row.actor_state.normal(size=len(action) - 1), -1, 1)
        return np.append(motion, action[-1]).astype(np.float32)  # no noise on the gripper


def _built(actor: AnyActor | VectorActor, pool: SimulatorPool) -> Actor:
    if isinstance(actor, PolicyActor | ImaginedPlanActor | VectorActor):
        return actor.build()
    if isinstance(actor, ExpertActor) and not actor.blind and not actor.goal_offset:
        return _Expert(pool, actor.noise)
    raise SettingError(
        f"actor: {actor} cannot act in {pool.launch.name}; give a policy, imagined rollouts, or its expert, whose only variation is noise"
    )


def play_episodes(
    pool: SimulatorPool,
    specs: Sequence[EpisodeSpec],
    actor: AnyActor | VectorActor,
    rules: Rules,
    spent: EpisodeTiming | None = None,
    *,
    order: Order = "completion",
) -> Iterator[Result]:
    """Run episodes, each from its stored initial state, in the running workers of a suite.

    The time is added to ``spent``. Yields one record for each episode. Raises SettingError (an episode has no stored
    state, or images are needed and no camera was launched). Raises WorkerError (a worker failed, or an episode lost its
    worker too often).
    """
    built = _built(actor, pool)
    if (built.images_needed or rules.record) and not rules.cameras:
        raise SettingError(f"cameras: {pool.launch.name} was started without, but images are needed")
    planned = [Planned(at, spec, built, at in rules.record) for at, spec in enumerate(specs)]
    slots = SuiteSlots(pool, rules.cameras, horizon=rules.horizon)
    yield from arranged(play(slots, planned, hold_steps=rules.hold_steps, spent=spent), order)
