"""Stable-Baselines3's replay buffer with named random streams and storage without pickle."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import ArtefactError
from worldrl.core.extras import require

BUFFER_COLUMNS = {
    "obs": "observations",
    "next_obs": "next_observations",
    "action": "actions",
    "reward": "rewards",
    "ended": "dones",
    "timeout": "timeouts",
}
"""worldrl's names of its columns; the actions are scaled to [-1, 1]."""
INFO_COLUMNS = ("executed", "qpos", "qvel")
"""Columns of the step's info, from :class:`~worldrl.rollout.vector.episodes.StateInfo`."""


def recorded_replay() -> type[Any]:
    """Return the class of :class:`Recorded` on top of Stable-Baselines3's own; MissingExtraError without it."""
    base = require("stable_baselines3.common.buffers", extra="sb3").ReplayBuffer
    return type("RecordedReplay", (Recorded, base), {})


class Recorded:
    """A buffer that loses no row; set its ``generator`` before each stretch, and take :meth:`newest` after it."""

    generator: np.random.Generator
    pos: int
    full: bool
    buffer_size: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._beside: dict[str, list[NDArray[Any]]] = {name: [] for name in INFO_COLUMNS}

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, ended: Any, infos: list[dict[str, Any]]) -> None:
        """Store one row; the buffer is as long as the training, so nothing is overwritten."""
        base: Any = super()
        base.add(obs, next_obs, action, reward, ended, infos)
        for name in INFO_COLUMNS:
            if name in infos[0]:
                self._beside[name].append(infos[0][name])

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw a batch with :attr:`generator` instead of numpy's global one."""
        base: Any = super()
        return base._get_samples(self.generator.integers(self._rows, size=batch_size), env=env)

    def newest(self, rows: int) -> dict[str, Tensor]:
        """Return the newest rows as tensors by worldrl's names, and clear the columns of their infos."""
        end = self._rows
        columns = {name: getattr(self, theirs)[end - rows : end, 0] for name, theirs in BUFFER_COLUMNS.items()}
        for name, beside in self._beside.items():
            if beside:
                columns[name] = np.stack(beside)
                beside.clear()
        return {name: torch.from_numpy(array.copy()) for name, array in columns.items()}

    def refill(self, columns: Mapping[str, Tensor]) -> None:
        """Append rows of :meth:`newest`; ArtefactError where they do not fit: they were recorded under other settings."""
        begin, end = self.pos, self.pos + len(columns["reward"])
        for name, theirs in BUFFER_COLUMNS.items():
            room = getattr(self, theirs)[begin:end, 0]
            value = columns[name].numpy()
            if room.shape != value.shape or room.dtype != value.dtype:
                raise ArtefactError(f"experience: {name} is {value.dtype} {list(value.shape)}, not {list(room.shape)}")
            room[...] = value
        self.pos = end % self.buffer_size
        self.full = end == self.buffer_size

    @property
    def _rows(self) -> int:
        return self.buffer_size if self.full else self.pos
