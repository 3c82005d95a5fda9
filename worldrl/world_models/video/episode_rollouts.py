"""Recorded episodes as windows up to their ends, for heads that learn from imagined rollouts with true actions.

Each episode starts at its beginning and somewhere in its middle, as a rollout from a keyframe: only memory frames are
given.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from worldrl.core.observation import images_among
from worldrl.core.rng import stream
from worldrl.core.storage.log import Progress
from worldrl.core.types import Episode
from worldrl.data.windows.batch import WindowBatch, WindowLayout, gather_windows
from worldrl.data.windows.frame_store import build_store, lengths_of
from worldrl.world_models.video.following import Follower


def whole_episodes(
    model: Follower[Any], episodes: Sequence[Episode], *, seed: int, series: str, batch: int = 128
) -> Iterator[tuple[WindowBatch, torch.Generator]]:
    """Yield ``batch`` episodes of similar length as windows up to their ends, twice each, with a generator."""
    images, order = images_among(model.more), np.argsort(lengths_of(episodes), kind="stable")
    with Progress(f"{series}: imagining", len(order), unit="episodes") as progress:
        for first in range(0, len(order), batch):
            alike = [episodes[int(place)] for place in order[first : first + batch]]
            store, rows = build_store(alike, images=images, robot=model.embodiment), np.arange(len(alike))
            generator = stream(seed, "imagine-episodes", first)
            for start in (np.zeros(len(rows), np.int64), _middle(store.length, model.chunk_length, generator)):
                chunks = -(-int((store.length - start).max()) // model.chunk_length)
                layout = WindowLayout(model.chunk_length, model.memory_frames, model.frame_stride, chunks)
                windows = gather_windows(store, layout, rows, start, np.zeros(len(rows), np.bool_))
                yield windows.to(model.device), generator
            progress.advance(len(rows))


def chunks_of(model: Follower[Any], batch: WindowBatch) -> int:
    """Return the number of chunks in a batch of windows."""
    return batch.action.shape[1] // model.chunk_length


def _middle(length: np.ndarray, chunk_length: int, generator: torch.Generator) -> np.ndarray:
    """Draw a start frame, a chunk or more before each episode's end."""
    where = torch.rand(len(length), generator=generator, dtype=torch.float64).numpy()
    return (where * np.maximum(length - chunk_length + 1, 1)).astype(np.int64)
