"""Whole recorded episodes as the model imagines them from their true actions: what heads that judge dreams learn from.

Each episode is imagined from its beginning and from somewhere in its middle, as a rollout from a keyframe will be: with
nothing remembered but the memory frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from worldrl.core.rng import stream
from worldrl.core.storage.log import Progress
from worldrl.core.types import Episode
from worldrl.data.windows.batch import WindowBatch, WindowLayout, gather_windows
from worldrl.data.windows.frame_store import build_store
from worldrl.world_models.video.following import Follower


def whole_episodes(
    model: Follower[Any], episodes: Sequence[Episode], *, seed: int, series: str, batch: int = 128
) -> Iterator[tuple[WindowBatch, torch.Generator]]:
    """Yield the episodes as windows up to their ends, twice each, with a CPU generator for what happens to them.

    Args:
        model: sets length, memory and distance of the frames.
        episodes: of any lengths; neighbours of like length go together, since that wastes the least.
        seed: of the starts in the middle and of the generators.
        series: name of the training, on the progress line.
        batch: episodes at a time.
    """
    store = build_store(episodes)
    order = np.argsort(store.length, kind="stable")
    with Progress(f"{series}: imagining", len(order), unit="episodes") as progress:
        for first in range(0, len(order), batch):
            rows = order[first : first + batch]
            generator = stream(seed, "imagine-episodes", first)
            for start in (np.zeros(len(rows), np.int64), _middle(store.length[rows], model.chunk_length, generator)):
                chunks = -(-int((store.length[rows] - start).max()) // model.chunk_length)
                layout = WindowLayout(model.chunk_length, model.memory_frames, model.frame_stride, chunks)
                windows = gather_windows(store, layout, rows, start, np.zeros(len(rows), np.bool_))
                yield windows.to(model.device), generator
            progress.advance(len(rows))


def chunks_of(model: Follower[Any], batch: WindowBatch) -> int:
    """Return how many chunks a batch of windows is long."""
    return batch.action.shape[1] // model.chunk_length


def _middle(length: np.ndarray, chunk_length: int, generator: torch.Generator) -> np.ndarray:
    """Draw a frame to start from, a chunk or more before each episode's end."""
    where = torch.rand(len(length), generator=generator, dtype=torch.float64).numpy()
    return (where * np.maximum(length - chunk_length + 1, 1)).astype(np.int64)
