"""Running episodes as actors observe them, and the interface of actors."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.types import PolicyObs
from worldrl.rollout.real.specs import EpisodeSpec


@dataclass
class Row:
    """One running episode as an actor observes it.

    ``env`` is its Gymnasium environment, already reset, or None where it is in another process; ``slot`` its simulator's
    number. ``obs`` is the newest observation (``image``, ``command``, ...).
    ``actor_state`` is the actor's own state of this episode. ``past`` holds observations of earlier control steps, the
    oldest first, as many as the actor asked for.
    """

    spec: EpisodeSpec
    env: Any
    obs: Mapping[str, Any]
    instruction: str
    slot: int = 0
    actor_state: Any = field(default=None, repr=False)
    past: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=0), repr=False)

    def keep(self, n_obs_steps: int) -> None:
        """Store the newest ``n_obs_steps`` observations from now on; the present one stands for those before it."""
        self.past = deque([self.obs] * (n_obs_steps - 1), maxlen=n_obs_steps - 1)

    def see(self, obs: Mapping[str, Any]) -> None:
        """Add the observation after a control step."""
        self.past.append(self.obs)
        self.obs = obs


class Actor(Protocol):
    """Chooses actions for several episodes at once."""

    @property
    def images_needed(self) -> int:
        """Newest observations whose images a decision needs; 0 where it needs none."""
        ...

    def begin(self, row: Row) -> None:
        """Prepare ``row.actor_state`` for an episode that was just reset."""
        ...

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Return the next actions as decided, float32 ``[B, L, A]``; ``L`` is the actor's own.

        The caller clips them to the robot's range and counts the clipped numbers.
        """
        ...


def stack_obs(rows: Sequence[Row], device: str, more: Sequence[str] = ()) -> PolicyObs:
    """Batch the rows' newest observations for a policy; ``more`` names further observations of it.

    Raises SettingError (the simulator lacks one of them).
    """
    for name in more:
        if name not in rows[0].obs:
            raise SettingError(f"{name}: the policy needs it, the simulator shows {', '.join(sorted(rows[0].obs))}")
    instruction = [row.instruction for row in rows]
    *past, newest = (
        _batched(shown, instruction, device, more)
        for shown in zip(*((*row.past, row.obs) for row in rows), strict=True)
    )
    return replace(newest, past=tuple(past))


def _batched(
    shown: Sequence[Mapping[str, Any]], instruction: Sequence[str], device: str, more: Sequence[str]
) -> PolicyObs:
    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([obs[name] for obs in shown])).to(device)

    command = np.stack([np.asarray(obs["command"], np.float32) for obs in shown])
    return PolicyObs(
        image=stacked("image"),
        command=torch.from_numpy(command).to(device),
        instruction=instruction,
        more={name: stacked(name) for name in more},
    )
