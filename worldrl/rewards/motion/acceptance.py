"""Acceptance probe of a reward that compares videos with commands: it must separate real pairs from corrupted ones.

A real video with its own commands must score at least 0.7. The same video still, blurred, shuffled or reversed in time,
or with another episode's commands, must score at most 0.4. Real pairs must exceed those with wrong commands by more
than two standard deviations.

Shapes legend: ``N`` videos, ``T`` frames, ``Y X`` pixels, ``D`` commanded numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError

Score = Callable[[Tensor, Tensor], Tensor]
"""Maps frames uint8 ``[N, T, Y, X, 3]`` and commands ``[N, T, D]`` to scores ``[N]`` in [0, 1]."""
LEAST_EXACT, MOST_SPOILT, APART = 0.7, 0.4, 2.0


def blurred(frames: Tensor, factor: int = 8) -> Tensor:
    """Average uint8 ``[N, T, Y, X, 3]`` over squares of ``factor`` pixels and stretch it back."""
    pixels = frames.flatten(0, 1).movedim(-1, 1).float()
    small = F.avg_pool2d(pixels, factor)
    whole = F.interpolate(small, size=frames.shape[2:4], mode="bilinear", align_corners=False)
    return whole.round().clamp(0, 255).to(torch.uint8).movedim(1, -1).unflatten(0, frames.shape[:2])


def spoilt(frames: Tensor, commanded: Tensor, *, generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """Every pair of the probe by name; ``exact`` is the real one. Needs two videos at least."""
    order = torch.randperm(frames.shape[1], generator=generator).to(frames.device)
    return {
        "exact": (frames, commanded),
        "static": (frames[:, :1].expand_as(frames), commanded),
        "blurred": (blurred(frames), commanded),
        "shuffled": (frames[:, order], commanded),
        "reversed": (frames.flip(1), commanded),
        "wrong_action": (frames, commanded.roll(1, dims=0)),
    }


def acceptance(score: Score, frames: Tensor, commanded: Tensor, *, generator: torch.Generator) -> dict[str, Any]:
    """Run the probe on real videos uint8 ``[N, T, Y, X, 3]`` (two at least) and their commands ``[N, T, D]``.

    Returns ``scores`` (mean by name), ``apart`` (exact minus wrong_action, in standard deviations of that difference)
    and ``accepted``.
    """
    if len(frames) < 2:
        raise SettingError(f"acceptance needs at least two videos, got {len(frames)}: commands are swapped")
    found = {name: score(*pair) for name, pair in spoilt(frames, commanded, generator=generator).items()}
    mean = {name: float(values.mean()) for name, values in found.items()}
    difference = found["exact"] - found["wrong_action"]
    apart = float(difference.mean() / difference.std().clamp_min(1e-6))
    others = [value for name, value in mean.items() if name != "exact"]
    accepted = mean["exact"] >= LEAST_EXACT and max(others) <= MOST_SPOILT and apart > APART
    return {"scores": mean, "apart": apart, "accepted": accepted}
