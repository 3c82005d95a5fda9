"""Training of the outcome head on episodes to their ends, imagined once from their true actions.

Each episode is imagined from its beginning and from somewhere in its middle (``episode_rollouts``). Each of those is told
twice: with a sentence for its task against what really came, and with one that
it certainly does not fulfil, against failure throughout.

A judge of planned videos (``outcome.conditioning=instruction``) has no actions to go by, and a plan imagined in an episode's place would
not lead to that episode's outcome. It learns from the recorded frames themselves, read without their actions (``reading``).

Shapes legend: ``E`` imagined episodes, ``T`` frames, padded to whole chunks of the longest, ``d`` width of the dynamics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import on_device, stream
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.types import Episode
from worldrl.data.windows.batch import WindowBatch
from worldrl.world_models.video.episode_rollouts import chunks_of, whole_episodes
from worldrl.world_models.video.following import Follower, StateT, imagine_chunk
from worldrl.world_models.video.head_predictions import read_findings
from worldrl.world_models.video.instructions import TaskInstructions, relabel
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.outcome_head import OutcomeEnsemble, OutcomeHead, outcome_loss
from worldrl.world_models.video.training import autocast, encode_frames

FINDINGS = "findings"
"""Folder beside a jury's checkpoints, with what was found in the imagined episodes."""


class Judged(Follower[StateT], Protocol[StateT]):
    """A world model with heads to ask."""

    @property
    def outcome(self) -> OutcomeEnsemble | None:
        """Judges whole dreams; None where the model has no such head."""
        ...

    def embed(self, instruction: Sequence[str]) -> Tensor:
        """Encode ``B`` sentences as ``[B, d]``."""
        ...

    def find(self, features: Tensor, instruction: Tensor) -> Tensor:
        """Return what the heads find in a chunk's features, frame by frame, for the outcome jury: ``[B, F, width]``."""
        ...


class OutcomeTraining(Protocol):
    """Settings of :func:`fit_outcome`, described where each training has them."""

    outcome_steps: int
    outcome_batch: int
    outcome_learning_rate: float
    outcome_weight_decay: float
    outcome_dropout: float
    warmup: int
    clip_norm: float
    checkpoint_every: int
    dtype: str


@dataclass(frozen=True)
class Told:
    """Episodes as the model imagines them, told with a sentence each.

    Attributes:
        findings: float16 ``[E, T, width]``.
        success: bool ``[E, T]``, the frame really fulfilled the sentence.
        valid: bool ``[E, T]``, the frame was recorded.
    """

    findings: Tensor
    success: Tensor
    valid: Tensor

    def __len__(self) -> int:
        """Return ``E``."""
        return len(self.success)

    def to(self, device: torch.device) -> Told:
        """Move the tensors."""
        return Told(self.findings.to(device), self.success.to(device), self.valid.to(device))

    def select(self, index: Tensor) -> Told:
        """Take the episodes of ``index``, up to the longest one's last frame."""
        index = index.to(self.valid.device)
        last = int(self.valid[index].any(dim=0).nonzero().max()) + 1
        return Told(self.findings[index, :last], self.success[index, :last], self.valid[index, :last])


def fit_outcome(
    model: Judged[Any],
    episodes: Sequence[Episode],
    config: OutcomeTraining,
    *,
    sentences: TaskInstructions,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "outcome",
    rows: int = 128,
) -> FitReport:
    """Train the outcome jury in place, each juror on batches of its own; everything else stays as it is.

    ``rows`` episodes are imagined at a time, once: what was found in them is kept in ``folder`` for whoever goes on.

    Raises:
        SettingError: the model has no jury.
    """
    jury = model.outcome
    if jury is None:
        raise SettingError(
            "outcome.ensemble_size: this world model has no outcome head to train; give it at least one member"
        )
    told = _found(
        folder, lambda: imagine_episodes(model, episodes, config, sentences, seed=seed, series=series, batch=rows)
    )
    told = told.to(model.device)
    width, jurors = told.findings.shape[-1], jury.members

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        value = torch.stack([member_loss(member, step, number) for number, member in enumerate(jurors)]).sum()
        return value, {"wm/outcome_loss": value.detach() / len(jurors)}

    def member_loss(member: OutcomeHead, step: int, number: int) -> Tensor:
        generator = stream(seed, "outcome", step, number)
        part = told.select(torch.randint(len(told), (config.outcome_batch,), generator=generator))
        seen = torch.rand(config.outcome_batch, 1, width, generator=generator) >= config.outcome_dropout
        findings = part.findings.float() * seen.to(part.findings.device) / (1 - config.outcome_dropout)
        logit, _ = member(findings, member.blank(len(part)))
        return outcome_loss(logit, part.success, part.valid)

    return fit_module(
        series,
        jury,
        loss,
        part="outcome",
        optimizer=adamw(jury, config.outcome_learning_rate, config.outcome_weight_decay),
        steps=config.outcome_steps,
        warmup=config.warmup,
        final=0.02,
        clip_norm=config.clip_norm,
        every_checkpoint=config.checkpoint_every,
        folder=folder,
        log=log,
    )


def _found(folder: Path | None, imagine: Callable[[], Told]) -> Told:
    """Imagine, or read what an earlier session has imagined."""
    if folder is None:
        return imagine()
    kept = folder / FINDINGS
    if not kept.exists():
        write_artefact(kept, kind=FINDINGS, config={}, tensors=vars(imagine()))
    return Told(**read_artefact(kept, kind=FINDINGS).tensors)


@torch.no_grad()
def imagine_episodes(
    model: Judged[Any],
    episodes: Sequence[Episode],
    config: OutcomeTraining,
    sentences: TaskInstructions,
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
    model: Judged[Any],
    batch: WindowBatch,
    config: OutcomeTraining,
    sentences: TaskInstructions,
    generator: torch.Generator,
) -> list[Told]:
    # Half of the episodes tell everything about a lie: the others must not become rare.
    versions = [relabel(batch, sentences, share, generator) for share in (0.0, 1.0)]
    drawn = on_device(generator, model.device)
    if isinstance(model, VideoWorldModel) and model.config.outcome.conditioning == "instruction":
        findings = _findings_read(model, batch, versions, config, drawn)
    else:
        findings = _findings(model, batch, versions, config, drawn)
    told = [Told(f, v.success, v.valid) for f, v in zip(findings, versions, strict=True)]
    untrue = torch.tensor([bool(sentences.other.get(task)) for task in batch.task])
    return [told[0], told[1].select(untrue.nonzero().squeeze(1))] if untrue.any() else told[:1]


def _findings(
    model: Judged[Any],
    batch: WindowBatch,
    versions: Sequence[WindowBatch],
    config: OutcomeTraining,
    generator: torch.Generator,
) -> list[Tensor]:
    """Imagine once; return each version's findings ``[B, T, width]``."""
    found: list[list[Tensor]] = [[] for _ in versions]
    with autocast(model, config):
        state = model.window_start(batch)
        told = [model.embed(version.instruction) for version in versions]
        for chunk in range(chunks_of(model, batch)):
            state, features = imagine_chunk(model, state, batch, chunk, generator)
            for sentence, frames in zip(told, found, strict=True):
                frames.append(model.find(features, sentence).half())
    return [torch.cat(frames, dim=1) for frames in found]


def _findings_read(
    model: VideoWorldModel,
    batch: WindowBatch,
    versions: Sequence[WindowBatch],
    config: OutcomeTraining,
    generator: torch.Generator,
) -> list[Tensor]:
    """Read the recorded frames as a plan of each version's sentence; return the findings ``[B, T, 2d]``."""
    shape = batch.frames.shape[:2]
    latent = encode_frames(model, batch.frames.flatten(0, 1).cpu().numpy(), config).float().unflatten(0, shape)
    noise = torch.randn(latent.shape, generator=generator, device=model.device)
    found: list[Tensor] = []
    with autocast(model, config):
        state = model.window_start(batch)
        for version in versions:
            told = replace(state, instruction=model.embed(version.instruction))
            found.append(read_findings(model, told, latent, None, noise).half())
    return found


def _join(parts: Sequence[Told]) -> Told:
    longest = max(part.valid.shape[1] for part in parts)

    def padded(value: Tensor) -> Tensor:
        full = value.new_zeros((value.shape[0], longest, *value.shape[2:]))
        full[:, : value.shape[1]] = value
        return full

    return Told(*(torch.cat([padded(getattr(p, name)) for p in parts]) for name in ("findings", "success", "valid")))
