"""Start states from the simulator itself: reset it, look once. They cost no rollout.

What imagination needs of a simulator is a :class:`SimulatorBackend`: where rollouts begin, how long they last, and what actions
really lead to. The embedded suite is one, a foreign suite's workers are another (``suite_ground``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.core.types import ResetRecord
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.specs import EpisodeSpec


class SimulatorBackend(Protocol):
    """A simulator under imagined rollouts. An initial state is named by task, index and seed alone."""

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """Time limit of each task (control steps)."""
        ...

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """The episode that begins at the initial state of this spec's task, index and seed."""
        ...

    def starts(
        self, tasks: Sequence[str], count: int, *, seed: int, memory_frames: int, image_size: int
    ) -> list[ResetRecord]:
        """As :func:`simulator_starts`."""
        ...

    def replay(
        self, task: str, starts: Sequence[tuple[int, int]], actions: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.int64]:
        """As :func:`replay_in_simulator`."""
        ...


@dataclass(frozen=True)
class EmbeddedBackend:
    """The embedded suite: initial states are sampled, from index and seed.

    Attributes:
        domain: of two-armed tasks, in which the initial states lie.
    """

    domain: str = "clean"

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """As of :class:`SimulatorBackend`, and so are the others."""
        return task_horizons(tasks)

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """It is the spec itself."""
        return spec

    def starts(
        self, tasks: Sequence[str], count: int, *, seed: int, memory_frames: int, image_size: int
    ) -> list[ResetRecord]:
        """Render initial states in this process."""
        look = {"memory_frames": memory_frames, "image_size": image_size}
        return simulator_starts(tasks, count, seed=seed, domain=self.domain, **look)

    def replay(
        self, task: str, starts: Sequence[tuple[int, int]], actions: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.int64]:
        """Execute actions in this process."""
        return replay_in_simulator(task, starts, actions, domain=self.domain)


EMBEDDED_BACKEND = EmbeddedBackend()


@contextmanager
def simulator(task: str, **options: Any) -> Iterator[Any]:
    """Open the embedded environment of a task in this process, with the environment's own ``options``."""
    import gymnasium

    import worldrl_envs  # noqa: F401  (registers the ids)

    env = gymnasium.make(f"worldrl/{task}-v0", **options)
    try:
        yield env
    finally:
        env.close()


def task_horizons(tasks: Sequence[str]) -> dict[str, int]:
    """Return the embedded suite's time limit of each task (control steps)."""
    from worldrl_envs.tasks import get_task

    return {task: get_task(task).horizon for task in tasks}


def simulator_starts(
    tasks: Sequence[str], count: int, *, seed: int, memory_frames: int, image_size: int, domain: str = "clean"
) -> list[ResetRecord]:
    """Render ``count`` initial states of each task.

    Args:
        tasks: names.
        count: states per task, indices 0..count-1.
        seed: with task and index it fixes the state; keep it apart from the evaluation's.
        memory_frames: memory frames of the world model.
        image_size: pixels per side.
        domain: of two-armed tasks, in which the states lie.

    Returns:
        Records whose ``source`` is ``"index <i>, seed <s>"``.
    """
    records = []
    for task in tasks:
        with simulator(task, image_size=image_size, **_of_domain(domain)) as env:
            for index in range(count):
                obs, _ = env.reset(seed=seed, options={"index": index})
                record = initial_record(
                    obs["image"],
                    obs["command"],
                    instruction=obs["instruction"],
                    task=task,
                    memory_frames=memory_frames,
                    source=f"index {index}, seed {seed}",
                )
                records.append(record)
    return records


def replay_in_simulator(
    task: str, starts: Sequence[tuple[int, int]], actions: Sequence[NDArray[np.float32]], *, domain: str = "clean"
) -> NDArray[np.int64]:
    """Execute action sequences open loop from known initial states.

    Args:
        task: name.
        starts: ``(index, seed)`` of each row.
        actions: float32 ``[T_i, A]`` of each row; what lies beyond the task's horizon is not executed.
        domain: of two-armed tasks, in which the initial states lie; a randomised one has tables of its own heights.

    Returns:
        int64 ``[E]``: control step after which the task was first fulfilled, -1 where it never was.
    """
    step = np.full(len(starts), -1, np.int64)
    with simulator(task, obs="state", **_of_domain(domain)) as env:
        for row, ((index, seed), sequence) in enumerate(zip(starts, actions, strict=True)):
            env.reset(seed=seed, options={"index": index})
            fulfilled = (k for k, action in _until_over(env, sequence) if env.step(action)[2])
            step[row] = next(fulfilled, -1)
    return step


def _of_domain(domain: str) -> dict[str, str]:
    """Options of an environment in a domain; one-armed tasks know no such option."""
    return {} if domain == "clean" else {"domain": domain}


def _until_over(env: Any, actions: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    horizon = env.spec.max_episode_steps or len(actions)
    yield from enumerate(actions[:horizon], start=1)
