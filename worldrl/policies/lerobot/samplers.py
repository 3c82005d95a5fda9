"""lerobot's policies as :class:`~worldrl.policies.lerobot.one_step.StepSampler`: SmolVLA, π0, diffusion, and ACT.

A sampler handles one family's network, not names of observations or normalisation. Its input comes from the policy's
saved preprocessor, and its output goes through the saved postprocessor. The networks are lerobot's own objects, called
by methods that all supported releases have, or by those of ``policies.lerobot.release``.

Shapes legend: ``B`` rows, ``S`` steps, ``H × D`` numbers of a sample.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError
from worldrl.diffusion.flow import sigma_grid
from worldrl.diffusion.sde import flow_grpo_scale, sde_mean, sde_std
from worldrl.policies.lerobot.release import Release

FLOW_ETA = 0.5  # η of the flow policies' stochastic step, s(σ) = η√(σ/(1-σ)): πRL's value
LOG_STD = "log_std"
START_LOG_STD = -2.0  # a new Gaussian head explores with e⁻² ≈ 0.14 standard deviations of the data's actions
LANGUAGE = ("observation.language.tokens", "observation.language.attention_mask")


class FlowSampler:
    """SmolVLA and π0: a rectified flow from noise (σ = 1) to the chunk, ``S`` Euler steps of an action expert.

    ``steps`` is at least 2, since the last step, to σ = 0, stays the ODE's. ``encode`` maps policy and batch to the
    arguments of ``denoise_step`` besides ``x_t`` and ``timestep``. Raises SettingError: fewer steps.
    """

    def __init__(self, policy: Any, steps: int, encode: Callable[[Any, Any], dict[str, Any]]) -> None:
        if steps < 2:
            raise SettingError(
                f"config.json: a flow policy explores in a step before the last; steps is {steps}, needs 2"
            )
        self._policy, self._encode = policy, encode
        config = policy.config
        self.shape = (int(config.chunk_size), int(config.max_action_dim))
        self.steps, self.noisy = steps, range(steps - 1)
        self._sigma = sigma_grid(steps)
        self._scale = flow_grpo_scale(self._sigma[:-1], FLOW_ETA, self._sigma[1])

    def encode(self, batch: Any) -> dict[str, Any]:
        """Fill the prefix's key and value cache."""
        return self._encode(self._policy, batch)

    def transition(self, seen: Any, x: Tensor, step: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the SDE; at temperature 0 the ODE's Euler step."""
        sigma, after = (self._sigma.to(x)[index] for index in (step, step + 1))
        scale = self._scale.to(x)[step] * temperature
        v = self._policy.model.denoise_step(x_t=x, timestep=sigma, **seen).to(x)
        return sde_mean(x, v, sigma, after, scale), sde_std(sigma, after, scale)[:, None, None]


def encode_smolvla(policy: Any, batch: Any, release: Release) -> dict[str, Any]:
    """Prefix of SmolVLA: images, instruction and state, in the cache as its ``sample_actions`` fills it."""
    images, present = policy.prepare_images(batch)
    tokens, mask = (batch[name] for name in LANGUAGE)
    model = policy.model
    embedded, pad, causal = model.embed_prefix(images, present, tokens, mask, state=policy.prepare_state(batch))
    cache = release.fill_prefix(
        model.vlm_with_expert,
        attention_mask=attention_2d(pad, causal),
        position_ids=torch.cumsum(pad, dim=1) - 1,
        inputs_embeds=[embedded, None],
        use_cache=policy.config.use_cache,
    )
    return {"prefix_pad_masks": pad, "past_key_values": cache}


def encode_pi0(policy: Any, batch: Any, release: Release) -> dict[str, Any]:
    """Prefix of π0: images and instruction; its state enters with the actions."""
    images, present = policy._preprocess_images(batch)
    tokens, mask = (batch[name] for name in LANGUAGE)
    model = policy.model
    embedded, pad, causal = model.embed_prefix(images, present, tokens, mask)
    model.paligemma_with_expert.paligemma.language_model.config._attn_implementation = "eager"
    _, cache = model.paligemma_with_expert.forward(
        attention_mask=release.mask_4d(model, attention_2d(pad, causal)),
        position_ids=torch.cumsum(pad, dim=1) - 1,
        past_key_values=None,
        inputs_embeds=[embedded, None],
        use_cache=True,
    )
    return {"state": policy.prepare_state(batch), "prefix_pad_masks": pad, "past_key_values": cache}


def attention_2d(pad: Tensor, causal: Tensor) -> Tensor:
    """Attention mask, bool ``[B, N, N]``: a token attends to real ones of its block (``causal``) and before."""
    block = torch.cumsum(causal, dim=1)
    return (block[:, None, :] <= block[:, :, None]) & pad[:, None, :] & pad[:, :, None]


class DiffusionSampler:
    """Diffusion Policy: DDIM steps (Song et al., arXiv:2010.02502) at its scheduler's levels, one of them with η = 1.

    With ᾱ before the step and ᾱ' after it, and x̂₀ clipped as in the policy's config::

        s = η √((1-ᾱ')/(1-ᾱ)) √(1-ᾱ/ᾱ')        mean = √ᾱ' x̂₀ + √(1-ᾱ'-s²) ε̂

    lerobot samples this policy by DDPM, with fresh noise in all steps; deterministic steps have the same marginals.
    Raises SettingError: fewer than two inference steps, or an unknown kind of prediction.
    """

    def __init__(self, policy: Any) -> None:
        self._policy, config = policy, policy.config
        self.shape = (int(config.horizon), int(config.action_feature.shape[0]))
        model = policy.diffusion
        scheduler = model.noise_scheduler
        scheduler.set_timesteps(model.num_inference_steps)
        self._timesteps = torch.as_tensor(scheduler.timesteps).long()
        self.steps, self.noisy = len(self._timesteps), range(len(self._timesteps) - 1)
        if self.steps < 2 or config.prediction_type not in ("epsilon", "sample"):
            raise SettingError(
                f"config.json: needs at least 2 inference steps that predict epsilon or sample, has {self.steps} that "
                f"predict {config.prediction_type}"
            )
        alpha = scheduler.alphas_cumprod[self._timesteps.to(scheduler.alphas_cumprod.device)].float()
        self._alpha = torch.cat([alpha, torch.ones(1)])  # after the last step nothing is noise

    def encode(self, batch: Any) -> Tensor:
        """Features of states ``[B, n_obs_steps, S]`` and images ``[B, n_obs_steps, 3, Y, X]``, the oldest first."""
        names = list(self._policy.config.image_features)
        seen = {"observation.state": batch["observation.state"]}
        if names:
            seen["observation.images"] = torch.stack([batch[name] for name in names], dim=2)
        return self._policy.diffusion._prepare_global_conditioning(seen)

    def transition(self, seen: Any, x: Tensor, step: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """One DDIM step with η = temperature."""
        config = self._policy.config
        alpha, after = (self._alpha.to(x)[index][:, None, None] for index in (step, step + 1))
        predicted = self._policy.diffusion.unet(x, self._timesteps.to(step.device)[step], global_cond=seen)
        if config.prediction_type == "epsilon":
            predicted = (x - (1 - alpha).sqrt() * predicted) / alpha.sqrt()
        if config.clip_sample:
            predicted = predicted.clamp(-config.clip_sample_range, config.clip_sample_range)
        noise = (x - alpha.sqrt() * predicted) / (1 - alpha).sqrt()
        std = ddim_std(alpha, after, temperature[:, None, None])
        mean = after.sqrt() * predicted + (1 - after - std.square()).clamp_min(0).sqrt() * noise
        return mean, std


def ddim_std(alpha: Tensor, after: Tensor, eta: Tensor) -> Tensor:
    """Standard deviation of a DDIM step from ᾱ = ``alpha`` to ``after``."""
    return eta * ((1 - after) / (1 - alpha)).sqrt() * (1 - alpha / after).sqrt()


class RegressionSampler(nn.Module):
    """ACT: its chunk is the mean of a Gaussian with a learned log-deviation ``[D]`` in normalised actions."""

    def __init__(self, policy: Any, log_std: Tensor | None = None) -> None:
        super().__init__()
        self._policy = (policy,)  # a tuple hides it from nn.Module: its weights are counted once
        config = policy.config
        self.shape = (int(config.chunk_size), int(config.action_feature.shape[0]))
        self.steps, self.noisy = 1, range(1)
        start = torch.full((self.shape[1],), START_LOG_STD) if log_std is None else log_std
        self.log_std = nn.Parameter(start.clone())

    def encode(self, batch: Any) -> Tensor:
        """Run the whole network; the single step has no further work."""
        (policy,) = self._policy
        batch = {name: value for name, value in batch.items() if name != "action"}  # it would run the VAE's encoder
        if policy.config.image_features:
            batch["observation.images"] = [batch[name] for name in policy.config.image_features]
        return policy.model(batch)[0]

    def transition(self, seen: Any, x: Tensor, step: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's chunk, whatever ``x`` is."""
        return seen, temperature[:, None, None] * self.log_std.exp()
