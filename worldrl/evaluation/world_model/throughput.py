"""Speed of imagination with and without decoding of latents into images."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord, first_frames
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.following import roll_forward
from worldrl.world_models.wan.model import WanWorldModel


def imagined_frames_per_s(
    model: AnyVideoModel,
    record: ResetRecord,
    rows: int,
    *,
    chunks: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median speed over ``chunks`` chunks of ``rows`` rollouts from one state; a first chunk for warm-up does not count.

    Returns frames of all rows per second: ``latent`` without decoding, ``decoded`` with it. A Wan model decodes while
    it imagines, so both are the same.
    """
    frames = rows * (model.chunk_length // model.frame_stride)
    seconds = imagined_seconds(model, record, rows, chunks=chunks, clock=clock)
    return {name: frames / float(np.median(values)) for name, values in seconds.items()}


def imagined_seconds(
    model: AnyVideoModel,
    record: ResetRecord,
    rows: int,
    *,
    chunks: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each chunk that :func:`imagined_frames_per_s` takes the median of, ``latent`` and ``decoded``."""
    state: Any = model.start([record] * rows)
    first = first_frames([record] * rows)
    still = torch.from_numpy(model.embodiment.actions.hold(record.command))
    action = still.expand(rows, model.chunk_length, -1).contiguous()
    imagining, decoding = [], []
    noise = [[stream(0, "throughput", row, chunk) for row in range(rows)] for chunk in range(1 + chunks)]
    rolled = roll_forward(model, state, 1 + chunks, lambda *_: action, noise.__getitem__)
    for _ in noise:
        began = now(model.device, clock)
        _, imagined = next(rolled)
        between = now(model.device, clock)
        if not isinstance(model, WanWorldModel):
            model.decode(imagined.latent, first)
        ended = now(model.device, clock)
        imagining.append(between - began)
        decoding.append(ended - began)
    return {"latent": imagining[1:], "decoded": decoding[1:]}


def now(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Read the clock after the device has finished its work."""
    if device.type == "cuda":  # kernels are queued: without waiting, only their launch would be timed
        torch.cuda.synchronize(device)
    return clock()
