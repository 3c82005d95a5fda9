"""An external suite's workers as the simulator backend of imagined rollouts.

Such a suite numbers its initial states. An index and a seed name one of ``states``, so that jobs may count episodes
beyond their number; the others are left to the evaluation.
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


def initial_state(task: str, index: int, seed: int, *, states: range) -> int:
    """Number of an episode's initial state, one of ``states``.

    Consecutive indices of one seed take every state once before any is repeated.
    """
    return states[int(numpy_stream(seed, "stored", task).permutation(len(states))[index % len(states)])]


class ExternalBackend(SimulatorBackend):
    """Starts workers with the first request.

    ``workers`` returns the suite's running workers, which render the scene in the policy's image size. ``horizons``
    are the time limits of the tasks (control steps). Episodes begin at the initial states of the numbers ``states``.
    """

    def __init__(self, workers: Callable[[], SimulatorPool], *, horizons: Mapping[str, int], states: range) -> None:
        self._workers, self._horizons, self.states = workers, horizons, states
        self._frames: dict[tuple[str, int | None], Observed] = {}

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """As the suite limits them."""
        return {task: self._horizons[task] for task in tasks}

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Let the episode begin at its initial state."""
        return replace(spec, init_id=initial_state(spec.task, spec.index, spec.seed, states=self.states))

    def slots(self, task: str) -> AbstractContextManager[Slots]:
        """As many simulators as the workers have."""
        return nullcontext(SuiteSlots(self._workers(), horizon=self._horizons))

    def first_frames(self, specs: Sequence[EpisodeSpec], image_size: int, images: Sequence[str]) -> Iterator[Observed]:
        """Reset the simulator to each state once only; SettingError where its workers do not draw such images."""
        self._reset_to(specs)
        for spec in specs:
            first = self._frames[spec.task, spec.init_id]
            if missing := [name for name in images if name not in first]:
                raise SettingError(f"cameras: the suite's workers draw no {missing[0]}")
            if len(first[IMAGE]) != image_size:
                raise SettingError(f"image_size: the suite's workers draw {len(first[IMAGE])}, not {image_size} pixels")
            yield first

    def _reset_to(self, specs: Sequence[EpisodeSpec]) -> None:
        """Keep the first frame of each state that was not seen before; all slots reset side by side."""
        new = list({key: spec for spec in specs if (key := (spec.task, spec.init_id)) not in self._frames}.values())
        if not new:
            return
        with self.slots(new[0].task) as slots:
            for begin in range(0, len(new), slots.slots):
                batch = new[begin : begin + slots.slots]
                for slot, row in slots.reset(dict(enumerate(batch)), render=True).items():
                    key = (batch[slot].task, batch[slot].init_id)
                    self._frames[key] = {name: np.array(value) for name, value in row.items()}
