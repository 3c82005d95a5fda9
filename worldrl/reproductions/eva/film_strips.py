"""Pictures of a stage: rows of frames that it leaves in its folder, and the report page shows.

One file, :data:`STRIP`, with a row of frames per name and a label per time step; a stage without one has nothing to see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.evaluation.report.model import Filmstrip, Frames

STRIP = "filmstrip.npz"
LABELS = "labels"


def save_strip(folder: Path, rows: Mapping[str, Frames], labels: Iterable[str]) -> None:
    """Leave rows of frames uint8 ``[T, Y, X, 3]`` in a stage's folder."""
    arrays: dict[str, Any] = {LABELS: np.array(list(labels)), **rows}
    np.savez_compressed(folder / STRIP, **arrays)


def stored_strips(stages: Mapping[str, Path]) -> list[Filmstrip]:
    """Make a filmstrip of every stage that left one; title to the stage's folder."""
    return [strip(title, folder / STRIP) for title, folder in stages.items() if (folder / STRIP).is_file()]


def strip(title: str, file: Path) -> Filmstrip:
    """Read one stage's rows."""
    with np.load(file, allow_pickle=False) as kept:
        rows = {name: kept[name] for name in kept.files if name != LABELS}
        return Filmstrip(title, f"{' above '.join(rows)}.", rows, kept[LABELS].tolist())
