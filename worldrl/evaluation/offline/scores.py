"""How good an offline agent is: seeded episodes in its environment, scores on every scale, over-estimation.

Episode ``index`` of ``seed`` depends on these two and on the policy alone, see
:mod:`worldrl.rollout.vector.episodes`. Scores follow :mod:`worldrl.data.offline.reference_scores`; several seeds are
summed up by the interquartile mean with a stratified bootstrap interval (Agarwal et al., NeurIPS 2021).

Value over-estimation is what the critic promised at the episodes' starts less what came,

    mean_e [ Q(s_0, a_0) - sum_t gamma^t r_t ]

where a return that a time limit cut short lacks its tail, at most ``gamma^T`` of a value, and an entropy bonus that the
critic counts is part of the promise.

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
"""Maps obs float32 ``[B, S]`` on the policy's device and action float32 ``[B, A]`` to the critic's prediction ``[B]``."""


@dataclass(frozen=True, eq=False)
class OfflineEvaluation:
    """Episodes played.

    Attributes:
        index: int64 ``[E]``, which episodes.
        returns: float64 ``[E]``, undiscounted.
        discounted: float64 ``[E]``, with ``gamma``.
        lengths: int64 ``[E]``, steps.
        terminated: bool ``[E]``, the task ended it; false where the time limit did.
        predicted: float64 ``[E]``, the critic's value of the first observation and action; None without a critic.
        seed: of the episodes.
        gamma: discount.
        deterministic: the most likely actions were taken.
    """

    index: NDArray[np.int64]
    returns: NDArray[np.float64]
    discounted: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    predicted: NDArray[np.float64] | None
    seed: int
    gamma: float
    deterministic: bool

    def metrics(self, info: DatasetInfo) -> dict[str, Any]:
        """Return the JSON-ready summary: mean return, scores, lengths, over-estimation, steps used.

        Args:
            info: gives the environment, for D4RL's scale, and the dataset's own reference returns.
        """
        return {
            "episodes": len(self.index),
            "steps": int(self.lengths.sum()),
            "seed": self.seed,
            "deterministic": self.deterministic,
            "return": mean_or_single(self.returns),
            "length": float(self.lengths.mean()),
            "terminated": float(self.terminated.mean()),
            "scores": dataset_scores(float(self.returns.mean()), info),
            "over_estimation": None if self.predicted is None else over_estimation(self.predicted, self.discounted),
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
    """Play episodes.

    Args:
        policy: for an agent, ``memoryless(agent)``.
        env: from :func:`~worldrl.rollout.vector.episodes.make_environment` or ``dataset_environment``.
        info: its action bounds.
        seed: of the episodes.
        episodes: how many, from episode 0 on, or which.
        deterministic: take the most likely actions instead of sampling.
        gamma: discount of ``discounted``, the critic's own.
        value: the critic; for a pessimistic ensemble, what its targets use.
        device: of policy and critic, where they get the observations.

    Returns:
        One entry per episode, in the order asked for.

    Raises:
        SettingError: no episode.
        ActionError: the policy's action is not finite or of another size.
    """
    index = list(range(episodes)) if isinstance(episodes, int) else list(episodes)
    if not index:
        raise SettingError("episodes: an evaluation needs at least one, got none")
    played = [_play(policy, env, info, seed, number, deterministic, value, device) for number in index]
    rewards = [reward for reward, _, _ in played]
    promised = [promise for _, _, promise in played if promise is not None]
    return OfflineEvaluation(
        index=np.array(index, np.int64),
        returns=np.array([reward.sum() for reward in rewards]),
        discounted=np.array([discounted_return(reward, gamma) for reward in rewards]),
        lengths=np.array([len(reward) for reward in rewards], np.int64),
        terminated=np.array([terminated for _, terminated, _ in played]),
        predicted=np.array(promised) if promised else None,
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
    """Return an episode's rewards, whether it terminated, and what the critic promised at its start."""
    first: list[tuple[Tensor, Tensor]] = []
    env_seed = stream_seed(seed, "evaluate-offline", "environment", number) % 2**31
    generator = None if deterministic else stream(seed, "evaluate-offline", "action", number)
    noting = _remembering(policy, first)
    episode = play_episode(env, info, noting, seed=env_seed, generator=generator, device=device)
    promise = None
    if value is not None:
        obs, action = first[0]
        with torch.no_grad():
            promise = float(value(obs[None], action[None]).reshape(()))
    return episode.reward.astype(np.float64), episode.terminated, promise


def _remembering(policy: EpisodePolicy, first: list[tuple[Tensor, Tensor]]) -> EpisodePolicy:
    """Note the first observation and action of an episode in ``first``."""

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
    """Return ``sum_t gamma^t r_t``."""
    return float(np.sum(reward * gamma ** np.arange(len(reward))))


def over_estimation(predicted: NDArray[np.float64], discounted: NDArray[np.float64]) -> Mean | dict[str, float]:
    """Return the mean over episodes of what the critic promised less what came, see the module's head."""
    return mean_or_single(predicted - discounted)


def mean_or_single(values: NDArray[np.float64]) -> Mean | dict[str, float]:
    """Return the mean with its 95 % Student interval; of a single value, or of one that is not finite, without one."""
    if len(values) < 2 or not np.isfinite(values).all():
        return {"n": len(values), "mean": float(values.mean())}
    return mean_interval(values)


def dataset_scores(value: float, info: DatasetInfo) -> dict[str, Score]:
    """Put a mean return on D4RL's scale and on the dataset's own; raw where neither is known."""
    own = None if info.ref_min is None or info.ref_max is None else Reference(info.ref_min, info.ref_max)
    return scores(value, d4rl=d4rl_reference(info.env_id or info.dataset_id), dataset=own)


def score_over_seeds(runs: ArrayLike, *, generator: np.random.Generator) -> Bootstrap:
    """Sum several runs up: interquartile mean, and its 95 % interval by drawing seeds again within each task.

    Args:
        runs: ``[R]`` scores of one task's seeds, or ``[R, K]`` of several tasks'.
        generator: of the resampling.

    Returns:
        With one seed both ends are NaN; with three to five the interval is narrower than 95 %, see
        :mod:`worldrl.core.statistics.bootstrap`.

    Raises:
        SettingError: no run, or a score that is not finite.
    """
    table = np.asarray(runs, np.float64)
    if not np.isfinite(table).all():
        raise SettingError("runs: a score is not finite; leave the run out and report that, or find out why it failed")
    return stratified_bootstrap(table[:, None] if table.ndim == 1 else table, interquartile_mean, generator=generator)
