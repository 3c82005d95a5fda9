"""Given actions played open loop from known initial states, in the embedded suite or in an external one.

Nothing is rendered while actions are played; the first frame is rendered on request. The result is the measured state
at every frame, for comparison with a recording.

Shapes legend: ``T`` steps, ``V`` cameras, ``Y X`` pixels; ``A`` numbers of an action, ``S`` of a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.core.embodiment import STATE_NAMES
from worldrl.core.errors import SettingError
from worldrl.rollout.real.recording import camera_frames
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.rollout.real.worker_task import EnvSlot
from worldrl.simulators.pool import SimulatorPool, Start

Actions = NDArray[np.float32]
Key = tuple[str, int, int, int]
"""Of an episode, see :class:`~worldrl.rollout.real.specs.EpisodeSpec`."""


@dataclass(frozen=True)
class Replay:
    """Result of actions: measured state float32 ``[T+1, S]``, and the first frame (1..T) of success, or None."""

    state: NDArray[np.float32]
    first_success: int | None

    @property
    def success(self) -> bool:
        """Whether the task was fulfilled at some frame after the first."""
        return self.first_success is not None


@dataclass(frozen=True)
class Opening:
    """The first frame of an episode: state float32 ``[S]``, frames uint8 ``[V, Y, X, 3]``."""

    state: NDArray[np.float32]
    frames: NDArray[np.uint8]


class Replayer(Protocol):
    """A suite that plays given actions."""

    def play(self, specs: Sequence[EpisodeSpec], actions: Sequence[Actions]) -> list[Replay]:
        """Play ``[T, A]`` actions of each episode."""
        ...

    def open(self, specs: Sequence[EpisodeSpec]) -> list[Opening]:
        """Show the first frame of each episode."""
        ...


class EmbeddedReplayer:
    """The embedded suite, in this process; the robot's state has ``numbers`` numbers ``S``."""

    def __init__(self, options: EnvOptions, numbers: int = len(STATE_NAMES)) -> None:
        self._numbers = numbers
        self._unrendered, self._rendered = EnvSlot(options, "state"), EnvSlot(options, "pixels")
        self._cameras = options.cameras

    def play(self, specs: Sequence[EpisodeSpec], actions: Sequence[Actions]) -> list[Replay]:
        """Play one episode after the other."""
        return [self._one(spec, given) for spec, given in zip(specs, actions, strict=True)]

    def _one(self, spec: EpisodeSpec, actions: Actions) -> Replay:
        env, obs, _ = self._unrendered.reset(spec)
        states: list[NDArray[np.float32]] = [obs[: self._numbers]]  # without images it begins with the state
        hits: list[bool] = []
        for action in actions:
            obs, _, _, _, info = env.step(action)
            states.append(obs[: self._numbers])
            hits.append(bool(info["is_success"]))
        return Replay(np.stack(states).astype(np.float32), _first(hits))

    def open(self, specs: Sequence[EpisodeSpec]) -> list[Opening]:
        """Reset to each episode."""
        found: list[Opening] = []
        for spec in specs:
            obs: Mapping[str, Any] = self._rendered.reset(spec)[1]
            found.append(Opening(np.array(obs["state"], np.float32), camera_frames(obs, self._cameras)))
        return found

    def close(self) -> None:
        """Release the environments."""
        self._unrendered.close()
        self._rendered.close()


class SuiteReplayer:
    """An external suite in its workers, which render the recordings' ``cameras``, the scene camera first.

    ``given`` maps an episode's key to a state of the simulator to begin at; other episodes begin at stored ones.
    """

    def __init__(
        self, pool: SimulatorPool, cameras: tuple[str, ...], given: Mapping[Key, Sequence[float]] | None = None
    ) -> None:
        self._pool, self._cameras, self._given = pool, cameras, given or {}

    def play(self, specs: Sequence[EpisodeSpec], actions: Sequence[Actions]) -> list[Replay]:
        """Play as many episodes at once as there are slots."""
        found: list[Replay] = []
        for first in range(0, len(specs), self._pool.slots):
            batch = slice(first, first + self._pool.slots)
            found += self._batch(specs[batch], actions[batch])
        return found

    def _batch(self, specs: Sequence[EpisodeSpec], actions: Sequence[Actions]) -> list[Replay]:
        rows = self._pool.reset(dict(enumerate(map(self._start, specs))), render=False)
        states = {slot: [row["state"]] for slot, row in rows.items()}
        hits: dict[int, list[bool]] = {slot: [] for slot in states}
        for step in range(max(map(len, actions))):
            live = {slot: actions[slot][step] for slot in states if step < len(actions[slot])}
            for slot, row in self._pool.step(live, render=()).items():
                states[slot].append(row["state"])
                hits[slot].append(bool(row["success"]))
        return [Replay(np.stack(states[slot]).astype(np.float32), _first(hits[slot])) for slot in sorted(states)]

    def open(self, specs: Sequence[EpisodeSpec]) -> list[Opening]:
        """Reset to each episode."""
        found: list[Opening] = []
        for spec in specs:
            row = self._pool.reset({0: self._start(spec)}, render=True)[0]
            found.append(Opening(np.array(row["state"], np.float32), camera_frames(row, self._cameras)))
        return found

    def _start(self, spec: EpisodeSpec) -> Start:
        if spec.key in self._given:
            return Start(spec.task, -1, spec.seed, tuple(self._given[spec.key]))
        return start_of(spec)


def _first(hits: Sequence[bool]) -> int | None:
    return hits.index(True) + 1 if True in hits else None


def start_of(spec: EpisodeSpec) -> Start:
    """An external suite's start. Raises SettingError (the episode did not begin at a stored initial state)."""
    if spec.init_id is None:
        raise SettingError(
            f"{spec.describe()}: an external suite begins at stored initial states; its number is missing"
        )
    return Start(spec.task, spec.init_id, spec.seed)
