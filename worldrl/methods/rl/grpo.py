"""GRPO on imagined groups (WoVR §3.4, DAPO's clip-higher and filter).

For group mates i = 1..G from one start state, with R_i ∈ {0, 1} the imagined success and A_i the group advantage:

    J(θ) = E[ (1/G) Σ_i (1/T_i) Σ_{t ≤ T_i} mean_k min(ρ_tk A_i, clip(ρ_tk, 1-ε_low, 1+ε_high) A_i) ] - β KL(π_θ ‖ π_ref)

where T_i counts the chunks up to and including the first success, k runs over a chunk's action tokens and ρ is the
token's probability ratio. Groups that all succeed or all fail carry no signal and are left out.

Shapes legend: ``B`` rollouts, ``T`` chunks, ``M`` kept chunks, ``L`` control steps per chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.errors import NonFiniteError, SettingError, require_at_least_one
from worldrl.core.interfaces import TrainablePolicy
from worldrl.core.rng import stream
from worldrl.core.types import Likelihood, PolicyObs
from worldrl.methods.rl.advantages import group_advantage, informative
from worldrl.rollout.imagined.rollouts import ImaginedRollouts


@dataclass
class GrpoConfig:
    """Settings of GRPO.

    Attributes:
        iterations: batches of imagined groups.
        checkpoint_every: iterations between checkpoints.
        groups: start states ``N`` per iteration.
        group_size: rollouts ``G`` per start state.
        learning_rate: AdamW.
        weight_decay: AdamW.
        epochs: passes over each batch.
        minibatch: chunks per gradient step at most; those of a pass have about as many.
        clip_low: ε_low.
        clip_high: ε_high, larger so that rare good tokens may grow (clip-higher).
        dual_clip: bound of the ratio for negative advantages.
        clip_norm: gradient norm.
        keep_low: groups with a lower success rate are left out.
        keep_high: groups with a higher one are left out.
        kl: β, weight of the KL to the starting policy; 0 switches it off.
        length_normalise: weigh each rollout, not each chunk, equally.
    """

    iterations: int = 60
    checkpoint_every: int = 5
    groups: int = 16
    group_size: int = 8
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    epochs: int = 1
    minibatch: int = 256
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0
    clip_norm: float = 1.0
    keep_low: float = 0.1
    keep_high: float = 0.9
    kl: float = 0.0
    length_normalise: bool = True

    def __post_init__(self) -> None:
        """Reject settings under which nothing could be learned."""
        require_at_least_one(self, ("iterations", "checkpoint_every", "groups"), of="improvement.grpo")
        if self.group_size < 2:
            raise SettingError(
                f"improvement.grpo.group_size must be at least 2, got {self.group_size}: a group of one has no signal"
            )
        if not 0 <= self.keep_low < self.keep_high <= 1:
            raise SettingError(
                f"improvement.grpo.keep_low must be in [0, keep_high), and keep_high in (keep_low, 1], got {self.keep_low} and {self.keep_high}"
            )


def clipped_objective(
    logp: Tensor, logp_old: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float
) -> Tensor:
    """Per-token objective min(ρA, clip(ρ)A), bounded below by ``dual_clip``·A where A < 0.

    Args:
        logp: log-probabilities now, with gradient, ``[M, L, A]``.
        logp_old: under the acting policy.
        advantage: ``[M, 1, 1]``.
        clip_low: ε_low.
        clip_high: ε_high.
        dual_clip: bound on ρ for negative advantages.

    Returns:
        ``[M, L, A]``, to be maximised.
    """
    ratio = torch.exp(logp - logp_old)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    return torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)


def categorical_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """Exact KL(π_θ ‖ π_ref) per token from logits ``[..., bins]``."""
    logp, logq = F.log_softmax(logits, dim=-1), F.log_softmax(reference, dim=-1)
    return (logp.exp() * (logp - logq)).sum(dim=-1)


@dataclass(frozen=True)
class GrpoBatch:
    """Kept chunks of a batch of rollouts.

    Attributes:
        obs: ``M`` observations.
        token: what was drawn, a row per chunk (see :class:`~worldrl.core.types.Chunk`).
        logp: float32 ``[M, L, A]`` under the acting policy.
        advantage: ``[M]``.
        weight: ``[M]``, mean 1: 1/T_i where lengths are normalised.
    """

    obs: PolicyObs
    token: Tensor
    logp: Tensor
    advantage: Tensor
    weight: Tensor

    def __len__(self) -> int:
        """Return ``M``."""
        return self.token.shape[0]

    def select(self, index: Tensor) -> GrpoBatch:
        """Take the chunks of ``index``."""
        sentences: list[str] = [self.obs.instruction[int(i)] for i in index]
        obs = PolicyObs(self.obs.image[index], self.obs.command[index], sentences)
        return GrpoBatch(obs, self.token[index], self.logp[index], self.advantage[index], self.weight[index])

    def to(self, device: torch.device) -> GrpoBatch:
        """Move the tensors; observations are moved by the policy."""
        return GrpoBatch(
            self.obs, self.token.to(device), self.logp.to(device), self.advantage.to(device), self.weight.to(device)
        )


def grpo_batch(
    rollouts: ImaginedRollouts,
    config: GrpoConfig,
    *,
    trust: Tensor | None = None,
    agreement: Tensor | None = None,
    term_weight: float = 0.0,
) -> tuple[GrpoBatch, dict[str, Tensor]]:
    """Turn rollouts into weighted chunks with advantages, leaving groups of one outcome out.

    With ``trust`` ``[B]`` in [0, 1] a rollout's reward is success times trust (``methods.rl.filtering``). ``agreement`` ``[B]`` is a
    reward of its own, normalised in its group by itself, and weighs ``term_weight`` beside success.
    """
    success = rollouts.success.float()
    reward = success if trust is None else success * trust
    advantage = group_advantage(reward, rollouts.group)
    if agreement is not None:
        advantage = advantage + term_weight * group_advantage(agreement, rollouts.group)
    keep = informative(reward > 0, rollouts.group, low=config.keep_low, high=config.keep_high)
    chunk, row = (rollouts.valid & keep).nonzero(as_tuple=True)
    length = rollouts.valid.sum(dim=0).float()  # T_i
    weight = 1 / length[row] if config.length_normalise else torch.ones(len(row))
    batch = GrpoBatch(
        obs=PolicyObs(
            rollouts.image[chunk, row], rollouts.command[chunk, row], [rollouts.instruction[r] for r in row.tolist()]
        ),
        token=rollouts.token[chunk, row],
        logp=rollouts.logp[chunk, row],
        advantage=advantage[row],
        weight=weight / weight.mean() if len(row) else weight,
    )
    logs = {
        "grpo/imagined_success": success.mean(),
        "grpo/kept_rollouts": keep.float().mean(),
        "grpo/mean_chunks": length.mean(),
    }
    return batch, logs


def sampled_kl(logp: Tensor, reference: Tensor) -> Tensor:
    """KL(π_θ ‖ π_ref) per number from log-probabilities of what π_θ drew: r - 1 - log r with r = π_ref/π_θ, unbiased and >= 0."""
    ratio = reference - logp
    return ratio.exp() - 1 - ratio


def reference_kl(own: Likelihood, reference: Likelihood) -> Tensor:
    """KL(π_θ ‖ π_ref) per token or number ``[M, L, A]``: exact where both know their distribution, else from the draws."""
    if own.logits is None or reference.logits is None:
        return sampled_kl(own.logp, reference.logp)
    return categorical_kl(own.logits, reference.logits)


def grpo_loss(
    policy: TrainablePolicy,
    batch: GrpoBatch,
    config: GrpoConfig,
    reference: TrainablePolicy | None,
    *,
    temperature: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative GRPO objective of some chunks, plus β·KL to ``reference`` when both are given."""
    own = policy.likelihood(batch.obs, batch.token, temperature=temperature)
    logp = own.logp
    objective = clipped_objective(
        logp,
        batch.logp,
        batch.advantage[:, None, None],
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
    loss = -(batch.weight * objective.mean(dim=(1, 2))).mean()
    log_ratio = (logp - batch.logp).detach()
    logs = {"grpo/loss": loss.detach(), "grpo/approx_kl": (log_ratio.exp() - 1 - log_ratio).sum(dim=(1, 2)).mean()}
    if config.kl > 0 and reference is not None:
        with torch.no_grad():
            target = reference.likelihood(batch.obs, batch.token, temperature=temperature)
        kl = reference_kl(own, target).mean()
        loss, logs["grpo/reference_kl"] = loss + config.kl * kl, kl.detach()
    return loss, logs


def minibatches(batch: GrpoBatch, config: GrpoConfig, seed: int) -> Iterator[GrpoBatch]:
    """Yield ``epochs`` shuffled passes, in parts of about one size and at most ``minibatch``.

    About one size, because Adam's step does not shrink with what its gradient was taken from: a few chunks left over would move
    the weights as far as a whole part, at random.
    """
    parts = -(-len(batch) // config.minibatch)
    for epoch in range(config.epochs):
        order = torch.randperm(len(batch), generator=stream(seed, "minibatches", epoch))
        for part in order.tensor_split(parts):
            yield batch.select(part)


def grpo_update(
    policy: TrainablePolicy,
    optimizer: torch.optim.Optimizer,
    rollouts: ImaginedRollouts,
    config: GrpoConfig,
    *,
    seed: int,
    temperature: float,
    reference: TrainablePolicy | None = None,
    trust: Tensor | None = None,
    agreement: Tensor | None = None,
    term_weight: float = 0.0,
) -> dict[str, Tensor]:
    """Improve the policy on one batch of rollouts; a batch without an informative group changes nothing.

    Args:
        policy: trained in place.
        optimizer: over ``policy``'s parameters.
        rollouts: imagined by this very policy.
        config: settings.
        seed: of this iteration, for the minibatch order.
        temperature: at which the rollouts were sampled.
        reference: the supervised policy of the KL term.
        trust: in each rollout's success, ``[B]`` in [0, 1]; None trusts all.
        agreement: of each rollout, ``[B]``, a reward beside success; None where it is none.
        term_weight: of that reward; success has 1.

    Returns:
        Detached scalars.

    Raises:
        NonFiniteError: the loss or its gradient is not finite.
    """
    batch, logs = grpo_batch(rollouts, config, trust=trust, agreement=agreement, term_weight=term_weight)
    for part in minibatches(batch, config, seed) if len(batch) else ():
        loss, part_logs = grpo_loss(policy, part.to(policy.device), config, reference, temperature=temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(policy.parameters(), config.clip_norm)
        if not torch.isfinite(loss) or not torch.isfinite(norm):
            raise NonFiniteError(f"grpo: loss {loss.item()}, gradient norm {norm.item()}; the policy was not updated")
        optimizer.step()
        logs = {**logs, **part_logs, "grpo/gradient_norm": norm}
    return logs
