"""Noisy denoising steps as decisions, shared by Flow-GRPO, DanceGRPO and BranchGRPO.

A noisy step from x to x' is an action of a Gaussian policy (``diffusion.sde``). Its ratio is exact, ρ = exp(log
p_θ(x' | x) - log p_old(x' | x)); the log-probability is reduced as the ratio's range expects
(:class:`~worldrl.diffusion.sde.RatioRule`). A step that several videos share is one decision, and counts as often.

Shapes legend: ``M`` noisy steps, of any row, chunk and level; ``B`` videos; ``T`` denoising steps of a video.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.diffusion.sde import RatioRule, Schedule, gaussian_kl, gaussian_log_prob
from worldrl.methods.alignment.imagination import VideoImagination, paths, video_method
from worldrl.methods.alignment.videos import ChunkSteps, Surroundings, VideoTree
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.interfaces import AdvantageEstimator, Evaluated, SampleSelector
from worldrl.methods.rl.losses import clipped
from worldrl.methods.rl.method import Method, fitted
from worldrl.world_models.video.flow_transformer import FlowTransformer


@dataclass(frozen=True)
class NoisySteps(ChunkSteps):
    """Noisy denoising steps with their advantages."""

    x_next: Tensor  # after.
    logp: Tensor  # ``[M]`` when it was drawn.
    advantage: Tensor  # ``[M]``.
    weight: Tensor  # how often each counts, of mean 1, ``[M]``.


def noisy_steps(tree: VideoTree, schedule: Schedule, advantage: Tensor, weight: Tensor) -> NoisySteps | None:
    """Collect the noisy steps of a tree of videos that count; None where there are none.

    ``advantage`` ``[T, B]`` is the same for all videos that share a step. What has weight 0 ``[T, B]`` in all of them
    is not shown to the network again.
    """
    counted, credit = list[Tensor](), list[Tensor]()
    for layer, path, often, gain in zip(tree.layers, paths(tree.layers), weight, advantage, strict=True):
        rows = len(layer.group)
        counted.append(torch.zeros(rows, dtype=weight.dtype).scatter_add_(0, path, often))
        credit.append(torch.zeros(rows, dtype=advantage.dtype).index_copy_(0, path, gain))
    chosen = [n for n, layer in enumerate(tree.layers) if layer.step in schedule.noisy and bool(counted[n].any())]
    if not chosen:
        return None
    layers = tree.layers
    rows = {n: counted[n].nonzero()[:, 0].to(layers[n].x.device) for n in chosen}

    def join(name: str) -> Tensor:
        return torch.cat([getattr(layers[n], name)[rows[n]] for n in chosen])

    around = Surroundings.join([layers[n].around.select(rows[n]) for n in chosen])
    x = join("x")
    step = torch.cat([torch.full((len(rows[n]),), layers[n].step) for n in chosen]).to(x.device)
    gain, often = (torch.cat([of[n][counted[n] > 0] for n in chosen]).to(x) for of in (credit, counted))
    return NoisySteps(step, x, around, join("x_next"), join("logp"), gain, often / often.mean())


@dataclass(frozen=True)
class DenoisingLogProb:
    """Log-probabilities of noisy denoising steps.

    Equation: log N(x'; mean(x, v_θ), std²), reduced by a mean or a sum
    Paper: Flow-GRPO (2505.05470)
    """

    dynamics: FlowTransformer  # with gradient.
    schedule: Schedule  # of the steps.
    reduce: str  # over a step's numbers, ``mean`` or ``sum``.
    reference: FlowTransformer | None = None  # the network of the KL term; None: there is none.

    def __call__(self, decisions: NoisySteps, generator: torch.Generator) -> Evaluated:
        """Show noisy steps to the network again, and to the reference."""
        mean, std = self._transition(self.dynamics, decisions)
        logp = gaussian_log_prob(decisions.x_next, mean, std, self.reduce)

        def away(reference: FlowTransformer) -> Tensor:
            with torch.no_grad():
                anchor, _ = self._transition(reference, decisions)
            return gaussian_kl(mean, anchor, std).mean()

        asked = None if self.reference is None else partial(away, self.reference)
        return Evaluated(logp, decisions.logp, decisions.advantage, decisions.weight, asked)

    def _transition(self, dynamics: FlowTransformer, steps: NoisySteps) -> tuple[Tensor, Tensor]:
        clean = steps.around.predict(dynamics, steps.x, self.schedule.level(steps.step))
        return self.schedule.transition(steps.x, clean, steps.step)


@dataclass(frozen=True)
class NoisyVideos(VideoImagination):
    """Videos whose noisy denoising steps are learned from."""

    def decisions(self, experience: VideoTree, advantage: Tensor, weight: Tensor, logs: Logs) -> NoisySteps | None:
        """Collect the noisy steps that count."""
        steps = noisy_steps(experience, self.schedule, advantage, weight)
        logs["cost/trained_steps"] = torch.tensor(0.0 if steps is None else float(len(steps)))
        return steps


def ratio_method(
    source: NoisyVideos,
    rule: RatioRule,
    parts: Parts | None,
    *,
    kl: float = 0.0,
    reference: FlowTransformer | None = None,
    rows: int | None = None,
    advantage: AdvantageEstimator | None = None,
    selection: SampleSelector | None = None,
) -> Method:
    """Make a method with the clipped ratio of noisy steps; options as of :func:`~worldrl.methods.alignment.imagination.video_method`."""
    parts = parts or Parts()
    return video_method(
        source,
        DenoisingLogProb(source.task.dynamics, source.schedule, rule.reduce, reference),
        fitted(parts.loss or clipped, clip_low=rule.range, clip_high=rule.range),
        parts,
        kl=kl,
        rows=rows,
        advantage=advantage,
        selection=selection,
    )
