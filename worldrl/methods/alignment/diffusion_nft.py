"""DiffusionNFT (2509.16117): alignment on the forward process, without log-probabilities or stored trajectories.

Finished chunks are noised afresh, and the network is drawn to the good ones and pushed from the bad ones, around what it was
(v_old). Since it predicts clean samples, ẑ = x - σ v, and all of this is linear in v::

    w   = clip(A / A_max, -1, 1) / 2 + 1/2
    ẑ+  = β ẑ_θ + (1 - β) ẑ_old             ẑ- = (1 + β) ẑ_old - β ẑ_θ
    L±  = mean (ẑ± - z)² / max(mean |ẑ± - z|, 1e-5)                      (the divisor carries no gradient)
    L   = A_max mean [w L+ / β + (1 - w) L- / β] + λ mean (v_θ - v_ref)²

Any sampler serves; here it is the ODE's. The levels are those that the sampler visits. v_old follows the weights slowly.

Shapes legend: ``M`` finished chunks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import Logs
from worldrl.core.rng import on_device, stream
from worldrl.diffusion.flow import add_noise
from worldrl.diffusion.sde import Denoising, Schedule, make_schedule
from worldrl.methods.alignment.ratio import minibatches
from worldrl.methods.alignment.task import AlignmentTask, advantages, judge, reward_logs
from worldrl.methods.alignment.videos import Surroundings, VideoTree, group_keys, grow
from worldrl.world_models.video.flow_transformer import FlowTransformer

DECAYS = ("rising", "late")


def _denoising() -> Denoising:
    return Denoising(noise="none")


@dataclass
class DiffusionNftConfig:
    """Settings of DiffusionNFT.

    Attributes:
        denoising: steps of the sampler; without noise.
        beta: β, how far the two targets lie from the old prediction; 0.1 where several rewards are mixed.
        advantage_max: A_max.
        kl: λ, weight of the distance to the starting weights' velocity.
        old_decay: ``rising`` (min(0.001 k, 0.5) in iteration k) or ``late`` (0 until 75, then 0.0075 (k - 75) up to 0.999).
        levels: fresh noisings of each chunk.
    """

    denoising: Denoising = field(default_factory=_denoising)
    beta: float = 1.0
    advantage_max: float = 5.0
    kl: float = 1e-4
    old_decay: str = "rising"
    levels: int = 2

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.old_decay not in DECAYS:
            raise SettingError(f"diffusion_nft.old_decay: unknown {self.old_decay!r}{nearest(self.old_decay, DECAYS)}")
        for name in ("beta", "advantage_max", "levels"):
            if getattr(self, name) <= 0:
                raise SettingError(f"diffusion_nft.{name} must be positive, got {getattr(self, name)}")


def nft_loss(
    clean: Tensor, old: Tensor, target: Tensor, advantage: Tensor, *, beta: float, advantage_max: float
) -> Tensor:
    """DiffusionNFT's loss without its KL term.

    Args:
        clean: ẑ_θ ``[M, ...]``, with gradient.
        old: ẑ_old ``[M, ...]``.
        target: the finished chunks z ``[M, ...]``.
        advantage: ``[M]``.
        beta: β.
        advantage_max: A_max.

    Returns:
        A scalar.
    """
    weight = (advantage / advantage_max).clamp(-1, 1) / 2 + 0.5
    good, bad = (
        _self_normalised(made, target) for made in (beta * clean + (1 - beta) * old, (1 + beta) * old - beta * clean)
    )
    return advantage_max * ((weight * good + (1 - weight) * bad) / beta).mean()


def _self_normalised(made: Tensor, target: Tensor) -> Tensor:
    error = (made - target).flatten(1)
    return error.square().mean(dim=1) / error.detach().abs().mean(dim=1).clamp_min(1e-5)


def old_weight_decay(iteration: int, kind: str) -> float:
    """Return how much of the old weights survives iteration ``iteration``."""
    if kind == "rising":
        return min(0.001 * iteration, 0.5)
    return 0.0 if iteration < 75 else min(0.0075 * (iteration - 75), 0.999)


@dataclass(frozen=True)
class FinishedChunks:
    """Finished chunks of videos, with their advantages.

    Attributes:
        latent: ``[M, F, c, h, w]``.
        advantage: ``[M]``.
        around: what the network saw.
    """

    latent: Tensor
    advantage: Tensor
    around: Surroundings

    def select(self, index: Tensor) -> FinishedChunks:
        """Take the chunks of ``index``."""
        index = index.to(self.latent.device)
        return FinishedChunks(self.latent[index], self.advantage[index], self.around.select(index))


def finished_chunks(tree: VideoTree, advantage: Tensor) -> FinishedChunks:
    """Collect every chunk of videos without splits; each has its video's advantage ``[B]``."""
    ends = [layer for layer in tree.layers if layer.last]
    parts = {f.name: torch.cat([getattr(end.around, f.name) for end in ends]) for f in fields(Surroundings)}
    latent = torch.cat([end.x_next for end in ends])
    return FinishedChunks(latent, advantage.to(latent).repeat(len(ends)), Surroundings(**parts))


class DiffusionNft:
    """DiffusionNFT on an alignment task.

    Args:
        task: model, starts, reward.
        config: settings.
    """

    def __init__(self, task: AlignmentTask, config: DiffusionNftConfig) -> None:
        self.task, self.config = task, config
        self.schedule = make_schedule(config.denoising, task.model.config.dynamics.shift)
        if self.schedule.noisy:
            raise SettingError("diffusion_nft.denoising.noise must be none: it needs no log-probability")
        self.old = copy.deepcopy(task.dynamics).requires_grad_(False)
        self.reference = copy.deepcopy(task.dynamics).requires_grad_(False) if config.kl else None
        self.modules: dict[str, nn.Module] = {"old": self.old}

    def losses(self, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Imagine with the old weights, judge, and yield one loss per gradient step."""
        task = self.task
        keys, group = group_keys(iteration, task.config.prompts, task.config.group_size)
        tree = grow(task, self.schedule, task.draw_starts(iteration), keys, group, dynamics=self.old)
        terms = judge(task, tree.latent, tree.start)
        logs.update(reward_logs(task, terms, group), **{"cost/evaluations": torch.tensor(float(tree.evaluations))})
        yield from self.update(finished_chunks(tree, advantages(task, terms, group)), iteration, logs)

    def update(self, chunks: FinishedChunks, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Yield one loss per gradient step, then let the old weights follow."""
        rows = len(chunks.latent) * self.config.levels
        logs["cost/trained_steps"] = torch.tensor(float(rows))
        for number, index in enumerate(minibatches(self.task, rows, iteration)):
            generator = stream(self.task.seed, "noising", iteration, number)
            loss, told = self._loss(chunks.select(index % len(chunks.latent)), generator)
            logs.update(told)
            yield loss
        follow(self.old, self.task.dynamics, old_weight_decay(iteration, self.config.old_decay))

    def _loss(self, chunks: FinishedChunks, generator: torch.Generator) -> tuple[Tensor, Logs]:
        config, generator = self.config, on_device(generator, chunks.latent.device)
        x, sigma = noised(chunks.latent, self.schedule, generator)
        clean = chunks.around.predict(self.task.dynamics, x, sigma)
        with torch.no_grad():
            old = chunks.around.predict(self.old, x, sigma)
        loss = nft_loss(
            clean, old, chunks.latent, chunks.advantage, beta=config.beta, advantage_max=config.advantage_max
        )
        logs = {"align/nft_loss": loss.detach()}
        if self.reference is not None:
            with torch.no_grad():
                anchor = chunks.around.predict(self.reference, x, sigma)
            away = ((clean - anchor).flatten(1) / sigma[:, None]).square().mean()
            loss, logs["align/kl"] = loss + config.kl * away, away.detach()
        return loss, {"align/loss": loss.detach(), **logs}


def noised(latent: Tensor, schedule: Schedule, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise chunks ``[M, ...]`` at levels that the sampler visits; return them and the levels ``[M]``."""
    step = torch.randint(schedule.steps, (len(latent),), generator=generator, device=generator.device)
    sigma = schedule.level(step.to(latent.device))
    return add_noise(latent, torch.randn(latent.shape, generator=generator, device=latent.device), sigma), sigma


@torch.no_grad()
def follow(old: FlowTransformer, new: FlowTransformer, decay: float) -> None:
    """Move the old weights: θ_old ← decay θ_old + (1 - decay) θ."""
    for average, parameter in zip(old.parameters(), new.parameters(), strict=True):
        average.lerp_(parameter.detach(), 1 - decay)
