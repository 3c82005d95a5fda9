"""A first-in-first-out buffer of imagined transitions.

Unifloral's buffer differs: it keeps its first rows and overwrites the same tail at every refresh.

Shapes legend: ``B`` rows, ``N`` capacity, ``S`` observation, ``A`` action.
"""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.transitions import Transitions


class TransitionBuffer:
    """A ring of at most ``capacity`` rows; memory is allocated with the first rows."""

    def __init__(self, capacity: int, device: torch.device | str = "cpu"):
        if capacity < 1:
            raise SettingError(f"buffer capacity must be at least 1 row, got {capacity}")
        self.capacity, self.device = capacity, torch.device(device)
        self._rows: Transitions | None = None
        self._next = 0  # place of the next row, which is the oldest one once the ring is full
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, rows: Transitions) -> None:
        """Add rows in order; of more than ``capacity`` rows the last ones stay. SettingError: rows of another size."""
        if len(rows) > self.capacity:
            rows = rows.select(torch.arange(len(rows) - self.capacity, len(rows), device=rows.obs.device))
        ring = self._ring(rows)
        place = (self._next + torch.arange(len(rows), device=self.device)) % self.capacity
        for field in fields(Transitions):
            column = getattr(rows, field.name)
            kept = getattr(ring, field.name)
            if column.shape[1:] != kept.shape[1:]:
                raise SettingError(
                    f"buffer: {field.name} has {list(kept.shape[1:])} numbers per row, got {list(column.shape[1:])}; "
                    "give each world a buffer of its own"
                )
            kept[place] = column.to(self.device)
        self._next = (self._next + len(rows)) % self.capacity
        self._size = min(self._size + len(rows), self.capacity)

    def sample(self, rows: int, *, generator: torch.Generator) -> Transitions:
        """Draw rows uniformly, with replacement; SettingError while the buffer is empty."""
        if self._rows is None or not self._size:
            raise SettingError("the buffer of imagined transitions is empty; generate before sampling")
        index = torch.randint(self._size, (rows,), generator=generator, device=generator.device)
        return self._rows.select(index.to(self.device))

    def rows(self) -> Transitions:
        """Return all rows, oldest first; SettingError while the buffer is empty."""
        if self._rows is None:
            raise SettingError("the buffer of imagined transitions is empty; generate before reading it")
        first = self._next if self._size == self.capacity else 0
        return self._rows.select((first + torch.arange(self._size, device=self.device)) % self.capacity)

    def state_dict(self) -> dict[str, Any]:
        """Return the rows in ring order, and the place of the next one."""
        rows = None
        if self._rows is not None:
            rows = {field.name: getattr(self._rows, field.name)[: self._size] for field in fields(Transitions)}
        return {"capacity": self.capacity, "next": self._next, "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict`; later draws are the same. ArtefactError: of another capacity."""
        if state["capacity"] != self.capacity:
            raise ArtefactError(
                f"the saved buffer holds up to {state['capacity']} rows, this one {self.capacity}; use the same setting"
            )
        self._rows, self._next, self._size = None, 0, 0
        if state["rows"] is not None:
            self.add(Transitions(**state["rows"]))
        self._next = state["next"]

    def _ring(self, like: Transitions) -> Transitions:
        if self._rows is None:
            self._rows = Transitions(*(self._column(getattr(like, field.name)) for field in fields(Transitions)))
        return self._rows

    def _column(self, like: Tensor) -> Tensor:
        return torch.zeros((self.capacity, *like.shape[1:]), dtype=like.dtype, device=self.device)
