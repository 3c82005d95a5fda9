"""A foreign suite's workers as the ground under imagined rollouts.

Such a suite stores its initial states. An index and a seed name one of the first ``states`` of them, so that jobs which
count episodes need not know that there are few; those behind are left to the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.core.types import ResetRecord
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.replays import SuiteReplayer, start_of
from worldrl.simulators.pool import SimulatorPool


def stored_state(task: str, index: int, seed: int, *, states: int) -> int:
    """Number of the stored state, 0..states-1, that an episode begins at.

    Consecutive indices of one seed take every state once before any comes again.
    """
    return int(numpy_stream(seed, "stored", task).permutation(states)[index % states])


@dataclass
class _Look:
    """The first frame of a stored state."""

    image: NDArray[np.uint8]
    command: NDArray[np.float32]


class ExternalBackend:
    """See :class:`~worldrl.rollout.imagined.starts.SimulatorBackend`; workers are started when first something is asked of the simulator.

    Args:
        workers: returns the suite's running workers, which draw the scene in the size of the policy's pictures.
        horizon: time limit of every task (control steps).
        states: how many of the stored states, from the first, episodes may begin at.
    """

    def __init__(self, workers: Callable[[], SimulatorPool], *, horizon: int, states: int) -> None:
        self._workers, self._horizon, self.states = workers, horizon, states
        self._seen: dict[tuple[str, int], _Look] = {}

    def horizons(self, tasks: Sequence[str]) -> dict[str, int]:
        """The suite's one limit."""
        return dict.fromkeys(tasks, self._horizon)

    def placed(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Let the episode begin at its stored state."""
        return replace(spec, init_id=stored_state(spec.task, spec.index, spec.seed, states=self.states))

    def starts(
        self, tasks: Sequence[str], count: int, *, seed: int, memory_frames: int, image_size: int
    ) -> list[ResetRecord]:
        """Reset the simulator to each state once, whoever asks how often.

        Raises:
            SettingError: its workers draw pictures of another size.
        """
        sentence = {task["name"]: task["instruction"] for task in self._workers().suite["tasks"]}
        records: list[ResetRecord] = []
        for task in tasks:
            for index in range(count):
                spec = self.placed(EpisodeSpec(task, index, seed))
                look = self._look(spec)
                if len(look.image) != image_size:
                    raise SettingError(
                        f"image_size: the suite's workers draw {len(look.image)}, not {image_size} pixels"
                    )
                records.append(
                    initial_record(
                        look.image,
                        look.command,
                        instruction=sentence[task],
                        task=task,
                        memory_frames=memory_frames,
                        source=f"stored state {spec.init_id}",
                    )
                )
        return records

    def _look(self, spec: EpisodeSpec) -> _Look:
        start = start_of(spec)
        if (start.task, start.init_id) not in self._seen:
            row = self._workers().reset({0: start}, render=True)[0]
            self._seen[start.task, start.init_id] = _Look(np.array(row["image"]), np.array(row["command"], np.float32))
        return self._seen[start.task, start.init_id]

    def replay(
        self, task: str, starts: Sequence[tuple[int, int]], actions: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.int64]:
        """Execute as many sequences at once as there are environments."""
        specs = [self.placed(EpisodeSpec(task, index, seed)) for index, seed in starts]
        replays = SuiteReplayer(self._workers(), ()).play(specs, [given[: self._horizon] for given in actions])
        return np.array([-1 if replay.first_success is None else replay.first_success for replay in replays], np.int64)
