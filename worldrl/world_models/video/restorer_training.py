"""Training of the frame restorer: decoded imagined rollouts of recorded episodes against the camera's images.

The rollouts follow the true actions, so each imagined image has its true one. The loss is squared error: where the
rollout is uncertain, the restorer shows the mean and adds no detail that the latents lack.

Shapes legend: ``N`` frames, ``B`` rows, ``F`` frames per chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream, on_device, own_rows
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.training.spread import spread
from worldrl.core.types import Episode
from worldrl.data.windows.batch import WindowBatch
from worldrl.world_models.video.codec import as_rows, to_uint8, to_unit
from worldrl.world_models.video.episode_rollouts import chunks_of, whole_episodes
from worldrl.world_models.video.following import imagine_chunk
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import autocast
from worldrl.world_models.video.training_config import WorldModelTraining

MOST_EPISODES = 400
"""Largest number of imagined episodes; each gives a frame per chunk, twice, enough for so small a network."""


@dataclass(frozen=True)
class Pairs:
    """Images of the same moments."""

    imagined: Tensor  # uint8 ``[N, Y, X, 3]``, decoded from imagined latents.
    real: Tensor  # uint8 ``[N, Y, X, 3]``.
    first: Tensor  # uint8 ``[E, Y, X, 3]``, first frames of the episodes.
    episode: Tensor  # int64 ``[N]``, position in ``first``.

    def __len__(self) -> int:
        return len(self.imagined)


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
    """Train the restorer in place. Raises SettingError: the model has none."""
    restorer = model.restorer
    if restorer is None:
        raise SettingError(
            "training.restorer_steps needs a model with a restorer: give restorer.width above 0 of the model"
        )
    pairs = imagine_pairs(model, episodes, config, seed=seed, series=series)

    divided = spread(config, restorer_batch=config.restorer_batch)

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = divided.part.stream(seed, "restorer", step)
        index = own_rows(torch.randint(len(pairs), (config.restorer_batch,), generator=generator), generator)
        drawn = (pairs.imagined[index], pairs.real[index], pairs.first[pairs.episode[index]])
        views = len(model.config.cameras)
        imagined, real, first = (as_rows(to_unit(frames.to(model.device)), views) for frames in drawn)
        value = F.mse_loss(restorer(imagined, first), real)
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
        processes=divided,
    )


@torch.no_grad()
def imagine_pairs(
    model: VideoWorldModel, episodes: Sequence[Episode], config: WorldModelTraining, *, seed: int, series: str
) -> Pairs:
    """Imagine at most :data:`MOST_EPISODES` random episodes, twice each, and take one frame per chunk."""
    chosen = numpy_stream(seed, "restorer-episodes").permutation(len(episodes))[:MOST_EPISODES]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    first: list[Tensor] = []
    for batch, generator in whole_episodes(model, [episodes[int(i)] for i in chosen], seed=seed, series=series):
        before = sum(map(len, first))
        first.append(batch.reference.cpu())
        for imagined, real, row in _imagine_batch(model, batch, config, on_device(generator, model.device)):
            parts.append((imagined.cpu(), real.cpu(), before + row.cpu()))
    imagined, real, episode = (torch.cat(part) for part in zip(*parts, strict=True))
    return Pairs(imagined, real, torch.cat(first), episode)


def _imagine_batch(
    model: VideoWorldModel, batch: WindowBatch, config: WorldModelTraining, generator: torch.Generator
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Imagine windows to their ends; of each chunk, return one frame and the rows for which it was recorded."""
    with autocast(model, config):
        state, found = model.window_start(batch), []
    frames = model.config.dynamics.chunk_frames
    present = min(frames, model.memory_frames)  # frames of a chunk that the memory still holds after it
    for chunk in range(chunks_of(model, batch)):
        back = int(torch.randint(1, present + 1, (), generator=generator, device=model.device))
        with autocast(model, config):
            state, _ = imagine_chunk(model, state, batch, chunk, generator)
            decoded = model.codec.decode(state.memory[:, -back, None])[:, 0]
        at = (chunk + 1) * frames - back
        row = batch.valid[:, at].nonzero().squeeze(1)
        found.append((to_uint8(decoded.float())[row], batch.frames[row, at], row))
    return found
