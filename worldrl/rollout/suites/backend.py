"""An external suite's workers as the simulator backend of imagined rollouts.

Such a suite stores its initial states. An index and a seed name one of the first ``states`` of them, so that jobs may
count episodes beyond that number; the others are left to the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.observation import COMMAND, IMAGE, STATE, images_among, stack_views
from worldrl.core.rng import numpy_stream
from worldrl.core.types import ResetRecord
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.replays import SuiteReplayer, start_of
from worldrl.simulators.pool import SimulatorPool


def stored_state(task: str, index: int, seed: int, *, states: int) -> int:
    """Number of an episode's stored state, in 0..states-1.

    Consecutive indices of one seed take every state once before any is repeated.
    """
    return int(numpy_stream(seed, "stored", task).permutation(states)[index % states])


@dataclass
class _FirstFrame:
    """What is observed at a stored state, by name."""

    shown: Mapping[str, NDArray[Any]]


class ExternalBackend:
    """A :class:`~worldrl.rollout.imagined.starts.SimulatorBackend` that starts workers with the first request.

    ``workers`` returns the suite's running workers, which render the scene in the policy's image size. ``horizons``
    are the time limits of the tasks (control steps). Episodes begin at the first ``states`` stored states.
    """

    def __init__(self, workers: Callable[[], SimulatorPool], *, horizons: Mapping[str, int], states: int) -> None:
        self._workers, self._horizons, self.states = workers, horizons, states
        self._frames: dict[tuple[str, int], _FirstFrame] = {}

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """As the suite limits them."""
        return {task: self._horizons[task] for task in tasks}

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Let the episode begin at its stored state."""
        return replace(spec, init_id=stored_state(spec.task, spec.index, spec.seed, states=self.states))

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
        """Reset the simulator to each state once only; SettingError where its workers do not draw such images."""
        images = images_among(more)
        instruction = {task["name"]: task["instruction"] for task in self._workers().suite["tasks"]}
        records: list[ResetRecord] = []
        for task in tasks:
            for index in range(count):
                spec = self.placed(EpisodeSpec(task, index, seed))
                first = self._first_frame(spec)
                if missing := [name for name in images if name not in first.shown]:
                    raise SettingError(f"cameras: the suite's workers draw no {missing[0]}")
                if len(first.shown[IMAGE]) != image_size:
                    raise SettingError(
                        f"image_size: the suite's workers draw {len(first.shown[IMAGE])}, not {image_size} pixels"
                    )
                given = {"instruction": instruction[task], "task": task, "source": f"stored state {spec.init_id}"}
                given["state"] = first.shown[STATE] if STATE in more else None
                sheet = stack_views([first.shown[name] for name in images])
                records.append(initial_record(sheet, first.shown[COMMAND], memory_frames=memory_frames, **given))
        return records

    def _first_frame(self, spec: EpisodeSpec) -> _FirstFrame:
        start = start_of(spec)
        if (start.task, start.init_id) not in self._frames:
            row = self._workers().reset({0: start}, render=True)[0]
            observed = {
                name: np.array(value) if name.endswith(IMAGE) else np.array(value, np.float32)
                for name, value in row.items()
                if name in (STATE, COMMAND) or name.endswith(IMAGE)
            }
            self._frames[start.task, start.init_id] = _FirstFrame(observed)
        return self._frames[start.task, start.init_id]

    def replay(
        self, task: str, starts: Sequence[tuple[int, int]], actions: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.int64]:
        """Execute as many sequences at once as there are environments."""
        specs = [self.placed(EpisodeSpec(task, index, seed)) for index, seed in starts]
        replays = SuiteReplayer(self._workers(), ()).play(specs, [given[: self._horizons[task]] for given in actions])
        return np.array([-1 if replay.first_success is None else replay.first_success for replay in replays], np.int64)
