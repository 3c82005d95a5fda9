"""Training of the outcome head on episodes to their ends, imagined once from their true actions.

Each episode is imagined from its beginning and from somewhere in its middle (``episode_rollouts``). Each of those is told
twice: with a sentence for its task against what really came, and with one that
it certainly does not fulfil, against failure throughout.

A judge of planned videos (``outcome.told=instruction``) has no actions to go by, and a plan imagined in an episode's place would
not lead to that episode's outcome. It learns from the recorded frames themselves, read without their actions (``reading``).

Shapes legend: ``E`` imagined episodes, ``T`` frames, padded to whole chunks of the longest, ``d`` width of the dynamics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.fit import FitReport, fit_module
from worldrl.core.log import MetricLog
from worldrl.core.optimizer import adamw
from worldrl.core.rng import on_device, stream
from worldrl.core.types import Episode
from worldrl.data.window_batch import WindowBatch
from worldrl.world_models.episode_rollouts import chunks_of, first_state, whole_episodes
from worldrl.world_models.losses import imagine_chunk
from worldrl.world_models.outcome_head import OutcomeHead, outcome_loss
from worldrl.world_models.reading import read_findings
from worldrl.world_models.sentences import Sentences, relabel
from worldrl.world_models.training import autocast, encode_frames
from worldrl.world_models.training_config import WorldModelTraining
from worldrl.world_models.video import VideoWorldModel


@dataclass(frozen=True)
class Told:
    """Episodes as the model imagines them, told with a sentence each.

    Attributes:
        findings: float16 ``[E, T, 2d]``.
        success: bool ``[E, T]``, the frame really fulfilled the sentence.
        valid: bool ``[E, T]``, the frame was recorded.
    """

    findings: Tensor
    success: Tensor
    valid: Tensor

    def __len__(self) -> int:
        """Return ``E``."""
        return len(self.success)

    def select(self, index: Tensor) -> Told:
        """Take the episodes of ``index``, up to the longest one's last frame."""
        index = index.to(self.valid.device)
        last = int(self.valid[index].any(dim=0).nonzero().max()) + 1
        return Told(self.findings[index, :last], self.success[index, :last], self.valid[index, :last])


def fit_outcome(
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    config: WorldModelTraining,
    *,
    sentences: Sentences,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "outcome",
) -> FitReport:
    """Train the outcome jury in place, each juror on batches of its own; everything else stays as it is."""
    told = imagine_episodes(model, episodes, config, sentences, seed=seed, series=series)
    width, jurors = told.findings.shape[-1], model.outcome.members

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        value = torch.stack([juror_loss(juror, step, number) for number, juror in enumerate(jurors)]).sum()
        return value, {"wm/outcome_loss": value.detach() / len(jurors)}

    def juror_loss(juror: OutcomeHead, step: int, number: int) -> Tensor:
        generator = stream(seed, "outcome", step, number)
        part = told.select(torch.randint(len(told), (config.outcome_batch,), generator=generator))
        seen = torch.rand(config.outcome_batch, 1, width, generator=generator) >= config.outcome_dropout
        findings = part.findings.float() * seen.to(part.findings.device) / (1 - config.outcome_dropout)
        logit, _ = juror(findings, juror.blank(len(part)))
        return outcome_loss(logit, part.success, part.valid)

    report = fit_module(
        series,
        model.outcome,
        loss,
        part="outcome",
        optimizer=adamw(model.outcome, config.outcome_learning_rate, config.outcome_weight_decay),
        steps=config.outcome_steps,
        warmup=config.warmup,
        final=0.02,
        clip_norm=config.clip_norm,
        every_checkpoint=config.checkpoint_every,
        folder=folder,
        log=log,
    )
    model.eval()
    return report


@torch.no_grad()
def imagine_episodes(
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    config: WorldModelTraining,
    sentences: Sentences,
    *,
    seed: int,
    series: str = "outcome",
    batch: int = 128,
) -> Told:
    """Imagine every episode twice from its true actions and tell it both ways; four rows each, two without a lie."""
    parts: list[Told] = []
    for windows, generator in whole_episodes(model, episodes, seed=seed, series=series, batch=batch):
        parts += _tell_both_ways(model, windows, config, sentences, generator)
    return _join(parts)


def _tell_both_ways(
    model: VideoWorldModel,
    batch: WindowBatch,
    config: WorldModelTraining,
    sentences: Sentences,
    generator: torch.Generator,
) -> list[Told]:
    # Half of the episodes tell everything about a lie: the others must not become rare.
    versions = [relabel(batch, sentences, share, generator) for share in (0.0, 1.0)]
    find = _findings if model.config.outcome.told == "actions" else _findings_read
    findings = find(model, batch, versions, config, on_device(generator, model.device))
    told = [Told(f, v.success, v.valid) for f, v in zip(findings, versions, strict=True)]
    untrue = torch.tensor([bool(sentences.other.get(task)) for task in batch.task])
    return [told[0], told[1].select(untrue.nonzero().squeeze(1))] if untrue.any() else told[:1]


def _findings(
    model: VideoWorldModel,
    batch: WindowBatch,
    versions: Sequence[WindowBatch],
    config: WorldModelTraining,
    generator: torch.Generator,
) -> list[Tensor]:
    """Imagine once; return each version's findings ``[B, T, 2d]``."""
    state = first_state(model, batch, config)
    found: list[list[Tensor]] = [[] for _ in versions]
    with autocast(model, config):
        told = [model.success.embed(version.instruction) for version in versions]
        for chunk in range(chunks_of(model, batch)):
            state, features = imagine_chunk(model, state, batch, chunk, generator)
            for sentence, frames in zip(told, found, strict=True):
                frames.append(model.find(features, sentence).half())
    return [torch.cat(frames, dim=1) for frames in found]


def _findings_read(
    model: VideoWorldModel,
    batch: WindowBatch,
    versions: Sequence[WindowBatch],
    config: WorldModelTraining,
    generator: torch.Generator,
) -> list[Tensor]:
    """Read the recorded frames as a plan of each version's sentence; return the findings ``[B, T, 2d]``."""
    state, shape = first_state(model, batch, config), batch.frames.shape[:2]
    latent = encode_frames(model, batch.frames.flatten(0, 1).cpu().numpy(), config).float().unflatten(0, shape)
    noise = torch.randn(latent.shape, generator=generator, device=model.device)
    found: list[Tensor] = []
    with autocast(model, config):
        for version in versions:
            told = replace(state, instruction=model.success.embed(version.instruction))
            found.append(read_findings(model, told, latent, None, noise).half())
    return found


def _join(parts: Sequence[Told]) -> Told:
    longest = max(part.valid.shape[1] for part in parts)

    def padded(value: Tensor) -> Tensor:
        full = value.new_zeros((value.shape[0], longest, *value.shape[2:]))
        full[:, : value.shape[1]] = value
        return full

    return Told(*(torch.cat([padded(getattr(p, name)) for p in parts]) for name in ("findings", "success", "valid")))
