"""Supervised fine-tuning of a lerobot policy on worldrl's demonstrations, with the policy's own loss and processors.

As in lerobot's own training, nothing is augmented. A policy of several observations also reads earlier frames, and
its chunk begins at the oldest one's step; before an episode its first frame and action are repeated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.rng import stream, stream_seed
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import fit_module
from worldrl.core.types import Episode, PolicyObs
from worldrl.methods.imitation.config import Imitation
from worldrl.methods.imitation.demonstrations import Demonstrations, ImitationReport
from worldrl.policies.lerobot.policy import LerobotPolicy
from worldrl.policies.samples import Samples

SERIES = "fine-tuning"
MEASURED = 512  # samples whose loss is measured, at most


@dataclass
class FineTuning(Imitation):
    """Settings of :func:`fine_tune`; the learning rate, its schedule and the clip are SmolVLA's own."""

    steps: int = 20_000
    batch_size: int = 64
    learning_rate: float = 1e-4
    warmup_steps: int = 1000
    weight_decay: float = 1e-10
    clip_norm: float = 10.0
    checkpoint_every: int = 1000


def fine_tune(
    policy: LerobotPolicy,
    episodes: Sequence[Episode],
    *,
    config: FineTuning,
    seed: int,
    folder: Path,
    log: MetricLog | None,
) -> ImitationReport:
    """Train a policy in place, resuming from ``folder``; its processors' statistics do not change.

    Failed demonstrations are left out and counted. Returns the report, with the mean loss of training and held-out
    samples. Raises SettingError: no successful episode, or observations that do not fit the policy.
    """
    demonstrations = Demonstrations.split(
        episodes, config.held_out_fraction, policy.folder.chunk_size, seed=seed, more=policy.more
    )
    samples, held_out = demonstrations.samples, demonstrations.held_out

    def loss(step: int) -> tuple[Tensor, Logs]:
        index = torch.randint(len(samples), (config.batch_size,), generator=stream(seed, SERIES, step))
        value = imitation_loss(policy, samples, index, stream_seed(seed, SERIES, "noise", step))
        return value, {"policy/loss": value.detach()}

    fit_module(
        SERIES,
        policy,
        loss,
        part="policy",
        optimizer=policy.make_optimizer(config.learning_rate, config.weight_decay),
        steps=config.steps,
        warmup=config.warmup_steps,
        final=0.025,
        clip_norm=config.clip_norm,
        every_checkpoint=config.checkpoint_every,
        every_log=1,
        folder=folder,
        log=log,
    )
    return demonstrations.report(
        train=measured_loss(policy, samples, config, seed=seed),
        held_out=None if held_out is None else measured_loss(policy, held_out, config, seed=seed),
    )


def imitation_loss(policy: LerobotPolicy, samples: Samples, index: Tensor, seed: int) -> Tensor:
    """The policy's own loss of the samples of ``index``."""
    obs, chunk = window(samples, index, policy.n_obs_steps)
    return policy.imitation_loss(obs, chunk, seed=seed)


def window(samples: Samples, index: Tensor, n_obs_steps: int) -> tuple[PolicyObs, Tensor]:
    """Observations up to the samples of ``index``, and chunks ``[B, H, A]`` from the oldest observation's step on."""
    places = [samples.back(index, steps) for steps in reversed(range(n_obs_steps))]
    instruction = [samples.instruction[i] for i in index.tolist()]
    *past, newest = (
        PolicyObs(
            samples.image[place],
            samples.command[place],
            instruction,
            {name: value[place] for name, value in samples.more.items()},
        )
        for place in places
    )
    chunk = torch.cat([*(samples.chunk[place, :1] for place in places[:-1]), samples.chunk[index]], dim=1)
    return replace(newest, past=past), chunk[:, : samples.chunk.shape[1]]


@torch.no_grad()
def measured_loss(policy: LerobotPolicy, samples: Samples, config: FineTuning, *, seed: int) -> float:
    """Mean loss of up to ``MEASURED`` samples, evenly spaced; the same noise at every call."""
    chosen = torch.arange(0, len(samples), max(1, math.ceil(len(samples) / MEASURED)))
    parts = chosen.split(config.batch_size)
    losses = [
        float(imitation_loss(policy, samples, part, stream_seed(seed, SERIES, "measure", number))) * len(part)
        for number, part in enumerate(parts)
    ]
    return sum(losses) / len(chosen)
