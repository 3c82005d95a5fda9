"""GRPO on imagined groups (WoVR §3.4, DAPO's clip-higher and filter).

For group mates i = 1..G from one start state, with R_i ∈ {0, 1} the imagined success and A_i the group advantage:

    J(θ) = E[ (1/G) Σ_i (1/T_i) Σ_{t ≤ T_i} mean_k min(ρ_tk A_i, clip(ρ_tk, 1-ε_low, 1+ε_high) A_i) ] - β KL(π_θ ‖ π_ref)

where T_i counts the chunks up to and including the first success, k runs over a chunk's action tokens and ρ is the
token's probability ratio. Groups whose advantages are all equal carry no signal and are left out: with success as the only
reward those that all succeed or all fail.

Shapes legend: ``B`` rollouts, ``T`` chunks, ``M`` kept chunks, ``L`` control steps per chunk.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import TrainablePolicy
from worldrl.core.storage.log import MetricLog
from worldrl.core.types import Likelihood, PolicyObs
from worldrl.methods.rl.advantages import as_given, group_advantage, group_std
from worldrl.methods.rl.budgets import uniform
from worldrl.methods.rl.config import GrpoConfig, Parts
from worldrl.methods.rl.control import Unchecked
from worldrl.methods.rl.filtering import RolloutFilter
from worldrl.methods.rl.imagination import PolicyChunks, PolicyImagination
from worldrl.methods.rl.interfaces import AVERAGE, BEGINNING, DEMONSTRATIONS, SUCCESS, Evaluated, Request, needs_of
from worldrl.methods.rl.loop import Learner, train
from worldrl.methods.rl.losses import clipped
from worldrl.methods.rl.method import Method, fitted, when_needed
from worldrl.methods.rl.partial_rollouts import PartialImagination, Slots, as_complete
from worldrl.methods.rl.proximal import EWMA_DECAY, Follower
from worldrl.methods.rl.selection import informative
from worldrl.methods.rl.starts import balanced
from worldrl.policies.exploration import Exploration
from worldrl.policies.samples import Samples
from worldrl.policies.token.policy import TokenPolicy
from worldrl.policies.token.tokens import encode
from worldrl.rewards.mixing import mean_of_terms
from worldrl.rollout.imagined.env import WorldModelVecEnv

if TYPE_CHECKING:
    from worldrl.methods.rl.imagining import Imaginers


def categorical_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """Exact KL(π_θ ‖ π_ref) per token from logits ``[..., bins]``."""
    logp, logq = F.log_softmax(logits, dim=-1), F.log_softmax(reference, dim=-1)
    return (logp.exp() * (logp - logq)).sum(dim=-1)


def sampled_kl(logp: Tensor, reference: Tensor) -> Tensor:
    """KL(π_θ ‖ π_ref) per number from log-probabilities of what π_θ drew: r - 1 - log r with r = π_ref/π_θ, unbiased and >= 0."""
    ratio = reference - logp
    return ratio.exp() - 1 - ratio


def reference_kl(own: Likelihood, reference: Likelihood) -> Tensor:
    """KL(π_θ ‖ π_ref) per token or number ``[M, L, A]``: exact where both know their distribution, else from the draws."""
    if own.logits is None or reference.logits is None:
        return sampled_kl(own.logp, reference.logp)
    return categorical_kl(own.logits, reference.logits)


@dataclass(frozen=True)
class TokenLogProb:
    """Log-probabilities of a policy's chunks, one for each token or number.

    Equation: log π_θ(token | image, command, instruction)
    Paper: none
    """

    policy: TrainablePolicy  # with gradient.
    temperature: float  # at which the rollouts were sampled.
    reference: TrainablePolicy | None = None  # the policy of the KL term; None: there is none.
    proximal: Follower | None = None  # for losses that need one; None: the loss needs none.
    shown: Samples | None = None  # demonstrations beside the decisions, for losses that need them; None: none.
    anchor: TrainablePolicy | None = None  # the policy of the KL term on silent chunks; None: there is none.

    def __call__(self, decisions: PolicyChunks, generator: torch.Generator) -> Evaluated:
        """Show chunks to the policy again, and to the reference."""
        device = self.policy.device
        token, logp, advantage, weight = (
            value.to(device) for value in (decisions.token, decisions.logp, decisions.advantage, decisions.weight)
        )
        near = self.proximal and self.proximal.likelihood(decisions.obs, token, temperature=self.temperature).logp
        own = self.policy.likelihood(decisions.obs, token, temperature=self.temperature)
        found = Evaluated(own.logp, logp, advantage, weight, proximal=near)
        if self.shown is not None:
            found = self._beside(found, self.shown, generator)

        away = self.reference and partial(self._kl, self.reference, decisions.obs, token, own)
        return replace(found, away=away, anchor=self._anchored(decisions, generator))

    def _kl(self, reference: TrainablePolicy, obs: PolicyObs, token: Tensor, own: Likelihood | None = None) -> Tensor:
        """KL divergence to ``reference`` over chunks; ``own`` is their likelihood where it is known already."""
        own = own or self.policy.likelihood(obs, token, temperature=self.temperature)
        with torch.no_grad():
            target = reference.likelihood(obs, token, temperature=self.temperature)
        return reference_kl(own, target).mean()

    def _anchored(self, decisions: PolicyChunks, generator: torch.Generator) -> Callable[[], Tensor] | None:
        """KL divergence over as many silent chunks, drawn at random; None: there are none, or no anchor."""
        silent = decisions.silent
        if self.anchor is None or silent is None or not len(silent):
            return None
        drawn = silent.select(torch.randint(len(silent), (len(decisions),), generator=generator))
        return partial(self._kl, self.anchor, drawn.obs, drawn.token.to(self.policy.device))

    def _beside(self, found: Evaluated, samples: Samples, generator: torch.Generator) -> Evaluated:
        """Append demonstrations, a quarter as many as there are decisions, of advantage 1."""
        assert isinstance(self.policy, TokenPolicy)
        assert self.proximal is not None
        assert found.proximal is not None
        count = max(1, len(found.weight) // 4)
        drawn = samples.select(torch.randint(len(samples), (count,), generator=generator))
        obs = drawn.observed
        low, high = self.policy.action_low, self.policy.action_high
        token = encode(drawn.chunk.to(low.device), low, high, self.policy.config.bins)
        near = self.proximal.likelihood(obs, token, temperature=self.temperature).logp
        now = self.policy.likelihood(obs, token, temperature=self.temperature).logp
        one = torch.ones(count).to(found.weight)
        return Evaluated(
            torch.cat([found.now, now]),
            torch.cat([found.before, near]),
            torch.cat([found.advantage, one]),
            torch.cat([found.weight, one]),
            external=torch.arange(len(found.weight) + count, device=one.device) >= len(found.weight),
            proximal=torch.cat([found.proximal, near]),
        )


def summed_advantages(terms: Tensor, group: Tensor, *, weights: Sequence[float]) -> Tensor:
    """Add the z-scores of terms ``[B, K]``, each in its group: advantages already, Σ_k w_k A_k."""
    first, *others = (w * group_advantage(term, group) for w, term in zip(weights, terms.unbind(dim=1), strict=True))
    return sum(others, first)


def grpo(
    source: PolicyImagination,
    policy: TrainablePolicy,
    config: GrpoConfig,
    *,
    reference: TrainablePolicy | None = None,
    parts: Parts | None = None,
    demonstrations: Samples | None = None,
) -> Method:
    """Make GRPO of its parts; SettingError where the loss needs demonstrations, and there are none for this policy."""
    parts, options = parts or Parts(), vars(config)
    shown = demonstrations if DEMONSTRATIONS in needs_of(parts.loss) else None
    if DEMONSTRATIONS in needs_of(parts.loss) and (not shown or not isinstance(policy, TokenPolicy)):
        raise SettingError(
            f"improvement.grpo.parts.loss needs {DEMONSTRATIONS}, which a token policy has alone; leave it out or give a token policy"
        )
    term = 0.0 if source.judge is None else source.judge.term_weight
    proximal = follower(policy, parts)
    control = fitted(
        parts.control or Unchecked,
        policy=policy,
        paired=partial(paired_successes, source, config.groups, config.group_size),
        follow=proximal and proximal.renew,
    )()
    kept = {"starts": source.records if keeps_records(parts) else None, "proximal": proximal, "control": control}
    if isinstance(source, PartialImagination):
        kept["rollouts"] = source.slots
    return Method(
        source=source,
        prompts=config.groups + config.spare_groups,
        rows=config.rows,
        mix=partial(summed_advantages, weights=[1.0, term]) if term else mean_of_terms,
        advantage=parts.advantage or (as_given if term else group_std),
        selection=fitted(parts.selection or informative, **options),
        starts=parts.starts or balanced,
        budget=parts.budget or uniform,
        log_prob=TokenLogProb(
            policy,
            source.exploration.temperature,
            reference if config.kl > 0 else None,
            proximal,
            shown,
            reference if config.anchor > 0 else None,
        ),
        loss=fitted(parts.loss or clipped, **options),
        control=control,
        prefix="grpo",
        kl=config.kl,
        anchor=config.anchor,
        epochs=config.epochs,
        minibatch=config.minibatch,
        arrival=as_complete if config.partial else when_needed,
        modules={name: part for name, part in kept.items() if hasattr(part, "state_dict")},
    )


def keeps_records(parts: Parts) -> bool:
    """Whether a checkpoint must hold what became known of the starts."""
    return bool(parts.starts or parts.budget or SUCCESS in needs_of(parts.advantage))


def follower(policy: TrainablePolicy, parts: Parts) -> Follower | None:
    """Make the proximal policy that the loss needs; None where it needs none."""
    wanted = needs_of(parts.loss)
    if AVERAGE not in wanted and BEGINNING not in wanted:
        return None
    return Follower(policy, EWMA_DECAY if AVERAGE in wanted else None)


def paired_successes(source: PolicyImagination, groups: int, group_size: int) -> Tensor:
    """Which of the paired rollouts succeed, ``[B]``: the same starts and noise at every call."""
    test = replace(source, imagining="verify", judge=None)
    starts = balanced(test.records, groups, test.stream(0, "starts"))
    return test.imagine(Request.make(0, starts, torch.full((groups,), group_size))).rollouts.success


def train_grpo(
    policy: TrainablePolicy,
    env: WorldModelVecEnv,
    config: GrpoConfig,
    *,
    exploration: Exploration,
    p_keyframe: float,
    seed: int,
    folder: Path,
    log: MetricLog,
    series: str,
    judge: RolloutFilter | None = None,
    parts: Parts | None = None,
    paraphrases: Mapping[str, Sequence[str]] | None = None,
    demonstrations: Samples | None = None,
    imaginers: "Imaginers | None" = None,
) -> Sequence[float]:
    """Improve ``policy`` in place: GRPO on imagined groups.

    Equation: J = mean_i 1/T_i Σ_t mean_k min(ρ A, clip(ρ, 1 - ε_low, 1 + ε_high) A) - β KL - α KL(silent rollouts)
    Paper: GRPO (2402.03300), DAPO (2503.14476), WoVR; PS-GRPO's groups over paraphrases where ``paraphrased``; the
    anchor α is ours, after Learning without Forgetting (1606.09282)

    ``env`` has ``config.rows`` rows; with ``judge=None`` every rollout counts alike. With ``staleness`` another process
    imagines ahead (``methods.rl.staleness``), which ``imaginers`` make (None: on this machine).
    """
    sentences = (paraphrases or {}) if config.paraphrased else {}
    given = (env, policy, exploration, p_keyframe, seed, judge, config.length_normalise)
    more: dict[str, Any] = {"sentences": sentences, "keeps_silent": config.anchor > 0}
    source = PolicyImagination(*given, **more)
    if config.partial:
        slots = Slots(env, policy, exploration, config.group_size)
        source = PartialImagination(*given, **more, slots=slots, enough=config.groups, segment=config.segment_chunks)
    reference = copy.deepcopy(policy).eval() if config.kl > 0 or config.anchor > 0 else None
    policy.eval()
    learner = policy_learner(policy, config)
    method = grpo(source, policy, config, reference=reference, parts=parts, demonstrations=demonstrations)
    if not config.staleness:
        return train(learner, method, folder=folder, log=log, series=series)
    from worldrl.methods.rl.staleness import imagined_ahead

    with imagined_ahead(method, policy, config.staleness, config.iterations, folder, imaginers) as ahead:
        return train(learner, ahead, folder=folder, log=log, series=series)


def policy_learner(policy: TrainablePolicy, config: GrpoConfig) -> Learner:
    """Say what GRPO trains, and how."""
    return Learner(
        modules={"policy": policy},
        optimizer=policy.make_optimizer(config.learning_rate, config.weight_decay),
        parameters=policy.parameters,
        clip_norm=config.clip_norm,
        iterations=config.iterations,
        checkpoint_every=config.checkpoint_every,
        name="grpo",
        note=lambda numbers: f"imagined success {numbers['grpo/imagined_success']:.2f}",
        kept=lambda numbers: numbers["grpo/imagined_success"],
    )
