"""Training of the frame restorer: decoded dreams of recorded episodes against what the camera really saw.

The dreams follow the true actions, so each picture has its true one. Squared error is the loss: where the dream cannot know,
the restorer shows the mean, and says no more than the latents do.

Shapes legend: ``N`` frames, ``B`` rows, ``F`` frames per chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream, on_device, stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.types import Episode
from worldrl.data.windows.batch import WindowBatch
from worldrl.world_models.video.codec import to_uint8, to_unit
from worldrl.world_models.video.episode_rollouts import chunks_of, whole_episodes
from worldrl.world_models.video.following import imagine_chunk
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import autocast
from worldrl.world_models.video.training_config import WorldModelTraining

MOST_EPISODES = 400
"""Episodes that are imagined for it; each gives a frame per chunk, twice, which is enough for so small a network."""


@dataclass(frozen=True)
class Pairs:
    """Pictures of the same moment.

    Attributes:
        joined_rollouts: uint8 ``[N, Y, X, 3]``, as the codec decodes the imagined latents.
        real: uint8 ``[N, Y, X, 3]``.
        first: uint8 ``[E, Y, X, 3]``, first frames of the episodes.
        episode: int64 ``[N]``, position in ``first``.
    """

    joined_rollouts: Tensor
    real: Tensor
    first: Tensor
    episode: Tensor

    def __len__(self) -> int:
        """Return ``N``."""
        return len(self.joined_rollouts)


def fit_restorer(
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    config: WorldModelTraining,
    *,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "restorer",
) -> FitReport:
    """Train the restorer in place; everything else stays as it is.

    Raises:
        SettingError: the model has none.
    """
    restorer = model.restorer
    if restorer is None:
        raise SettingError(
            "training.restorer_steps needs a model with a restorer: give restorer.width above 0 of the model"
        )
    pairs = imagine_pairs(model, episodes, config, seed=seed, series=series)

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        index = torch.randint(len(pairs), (config.restorer_batch,), generator=stream(seed, "restorer", step))
        shown = (pairs.joined_rollouts[index], pairs.real[index], pairs.first[pairs.episode[index]])
        joined_rollouts, real, first = (to_unit(frames.to(model.device)) for frames in shown)
        value = F.mse_loss(restorer(joined_rollouts, first), real)
        return value, {"wm/restorer_loss": value.detach()}

    return fit_module(
        series,
        restorer,
        loss,
        part="restorer",
        optimizer=adamw(restorer, config.restorer_learning_rate, config.weight_decay),
        steps=config.restorer_steps,
        warmup=config.warmup,
        every_checkpoint=config.checkpoint_every,
        clip_norm=config.clip_norm,
        folder=folder,
        log=log,
    )


@torch.no_grad()
def imagine_pairs(
    model: VideoWorldModel, episodes: Sequence[Episode], config: WorldModelTraining, *, seed: int, series: str
) -> Pairs:
    """Imagine at most :data:`MOST_EPISODES` episodes, drawn at random, twice each, and keep a frame of every chunk."""
    chosen = numpy_stream(seed, "restorer-episodes").permutation(len(episodes))[:MOST_EPISODES]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    first: list[Tensor] = []
    for batch, generator in whole_episodes(model, [episodes[int(i)] for i in chosen], seed=seed, series=series):
        before = sum(map(len, first))
        first.append(batch.reference.cpu())
        for joined_rollouts, real, row in _imagine_batch(model, batch, config, on_device(generator, model.device)):
            parts.append((joined_rollouts.cpu(), real.cpu(), before + row.cpu()))
    joined_rollouts, real, episode = (torch.cat(part) for part in zip(*parts, strict=True))
    return Pairs(joined_rollouts, real, torch.cat(first), episode)


def _imagine_batch(
    model: VideoWorldModel, batch: WindowBatch, config: WorldModelTraining, generator: torch.Generator
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Imagine windows to their ends; of each chunk, one frame and the rows for which it was recorded."""
    with autocast(model, config):
        state, found = model.window_start(batch), []
    frames = model.config.dynamics.chunk_frames
    kept = min(frames, model.memory_frames)  # of a chunk's frames, so many are still in the memory after it
    for chunk in range(chunks_of(model, batch)):
        back = int(torch.randint(1, kept + 1, (), generator=generator, device=model.device))
        with autocast(model, config):
            state, _ = imagine_chunk(model, state, batch, chunk, generator)
            decoded = model.codec.decode(state.memory[:, -back, None])[:, 0]
        at = (chunk + 1) * frames - back
        row = batch.valid[:, at].nonzero().squeeze(1)
        found.append((to_uint8(decoded.float())[row], batch.frames[row, at], row))
    return found
