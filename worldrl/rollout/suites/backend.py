"""An external suite's workers as the simulator backend of imagined rollouts.

Such a suite stores its initial states. An index and a seed name one of the first ``states`` of them, so that jobs may
count episodes beyond that number; the others are left to the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from worldrl.core.errors import SettingError
from worldrl.core.observation import IMAGE
from worldrl.core.rng import numpy_stream
from worldrl.rollout.imagined.starts import SimulatorBackend
from worldrl.rollout.real.slots import Observed, Slots
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import SuiteSlots
from worldrl.simulators.pool import SimulatorPool


def stored_state(task: str, index: int, seed: int, *, states: int) -> int:
    """Number of an episode's stored state, in 0..states-1.

    Consecutive indices of one seed take every state once before any is repeated.
    """
    return int(numpy_stream(seed, "stored", task).permutation(states)[index % states])


class ExternalBackend(SimulatorBackend):
    """Starts workers with the first request.

    ``workers`` returns the suite's running workers, which render the scene in the policy's image size. ``horizons``
    are the time limits of the tasks (control steps). Episodes begin at the first ``states`` stored states.
    """

    def __init__(self, workers: Callable[[], SimulatorPool], *, horizons: Mapping[str, int], states: int) -> None:
        self._workers, self._horizons, self.states = workers, horizons, states
        self._frames: dict[tuple[str, int | None], Observed] = {}

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """As the suite limits them."""
        return {task: self._horizons[task] for task in tasks}

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Let the episode begin at its stored state."""
        return replace(spec, init_id=stored_state(spec.task, spec.index, spec.seed, states=self.states))

    def slots(self, task: str) -> AbstractContextManager[Slots]:
        """As many simulators as the workers have."""
        return nullcontext(SuiteSlots(self._workers(), horizon=self._horizons))

    def first_frames(self, specs: Sequence[EpisodeSpec], image_size: int, images: Sequence[str]) -> Iterator[Observed]:
        """Reset the simulator to each state once only; SettingError where its workers do not draw such images."""
        for spec in specs:
            first = self._first_frame(spec)
            if missing := [name for name in images if name not in first]:
                raise SettingError(f"cameras: the suite's workers draw no {missing[0]}")
            if len(first[IMAGE]) != image_size:
                raise SettingError(f"image_size: the suite's workers draw {len(first[IMAGE])}, not {image_size} pixels")
            yield first

    def _first_frame(self, spec: EpisodeSpec) -> Observed:
        key = (spec.task, spec.init_id)
        if key not in self._frames:
            with self.slots(spec.task) as slots:
                row = slots.reset({0: spec}, render=True)[0]
            self._frames[key] = {name: np.array(value) for name, value in row.items()}
        return self._frames[key]
