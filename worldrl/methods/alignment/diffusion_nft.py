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

import copy
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import Logs
from worldrl.core.rng import on_device
from worldrl.diffusion.flow import add_noise
from worldrl.diffusion.sde import Denoising, Schedule, make_schedule
from worldrl.methods.alignment.imagination import VideoImagination, video_method
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.methods.alignment.videos import Layer, Surroundings, VideoTree
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.control import Unchecked
from worldrl.methods.rl.interfaces import Evaluated
from worldrl.methods.rl.losses import nft
from worldrl.methods.rl.method import Method, fitted
from worldrl.world_models.video.flow_transformer import FlowTransformer

DECAYS = ("rising", "late")


def _denoising() -> Denoising:
    return Denoising(noise="none")


@dataclass
class DiffusionNftConfig:
    """Settings of DiffusionNFT."""

    denoising: Denoising = field(default_factory=_denoising)  # steps of the sampler; without noise.
    beta: float = 1.0  # β, how far the two targets lie from the old prediction; 0.1 where several rewards are mixed.
    advantage_max: float = 5.0  # A_max.
    kl: float = 1e-4  # λ, weight of the distance to the starting weights' velocity.
    # ``rising`` (min(0.001 k, 0.5) in iteration k) or ``late`` (0 until 75, then 0.0075 (k - 75) up to 0.999).
    old_decay: str = "rising"
    levels: int = 2  # fresh noisings of each chunk.
    coupled: bool = False  # show each of them twice, the second time with the opposite noise at the opposite level.

    def __post_init__(self) -> None:
        if self.old_decay not in DECAYS:
            raise SettingError(f"diffusion_nft.old_decay: unknown {self.old_decay!r}{nearest(self.old_decay, DECAYS)}")
        for name in ("beta", "advantage_max", "levels"):
            if getattr(self, name) <= 0:
                raise SettingError(f"diffusion_nft.{name} must be positive, got {getattr(self, name)}")


def old_weight_decay(iteration: int, kind: str) -> float:
    """Return how much of the old weights survives iteration ``iteration``."""
    if kind == "rising":
        return min(0.001 * iteration, 0.5)
    return 0.0 if iteration < 75 else min(0.0075 * (iteration - 75), 0.999)


@dataclass(frozen=True)
class FinishedChunks:
    """Finished chunks of videos, with their advantages."""

    latent: Tensor  # ``[M, F, c, h, w]``.
    advantage: Tensor  # ``[M]``.
    around: Surroundings  # what the network saw.
    levels: int  # fresh noisings of each.

    def __len__(self) -> int:
        return len(self.latent) * self.levels

    def select(self, index: Tensor) -> "FinishedChunks":
        """Take the chunks of ``index``, which counts noisings."""
        index = (index % len(self.latent)).to(self.latent.device)
        return FinishedChunks(self.latent[index], self.advantage[index], self.around.select(index), 1)


@dataclass(frozen=True)
class FinishedVideos(VideoImagination):
    """Videos whose finished chunks are learned from."""

    levels: int = 1  # fresh noisings of each chunk.

    def learnable(self, layer: Layer) -> bool:
        """Whether a denoising step finishes a chunk."""
        return layer.last

    def decisions(self, experience: VideoTree, advantage: Tensor, weight: Tensor, logs: Logs) -> FinishedChunks:
        """Collect the chunks that count, of videos without splits."""
        ends = [n for n, layer in enumerate(experience.layers) if layer.last]
        rows = {n: weight[n].nonzero()[:, 0] for n in ends}
        there = {n: index.to(experience.latent.device) for n, index in rows.items()}
        latent = torch.cat([experience.layers[n].x_next[there[n]] for n in ends])
        gain = torch.cat([advantage[n][rows[n]] for n in ends]).to(latent)
        around = Surroundings.join([experience.layers[n].around.select(there[n]) for n in ends])
        chunks = FinishedChunks(latent, gain, around, self.levels)
        logs["cost/trained_steps"] = torch.tensor(float(len(chunks)))
        return chunks


@dataclass(frozen=True)
class ForwardProcess:
    """Predictions of the clean chunk from fresh noisings, in place of log-probabilities.

    Equation: ẑ = x - σ v
    Paper: DiffusionNFT (2509.16117); coupled-GRPO's complementary draws where ``coupled`` (DiffuCoder, 2506.20639)
    """

    dynamics: FlowTransformer  # with gradient.
    old: FlowTransformer  # what predicted before.
    schedule: Schedule  # its levels are those of the noisings.
    reference: FlowTransformer | None = None  # the network of the KL term; None: there is none.
    coupled: bool = False  # whether every noising has a second one, of the opposite noise and level.

    def __call__(self, decisions: FinishedChunks, generator: torch.Generator) -> Evaluated:
        """Noise finished chunks afresh and let all networks predict them."""
        around, latent, advantage = decisions.around, decisions.latent, decisions.advantage
        x, sigma = noised(latent, self.schedule, on_device(generator, latent.device), self.coupled)
        if self.coupled:
            around, latent, advantage = Surroundings.join([around] * 2), latent.tile(2, 1, 1, 1, 1), advantage.repeat(2)
        clean = around.predict(self.dynamics, x, sigma)
        with torch.no_grad():
            old = around.predict(self.old, x, sigma)

        def away(reference: FlowTransformer) -> Tensor:
            with torch.no_grad():
                anchor = around.predict(reference, x, sigma)
            return ((clean - anchor).flatten(1) / sigma[:, None]).square().mean()

        asked = None if self.reference is None else partial(away, self.reference)
        return Evaluated(clean, old, advantage, torch.ones_like(advantage), asked, latent)


def diffusion_nft(
    task: AlignmentTask,
    config: DiffusionNftConfig,
    parts: Parts | None = None,
    *,
    rows: int | None = None,
) -> Method:
    """Alignment on the forward process, without log-probabilities or stored trajectories.

    Equation: L = A_max mean [w L+ / β + (1 - w) L- / β] + λ mean (v_θ - v_ref)²
    Paper: DiffusionNFT (2509.16117)
    """
    parts, steps = parts or Parts(), make_schedule(config.denoising, task.model.config.dynamics.shift)
    if steps.noisy:
        raise SettingError("diffusion_nft.denoising.noise must be none: it needs no log-probability")
    old = copy.deepcopy(task.dynamics).requires_grad_(False)
    reference = copy.deepcopy(task.dynamics).requires_grad_(False) if config.kl else None

    def after(iteration: int) -> None:
        follow(old, task.dynamics, old_weight_decay(iteration, config.old_decay))

    return video_method(
        FinishedVideos(task, steps, dynamics=old, levels=config.levels),
        ForwardProcess(task.dynamics, old, steps, reference, config.coupled),
        fitted(parts.loss or nft, beta=config.beta, advantage_max=config.advantage_max),
        parts,
        kl=config.kl,
        rows=rows,
        control=(parts.control or Unchecked)(follow=after),
        old=old,
    )


def noised(
    latent: Tensor, schedule: Schedule, generator: torch.Generator, coupled: bool = False
) -> tuple[Tensor, Tensor]:
    """Noise chunks ``[M, ...]`` at levels that the sampler visits; return them and the levels ``[M]``.

    ``coupled`` returns ``2 M``: the second half has the noise of the first with the other sign, at the level as far from the end
    as the first one's is from the beginning.
    """
    step = torch.randint(schedule.steps, (len(latent),), generator=generator, device=generator.device)
    noise = torch.randn(latent.shape, generator=generator, device=latent.device)
    if coupled:
        latent, noise = torch.cat([latent, latent]), torch.cat([noise, -noise])
        step = torch.cat([step, schedule.steps - 1 - step])
    sigma = schedule.level(step.to(latent.device))
    return add_noise(latent, noise, sigma), sigma


@torch.no_grad()
def follow(old: FlowTransformer, new: FlowTransformer, decay: float) -> None:
    """Move the old weights: θ_old ← decay θ_old + (1 - decay) θ."""
    for average, parameter in zip(old.parameters(), new.parameters(), strict=True):
        average.lerp_(parameter.detach(), 1 - decay)
