"""How much imagined rollouts count: one confidence score, and what it does to those of low confidence.

The scores are those of ``rollout.trust.confidence``. Probabilities (the rollout's own, the mean or the least of resampled ones) are
p; agreements are minus an uncertainty d, the largest over a rollout's frames:

    weight: trust = p, or d₀ / max(d, d₀)          mask: trust = 1 where p >= p₀, or d <= d₀, else 0
    shorten: a rollout ends before the first chunk with d > d₀; a success behind it is none
    term:   the agreement -d of every rollout, failures too, as a reward beside success; d₀ is not used, since where every d
            stays below, trust is 1 throughout and tells no rollouts apart

In self-training trust multiplies a success's weight; in GRPO it multiplies its reward, and what a shortened rollout did
after its end teaches nothing. As a term it is GRPO's alone: A = A(success) + weight A(-d), each normalised in its group (GDPO).

Shapes legend: ``B`` rollouts, ``E`` some of them, ``T`` chunks, ``L`` control steps per chunk, ``F`` frames per chunk.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.methods.rl.grasp_uncertainty import GraspCheck
from worldrl.methods.rl.motion_uncertainty import MotionCheck
from worldrl.methods.rl.trust import AGREEMENTS, MASK, MEMBERS, OFF, READ, SCORE, SHORTEN, TERM, FilterResult, Trust
from worldrl.rewards.success import debounced_score
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.rollouts import ImaginedRollouts
from worldrl.rollout.trust.confidence import confidence_scores
from worldrl.rollout.trust.resampled import ResampledRollouts, resample_rollouts


@dataclass(frozen=True)
class RolloutFilter:
    """Weighs the rollouts of one environment; SettingError: the score needs inverse dynamics, and there is none."""

    config: Trust  # which score, and what it does; never ``off``.
    # inverse dynamics, for ``motion_agreement`` and ``grasp_agreement``.
    reader: MotionCheck | GraspCheck | None = None

    def __post_init__(self) -> None:
        if self.config.confidence_score == OFF or (self.config.confidence_score in READ and self.reader is None):
            raise SettingError(
                f"improvement.trust.confidence_score={self.config.confidence_score}: needs an inverse dynamics model, and there is none"
            )

    @property
    def term_weight(self) -> float:
        """Weight of the agreement as a reward beside success; 0 where it is none."""
        return self.config.weight if self.config.use == TERM else 0.0

    def judge(self, env: WorldModelVecEnv, rollouts: ImaginedRollouts, *, seed: int) -> FilterResult:
        """Weigh rollouts just imagined in ``env``; they need their actions, probabilities and last frames."""
        config = self.config
        if config.use == SHORTEN:
            return FilterResult(shortened(rollouts, self._uncertainty(env, rollouts, seed), self._limit(env)))
        if config.use == TERM:
            return FilterResult(
                rollouts, agreement=-(self._uncertainty(env, rollouts, seed) * rollouts.valid).amax(dim=0)
            )
        rows = rollouts.success.nonzero().squeeze(1)
        trust = torch.zeros(len(rollouts.success))
        if len(rows):
            sign = self._sign(env, rollouts, rows, seed)
            confidence = confidence_from_uncertainty if config.confidence_score in AGREEMENTS else trust_in_score
            trust[rows] = confidence(sign, config.use, self._limit(env))
        return FilterResult(rollouts, trust)

    def _limit(self, env: WorldModelVecEnv) -> float:
        if self.config.limit is not None:
            return self.config.limit
        return env.rule.threshold if self.reader is None else self.reader.bound

    def _sign(self, env: WorldModelVecEnv, rollouts: ImaginedRollouts, rows: Tensor, seed: int) -> Tensor:
        if self.config.confidence_score in READ:
            return -self._normalised_error(rollouts)[:, rows].amax(dim=0)
        own = probabilities(rollouts, rows)
        if self.config.confidence_score == SCORE:
            return torch.from_numpy(debounced_score(own, env.rule.debounce))
        resampled = imagined_again(env, rollouts, rows, self.config.resampled_rollouts, seed=seed)
        return torch.from_numpy(
            confidence_scores(own, resampled, env.rule.debounce)[self.config.confidence_score]
        ).float()

    def _uncertainty(self, env: WorldModelVecEnv, rollouts: ImaginedRollouts, seed: int) -> Tensor:
        if self.config.confidence_score in READ:
            return self._normalised_error(rollouts)
        resampled = imagined_again(
            env, rollouts, torch.arange(len(rollouts.success)), self.config.resampled_rollouts, seed=seed
        )
        uncertainty = torch.from_numpy(
            resampled.uncertainty if self.config.confidence_score == MEMBERS else resampled.spread
        )
        return uncertainty.unflatten(1, (len(rollouts.valid), -1)).amax(dim=-1).T

    def _normalised_error(self, rollouts: ImaginedRollouts) -> Tensor:
        if self.reader is None:
            raise SettingError(
                f"improvement.trust.confidence_score={self.config.confidence_score}: there is no inverse dynamics"
            )
        return self.reader.normalised_error(rollouts)


def trust_in_score(score: Tensor, use: str, limit: float) -> Tensor:
    """Trust from scores ``[E]``: themselves, or whether they reach ``limit``."""
    return (score >= limit).float() if use == MASK else score.float()


def confidence_from_uncertainty(sign: Tensor, use: str, limit: float) -> Tensor:
    """Trust from minus the uncertainty ``[E]``: whether it stays within ``limit``, or how far beyond it is."""
    uncertainty = -sign.float()
    return (uncertainty <= limit).float() if use == MASK else limit / uncertainty.clamp_min(limit)


def shortened(rollouts: ImaginedRollouts, uncertainty: Tensor, limit: float) -> ImaginedRollouts:
    """End each rollout before its first chunk whose uncertainty ``[T, B]`` passes ``limit``; a success behind that is none."""
    passed = (uncertainty > limit) & rollouts.valid
    lost = passed.cumsum(dim=0) > 0  # [T, B]
    return replace(rollouts, valid=rollouts.valid & ~lost, success=rollouts.success & ~passed.any(dim=0))


def probabilities(rollouts: ImaginedRollouts, rows: Tensor) -> np.ndarray:
    """Success probability of some rollouts ``[E, T F]``; 0 after their last chunk."""
    if rollouts.probability is None:
        raise SettingError(
            "improvement.trust: these rollouts were kept without their probabilities; imagine them again"
        )
    kept = rollouts.probability[:, rows] * rollouts.valid[:, rows, None]
    return kept.transpose(0, 1).flatten(1).numpy()


def imagined_again(
    env: WorldModelVecEnv, rollouts: ImaginedRollouts, rows: Tensor, count: int, *, seed: int
) -> ResampledRollouts:
    """Imagine ``rows [E]`` of the rollouts ``count`` times more; holding still once over, where the uncertainty is 0."""
    starts = [env.records[row] for row in rows.tolist()]
    resampled = resample_rollouts(env.world_model, starts, actions_of(rollouts, rows, env.actions), count, seed=seed)
    valid = rollouts.valid[:, rows].T.numpy()  # [E, T]
    kept = {
        name: value * valid.repeat(value.shape[1] // valid.shape[1], axis=1)
        for name, value in (("uncertainty", resampled.uncertainty), ("spread", resampled.spread))
    }
    return replace(resampled, **kept)


def actions_of(rollouts: ImaginedRollouts, rows: Tensor, spec: ActionSpec) -> Tensor:
    """Return actions of rollouts ``rows``, ``[E, T L, A]``, the last one held; SettingError: not kept."""
    if rollouts.action is None:
        raise SettingError("improvement.trust: these rollouts were kept without their actions; imagine them again")
    action = rollouts.action[:, rows]  # [T, E, L, A]
    valid = rollouts.valid[:, rows]
    last = action[valid.sum(dim=0) - 1, torch.arange(len(rows)), -1]  # [E, A]
    still = torch.from_numpy(spec.hold(last.numpy()))
    whole = torch.where(valid[:, :, None, None], action, still[None, :, None])
    return whole.transpose(0, 1).flatten(1, 2)
