"""Rows of state ``[n, S]`` and action ``[n, A]`` of an external dataset, read to find out what its numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldrl.data.lerobot.external.folder import ExternalFolder
from worldrl.data.lerobot.external.rows import PLACE, read_rows
from worldrl.data.lerobot.external.stated import Columns, numbers, scalars

SAMPLE_ROWS = 4000
"""Rows read to recognise a robot."""


@dataclass(frozen=True)
class Sample:
    """State and action of some episodes, in their order: float32 ``[n, S]`` and ``[n, A]``, and whose row it is, ``[n]``."""

    state: NDArray[np.float32]
    action: NDArray[np.float32]
    episode: NDArray[np.int64]

    @classmethod
    def read(
        cls, folder: ExternalFolder, state: Sequence[Columns], action: Sequence[Columns], *, limit: int | None = None
    ) -> Sample:
        """Read data files, up to the one with row ``limit``."""
        parts: list[tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]] = []
        for file in folder.kept:
            table = read_rows(folder, file, [part.feature for part in (*state, *action)])
            episode, frame = (scalars(table, name, file) for name in PLACE)
            order = np.lexsort((frame, episode))
            measured, commanded = (numbers(table, columns, str(file))[order] for columns in (state, action))
            parts.append((measured, commanded, episode[order].astype(np.int64)))
            if limit is not None and sum(len(rows) for rows, _, _ in parts) >= limit:
                break
        return cls(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))

    def within_episodes(self, distance: int = 1) -> NDArray[np.int64]:
        """Rows that have a row of their own episode ``distance`` later."""
        return np.flatnonzero(self.episode[distance:] == self.episode[:-distance])
