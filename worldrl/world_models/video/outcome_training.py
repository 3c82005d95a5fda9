"""Training of the outcome head on episodes up to their ends, imagined once from their true actions.

Each episode is imagined from its beginning and from its middle (``episode_rollouts``), and labelled twice: with an
instruction of its task and the real outcome, and with one that it certainly does not fulfil and failure throughout. A
head for planned videos (``outcome.conditioning=instruction``) learns from the recorded frames, read without actions.

Shapes legend: ``E`` imagined episodes, ``T`` frames, padded to whole chunks of the longest, ``d`` width of the
dynamics.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import draw, on_device, own_rows
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport, OneProcess, fit_module
from worldrl.core.training.optimizer import adamw
from worldrl.core.training.ranks import DeviceSettings
from worldrl.core.training.spread import spread
from worldrl.core.types import Episode
from worldrl.data.windows.batch import WindowBatch
from worldrl.world_models.video.episode_rollouts import chunks_of, whole_episodes
from worldrl.world_models.video.following import Follower, StateT, follow_window
from worldrl.world_models.video.head_predictions import read_findings
from worldrl.world_models.video.heads import OutcomeEnsemble, OutcomeHead, outcome_loss
from worldrl.world_models.video.instructions import TaskInstructions, relabel
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import autocast, encode_frames

FINDINGS = "findings"  # folder beside the ensemble's checkpoints, with the findings of the imagined episodes


class WithHeads(Follower[StateT], Protocol[StateT]):
    """A world model with heads."""

    @property
    def outcome(self) -> OutcomeEnsemble | None:
        """Predicts the outcome of imagined rollouts; None without such a head."""
        ...

    def embed(self, instruction: Sequence[str]) -> Tensor:
        """Encode ``B`` instructions as ``[B, d]``."""
        ...

    def find(self, features: Tensor, instruction: Tensor) -> Tensor:
        """Return the heads' findings in a chunk's features, per frame: ``[B, F, width]``."""
        ...


class OutcomeTraining(Protocol):
    """Settings of :func:`fit_outcome`, described by each training."""

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
class LabelledEpisodes:
    """Imagined episodes, each with one instruction."""

    findings: Tensor  # float16 ``[E, T, width]``.
    success: Tensor  # bool ``[E, T]``, the frame really fulfilled the instruction.
    valid: Tensor  # bool ``[E, T]``, the frame was recorded.

    def __len__(self) -> int:
        return len(self.success)

    def to(self, device: torch.device) -> "LabelledEpisodes":
        """Move the tensors."""
        return LabelledEpisodes(self.findings.to(device), self.success.to(device), self.valid.to(device))

    def select(self, index: Tensor) -> "LabelledEpisodes":
        """Take the episodes of ``index``, up to the longest one's last frame."""
        index = index.to(self.valid.device)
        last = int(self.valid[index].any(dim=0).nonzero().max()) + 1
        return LabelledEpisodes(self.findings[index, :last], self.success[index, :last], self.valid[index, :last])


def fit_outcome(
    model: WithHeads[Any],
    episodes: Sequence[Episode],
    config: OutcomeTraining,
    *,
    instructions: TaskInstructions,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "outcome",
    rows: int = 128,
) -> FitReport:
    """Train the outcome ensemble in place, each member on its own batches; SettingError: there is none.

    ``rows`` episodes are imagined at a time, once; ``folder`` stores their findings for resumed runs.
    """
    ensemble = model.outcome
    if ensemble is None:
        raise SettingError(
            "outcome.ensemble_size: this world model has no outcome head to train; give it at least one member"
        )
    divided = OneProcess()
    if isinstance(config, DeviceSettings):  # Wan's outcome head is trained by the first process alone
        divided = spread(config, outcome_batch=config.outcome_batch)
    labelled = _found(
        divided,
        folder,
        lambda: imagine_episodes(model, episodes, config, instructions, seed=seed, series=series, batch=rows),
    ).to(model.device)
    width, members = labelled.findings.shape[-1], ensemble.members

    def loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        value = torch.stack([member_loss(member, step, number) for number, member in enumerate(members)]).sum()
        return value, {"wm/outcome_loss": value.detach() / len(members)}

    def member_loss(member: OutcomeHead, step: int, number: int) -> Tensor:
        generator = divided.part.stream(seed, "outcome", step, number)
        index = torch.randint(len(labelled), (config.outcome_batch,), generator=generator)
        count = labelled.valid[index].sum().clamp_min(1) / divided.part.count
        part = labelled.select(own_rows(index, generator))
        mask = draw(torch.rand, (len(part), 1, width), generator) >= config.outcome_dropout
        findings = part.findings.float() * mask.to(part.findings.device) / (1 - config.outcome_dropout)
        logit, _ = member(findings, member.blank(len(part)))
        return outcome_loss(logit, part.success, part.valid, count)

    return fit_module(
        series,
        ensemble,
        loss,
        part="outcome",
        optimizer=adamw(ensemble, config.outcome_learning_rate, config.outcome_weight_decay),
        steps=config.outcome_steps,
        warmup=config.warmup,
        final=0.02,
        clip_norm=config.clip_norm,
        every_checkpoint=config.checkpoint_every,
        folder=folder,
        log=log,
        processes=divided,
    )


def _found(processes: OneProcess, folder: Path | None, imagine: Callable[[], LabelledEpisodes]) -> LabelledEpisodes:
    """Imagine in the first process, or read the result of an earlier session."""
    if folder is None:
        return imagine()
    stored = folder / FINDINGS
    if processes.first and not stored.exists():
        write_artefact(stored, kind=FINDINGS, config={}, tensors=vars(imagine()))
    processes.wait()
    return LabelledEpisodes(**read_artefact(stored, kind=FINDINGS).tensors)


@torch.no_grad()
def imagine_episodes(
    model: WithHeads[Any],
    episodes: Sequence[Episode],
    config: OutcomeTraining,
    instructions: TaskInstructions,
    *,
    seed: int,
    series: str = "outcome",
    batch: int = 128,
) -> LabelledEpisodes:
    """Imagine every episode twice from its true actions and label each both ways."""
    parts: list[LabelledEpisodes] = []
    for windows, generator in whole_episodes(model, episodes, seed=seed, series=series, batch=batch):
        parts += _labelled(model, windows, config, instructions, generator)
    return _join(parts)


def _labelled(
    model: WithHeads[Any],
    batch: WindowBatch,
    config: OutcomeTraining,
    instructions: TaskInstructions,
    generator: torch.Generator,
) -> list[LabelledEpisodes]:
    # Fulfilled instructions must not become rare beside unfulfilled ones.
    versions = [relabel(batch, instructions, share, generator) for share in (0.0, 1.0)]
    drawn = on_device(generator, model.device)
    if isinstance(model, VideoWorldModel) and model.config.outcome.conditioning == "instruction":
        findings = _findings_read(model, batch, versions, config, drawn)
    else:
        findings = _findings(model, batch, versions, config, drawn)
    labelled = [LabelledEpisodes(f, v.success, v.valid) for f, v in zip(findings, versions, strict=True)]
    untrue = torch.tensor([bool(instructions.other.get(task)) for task in batch.task])
    return [labelled[0], labelled[1].select(untrue.nonzero().squeeze(1))] if untrue.any() else labelled[:1]


def _findings(
    model: WithHeads[Any],
    batch: WindowBatch,
    versions: Sequence[WindowBatch],
    config: OutcomeTraining,
    generator: torch.Generator,
) -> list[Tensor]:
    found: list[list[Tensor]] = [[] for _ in versions]
    with autocast(model, config):
        state = model.window_start(batch)
        embedded = [model.embed(version.instruction) for version in versions]
        for _, features in follow_window(model, state, batch, chunks_of(model, batch), generator):
            for instruction, frames in zip(embedded, found, strict=True):
                frames.append(model.find(features, instruction).half())
    return [torch.cat(frames, dim=1) for frames in found]


def _findings_read(
    model: VideoWorldModel,
    batch: WindowBatch,
    versions: Sequence[WindowBatch],
    config: OutcomeTraining,
    generator: torch.Generator,
) -> list[Tensor]:
    """Read the recorded frames as a plan of each version's instruction; return the findings ``[B, T, 2d]``."""
    shape = batch.frames.shape[:2]
    frames = batch.frames.flatten(0, 1).cpu().numpy()
    latent = encode_frames(model, [frames], len(frames), config).float().unflatten(0, shape)
    noise = torch.randn(latent.shape, generator=generator, device=model.device)
    found: list[Tensor] = []
    with autocast(model, config):
        state = model.window_start(batch)
        for version in versions:
            start = replace(state, instruction=model.embed(version.instruction))
            found.append(read_findings(model, start, latent, None, noise).half())
    return found


def _join(parts: Sequence[LabelledEpisodes]) -> LabelledEpisodes:
    longest = max(part.valid.shape[1] for part in parts)

    def padded(value: Tensor) -> Tensor:
        full = value.new_zeros((value.shape[0], longest, *value.shape[2:]))
        full[:, : value.shape[1]] = value
        return full

    return LabelledEpisodes(
        *(torch.cat([padded(getattr(p, name)) for p in parts]) for name in ("findings", "success", "valid"))
    )
