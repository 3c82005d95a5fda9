"""Filmstrips of stages: :data:`STRIP` holds a row of frames per name and a label per time step, for the report page."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.evaluation.report.model import Filmstrip, Frames

STRIP = "filmstrip.npz"
LABELS = "labels"


def save_strip(folder: Path, rows: Mapping[str, Frames], labels: Iterable[str]) -> None:
    """Store rows of frames uint8 ``[T, Y, X, 3]`` in a stage's folder."""
    arrays: dict[str, Any] = {LABELS: np.array(list(labels)), **rows}
    np.savez_compressed(folder / STRIP, **arrays)


def stored_strips(stages: Mapping[str, Path]) -> list[Filmstrip]:
    """Return the filmstrip of every stage that stored one; ``stages`` maps titles to folders."""
    return [strip(title, folder / STRIP) for title, folder in stages.items() if (folder / STRIP).is_file()]


def strip(title: str, file: Path) -> Filmstrip:
    """Read one stage's rows."""
    with np.load(file, allow_pickle=False) as stored:
        rows = {name: stored[name] for name in stored.files if name != LABELS}
        return Filmstrip(title, f"{' above '.join(rows)}.", rows, stored[LABELS].tolist())
