"""AnyFlow (Gu et al. 2026, arXiv 2605.13724): one network jumps from any noise level t to any lower level r.

The flow transformer gets r beside t. Its answer ẑ stands for the mean velocity u between both levels::

    u(x_t, t, r) = (x_t - ẑ(x_t, t, r)) / t                     x_t = (1-t)·z + t·ε,  v = ε - z
    x_r          = x_t - (t - r)·u(x_t, t, r)                   a jump; at r = t, u is the flow's own velocity

Both stages follow the authors' published code (NVlabs/AnyFlow, read on 27 November 2026), not the paper's text.

1. Forward training: u = v - (t - r)·du/dt (MeanFlow, Geng et al. 2025, arXiv 2505.13447), where du/dt is a central
   difference along v, without gradient. Half of the rows have r = t and a quarter r = 0.
2. On-policy training by flow map backward simulation: of a sampler with K steps one is drawn, and three jumps
   (1 → t_k → t_k+1 → 0) simulate the whole sampler. The finished chunk x moves by distribution matching (DMD, Yin et al.
   2024, arXiv 2311.18828) along ẑ_real - ẑ_fake, divided by the mean of |x - ẑ_real|. ``real`` is the network before
   stage 1; ``fake`` learns the flow of the simulated chunks. The loss of stage 1 stays beside it.

Differences from the published code, which has text, guidance and 50 steps: errors are of ẑ, which weighs u by t² and not
by t·√(1-t), since that is 0 at t = 1; ``pure_noise_share`` of the rows start there; no loss is scaled to another's;
K = 1 belongs to the steps; both networks of stage 2 learn in the same step; r's embedding begins at zero; the central
difference reaches 0.02 to each side and not 0.005, where the fast parts of σ's embedding made it ten times as noisy.
t is not the higher of two uniform levels, which leaves too few small t: at r = 0 any constant ẑ solves stage 1's
equation, and only rows with r = t near 0 exclude it (a small training collapsed so).

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``c h w`` latent.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import draw, initial_weights, own_rows, whole_rows
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport
from worldrl.core.types import Episode
from worldrl.diffusion.flow import add_noise, draw_sigma, euler_step, expand_sigma, shift_sigma, sigma_grid, velocity
from worldrl.world_models.video.dynamics import ChunkLoss, motion_weight
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.losses import Denoise
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import fit_windows, latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

Predict = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps ``x [B, ...]`` and levels ``t [B]``, ``r [B]`` to ẑ ``[B, ...]``."""
EPSILON = 0.02  # half width of the central difference
LOWEST = 2 * EPSILON  # smallest t in training
DIFFUSION, ENDPOINT = 0.5, 0.25  # shares of rows with r = t and with r = 0
ON_POLICY = "_on_policy"  # ends the series of stage 2 in the log
SMALLEST_DISTANCE = 1e-3  # of a simulated chunk from its prediction: below it, float32 holds noise only


# --- the map -------------------------------------------------------------------------------------------------------


def jump(predict: Predict, x: Tensor, t: Tensor, r: Tensor) -> Tensor:
    """Return x_r of rows ``x`` at levels ``t``."""
    return euler_step(x, predict(x, t, r), t, r)


def map_target(predict: Predict, x: Tensor, t: Tensor, r: Tensor, v: Tensor) -> Tensor:
    """Return what ẑ(x, t, r) has to be: x - t·(v - (t - r)·du/dt), along the velocity ``v`` at ``x``."""
    upper, lower = (t + EPSILON).clamp_max(1), t - EPSILON  # beyond 1 no network was ever asked

    def mean_velocity(level: Tensor) -> Tensor:
        moved = x + expand_sigma(level - t, x) * v
        return velocity(moved, predict(moved, level, r), level)

    slope = (mean_velocity(upper) - mean_velocity(lower)) / expand_sigma(upper - lower, x)
    return x - expand_sigma(t, x) * (v - expand_sigma(t - r, x) * slope)


def draw_levels(
    rows: int, *, pure_noise_share: float, shift: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw t as in ordinary training, at least ``LOWEST``, and r <= t, both ``[rows]``."""
    t = draw_sigma(rows, pure_noise_share=pure_noise_share, shift=shift, generator=generator).clamp_min(LOWEST)
    kind, share = torch.rand(2, rows, generator=generator, device=generator.device)
    return t, torch.where(kind < DIFFUSION, t, torch.where(kind < DIFFUSION + ENDPOINT, 0.0, share * t))


# --- backward simulation -------------------------------------------------------------------------------------------


def draw_rollout(most: int, shift: float, generator: torch.Generator) -> list[float]:
    """Levels of a simulated sampler with 1, 2, 4, … or ``most`` steps: its first, both ends of one step, and 0."""
    choices = [2**k for k in range(most.bit_length()) if 2**k < most] + [most]
    count = choices[int(torch.randint(len(choices), (), generator=generator, device=generator.device))]
    step = int(torch.randint(count, (), generator=generator, device=generator.device))
    grid = sigma_grid(count, shift).tolist()
    return sorted({1.0, grid[step], grid[step + 1], 0.0}, reverse=True)


def simulate(predict: Predict, noise: Tensor, levels: Sequence[float]) -> Tensor:
    """Jump from ``noise`` through ``levels``."""
    x = noise
    for t, r in pairwise(levels):
        x = jump(predict, x, x.new_full((len(x),), t), x.new_full((len(x),), r))
    return x


def matching_direction(sample: Tensor, real: Tensor, fake: Tensor) -> Tensor:
    """DMD's gradient (ẑ_fake - ẑ_real) / mean |x - ẑ_real|, the mean over each row."""
    distance = (sample - real).abs().flatten(1).mean(dim=1).clamp_min(SMALLEST_DISTANCE)
    return (fake - real) / expand_sigma(distance, sample)


# --- losses --------------------------------------------------------------------------------------------------------


def predictor(network: FlowTransformer, reference: Tensor, memory: Tensor, action: Tensor) -> Predict:
    """Return the network's ẑ in one context."""
    return lambda x, t, r: network(x, t, reference, memory, action, r)[0].float()


@dataclass(frozen=True)
class ForwardLoss:
    """Stage 1: squared distance of ẑ from :func:`map_target` on recorded chunks."""

    student: FlowTransformer

    def __call__(
        self,
        clean: Tensor,
        valid: Tensor,
        reference: Tensor,
        memory: Tensor,
        action: Tensor,
        *,
        generator: torch.Generator,
    ) -> ChunkLoss:
        """Loss of one chunk; see ``Dynamics.loss``."""
        config, rows = self.student.config, whole_rows(clean.shape[0], generator)
        every_t, every_r = draw_levels(
            rows, pure_noise_share=config.pure_noise_share, shift=config.shift, generator=generator
        )
        t, r = own_rows(every_t, generator), own_rows(every_r, generator)
        noise = draw(torch.randn, clean.shape, generator, device=clean.device)
        x = add_noise(clean, noise, t)
        # In bfloat16 the difference of two answers so close together would be rounding.
        with torch.no_grad(), torch.autocast(clean.device.type, enabled=False):
            target = map_target(predictor(self.student, reference, memory, action), x, t, r, noise - clean)
        answer, features = self.student(x, t, reference, memory, action, r)
        weight = motion_weight(clean, memory[:, -1:], config.motion_weight, generator) * valid[:, :, None, None, None]
        loss = (weight * (answer.float() - target).square()).mean()
        return ChunkLoss(loss, features, every_t[:, None], {"wm/flow_map_loss": loss.detach()})


@dataclass(frozen=True)
class OnPolicyLoss:
    """Stage 2: distribution matching of simulated chunks, the fake network's own loss, and stage 1's."""

    forward: ForwardLoss
    real: FlowTransformer  # frozen.
    fake: FlowTransformer  # learns in the same steps.
    rollout_steps: int  # of the longest simulated sampler.

    def __call__(
        self,
        clean: Tensor,
        valid: Tensor,
        reference: Tensor,
        memory: Tensor,
        action: Tensor,
        *,
        generator: torch.Generator,
    ) -> ChunkLoss:
        """Loss of one chunk; see ``Dynamics.loss``."""
        context, mask = (reference, memory, action), valid[:, :, None, None, None]
        found = self.forward(clean, valid, *context, generator=generator)
        config = self.forward.student.config
        noise, again, for_fake = (draw(torch.randn, clean.shape, generator, device=clean.device) for _ in range(3))
        levels = draw_rollout(self.rollout_steps, config.shift, generator)
        sample = simulate(predictor(self.forward.student, *context), noise, levels)
        level, fake_level = (
            shift_sigma(kind.clamp(LOWEST, 1), config.shift)
            for kind in (
                draw(torch.rand, (len(clean),), generator, device=clean.device),
                draw(torch.randn, (len(clean),), generator, device=clean.device).sigmoid(),
            )
        )
        fixed = sample.detach()
        with torch.no_grad():
            x = add_noise(fixed, again, level)
            real, fake = (predictor(network, *context)(x, level, level) for network in (self.real, self.fake))
            target = fixed - matching_direction(fixed, real, fake)
        matching = (mask * (sample - target).square()).mean()
        answer = predictor(self.fake, *context)(add_noise(fixed, for_fake, fake_level), fake_level, fake_level)
        own = (mask * (answer - fixed).square()).mean()
        logs = {**found.logs, "wm/matching_loss": matching.detach(), "wm/fake_loss": own.detach()}
        return replace(found, loss=found.loss + matching + own, logs=logs)


# --- training ------------------------------------------------------------------------------------------------------


def add_target_level(model: VideoWorldModel, *, seed: int) -> FlowTransformer:
    """Give a flow transformer the embedding of r in place, unless it has one; SettingError for another dynamics."""
    dynamics = model.dynamics
    if not isinstance(dynamics, FlowTransformer):
        raise SettingError(
            "training.flow_map_steps: a flow map needs dynamics.kind=flow_transformer; edm_unet denoises frame after "
            "frame by EDM's levels, which are no rectified flow; give training.flow_map_steps=0"
        )
    if dynamics.target_in is None:
        with initial_weights(seed, "flow_map"):
            dynamics.add_target_level()
    return dynamics


def fit_flow_map(
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    config: WorldModelTraining,
    *,
    instructions: TaskInstructions,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "flow_map",
) -> FitReport:
    """Make a flow transformer a flow map in place: ``flow_map_steps`` of stage 1, ``on_policy_steps`` of stage 2.

    It then samples in ``flow_map_sampling_steps``. SettingError: another dynamics.
    """
    student = add_target_level(model, seed=seed)
    real, fake = (copy.deepcopy(student).eval().requires_grad_(own) for own in (False, True))
    sampler = latent_sampler(model, episodes, config)

    def stage(
        name: str, config: WorldModelTraining, steps: int, loss: Denoise, **further: FlowTransformer
    ) -> FitReport:
        return fit_windows(
            series + name,
            model,
            sampler,
            config,
            instructions=instructions,
            seed=seed,
            folder=None if folder is None else folder / f"stage{name}",
            log=log,
            steps=steps,
            denoise=loss,
            further=further,
        )

    forward = ForwardLoss(student)
    report = stage("", config, config.flow_map_steps, forward)
    if config.on_policy_steps:
        slower = replace(config, learning_rate=config.on_policy_learning_rate)
        loss = OnPolicyLoss(forward, real, fake, config.flow_map_rollout_steps)
        report = stage(ON_POLICY, slower, config.on_policy_steps, loss, fake=fake)
    model.config.dynamics.sampling_steps = config.flow_map_sampling_steps
    return report
