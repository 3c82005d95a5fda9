"""Rows of world models' states, replaced and joined; the content of a state is the model's own business."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.interfaces import WorldState


class Restoring(Protocol):
    """The part of a world model that rebuilds states from their ``state_dict``."""

    def restore(self, data: dict[str, Any]) -> Any:
        """Rebuild a state."""
        ...


def merge_rows(model: Restoring, old: WorldState, new: WorldState, rows: NDArray[np.int64]) -> WorldState:
    """Return ``old`` with ``rows`` replaced by the rows of ``new``."""
    index = torch.from_numpy(rows)
    merged = {name: value.clone() for name, value in old.state_dict().items()}
    for name, value in new.state_dict().items():
        merged[name][index.to(value.device)] = value
    return model.restore(merged)


def join_rows(model: Restoring, first: WorldState, second: WorldState) -> WorldState:
    """Return the rows of two states, one after the other."""
    more = second.state_dict()
    return model.restore({name: torch.cat([value, more[name]]) for name, value in first.state_dict().items()})
