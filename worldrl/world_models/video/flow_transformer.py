"""Flow transformer: one chunk of future latents from the reference, the memory and the actions.

The future frames of a chunk are packed into the channels of one token grid, beside the reference latent and the ``K``
memory latents. Actions, each with its commanded pose, enter twice, as in WoVR: as a vector that joins the noise
level's embedding and modulates every block, and as tokens that every block attends to. Every token also gets its
offset from each future gripper place in the image (``pose_map``; World-Env draws such a map).

The output is the *change* from the newest memory frame: ẑ = z_now + f(·). An untrained model therefore predicts a
still image, and the static scene does not hide a small object's motion. In rows that plan (``planning``) a vector and
tokens of the instruction replace those of the actions, without poses. A finished sample can be refined (PDE-Refiner,
Lippe et al. 2023). Several views are one sequence of tokens (``pose_map``): ``h`` is then the height of all.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``K`` memory frames, ``L`` actions of ``A`` numbers, ``c h w``
latent, ``n = h w``.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.rng import draw, own_rows, whole_rows
from worldrl.diffusion.flow import add_noise, draw_refinement, draw_sigma, euler_step, refinement_grid, sigma_grid
from worldrl.nn.blocks import Mlp, ModulatedBlock
from worldrl.nn.embed import sinusoidal
from worldrl.world_models.video.config import DynamicsConfig
from worldrl.world_models.video.dynamics import ChunkLoss, motion_weight
from worldrl.world_models.video.pose_map import FurtherViews, make_pose_map


class PlanCondition(nn.Module):
    """Replaces a row's actions: the instruction as a vector, and as one token per control step."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.vector = Mlp(width, width)
        self.token = Mlp(width, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        for parameter in self.vector[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, instruction: Tensor) -> tuple[Tensor, Tensor]:
        """Map embedded instructions ``[B, d]`` to a vector ``[B, d]`` and tokens ``[B, L, d]``."""
        return self.vector(instruction), self.token(instruction)[:, None] + self.position


@dataclass(frozen=True)
class _Plan:
    """Rows without actions ``[B]``, and the replacements ``[B, d]`` and ``[B, L, d]``."""

    hidden: Tensor
    vector: Tensor
    tokens: Tensor


class FlowTransformer(nn.Module):
    """Predicts the clean latents of a chunk, all frames ``(c, h, w)`` at once, from noisy ones."""

    def __init__(
        self,
        config: DynamicsConfig,
        latent_shape: tuple[int, int, int],
        actions: ActionSpec = TOOL_ACTIONS,
        views: int = 1,
    ):
        super().__init__()
        self.config, self.actions = config, actions
        self.width, self.heads = config.width, config.heads
        channels, height, width = latent_shape[0], latent_shape[1] // views, latent_shape[2]
        frames = config.chunk_frames
        action = 2 * actions.size  # with the command that it leads to
        d = config.width
        self.pose_map = make_pose_map(height, width, frames, actions) if config.pose_map else None
        extra = self.pose_map.channels if self.pose_map is not None else 0
        self.tokens_in = nn.Linear(channels * (frames + config.memory_frames + 1) + extra, d)
        self.position = nn.Parameter(0.02 * torch.randn(height * width, d))
        self.time_in = Mlp(d, d)
        self.action_vector = Mlp(config.chunk_length * action, 2 * d, d)
        self.action_token = Mlp(action, d, d)
        self.action_position = nn.Parameter(0.02 * torch.randn(config.chunk_length, d))
        self.modulation = nn.Linear(d, 6 * d)
        self.blocks = nn.ModuleList([ModulatedBlock(d, config.heads) for _ in range(config.depth)])
        self.norm_out = nn.LayerNorm(d, eps=1e-6)
        self.tokens_out = nn.Linear(d, channels * frames)
        self.plan = PlanCondition(d, config.chunk_length) if config.planning else None
        self.target_in: Mlp | None = None
        self._initialise()
        if config.flow_map:
            self.add_target_level()
        further = (views, d, (height, width), frames, actions)
        self.views = FurtherViews(*further, pose_map=config.pose_map) if views > 1 else None

    def _initialise(self) -> None:
        # Training starts from a still image, unmodulated by actions.
        for layer in (self.tokens_out, self.action_vector[-1]):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    def add_target_level(self) -> None:
        """Embed the level that an answer jumps to (``flow_map``), at first without effect."""
        self.target_in = Mlp(self.width, self.width).to(self.position.device)
        for parameter in self.target_in[-1].parameters():
            nn.init.zeros_(parameter)
        self.config.flow_map = True

    def forward(
        self,
        x: Tensor,
        sigma: Tensor,
        reference: Tensor,
        memory: Tensor,
        action: Tensor,
        target: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Clean latents ``[B, F, c, h, w]`` of noisy ``x`` at levels ``sigma [B]``, and the features ``[B, n, d]``.

        A flow map's answer is for the jump to the levels ``target [B]``, None is ``sigma``; other networks ignore them.
        """
        if not self.config.reference:
            reference = torch.zeros_like(reference)
        tokens = torch.cat([x.flatten(1, 2), reference, memory.flatten(1, 2)], dim=1)  # [B, channels, h, w]
        tokens = tokens.flatten(2).transpose(1, 2)  # [B, n, channels]
        action, plan = self._plan(action)
        if self.pose_map is not None:
            commands = action[:, self.config.frame_stride - 1 :: self.config.frame_stride, self.actions.size :]
            drawn = self.pose_map(commands)
            drawn = (drawn if self.views is None else self.views.draw(drawn, commands)).to(tokens.dtype)
            drawn = drawn if plan is None else torch.where(plan.hidden[:, None, None], 0, drawn)
            tokens = torch.cat([tokens, drawn], dim=-1)
        place = self.position if self.views is None else self.views.positions(self.position)
        tokens = self.tokens_in(tokens) + place
        modulation, context = self._condition(sigma, sigma if target is None else target, action, plan)
        for block in self.blocks:
            tokens = block(tokens, modulation, context)
        features = self.norm_out(tokens)
        change = self.tokens_out(features).transpose(1, 2).reshape(x.shape)
        return memory[:, -1:] + change, features

    def _plan(self, condition: Tensor) -> tuple[Tensor, _Plan | None]:
        """Split the actions ``[B, L, 2A]`` from the replacements of hidden ones."""
        size = 2 * self.actions.size
        if condition.shape[-1] == size or self.plan is None:
            return condition, None
        # One row of it: every control step carries the same flag and instruction.
        return condition[..., :size], _Plan(condition[:, 0, size] > 0, *self.plan(condition[:, 0, size + 1 :]))

    def _condition(self, sigma: Tensor, target: Tensor, action: Tensor, plan: _Plan | None) -> tuple[Tensor, Tensor]:
        embedding = self.time_in(sinusoidal(1000 * sigma, self.config.width).to(action.dtype))
        if self.target_in is not None:
            embedding = embedding + self.target_in(sinusoidal(1000 * target, self.config.width).to(action.dtype))
        context = self.action_token(action) + self.action_position
        vector = self.action_vector(action.flatten(1))
        if not self.config.action_modulation:
            vector = torch.zeros_like(vector)
        if not self.config.action_tokens:
            context = torch.zeros_like(context)
        if plan is not None:
            vector = torch.where(plan.hidden[:, None], plan.vector, vector)
            context = torch.where(plan.hidden[:, None, None], plan.tokens, context)
        modulation = self.modulation(nn.functional.silu(embedding + vector)).unflatten(-1, (6, -1))
        return modulation, context

    @property
    def noise_frames(self) -> int:
        """One chunk, and one for each refinement."""
        return self.config.chunk_frames * (1 + self.config.refinement_steps)

    def sample(self, noise: Tensor, reference: Tensor, memory: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate the flow from noise, then refine; the features are those of the last, nearly clean evaluation."""
        x, *fresh = noise.split(self.config.chunk_frames, dim=1)
        features = noise.new_zeros(0)
        for sigma, sigma_next in pairwise(sigma_grid(self.config.sampling_steps, self.config.shift).to(noise.device)):
            level, target = sigma.expand(x.shape[0]), sigma_next.expand(x.shape[0])
            clean, features = self(x, level, reference, memory, action, target)
            x = euler_step(x, clean.float(), level, target)
        for sigma, again in zip(self._refinement().to(noise.device), fresh, strict=True):
            level = sigma.expand(x.shape[0])
            clean, features = self(add_noise(x, again, level), level, reference, memory, action, 0 * level)
            x = clean.float()
        return x, features

    @property
    def read_level(self) -> float:
        """Level at which finished frames are read: the sampler's last, at most 0.5, above which noise dominates."""
        if self.config.refinement_steps:
            return float(self._refinement()[-1])
        return min(float(sigma_grid(self.config.sampling_steps, self.config.shift)[-2]), 0.5)

    def read(self, clean: Tensor, noise: Tensor, reference: Tensor, memory: Tensor, action: Tensor) -> Tensor:
        """Features ``[B, n, d]`` of a finished chunk ``[B, F, c, h, w]`` as if it had just been sampled."""
        level = clean.new_full((len(clean),), self.read_level)
        return self(add_noise(clean, noise, level), level, reference, memory, action, 0 * level)[1]

    def loss(
        self,
        clean: Tensor,
        valid: Tensor,
        reference: Tensor,
        memory: Tensor,
        action: Tensor,
        *,
        generator: torch.Generator,
    ) -> ChunkLoss:
        """Squared error of the predicted latents at drawn levels; see :meth:`Dynamics.loss`."""
        sigmas = self._draw_sigma(whole_rows(clean.shape[0], generator), generator)
        sigma = own_rows(sigmas, generator)
        noise = draw(torch.randn, clean.shape, generator, device=clean.device)
        predicted, features = self(add_noise(clean, noise, sigma), sigma, reference, memory, action)
        weight = (
            motion_weight(clean, memory[:, -1:], self.config.motion_weight, generator) * valid[:, :, None, None, None]
        )
        loss = (weight * (predicted.float() - clean).square()).mean()
        return ChunkLoss(loss, features, sigmas[:, None], {"wm/flow_loss": loss.detach()})

    def _refinement(self) -> Tensor:
        return refinement_grid(self.config.refinement_steps, self.config.refinement_sigma)

    def _draw_sigma(self, rows: int, generator: torch.Generator) -> Tensor:
        config = self.config
        sigma = draw_sigma(rows, pure_noise_share=config.pure_noise_share, shift=config.shift, generator=generator)
        if not config.refinement_steps:
            return sigma
        return draw_refinement(sigma, self._refinement(), config.refinement_share, generator)
