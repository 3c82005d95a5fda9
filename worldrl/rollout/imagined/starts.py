"""Start states from the simulator itself: one reset and one image each, and no rollout.

A :class:`SimulatorBackend` is what imagination needs of a simulator: start states, horizons, and the real result of
actions. The embedded suite is one, an external suite's workers are another (``suites.backend``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.core.observation import STATE, images_among, stack_views
from worldrl.core.types import ResetRecord
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.embedded import embedded_cameras
from worldrl.rollout.real.specs import EpisodeSpec


class SimulatorBackend(Protocol):
    """The simulator of imagined rollouts. Task, index and seed alone name an initial state."""

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """Time limit of each task (control steps)."""
        ...

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """The episode that begins at the initial state of this spec's task, index and seed."""
        ...

    def starts(
        self,
        tasks: Sequence[str],
        count: int,
        *,
        seed: int,
        memory_frames: int,
        image_size: int,
        more: Sequence[str] = (),
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
    """The embedded suite: initial states are sampled from index and seed, in a domain of two-armed tasks."""

    domain: str = "clean"

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """As :func:`task_horizons`."""
        return task_horizons(tasks)

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Return the spec itself."""
        return spec

    def starts(
        self,
        tasks: Sequence[str],
        count: int,
        *,
        seed: int,
        memory_frames: int,
        image_size: int,
        more: Sequence[str] = (),
    ) -> list[ResetRecord]:
        """Render initial states in this process."""
        layout = {"memory_frames": memory_frames, "image_size": image_size, "more": more}
        return simulator_starts(tasks, count, seed=seed, domain=self.domain, **layout)

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
    tasks: Sequence[str],
    count: int,
    *,
    seed: int,
    memory_frames: int,
    image_size: int,
    domain: str = "clean",
    more: Sequence[str] = (),
) -> list[ResetRecord]:
    """Render the initial states 0..count-1 of each task; their ``source`` is ``"index <i>, seed <s>"``.

    ``seed``, task and index name a state; keep the seed apart from the evaluation's. ``domain`` is of two-armed tasks;
    ``more`` names what is observed besides image, command and instruction.
    """
    records, images = [], images_among(more)
    for task in tasks:
        cameras = embedded_cameras([task], images)
        with simulator(task, image_size=image_size, cameras=cameras, **_of_domain(domain)) as env:
            for index in range(count):
                obs, _ = env.reset(seed=seed, options={"index": index})
                given = {"instruction": obs["instruction"], "task": task, "source": f"index {index}, seed {seed}"}
                sheet = stack_views([obs[name] for name in images])
                given["state"] = obs[STATE] if STATE in more else None
                records.append(initial_record(sheet, obs["command"], memory_frames=memory_frames, **given))
    return records


def replay_in_simulator(
    task: str, starts: Sequence[tuple[int, int]], actions: Sequence[NDArray[np.float32]], *, domain: str = "clean"
) -> NDArray[np.int64]:
    """Execute action sequences float32 ``[T_i, A]`` open loop from initial states ``(index, seed)``.

    Actions beyond the task's horizon are not executed. A randomised ``domain`` has tables of its own heights. Returns
    int64 ``[E]``: control step after which the task was first fulfilled, -1 where it never was.
    """
    step = np.full(len(starts), -1, np.int64)
    with simulator(task, obs="state", **_of_domain(domain)) as env:
        for row, ((index, seed), sequence) in enumerate(zip(starts, actions, strict=True)):
            env.reset(seed=seed, options={"index": index})
            within = enumerate(sequence[: env.spec.max_episode_steps or len(sequence)], start=1)
            step[row] = next((k for k, action in within if env.step(action)[2]), -1)
    return step


def _of_domain(domain: str) -> dict[str, str]:
    return {} if domain == "clean" else {"domain": domain}  # one-armed tasks have no such option
