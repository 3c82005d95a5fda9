"""Running episodes as actors see them, and what an actor is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.types import PolicyObs
from worldrl.rollout.specs import EpisodeSpec


@dataclass
class Row:
    """One running episode as an actor sees it.

    Attributes:
        spec: which episode.
        env: its Gymnasium environment, already reset.
        obs: newest observation (``image``, ``command``, ...).
        instruction: what the robot was told.
        mind: the actor's own state of this episode (a generator, a scripted expert).
    """

    spec: EpisodeSpec
    env: Any
    obs: Mapping[str, Any]
    instruction: str
    mind: Any = field(default=None, repr=False)


class Actor(Protocol):
    """Chooses actions for several episodes at once."""

    def begin(self, row: Row) -> None:
        """Prepare ``row.mind`` for an episode that was just reset."""
        ...

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Return the next actions as decided, float32 ``[B, L, A]``; ``L`` is the actor's own.

        Whoever executes them takes them to the robot's range and counts the numbers that lay outside.
        """
        ...


def stack_obs(rows: Sequence[Row], device: str, more: Sequence[str] = ()) -> PolicyObs:
    """Batch the rows' newest observations for a policy.

    Args:
        rows: running episodes.
        device: where the tensors go.
        more: names of further observations that the policy asks for.

    Raises:
        SettingError: the simulator does not show one of them.
    """
    for name in more:
        if name not in rows[0].obs:
            raise SettingError(f"{name}: the policy looks at it, the simulator shows {', '.join(sorted(rows[0].obs))}")
    command = np.stack([np.asarray(row.obs["command"], np.float32) for row in rows])
    return PolicyObs(
        image=_stacked(rows, "image", device),
        command=torch.from_numpy(command).to(device),
        instruction=[row.instruction for row in rows],
        more={name: _stacked(rows, name, device) for name in more},
    )


def _stacked(rows: Sequence[Row], name: str, device: str) -> torch.Tensor:
    return torch.from_numpy(np.stack([row.obs[name] for row in rows])).to(device)
