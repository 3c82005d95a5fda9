"""Simulators side by side: environments of the embedded suite in this process, and actions played open loop.

An environment is made in the process that steps it, because a GL context must never be inherited. Each slot reuses its
environment while the task stays the same.

Shapes legend: ``T`` steps, ``V`` cameras, ``Y X`` pixels; ``A`` numbers of an action, ``S`` of a state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.rollout.real.rows import camera_frames
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec

Actions = dict[int, NDArray[np.float32]]
Observed = dict[str, Any]
"""One observation by name, with ``success`` and ``contact``, and images where they are rendered."""
Pulse = Callable[[str, EpisodeSpec | None], None]
"""Called with the name of the next call and its episode, before each call that may take long."""


def silent(call: str, spec: EpisodeSpec | None) -> None:
    """A :data:`Pulse` that nobody waits for."""


class Slots(Protocol):
    """Simulators that run one episode each.

    ``cameras`` are in the order of an episode's frames, ``domain`` is of bimanual tasks. ``joint`` simulators are
    stepped together, others one after the other. ``several_steps``: they take several actions in one call.
    """

    slots: int
    cameras: tuple[str, ...]
    actions: ActionSpec
    domain: str
    joint: bool
    several_steps: bool
    pulse: Pulse

    def reset(self, specs: Mapping[int, EpisodeSpec], *, render: bool) -> Mapping[int, Observed]:
        """Begin episodes by slot; returns the first observation of each."""
        ...

    def steps(self, actions: Actions, *, render: Collection[int]) -> Mapping[int, Sequence[Observed]]:
        """Take actions ``[n, A]`` by slot; returns the observation after each step.

        A slot ends early after a step that fulfils its task. Images are of the last step, of the slots ``render``.
        """
        ...

    def env(self, slot: int) -> Any:
        """The Gymnasium environment of a slot's episode; None where it is in another process."""
        ...

    def horizon(self, slot: int) -> int:
        """Time limit of a slot's episode (control steps)."""
        ...

    def finish(self, slot: int) -> bool:
        """Forget a slot's ended episode; returns whether it lost its worker."""
        ...


class EnvSlot:
    """Holds one environment, made again only when the task changes; it continues after success."""

    def __init__(self, options: EnvOptions) -> None:
        self._options = options
        self._task = ""
        self.env: Any = None

    def reset(self, spec: EpisodeSpec, *, render: bool = True) -> Observed:
        """Start an episode; returns its first observation."""
        if spec.task != self._task:
            self.close()
            self.env, self._task = _make_env(self._options, spec.task), spec.task
        self.env.unwrapped.set_style(spec.style)
        options: dict[str, Any] = {"index": spec.index} if spec.init_id is None else {"init_id": spec.init_id}
        if spec.instruction is not None:
            options["instruction"] = spec.instruction
        self._draw(render)
        return _observed(*self.env.reset(seed=spec.seed, options=options))

    def step(self, action: NDArray[np.float32], *, render: bool = True) -> Observed:
        """Take one action ``[A]``; returns the observation after it."""
        self._draw(render)
        obs, _, _, _, info = self.env.step(action)
        return _observed(obs, info)

    def _draw(self, render: bool) -> None:
        # Rendering takes most of a step's time; physics does not depend on it.
        self.env.unwrapped.cameras = self._options.cameras if render else ()

    def close(self) -> None:
        """Release the environment and its GL context."""
        if self.env is not None:
            self.env.close()
        self.env, self._task = None, ""


def _make_env(options: EnvOptions, task: str) -> Any:
    return gymnasium.make(
        options.env_id.format(task=task),
        max_episode_steps=options.max_steps.get(task),
        obs="pixels",
        image_size=options.image_size,
        cameras=options.cameras,
        terminate_on_success=False,
        disable_env_checker=True,
        **({} if options.domain == "clean" else {"domain": options.domain}),
    )


def _observed(obs: Mapping[str, Any], info: Mapping[str, Any]) -> Observed:
    return {**info, **obs, "success": info["is_success"]}


def rewound(env: Any, state: Mapping[str, Any]) -> Observed:
    """Return an embedded environment to an earlier state of this episode; returns its observation there."""
    return _observed(*env.reset(options={"state": state}))


class EmbeddedSlots:
    """See :class:`~worldrl.rollout.real.slots.Slots`; ``restarted`` are keys of episodes that an earlier worker lost."""

    joint, several_steps = False, True

    def __init__(
        self,
        options: EnvOptions,
        slots: int = 1,
        *,
        pulse: Pulse = silent,
        restarted: Collection[tuple[str, int, int, int]] = (),
    ) -> None:
        self.slots, self.pulse = slots, pulse
        self.cameras, self.actions, self.domain = options.cameras, options.actions, options.domain
        self._held, self._restarted = [EnvSlot(options) for _ in range(slots)], restarted
        self._specs: dict[int, EpisodeSpec] = {}

    def reset(self, specs: Mapping[int, EpisodeSpec], *, render: bool) -> dict[int, Observed]:
        """Begin episodes by slot."""
        rows: dict[int, Observed] = {}
        for slot, spec in specs.items():
            self.pulse("make and reset the environment", spec)
            self._specs[slot] = spec
            rows[slot] = self._held[slot].reset(spec, render=render)
        return rows

    def steps(
        self, actions: Mapping[int, NDArray[np.float32]], *, render: Collection[int]
    ) -> dict[int, list[Observed]]:
        """Take actions ``[n, A]`` in each of the slots, up to a step that fulfils its task."""
        return {slot: list(self._steps(slot, given, slot in render)) for slot, given in actions.items()}

    def _steps(self, slot: int, actions: NDArray[np.float32], render: bool) -> Iterator[Observed]:
        for place, action in enumerate(actions, 1):
            self.pulse("step", self._specs[slot])
            row = self._held[slot].step(action, render=render and place == len(actions))
            yield row
            if row["success"]:
                return

    def env(self, slot: int) -> Any:
        """The Gymnasium environment of a slot's episode."""
        return self._held[slot].env

    def horizon(self, slot: int) -> int:
        """Time limit of a slot's episode (control steps)."""
        return self._held[slot].env.spec.max_episode_steps or sys.maxsize

    def finish(self, slot: int) -> bool:
        """Whether a slot's episode lost an earlier worker."""
        return self._specs[slot].key in self._restarted

    def close(self) -> None:
        """Release every environment."""
        for held in self._held:
            held.close()


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


def replays(
    slots: Slots,
    specs: Sequence[EpisodeSpec],
    actions: Sequence[NDArray[np.float32]],
    *,
    to_success: bool = False,
    played: Callable[[int], object] | None = None,
) -> list[Replay]:
    """Play ``[T, A]`` actions of each episode, all or ``to_success``, as many episodes at once as there are slots.

    ``played`` is called with how many more are over.
    """
    found: list[Replay] = []
    for first in range(0, len(specs), slots.slots):
        batch = slice(first, first + slots.slots)
        found += _batch(slots, specs[batch], actions[batch], to_success)
        if played is not None:
            played(len(specs[batch]))
    return found


def _batch(
    slots: Slots, specs: Sequence[EpisodeSpec], actions: Sequence[NDArray[np.float32]], to_success: bool
) -> list[Replay]:
    states = {slot: [row["state"]] for slot, row in slots.reset(dict(enumerate(specs)), render=False).items()}
    hits: dict[int, list[bool]] = {slot: [] for slot in states}
    for step in range(max(map(len, actions))):
        running = [slot for slot in states if step < len(actions[slot]) and not (to_success and True in hits[slot])]
        live = {slot: actions[slot][step : step + 1] for slot in running}
        for slot, (row,) in (slots.steps(live, render=()) if live else {}).items():
            states[slot].append(row["state"])
            hits[slot].append(bool(row["success"]))
    return [Replay(np.stack(states[slot]).astype(np.float32), _first(hits[slot])) for slot in sorted(states)]


def openings(slots: Slots, specs: Sequence[EpisodeSpec]) -> list[Opening]:
    """Show the first frame of each episode."""
    rows = (slots.reset({0: spec}, render=True)[0] for spec in specs)
    return [Opening(np.array(row["state"], np.float32), camera_frames(row, slots.cameras)) for row in rows]


def _first(hits: Sequence[bool]) -> int | None:
    return hits.index(True) + 1 if True in hits else None
