"""State of a stage's own training loop, which draws all its numbers from one generator, to resume it bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class LoopState:
    """What one loop changes."""

    generator: torch.Generator  # of all the loop's draws
    parts: Mapping[str, Any]  # everything else, by name; each has `state_dict` and `load_state_dict`
    seen: dict[str, Any] = field(default_factory=dict[str, Any])  # further values; empty in a fresh start

    def state_dict(self) -> dict[str, Any]:
        """Contents of a checkpoint."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        return {"parts": parts, "generator": self.generator.get_state(), "seen": self.seen}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        for name, part in self.parts.items():
            part.load_state_dict(state_dict["parts"][name])
        self.generator.set_state(state_dict["generator"])
        self.seen = state_dict["seen"]
