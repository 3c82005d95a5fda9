"""The clipped-ratio loss of noisy denoising steps, shared by Flow-GRPO, DanceGRPO and BranchGRPO.

A noisy step from x to x' is an action of a Gaussian policy (``diffusion.sde``), so its ratio is exact::

    ρ = exp(log p_θ(x' | x) - log p_old(x' | x))
    L = -mean w min(ρ A, clip(ρ, 1 - ε, 1 + ε) A) + β KL(p_θ ‖ p_ref)

with the log-probability reduced as ε expects (:class:`~worldrl.diffusion.sde.RatioRule`), and w of mean 1: how often a step
counts that several videos share.

Shapes legend: ``M`` noisy steps, of any row, chunk and level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import stream
from worldrl.diffusion.sde import RatioRule, Schedule, gaussian_kl, gaussian_log_prob
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.methods.alignment.videos import Layer, Surroundings
from worldrl.methods.rl.grpo import clipped_objective
from worldrl.world_models.video.flow_transformer import FlowTransformer

NO_DUAL_CLIP = 1e6
"""Bound on the ratio of negative advantages: flow methods have none, and their ratios stay near 1."""


@dataclass(frozen=True)
class NoisySteps:
    """Noisy denoising steps with their advantages.

    Attributes:
        step: int64 ``[M]``.
        x: before ``[M, F, c, h, w]``.
        x_next: after.
        logp: ``[M]`` when it was drawn.
        advantage: ``[M]``.
        weight: how often each counts, of mean 1, ``[M]``.
        around: what the network saw.
    """

    step: Tensor
    x: Tensor
    x_next: Tensor
    logp: Tensor
    advantage: Tensor
    weight: Tensor
    around: Surroundings

    def __len__(self) -> int:
        """Return ``M``."""
        return len(self.step)

    def select(self, index: Tensor) -> NoisySteps:
        """Take the steps of ``index``."""
        index = index.to(self.x.device)
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return NoisySteps(**{k: v.select(index) if k == "around" else v[index] for k, v in values.items()})


def noisy_steps(
    layers: Sequence[Layer], schedule: Schedule, advantage: Sequence[Tensor], counted: Sequence[Tensor]
) -> NoisySteps | None:
    """Collect the noisy steps of some layers that count; None where there are none.

    Args:
        layers: of a tree.
        schedule: says which steps are noisy.
        advantage: per layer ``[R]``.
        counted: per layer ``[R]``, how often each step counts, or bool; what does not is never shown to the network again.
    """
    chosen = [n for n, layer in enumerate(layers) if layer.step in schedule.noisy and bool(counted[n].any())]
    if not chosen:
        return None
    rows = {n: counted[n].nonzero()[:, 0].to(layers[n].x.device) for n in chosen}

    def join(name: str) -> Tensor:
        return torch.cat([getattr(layers[n], name)[rows[n]] for n in chosen])

    around = [layers[n].around.select(rows[n]) for n in chosen]
    parts = {f.name: torch.cat([getattr(a, f.name) for a in around]) for f in fields(Surroundings)}
    x = join("x")
    step = torch.cat([torch.full((len(rows[n]),), layers[n].step) for n in chosen]).to(x.device)
    credit = torch.cat([advantage[n][counted[n] > 0] for n in chosen]).to(x)
    often = torch.cat([counted[n][counted[n] > 0] for n in chosen]).to(x)
    return NoisySteps(step, x, join("x_next"), join("logp"), credit, often / often.mean(), Surroundings(**parts))


def ratio_loss(
    dynamics: FlowTransformer,
    schedule: Schedule,
    steps: NoisySteps,
    rule: RatioRule,
    *,
    kl: float = 0.0,
    reference: FlowTransformer | None = None,
) -> tuple[Tensor, Logs]:
    """Loss of some noisy steps and its logs.

    Raises:
        SettingError: a weight of the KL without a model to hold on to.
    """
    mean, std = _transition(dynamics, schedule, steps)
    logp = gaussian_log_prob(steps.x_next, mean, std, rule.reduce)
    objective = clipped_objective(
        logp, steps.logp, steps.advantage, clip_low=rule.range, clip_high=rule.range, dual_clip=NO_DUAL_CLIP
    )
    loss, change = -(steps.weight * objective).mean(), (logp - steps.logp).detach()
    clipped = (change.exp() - 1).abs() > rule.range
    logs = {"align/log_ratio": change.abs().mean(), "align/clipped": clipped.float().mean()}
    if kl:
        if reference is None:
            raise SettingError("alignment: kl above 0 needs a reference model")
        with torch.no_grad():
            anchor, _ = _transition(reference, schedule, steps)
        away = gaussian_kl(mean, anchor, std).mean()
        loss, logs["align/kl"] = loss + kl * away, away.detach()
    return loss, {"align/loss": loss.detach(), **logs}


def _transition(dynamics: FlowTransformer, schedule: Schedule, steps: NoisySteps) -> tuple[Tensor, Tensor]:
    clean = steps.around.predict(dynamics, steps.x, schedule.level(steps.step))
    return schedule.transition(steps.x, clean, steps.step)


def minibatches(task: AlignmentTask, rows: int, iteration: int) -> Iterator[Tensor]:
    """Yield ``epochs`` shuffled passes over ``rows`` rows, in parts of about one size and at most ``minibatch``.

    About one size, because Adam's step does not shrink with the rows that its gradient was taken from: a few left over would
    move the weights as far as a whole part, at random.
    """
    parts = -(-rows // task.config.minibatch)
    for epoch in range(task.config.epochs):
        order = torch.randperm(rows, generator=stream(task.seed, "minibatches", iteration, epoch))
        yield from order.tensor_split(parts)


def ratio_losses(
    task: AlignmentTask,
    schedule: Schedule,
    steps: NoisySteps | None,
    rule: RatioRule,
    iteration: int,
    logs: Logs,
    *,
    kl: float = 0.0,
    reference: FlowTransformer | None = None,
) -> Iterator[Tensor]:
    """Yield the loss of every minibatch under the weights at that moment; ``logs`` receives the last one's."""
    logs["cost/trained_steps"] = torch.tensor(0.0 if steps is None else float(len(steps)))
    if steps is None:
        return
    for index in minibatches(task, len(steps), iteration):
        loss, told = ratio_loss(task.dynamics, schedule, steps.select(index), rule, kl=kl, reference=reference)
        logs.update(told)
        yield loss
