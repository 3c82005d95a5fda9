"""Few-step sampling: the flow transformer learns to predict in one evaluation the result of many steps.

Consistency distillation (Song et al. 2023, "Consistency Models", Algorithm 2) on the rectified flow. Two neighbouring
points of one trajectory of the probability-flow ODE lead to the same clean latents. The student's answer at the noisier
point is therefore drawn to its own answer at the other, which the teacher's Euler step computes::

    x_σ        = (1-σ)·z + σ·ε                                   a recorded chunk z, noised
    x_σ'       = euler_step(x_σ, teacher(x_σ, σ), σ → σ')         one step of the teacher's grid
    loss       = ‖student(x_σ, σ) - stop(student(x_σ', σ'))‖²      and at σ' = 0 the target is x_0 itself

The context is drawn as in ordinary training, and both heads learn on the student's features.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import draw, own_rows, whole_rows
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import FitReport
from worldrl.core.types import Episode
from worldrl.diffusion.flow import add_noise, euler_step, sigma_grid
from worldrl.world_models.video.dynamics import ChunkLoss, motion_weight
from worldrl.world_models.video.flow_transformer import FlowTransformer
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import fit_windows, latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining


@dataclass(frozen=True)
class Consistency:
    """The consistency loss of one chunk; ``grid`` ``[steps + 1]`` has the teacher's levels from 1 to 0."""

    student: FlowTransformer
    teacher: FlowTransformer
    grid: Tensor

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
        """Squared distance of the student's answers at both ends of a teacher's step; see ``Dynamics.loss``."""
        grid, rows = self.grid.to(clean.device), whole_rows(clean.shape[0], generator)
        steps = torch.randint(len(grid) - 1, (rows,), generator=generator, device=generator.device).to(clean.device)
        step = own_rows(steps, generator)
        sigma, sigma_next = grid[step], grid[step + 1]
        noise = draw(torch.randn, clean.shape, generator, device=clean.device)
        x = add_noise(clean, noise, sigma)
        target = self._target(x, sigma, sigma_next, reference, memory, action)
        answer, features = self.student(x, sigma, reference, memory, action)
        weight = motion_weight(clean, memory[:, -1:], self.student.config.motion_weight, generator)
        loss = (weight * valid[:, :, None, None, None] * (answer.float() - target).square()).mean()
        return ChunkLoss(loss, features, grid[steps][:, None], {"wm/consistency_loss": loss.detach()})

    @torch.no_grad()
    def _target(
        self, x: Tensor, sigma: Tensor, sigma_next: Tensor, reference: Tensor, memory: Tensor, action: Tensor
    ) -> Tensor:
        clean, _ = self.teacher(x, sigma, reference, memory, action)
        nearer = euler_step(x, clean.float(), sigma, sigma_next)
        # The network takes levels above 0 only; at 0 the Euler step has reached the answer.
        answer, _ = self.student(nearer, sigma_next.clamp_min(float(self.grid[-2])), reference, memory, action)
        finished = (sigma_next == 0).view(-1, *[1] * (x.ndim - 1))
        return torch.where(finished, nearer, answer.float())


def fit_distilled(
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    config: WorldModelTraining,
    *,
    instructions: TaskInstructions,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "distillation",
) -> FitReport:
    """Distil a flow transformer in place to ``config.distill_sampling_steps`` steps; SettingError: another dynamics."""
    if not isinstance(model.dynamics, FlowTransformer):
        raise SettingError("distill_steps: only the flow transformer can be distilled; give distill_steps=0")
    teacher = copy.deepcopy(model.dynamics).eval().requires_grad_(False)
    settings = model.config.dynamics
    settings.sampling_steps = config.distill_sampling_steps
    grid = sigma_grid(config.distill_teacher_steps, settings.shift)
    return fit_windows(
        series,
        model,
        latent_sampler(model, episodes, config),
        config,
        instructions=instructions,
        seed=seed,
        folder=folder,
        log=log,
        steps=config.distill_steps,
        denoise=Consistency(model.dynamics, teacher, grid),
    )
