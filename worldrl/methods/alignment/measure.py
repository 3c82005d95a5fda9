"""What a video model's videos are worth: the sampler that it is used with, the same noise every time.

Shapes legend: ``E`` starts, ``V`` videos per start, ``T`` frames.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.diffusion.sde import Denoising, make_schedule
from worldrl.methods.alignment.task import AlignmentTask, imagined_videos, judge
from worldrl.methods.alignment.videos import Key, grow

MOTION = "pixel_motion"
"""Mean change of a pixel between frames, as a share of full scale: what a reward that loves stillness takes away."""


@dataclass(frozen=True)
class Measured:
    """Terms of videos from every start."""

    terms: dict[str, NDArray[np.float64]]  # name to float64 ``[E, V]``; the reward's own, and ``pixel_motion``.
    pictures: NDArray[np.uint8]  # uint8 ``[P, T, Y, X, 3]``, the first video of the first starts.
    instruction: tuple[str, ...]  # of the images.


def measure(task: AlignmentTask, videos: int, *, pictures: int, batch: int = 64) -> Measured:
    """Imagine ``videos`` videos from each start, ``batch`` rows at once, without training, and measure them.

    The noise of each depends on start and number alone; the first videos of ``pictures`` starts are kept.
    """
    schedule = make_schedule(
        Denoising(task.model.config.dynamics.sampling_steps, "none"), task.model.config.dynamics.shift
    )
    keys: list[Key] = [("measure", start, number) for start in range(len(task.starts)) for number in range(videos)]
    every = torch.arange(len(task.starts))
    terms, kept, said = [], [], []
    for rows in torch.arange(len(keys)).split(batch):
        tree = grow(task, schedule, every, [keys[i] for i in rows.tolist()], rows // videos)
        shown = imagined_videos(task, tree.latent, tree.start)
        change = shown.frames.float().diff(dim=1).abs().mean(dim=(1, 2, 3, 4)) / 255
        terms.append(torch.cat([judge(task, tree.latent, tree.start), change[:, None]], dim=1))
        first = (rows % videos == 0) & (rows // videos < pictures)
        kept.append(shown.frames[first])
        said += [shown.instruction[i] for i in first.nonzero()[:, 0].tolist()]
    table = torch.cat(terms).double().view(len(task.starts), videos, -1).numpy()
    named = {name: table[:, :, k] for k, name in enumerate((*task.reward.names, MOTION))}
    return Measured(named, torch.cat(kept).numpy(), tuple(said))
