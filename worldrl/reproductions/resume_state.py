"""Checkpoints of a stage with its own training loop, so that a killed stage resumes bit for bit.

Such a loop draws all its numbers from one generator, whose state is part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from worldrl.core.storage.checkpoint import load_checkpoint, save_checkpoint


class LoopCheckpoints:
    """Checkpoints of one loop.

    Args:
        folder: of the stage.
        generator: of all the loop's draws.
        parts: everything that the loop changes, by name; each has ``state_dict`` and ``load_state_dict``.
    """

    def __init__(self, folder: Path, generator: torch.Generator, parts: Mapping[str, Any]) -> None:
        self.folder, self.generator, self.parts = folder / "checkpoints", generator, parts

    def save(self, step: int, **values: Any) -> None:
        """Store the state after ``step`` steps, and further values; ArtefactError where the disk refuses."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        extra = {"parts": parts, "generator": self.generator.get_state(), "seen": values}
        save_checkpoint(self.folder, step, modules={}, optimizers={}, extra=extra)

    def restore(self) -> tuple[int, dict[str, Any]]:
        """Load the newest checkpoint; return its step and further values, or 0 and none.

        Raises:
            ArtefactError: all checkpoints are damaged, or of other parts.
        """
        found = load_checkpoint(self.folder, modules={}, optimizers={})
        if found is None:
            return 0, {}
        for name, part in self.parts.items():
            part.load_state_dict(found.extra["parts"][name])
        self.generator.set_state(found.extra["generator"])
        return found.step, found.extra["seen"]
