"""Evaluation of an offline agent: seeded episodes in its environment, scores on every scale, over-estimation.

Episode ``index`` of ``seed`` depends only on these and on the policy (:mod:`worldrl.rollout.vector.episodes`). Scores follow
:mod:`worldrl.data.offline.reference_scores`. Several seeds are combined by the interquartile mean with a stratified bootstrap interval
(Agarwal et al., NeurIPS 2021). Value over-estimation is the critic's prediction at the episodes' starts minus the return,

    mean_e [ Q(s_0, a_0) - sum_t gamma^t r_t ]

A return that the time limit truncates lacks its tail, at most ``gamma^T`` of a value. The prediction contains the critic's entropy
bonus.

Shapes legend: ``E`` episodes, ``S`` observation, ``A`` action, ``R`` runs (seeds), ``K`` tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream, stream_seed
from worldrl.core.statistics.bootstrap import Bootstrap, interquartile_mean, stratified_bootstrap
from worldrl.core.statistics.intervals import Mean, mean_interval
from worldrl.data.offline.reference_scores import Reference, Score, d4rl_reference, scores
from worldrl.data.offline.trajectories import DatasetInfo
from worldrl.rollout.vector.episodes import Decide, EpisodePolicy, play_episode

Value = Callable[[Tensor, Tensor], Tensor]
"""Maps observations ``[B, S]`` and actions ``[B, A]``, float32 on the policy's device, to the critic's prediction ``[B]``."""


@dataclass(frozen=True, eq=False)
class OfflineEvaluation:
    """Episodes that were played."""

    index: NDArray[np.int64]  # numbers of the episodes, int64 ``[E]``.
    returns: NDArray[np.float64]  # float64 ``[E]``, undiscounted; ``discounted`` with ``gamma``.
    discounted: NDArray[np.float64]
    lengths: NDArray[np.int64]  # int64 ``[E]``, steps.
    terminated: NDArray[np.bool_]  # bool ``[E]``, false where the time limit ended the episode.
    # float64 ``[E]``, the critic's value of the first observation and action; None without a critic.
    predicted: NDArray[np.float64] | None
    seed: int
    gamma: float
    deterministic: bool  # the most likely actions were taken.

    def metrics(self, info: DatasetInfo) -> dict[str, Any]:
        """JSON-ready summary; ``info`` gives the reference returns of the scales."""
        return {
            "episodes": len(self.index),
            "steps": int(self.lengths.sum()),
            "seed": self.seed,
            "deterministic": self.deterministic,
            "return": mean_or_single(self.returns),
            "length": float(self.lengths.mean()),
            "terminated": float(self.terminated.mean()),
            "scores": dataset_scores(float(self.returns.mean()), info),
            "over_estimation": None if self.predicted is None else mean_or_single(self.predicted - self.discounted),
        }


def evaluate_offline(
    policy: EpisodePolicy,
    env: gymnasium.Env[Any, Any],
    info: DatasetInfo,
    *,
    seed: int,
    episodes: int | Sequence[int],
    deterministic: bool = True,
    gamma: float = 0.99,
    value: Value | None = None,
    device: torch.device | str = "cpu",
) -> OfflineEvaluation:
    """Play episodes: a number of them from 0 on, or the given ones; one entry per episode, in this order.

    ``policy`` is ``memoryless(agent)`` for an agent; ``value`` the critic (of a pessimistic ensemble, the value in its targets) with its
    discount ``gamma``. Both receive observations on ``device``.

    Raises SettingError (there is no episode). Raises ActionError (an action of the policy is not finite or of another
    size).
    """
    index = list(range(episodes)) if isinstance(episodes, int) else list(episodes)
    if not index:
        raise SettingError("episodes: an evaluation needs at least one, got none")
    played = [_play(policy, env, info, seed, number, deterministic, value, device) for number in index]
    rewards = [reward for reward, _, _ in played]
    predicted = [value for _, _, value in played if value is not None]
    return OfflineEvaluation(
        index=np.array(index, np.int64),
        returns=np.array([reward.sum() for reward in rewards]),
        discounted=np.array([discounted_return(reward, gamma) for reward in rewards]),
        lengths=np.array([len(reward) for reward in rewards], np.int64),
        terminated=np.array([terminated for _, terminated, _ in played]),
        predicted=np.array(predicted) if predicted else None,
        seed=seed,
        gamma=gamma,
        deterministic=deterministic,
    )


def _play(
    policy: EpisodePolicy,
    env: gymnasium.Env[Any, Any],
    info: DatasetInfo,
    seed: int,
    number: int,
    deterministic: bool,
    value: Value | None,
    device: torch.device | str,
) -> tuple[NDArray[np.float64], bool, float | None]:
    """An episode's rewards, whether it terminated, and the critic's prediction at its start."""
    first: list[tuple[Tensor, Tensor]] = []
    env_seed = stream_seed(seed, "evaluate-offline", "environment", number) % 2**31
    generator = None if deterministic else stream(seed, "evaluate-offline", "action", number)
    episode = play_episode(env, info, _remembering(policy, first), seed=env_seed, generator=generator, device=device)
    predicted = None
    if value is not None:
        obs, action = first[0]
        with torch.no_grad():
            predicted = float(value(obs[None], action[None]).reshape(()))
    return episode.reward.astype(np.float64), episode.terminated, predicted


def _remembering(policy: EpisodePolicy, first: list[tuple[Tensor, Tensor]]) -> EpisodePolicy:
    """Store the first observation and action of an episode in ``first``."""

    def begin() -> Decide:
        inner = policy()

        def decide(obs: Tensor, reward: float, generator: torch.Generator | None) -> Tensor:
            action = inner(obs, reward, generator)
            if not first:
                first.append((obs, action.detach()))
            return action

        return decide

    return begin


def discounted_return(reward: NDArray[np.float64], gamma: float) -> float:
    """``sum_t gamma^t r_t``."""
    return float(np.sum(reward * gamma ** np.arange(len(reward))))


def mean_or_single(values: NDArray[np.float64]) -> Mean | dict[str, float]:
    """Mean with its 95 % Student interval; without one for a single value or values that are not finite."""
    if len(values) < 2 or not np.isfinite(values).all():
        return {"n": len(values), "mean": float(values.mean())}
    return mean_interval(values)


def dataset_scores(value: float, info: DatasetInfo) -> dict[str, Score]:
    """Mean return on D4RL's scale and on the dataset's own; raw where neither is known."""
    own = None if info.ref_min is None or info.ref_max is None else Reference(info.ref_min, info.ref_max)
    return scores(value, d4rl=d4rl_reference(info.env_id or info.dataset_id), dataset=own)


def score_over_seeds(runs: ArrayLike, *, generator: np.random.Generator) -> Bootstrap:
    """Interquartile mean of scores ``[R]`` of one task, or ``[R, K]``, with a 95 % interval by resampling seeds within each task.

    With one seed both ends are NaN; with three to five the interval is narrower than 95 % (:mod:`worldrl.core.statistics.bootstrap`).

    Raises SettingError (there is no run, or a score is not finite).
    """
    table = np.asarray(runs, np.float64)
    if not np.isfinite(table).all():
        raise SettingError("runs: a score is not finite; leave the run out and report that, or find out why it failed")
    return stratified_bootstrap(table[:, None] if table.ndim == 1 else table, interquartile_mean, generator=generator)
