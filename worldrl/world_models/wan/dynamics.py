"""diffusers' Wan transformer with WoVR's layout and dual-channel action injection.

A clip is ``[reference | memory | future]`` in latent frames. Given frames enter at timestep 0 and future ones at
their noise level (the "separated timestep" of Wan2.2-TI2V). Actions enter twice: as one token each in the place of
the text, which every block attends to, and, grouped by latent frame, as a vector that joins that frame's time
embedding. Both channels end in a layer of zeros, so an untrained model is the published one without text.

As in Ctrl-World, the tokens of all views form one sequence and attend to each other, and a learned embedding tells the
views apart. Within a view, a token's place is the published one. Clips of several views are sheets: ``h`` is the height
of all of them.

Shapes legend: ``B`` rows, ``f`` latent frames of a clip, ``N`` actions of a clip of ``A`` numbers, ``n`` tokens of a
latent frame, ``d`` width, ``c h w`` latent.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.diffusion.flow import add_noise, draw_sigma, shift_sigma, sigma_grid
from worldrl.nn.blocks import Mlp
from worldrl.world_models.video.dynamics import ChunkLoss
from worldrl.world_models.video.heads import StateHead, SuccessHead
from worldrl.world_models.wan.config import GROUP, WanDynamicsConfig, WanSuccessConfig
from worldrl.world_models.wan.folder import MASK_CHANNELS, frame_tokens

TIMESTEPS = 1000  # wan's timestep of noise level 1


def bell_weight(sigma: Tensor, shift: float) -> Tensor:
    """WoVR's weight of shifted levels ``[B]``: a bell around ½, 0 at 1, of mean 1 over the shifted schedule."""

    def bell(level: Tensor) -> Tensor:
        return torch.exp(-2 * (level - 0.5).square()) - math.exp(-0.5)

    levels = torch.arange(1, TIMESTEPS + 1, dtype=torch.float64) / TIMESTEPS
    return bell(sigma) / float(bell(shift_sigma(levels, shift)).mean())


def flow_loss(velocity: Tensor, target: Tensor, valid: Tensor, weight: Tensor) -> Tensor:
    """Weighted squared error of velocities ``[B, p, c, h, w]``, over latent frames that ``valid [B, 4 p]`` fills."""
    error = (velocity.float() - target).square().mean(dim=(2, 3, 4))  # [B, p]
    whole = valid.unflatten(1, (-1, GROUP)).all(dim=-1)
    return (weight[:, None] * whole * error).sum() / whole.sum().clamp_min(1)


def grouped_actions(action: Tensor, size: int) -> Tensor:
    """Gather the ``size`` actions behind each latent frame, ``[B, 1 + k size, A]`` to ``[B, 1 + k, size * A]``.

    The first is the reference's null action, which stands for its whole group.
    """
    first = action[:, :1].expand(-1, size - 1, -1)
    return torch.cat([first, action], dim=1).unflatten(1, (-1, size)).flatten(2)


class InputTypeNorm(nn.RMSNorm):
    """A published norm of queries or keys with its weight in the input's type.

    Under autocast the input is bfloat16 and the weight float32, for which torch has no fused kernel and warns.
    """

    def __init__(self, norm: nn.RMSNorm):
        super().__init__(list(norm.normalized_shape), eps=norm.eps, device="meta")
        self.weight = norm.weight

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the last axis."""
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class ViewPatches(nn.Module):
    """A published patch layer under its own names, whose tokens are also distinguished by view."""

    def __init__(self, patches: nn.Conv3d, views: int):
        super().__init__()
        self.weight, self.bias, self.stride = patches.weight, patches.bias, patches.stride
        self.view_embedding = nn.Parameter(0.02 * torch.randn(views, patches.out_channels))
        with torch.no_grad():
            self.view_embedding[0] = 0  # weights of one view, to which others are added, see no change in it

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, c, f, h, w]`` to ``[B, d, f, h', w']``."""
        patches = nn.functional.conv3d(x, self.weight, self.bias, self.stride)
        view = self.view_embedding.to(patches.dtype)
        return patches + view.repeat_interleave(patches.shape[-2] // len(view), dim=0).T[:, None, :, None]


class ViewPlaces(nn.Module):
    """Published rotary places, those of one view for each."""

    def __init__(self, rope: nn.Module, views: int):
        super().__init__()
        self.rope, self.views = rope, views

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return cosines and sines ``[1, f n, 1, r]`` for ``[B, c, f, h, w]``."""
        one = self.rope(x[..., : x.shape[-2] // self.views, :])
        return tuple(part.unflatten(1, (x.shape[2], -1)).repeat(1, 1, self.views, 1, 1).flatten(1, 2) for part in one)


class ActionConditioning(nn.Module):
    """Takes the place of the transformer's ``condition_embedder``: its time layers, and actions instead of text."""

    def __init__(self, embedder: Any, config: WanDynamicsConfig, actions: ActionSpec):
        super().__init__()
        self.actions = actions
        self.timesteps_proj, self.time_embedder = embedder.timesteps_proj, embedder.time_embedder
        self.time_proj = embedder.time_proj
        width = self.time_proj.in_features
        self.frames, self.group = config.context_latents + config.future_latents, config.group_actions
        self.action_token = Mlp(actions.size, width, width) if config.action_tokens else None
        # Tokens of Wan's text carry no position; without one, the order of a chunk's actions would be lost here.
        self.action_position = nn.Parameter(0.02 * torch.randn(config.clip_actions, width))
        self.action_vector = None
        if config.action_modulation:
            hidden = nn.Linear(self.group * actions.size, 4 * width)
            self.action_vector = nn.Sequential(hidden, nn.SiLU(), nn.Linear(4 * width, width))
        self._initialise()

    def _initialise(self) -> None:
        for channel in (self.action_token, self.action_vector):
            for parameter in () if channel is None else channel[-1].parameters():
                nn.init.zeros_(parameter)

    def forward(
        self,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
        timestep_seq_len: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        """Embed ``timestep [B * f n]`` and, in the place of text, actions ``[B, N, A]``; the published signature.

        Returns time embedding ``[B, f n, d]``, its projection ``[B, f n, 6 d]``, action tokens ``[B, N, d]``, None.
        """
        action, tokens = self.actions.scaled(encoder_hidden_states), (timestep_seq_len or 0) // self.frames
        level = timestep.unflatten(0, (len(action), -1))[:, ::tokens]  # [B, f]
        embedded = self.time_embedder(self._waves(level))
        if self.action_vector is not None:
            embedded = embedded + self.action_vector(grouped_actions(action, self.group))
        modulation = self.time_proj(nn.functional.silu(embedded))
        context = self.action_position.expand(len(action), -1, -1)
        if self.action_token is not None:
            context = context + self.action_token(action)
        return embedded.repeat_interleave(tokens, 1), modulation.repeat_interleave(tokens, 1), context, None

    def _waves(self, level: Tensor) -> Tensor:
        waves = self.timesteps_proj(level.flatten()).unflatten(0, level.shape)
        return waves.to(self.time_embedder.linear_1.weight.dtype)


class WanDynamics(nn.Module):
    """Velocity of a clip's latents ``shape`` ``(c, h, w)`` under its actions, by diffusers' ``WanTransformer3DModel``.

    Its text layers are dropped, and of an image-to-video model those of an image. Raises SettingError: they do not fit.
    """

    _no_split_modules = ("WanTransformerBlock",)
    """Unit of sharding and of recomputation, under the name that Accelerate looks for."""

    def __init__(
        self,
        transformer: Any,
        config: WanDynamicsConfig,
        shape: tuple[int, int, int],
        actions: ActionSpec = TOOL_ACTIONS,
        views: int = 1,
    ):
        super().__init__()
        self.config, self.shape = config, shape
        self.tokens = views * frame_tokens(transformer.config, (shape[0], shape[1] // views, shape[2]))
        self.masked = transformer.config["in_channels"] == 2 * shape[0] + MASK_CHANNELS
        transformer.condition_embedder = ActionConditioning(transformer.condition_embedder, config, actions)
        for block in transformer.blocks:
            block.attn2.add_k_proj = block.attn2.add_v_proj = block.attn2.norm_added_k = None
            for attention in (block.attn1, block.attn2):
                attention.norm_q, attention.norm_k = map(InputTypeNorm, (attention.norm_q, attention.norm_k))
        if views > 1:
            transformer.patch_embedding = ViewPatches(transformer.patch_embedding, views)
            transformer.rope = ViewPlaces(transformer.rope, views)
        self.transformer = transformer

    @property
    def width(self) -> int:
        """Width of the features."""
        return self.transformer.proj_out.in_features

    def forward(self, x: Tensor, sigma: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity ε − z of latents ``[B, f, c, h, w]`` at levels ``sigma [B]``, and features ``[B, f n, d]``.

        ``action [B, N, A]`` begins with the null action of the reference. Only the future part of the velocity means
        something.
        """
        features: list[Tensor] = []
        hook = self.transformer.proj_out.register_forward_pre_hook(lambda _, given: features.append(given[0]))
        try:
            (velocity,) = self.transformer(self._input(x), self.timesteps(sigma), action, return_dict=False)
        finally:
            hook.remove()
        return velocity.transpose(1, 2), features[0]

    @property
    def noise_frames(self) -> int:
        """Latent frames of noise that a chunk is made of."""
        return self.config.future_latents

    def sample(self, noise: Tensor, reference: Tensor, memory: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate the flow from ``noise [B, p, c, h, w]``: the future latents, and the last evaluation's features."""
        context = torch.cat([reference[:, None], memory], dim=1)
        future, features = noise, noise.new_zeros(0)
        grid = sigma_grid(self.config.sampling_steps, self.config.shift).to(noise.device)
        for sigma, sigma_next in pairwise(grid):
            clip = torch.cat([context, future], dim=1)
            velocity, features = self(clip, sigma.expand(len(clip)), action)
            future = future + (sigma_next - sigma) * velocity[:, context.shape[1] :].float()
        return future, features

    def loss(
        self,
        clean: Tensor,
        valid: Tensor,
        reference: Tensor,
        memory: Tensor,
        action: Tensor,
        *,
        generator: torch.Generator,
        own: bool = False,
    ) -> ChunkLoss:
        """Flow matching on the future, at drawn levels: x_σ = (1-σ)·z + σ·ε, target ε − z (Wan's sign).

        The memory gets a small fixed noise that the model does not see, since in imagination it is the model's own;
        where it is that already (``own``), none. ``valid`` is ``[B, 4 p]``.
        """
        config, frames = self.config, memory.shape[1]
        sigma = draw_sigma(
            len(clean), pure_noise_share=config.pure_noise_share, shift=config.shift, generator=generator
        )
        shape = (len(clean), frames + clean.shape[1], *clean.shape[2:])
        remembered, noise = torch.randn(shape, generator=generator, device=clean.device).tensor_split([frames], dim=1)
        memory = add_noise(memory, remembered, torch.full_like(sigma, 0.0 if own else config.memory_noise))
        x = torch.cat([reference[:, None], memory, add_noise(clean, noise, sigma)], dim=1)
        velocity, features = self(x, sigma, action)
        weight = bell_weight(sigma, config.shift) if config.bell_weight else torch.ones_like(sigma)
        loss = flow_loss(velocity[:, config.context_latents :], noise - clean, valid, weight)
        return ChunkLoss(loss, features, sigma[:, None], {"wm/flow_loss": loss.detach()})

    def timesteps(self, sigma: Tensor) -> Tensor:
        """Return the timestep of every token ``[B, f n]``: 0 where frames are given, else 1000 σ."""
        given = sigma.new_zeros(len(sigma), self.config.context_latents * self.tokens)
        future = (TIMESTEPS * sigma)[:, None].expand(-1, self.config.future_latents * self.tokens)
        return torch.cat([given, future], dim=1)

    def _input(self, x: Tensor) -> Tensor:
        """Lay out as ``[B, channels, f, h, w]``; image-to-video models also get a mask and what is given."""
        if self.masked:
            known = torch.zeros_like(x[:1, :, :1])
            known[:, : self.config.context_latents] = 1  # [1, f, 1, h, w]
            mask = known.expand(len(x), -1, MASK_CHANNELS, -1, -1)
            x = torch.cat([x, mask, known * x], dim=2)
        return x.transpose(1, 2).contiguous()


class WanSuccess(nn.Module):
    """The joint success head on features that are narrowed first."""

    def __init__(self, features: int, config: WanSuccessConfig, frames: int):
        super().__init__()
        self.narrow = narrowed(features, config.width)
        self.head = SuccessHead(config.width, config.heads, frames)

    def embed(self, instruction: Sequence[str]) -> Tensor:
        """Encode ``B`` instructions as ``[B, d]``."""
        return self.head.embed(instruction)

    def find(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return findings ``[B, F, width]`` from the features of all tokens, for the outcome ensemble."""
        return self.head.find(self.narrow(features), embedded)

    def forward(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return logits ``[B, F]`` from the features of all tokens."""
        return self.head(self.narrow(features), embedded)


class WanStateHead(StateHead):
    """The state head on features that are narrowed first, as wide as the success head."""

    def __init__(self, features: int, config: WanSuccessConfig, frames: int, command: int, numbers: int):
        super().__init__(config.width, config.heads, frames, command, numbers)
        self.narrow = narrowed(features, config.width)

    def forward(self, features: Tensor, command: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance ``[B, F, S]``, see :class:`StateHead`."""
        return super().forward(self.narrow(features), command)


def narrowed(features: int, width: int) -> nn.Sequential:
    """Make the layers that narrow features of all tokens for a head."""
    return nn.Sequential(nn.LayerNorm(features), nn.Linear(features, width))
