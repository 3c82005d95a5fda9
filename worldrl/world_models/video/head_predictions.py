"""Predictions of a world model's heads for finished videos, recorded or imagined; nothing is imagined.

Each chunk gets the little noise of the sampler's last step, and is evaluated once with the true frames before it.

Shapes legend: ``N`` videos, ``T`` frames of each (whole chunks), ``F`` frames per chunk, ``L`` control steps per
chunk, ``d`` width of the dynamics, ``c h w`` latent.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord
from worldrl.world_models.video.codec import to_unit
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.following import VideoState
from worldrl.world_models.video.heads import ensemble_success
from worldrl.world_models.video.model import VideoWorldModel


def read_findings(
    model: VideoWorldModel, state: VideoState, latent: Tensor, action: Tensor | None, noise: Tensor
) -> Tensor:
    """Findings of both heads ``[N, T, 2d]`` on frames ``latent [N, T, c, h, w]`` after ``state``.

    ``action`` ``[N, T L / F, A]`` None reads the videos as plans. Raises SettingError: no flow transformer, or no
    whole chunks; ActionError: no actions, and the model does not plan.
    """
    dynamics, frames, steps = model.dynamics, model.config.dynamics.chunk_frames, model.chunk_length
    if not isinstance(dynamics, FlowTransformer):
        raise SettingError("reading videos needs a world model with dynamics.kind=flow_transformer")
    if latent.shape[1] % frames:
        raise SettingError(f"reading videos needs whole chunks of {frames} frames, got {latent.shape[1]} frames")
    found = []
    for number, (clean, fresh) in enumerate(zip(latent.split(frames, 1), noise.split(frames, 1), strict=True)):
        part = None if action is None else action[:, number * steps : (number + 1) * steps]
        condition, commands = model.chunk_condition(state, part)
        features = dynamics.read(clean, fresh, state.reference, state.memory, condition)
        found.append(model.find(features, state.instruction))
        state = model.remember(state, clean, commands)
    return torch.cat(found, dim=1)


@torch.no_grad()
def read_success(
    model: VideoWorldModel,
    frames: Tensor,
    instruction: Sequence[str],
    command: Tensor | None = None,
    action: Tensor | None = None,
) -> Tensor:
    """The outcome ensemble's mean probability, float32 ``[N, T]``, that videos fulfil their instructions.

    The noise is the same in every video and call, so a video's result depends on that video alone; any model's videos
    can be read: uint8 ``[N, 1 + T, Y, X, 3]``. ``command [N, A]`` at frame 0 and ``action [N, T L / F, A]`` are None
    for plans. Raises SettingError: images of another size, or as :func:`read_findings`.
    """
    size = model.config.codec.image_size
    if frames.shape[2:4] != (size, size):
        raise SettingError(f"reading videos: the model takes {size} pixels, the videos have {tuple(frames.shape[2:4])}")
    state = model.start(_records(model, frames[:, 0], instruction, command))
    with model.autocast():
        latent = model.codec.encode(to_unit(frames[:, 1:].to(model.device))).float()
        noise = torch.randn(latent.shape[1:], generator=stream(0, "read-videos")).to(model.device).expand_as(latent)
        findings = read_findings(model, state, latent, action, noise)
        logits, _ = model.outcome(findings, state.belief)
    return ensemble_success(logits)[0].float().cpu()


def _records(
    model: VideoWorldModel, first: Tensor, instruction: Sequence[str], command: Tensor | None
) -> list[ResetRecord]:
    """Make the starts of videos: only the first frame is in memory."""
    commands = np.zeros((len(first), model.embodiment.actions.size), np.float32) if command is None else command.numpy()
    return [
        ResetRecord(
            reference=image,
            memory=np.repeat(image[None], model.memory_frames, axis=0),
            command=now,
            instruction=text,
            task="",
            step=0,
            source="video",
        )
        for image, text, now in zip(first.cpu().numpy(), instruction, commands, strict=True)
    ]
