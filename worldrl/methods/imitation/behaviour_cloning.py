"""Behaviour cloning: a :class:`TokenPolicy` learns from successful demonstrations by token cross-entropy.

All randomness of step ``k`` comes from the stream ``(seed, "behaviour-cloning", k)``, so a resumed training equals an
uninterrupted one.

Shapes legend: ``M`` samples, ``B`` rows, ``L`` chunk, ``A`` action, ``Y X`` pixels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.device import resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.observation import STATE
from worldrl.core.rng import draw
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import OneProcess, fit_module
from worldrl.core.training.spread import spread
from worldrl.core.types import Episode, PolicyObs
from worldrl.methods.imitation.config import LIKELIHOOD, ONE_TOKEN_ROLLOUT, Augmentation, BehaviourCloning
from worldrl.methods.imitation.corrective_noise import CorrectiveNoise, command_unit
from worldrl.methods.imitation.demonstrations import Demonstrations, ImitationReport
from worldrl.methods.imitation.one_token_rollout import rewarded_probability
from worldrl.nn.vision import colour_jitter, random_offsets, shift
from worldrl.policies.samples import Samples
from worldrl.policies.token.camera import camera_map
from worldrl.policies.token.policy import TokenPolicy
from worldrl.policies.token.tokens import encode, soft_target, still_dimensions
from worldrl.policies.token.waypoint import Augmented, waypoint_loss


def token_loss(
    policy: TokenPolicy,
    logp: Tensor,
    chunk: Tensor,
    *,
    label_width: float,
    weights: Tensor,
    objective: str = LIKELIHOOD,
) -> Tensor:
    """Weighted cross-entropy of the soft labels of ``chunk [B, L, A]`` under ``logp [B, L, A, bins]``, in nats.

    Rows of NaN in ``chunk`` have none. ``objective``: what stands in place of the labels, see :class:`BehaviourCloning`.
    """
    low, high = policy.action_low, policy.action_high
    known = torch.isfinite(chunk).flatten(1).all(dim=1)
    logp, chunk = logp[known], chunk[known]
    target = soft_target(chunk, low, high, bins=policy.config.bins, width=label_width)
    if objective == ONE_TOKEN_ROLLOUT:
        target = rewarded_probability(logp, target)
    entropy = -(target * logp).sum(dim=(0, 1, 3)) / max(1, chunk.shape[0] * chunk.shape[1])  # [A]
    moving = weights.to(entropy) * ~still_dimensions(low, high)
    return (entropy * moving).sum() / moving.sum().clamp_min(1e-9)


def train_policy(
    policy: TokenPolicy,
    episodes: Sequence[Episode],
    *,
    config: BehaviourCloning,
    seed: int,
    folder: Path,
    log: MetricLog | None,
    device: torch.device | str,
    paraphrases: Mapping[str, Sequence[str]] | None = None,
) -> ImitationReport:
    """Train a policy, built with the statistics of these episodes, in place; resumes from ``folder``.

    Failed episodes are left out and counted. ``paraphrases``: task to training instructions, one drawn per sample;
    other tasks keep the recorded one. Returns the report, with :func:`measure`'s numbers of up to 1,024 training
    samples and of the held-out ones. Raises SettingError: no successful episode, or an empty list of paraphrases.
    """
    split = config.held_out_fraction, policy.chunk_length
    demonstrations = Demonstrations.split(episodes, *split, seed=seed, more=policy.more)
    source = Source(demonstrations.samples, config.batch_size)
    start_waypoints(policy, demonstrations.samples)
    clone(
        policy.to(device),
        [source],
        demonstrations=demonstrations.samples,
        config=config,
        seed=seed,
        folder=folder,
        log=log,
        paraphrases=paraphrases,
    )
    return demonstrations.report(
        train=measure(policy, demonstrations.samples, config, limit=1024),
        held_out={} if demonstrations.held_out is None else measure(policy, demonstrations.held_out, config),
    )


@dataclass(frozen=True)
class Source:
    """Samples, and how many of each batch's rows come from them."""

    samples: Samples
    rows: int  # number of rows in each batch.
    weight: Tensor | None = None  # float ``[M]``, relative frequency of each sample; None draws all alike.

    def draw(self, generator: torch.Generator) -> Samples:
        """Draw a batch's rows, with replacement."""
        if self.weight is None:
            return self.samples.select(torch.randint(len(self.samples), (self.rows,), generator=generator))
        return self.samples.select(torch.multinomial(self.weight, self.rows, replacement=True, generator=generator))


def clone(
    policy: TokenPolicy,
    sources: Sequence[Source],
    *,
    demonstrations: Samples,
    config: BehaviourCloning,
    seed: int,
    folder: Path,
    log: MetricLog | None,
    paraphrases: Mapping[str, Sequence[str]] | None = None,
    series: str = "behaviour-cloning",
) -> None:
    """Train a policy in place on samples, on its device, as :func:`train_policy`; it ends in evaluation mode.

    ``demonstrations`` are those of whole episodes; they tell how far an action moves the command.
    """
    divided = spread(config, batch_size=sum(source.rows for source in sources))
    augmentation = config.augmentation(waypoint=policy.config.waypoint, targets=policy.actions.targets_pose)
    noise = _corrective_noise(policy, demonstrations)
    batches = _Batches(sources, config, augmentation, seed, _check_paraphrases(paraphrases), divided, noise)
    weights = config.weights(policy.actions)

    def loss(step: int) -> tuple[Tensor, Logs]:
        obs, samples, augmented = batches(step)
        logits, waypoint = policy.predict(obs, augmented=augmented)
        chunk = samples.chunk.to(logits.device)
        logp, width = logits.log_softmax(-1), config.label_width
        value = token_loss(policy, logp, chunk, label_width=width, weights=weights, objective=config.objective)
        if waypoint is None:
            return value, {"policy/loss": value.detach()}
        target = (samples.waypoints.to(logits) - policy.command_mean) / policy.command_std
        error = waypoint_loss(waypoint, target, policy.actions)
        return value + error, {"policy/loss": value.detach(), "policy/waypoint": error.detach()}

    set_encoders_dtype(policy, resolve_dtype(config.dtype, policy.device))
    fit_module(
        series,
        policy,
        loss,
        part="policy",
        optimizer=policy.make_optimizer(config.learning_rate, config.weight_decay),
        steps=config.steps,
        warmup=config.warmup_steps,
        clip_norm=config.clip_norm,
        ema_decay=config.ema_decay,
        every_checkpoint=config.checkpoint_every,
        every_log=1,
        folder=folder,
        log=log,
        processes=divided,
    )
    set_encoders_dtype(policy, torch.float32)


def set_encoders_dtype(policy: TokenPolicy, dtype: torch.dtype) -> None:
    """Set the number type of the image encoders' convolutions."""
    for encoder in policy.encoders:
        encoder.compute_dtype = dtype


def start_waypoints(policy: TokenPolicy, samples: Samples) -> None:
    """Start the head of a new policy with the camera's map; it stays at 0 where the camera moves or shows no motion."""
    mean, deviation = policy.command_mean.cpu(), policy.command_std.cpu()
    if policy.waypoint_head is not None and (found := camera_map(samples, policy.actions, mean, deviation)):
        policy.waypoint_head.start(*found)


@torch.no_grad()
def measure(
    policy: TokenPolicy, samples: Samples, config: BehaviourCloning, *, limit: int | None = None
) -> dict[str, float]:
    """Measure without augmentation, on at most ``limit`` evenly spaced samples.

    Returns ``loss`` (nats per token), ``token_accuracy`` (of moving dimensions), ``action_error`` (greedy, mean
    absolute).
    """
    stride = 1 if limit is None else max(1, math.ceil(len(samples) / limit))
    parts: list[Tensor] = []
    for index in torch.arange(0, len(samples), stride).split(256):
        parts.append(_measure_rows(policy, samples, index, config) * len(index))
    total = torch.stack(parts).sum(dim=0) / math.ceil(len(samples) / stride)
    return dict(zip(("loss", "token_accuracy", "action_error"), total.tolist(), strict=True))


def _measure_rows(policy: TokenPolicy, samples: Samples, index: Tensor, config: BehaviourCloning) -> Tensor:
    rows = samples.select(index)
    logp = policy.log_softmax(rows.observed)
    chunk = rows.chunk.to(logp.device)
    token = logp.argmax(dim=-1)
    weights = config.weights(policy.actions)
    loss = token_loss(policy, logp, chunk, label_width=config.label_width, weights=weights)
    moving = ~still_dimensions(policy.action_low, policy.action_high)
    right = token == encode(chunk, policy.action_low, policy.action_high, policy.config.bins)
    error = (policy.decode(token) - chunk).abs().mean()
    return torch.stack([loss, right[:, :, moving].float().mean(), error]).cpu()


@dataclass(frozen=True)
class _Batches:
    """The batch of step ``k``, a pure function of the seed and ``k``."""

    sources: Sequence[Source]
    config: BehaviourCloning
    augmentation: Augmentation
    seed: int
    paraphrases: Mapping[str, Sequence[str]]
    processes: OneProcess
    corrective_noise: CorrectiveNoise | None  # None for a policy without a waypoint

    def __call__(self, step: int) -> tuple[PolicyObs, Samples, Augmented]:
        """Return augmented observations, their samples, and what was done to them."""
        part = self.processes.part
        generator = part.stream(self.seed, "behaviour-cloning", step)
        samples = Samples.join([source.draw(generator) for source in self.sources]).part(part)
        rows = len(samples)
        wording = draw(torch.rand, (rows,), generator).tolist()
        seen = draw(torch.rand, (rows,), generator) >= self.augmentation.command_dropout
        image, offset = self._augmented(samples.image, generator)
        more, offsets = dict[str, Tensor](), [offset]
        for name, value in samples.more.items():
            more[name] = value
            if name != STATE:
                more[name], offset = self._augmented(value, generator)
                offsets.append(offset)
        words = zip(samples.task, samples.instruction, wording, strict=True)
        obs = PolicyObs(image, samples.command, [self._instruction_of(*word) for word in words], more)
        noise, samples = self._displaced(samples, generator)
        return obs, samples, Augmented(seen, noise, offsets)

    def _displaced(self, samples: Samples, generator: torch.Generator) -> tuple[Tensor, Samples]:
        """Draw the noise of the way, and correct the chunks for it; a policy without a waypoint draws nothing."""
        if self.corrective_noise is None:
            return torch.zeros_like(samples.command), samples
        drawn = self.augmentation.way_noise * draw(torch.randn, samples.command.shape, generator)
        noise, chunk = self.corrective_noise(samples, drawn)
        return noise, replace(samples, chunk=chunk)

    def _augmented(self, image: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        offset = torch.zeros(len(image), 2, dtype=torch.int64)
        pixels = self.augmentation.shift_pixels
        if pixels:
            offset = random_offsets(len(image), pixels=pixels, generator=generator)
            image = shift(image, offset)
        if self.config.jitter:
            image = colour_jitter(image, strength=self.config.jitter, generator=generator)
        return image, offset

    def _instruction_of(self, task: str, recorded: str, uniform: float) -> str:
        choices = self.paraphrases.get(task)
        return choices[int(uniform * len(choices))] if choices else recorded


def _corrective_noise(policy: TokenPolicy, demonstrations: Samples) -> CorrectiveNoise | None:
    if not policy.config.waypoint:
        return None
    unit = command_unit(demonstrations, policy.actions)
    return CorrectiveNoise(policy.actions, unit, policy.command_std.cpu())


def _check_paraphrases(paraphrases: Mapping[str, Sequence[str]] | None) -> Mapping[str, Sequence[str]]:
    for task, instructions in (paraphrases or {}).items():
        if isinstance(instructions, str) or not instructions:
            raise SettingError(f"paraphrases[{task!r}]: must be a list of instructions, got {instructions!r}")
    return paraphrases or {}
