"""Environments of the embedded suite side by side in this process, for :func:`~worldrl.rollout.real.episodes.play`.

An environment is made in the process that steps it, because a GL context must never be inherited. Each slot reuses its
environment while the task stays the same.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl.rollout.real.episodes import Observed, Pulse, silent
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec


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


class EmbeddedSlots:
    """See :class:`~worldrl.rollout.real.episodes.Slots`; ``restarted`` are keys of episodes that an earlier worker lost."""

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
