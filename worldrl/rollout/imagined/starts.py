"""Start states from the simulator itself: one reset and one image each, and no rollout.

A :class:`SimulatorBackend` is what imagination needs of a simulator: start states, horizons, and the real result of
actions. The embedded suite is one, an external suite's workers are another (``suites.backend``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl.core.observation import COMMAND, STATE, images_among, stack_views
from worldrl.core.types import ResetRecord
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.embedded import embedded_options
from worldrl.rollout.real.slots import EmbeddedSlots, Observed, Slots, replays
from worldrl.rollout.real.specs import IMAGE_SIZES, EpisodeSpec


class SimulatorBackend(ABC):
    """The simulator of imagined rollouts. Task, index and seed alone name an initial state."""

    @abstractmethod
    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """Time limit of each task (control steps)."""

    @abstractmethod
    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """The episode that begins at the initial state of this spec's task, index and seed."""

    @abstractmethod
    def slots(self, task: str) -> AbstractContextManager[Slots]:
        """Simulators of a task that render nothing."""

    @abstractmethod
    def first_frames(self, specs: Sequence[EpisodeSpec], image_size: int, images: Sequence[str]) -> Iterator[Observed]:
        """Render the initial states of one task's episodes; ``images`` are the names of the cameras' images."""

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
        """Render the initial states 0..count-1 of each task.

        ``seed``, task and index name a state; keep the seed apart from the evaluation's. ``more`` names what is observed
        besides image, command and instruction.
        """
        records, images = [], images_among(more)
        for task in tasks:
            specs = [self.placed(EpisodeSpec(task, index, seed)) for index in range(count)]
            for spec, row in zip(specs, self.first_frames(specs, image_size, images), strict=True):
                begun_at = None if spec.init_id is None else f"initial state {spec.init_id}"
                record = initial_record(
                    stack_views([row[name] for name in images]),
                    np.array(row[COMMAND], np.float32),
                    memory_frames=memory_frames,
                    instruction=str(row["instruction"]),
                    task=task,
                    source=begun_at or f"index {spec.index}, seed {seed}",
                    state=np.array(row[STATE], np.float32) if STATE in more else None,
                )
                records.append(record)
        return records

    def replay(
        self,
        task: str,
        starts: Sequence[tuple[int, int]],
        actions: Sequence[NDArray[np.float32]],
        played: Callable[[int], object] | None = None,
    ) -> NDArray[np.int64]:
        """Execute action sequences float32 ``[T_i, A]`` open loop from initial states ``(index, seed)``.

        Actions beyond the task's horizon are not executed; ``played`` is called with how many more are over. Returns int64 ``[E]``: control step after which the task was
        first fulfilled, -1 where it never was.
        """
        specs = [self.placed(EpisodeSpec(task, index, seed)) for index, seed in starts]
        limit = self.horizons([task])[task]
        with self.slots(task) as slots:
            cut = [given[:limit] for given in actions]
            found = replays(slots, specs, cut, to_success=True, played=played)
        return np.array([-1 if one.first_success is None else one.first_success for one in found], np.int64)


@dataclass(frozen=True)
class EmbeddedBackend(SimulatorBackend):
    """The embedded suite: initial states are sampled from index and seed, in a domain of bimanual tasks."""

    domain: str = "clean"

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """As the tasks are registered."""
        from worldrl_envs.tasks import get_task

        return {task: get_task(task).horizon for task in tasks}

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Return the spec itself."""
        return spec

    def slots(self, task: str) -> AbstractContextManager[Slots]:
        """One environment in this process."""
        return closing(EmbeddedSlots(embedded_options([task], IMAGE_SIZES[0], self.domain)))

    def first_frames(self, specs: Sequence[EpisodeSpec], image_size: int, images: Sequence[str]) -> Iterator[Observed]:
        """Render in this process."""
        options = embedded_options([spec.task for spec in specs], image_size, self.domain, images)
        with closing(EmbeddedSlots(options)) as slots:
            for spec in specs:
                yield slots.reset({0: spec}, render=True)[0]


EMBEDDED_BACKEND = EmbeddedBackend()
