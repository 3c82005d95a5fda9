"""How fast a world model imagines, with and without turning its latents into pictures."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord, first_frames
from worldrl.world_models.video import VideoWorldModel


def imagined_frames_per_s(
    model: VideoWorldModel,
    record: ResetRecord,
    rows: int,
    *,
    chunks: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Time some chunks of a batch; the first chunk, which warms up, does not count.

    Args:
        model: the world model.
        record: a state from which every row starts.
        rows: rollouts imagined at once.
        chunks: how many are timed; the median counts.
        clock: seconds.

    Returns:
        Frames of all rows together per second: ``latent`` without decoding, ``decoded`` with every frame decoded.
    """
    state, first = model.start([record] * rows), first_frames([record] * rows)
    still = torch.from_numpy(model.embodiment.actions.hold(record.command))
    action = still.expand(rows, model.chunk_length, -1).contiguous()
    imagining, decoding, frames = [], [], 0
    for chunk in range(1 + chunks):
        generators = [stream(0, "throughput", row, chunk) for row in range(rows)]
        began = _now(model, clock)
        state, imagined = model.imagine(state, action, generators=generators)
        between = _now(model, clock)
        model.decode(imagined.latent, first)
        ended = _now(model, clock)
        imagining.append(between - began)
        decoding.append(ended - began)
        frames = imagined.latent.shape[0] * imagined.latent.shape[1]
    return {
        "latent": frames / float(np.median(imagining[1:])),
        "decoded": frames / float(np.median(decoding[1:])),
    }


def _now(model: VideoWorldModel, clock: Callable[[], float]) -> float:
    if model.device.type == "cuda":  # kernels are queued: without waiting, only their launch would be timed
        torch.cuda.synchronize(model.device)
    return clock()
