"""A policy's imagination: imagined rollouts and what they are worth, as every algorithm that improves a policy asks for them.

Shapes legend: ``B`` rollouts, ``N`` groups, ``T`` chunks, ``M`` kept chunks, ``L`` control steps per chunk, ``A`` numbers of an action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from worldrl.core.interfaces import Logs, Policy
from worldrl.core.rng import stream, stream_seed
from worldrl.core.types import PolicyObs, ResetRecord
from worldrl.methods.rl.groups import group_sum
from worldrl.methods.rl.interfaces import Collected, Request, Trace
from worldrl.methods.rl.records import StartRecords
from worldrl.methods.rl.trust import FilterResult
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.imagined.rollouts import ImaginedRollouts, imagine_rollouts
from worldrl.world_models.loading import AnyVideoModel

if TYPE_CHECKING:
    from worldrl.methods.rl.filtering import RolloutFilter


def imagined_env(
    world_model: AnyVideoModel,
    store: ResetStore,
    rule: SuccessRule,
    *,
    rows: int,
    horizon: dict[str, int],
    stop_at_success: bool = True,
    n_obs_steps: int = 1,
) -> WorldModelVecEnv:
    """Make the environment of training: rows wait, once over, until all are."""
    return WorldModelVecEnv(
        world_model,
        store,
        rule,
        num_envs=rows,
        horizon=horizon,
        stop_at_success=stop_at_success,
        autoreset_mode=AutoresetMode.DISABLED,
        n_obs_steps=n_obs_steps,
    )


def imagine_batch(
    env: WorldModelVecEnv,
    policy: Policy,
    exploration: Exploration,
    *,
    group_size: int,
    p_keyframe: float,
    seed: int,
) -> ImaginedRollouts:
    """Fill the environment's rows with groups of ``group_size`` rollouts from one start each, and let them run."""
    starts = env.store.sample(env.num_envs // group_size, p_keyframe, generator=stream(seed, "starts"))
    return imagine_rollouts(env, policy, starts, group_size=group_size, seed=seed, exploration=exploration)


def held(value: Tensor, valid: Tensor) -> Tensor:
    """Hold ``value`` ``[T, B]`` at each rollout's last valid decision from there on."""
    last = valid.sum(dim=0).clamp_min(1) - 1
    time = torch.arange(len(value))[:, None].minimum(last[None])
    return value.gather(0, time)


@dataclass(frozen=True)
class PolicyChunks:
    """Kept chunks of a batch of rollouts."""

    obs: PolicyObs  # ``M`` observations.
    token: Tensor  # what was drawn, a row per chunk (see :class:`~worldrl.core.types.Chunk`).
    logp: Tensor  # float32 ``[M, L, A]`` under the acting policy.
    advantage: Tensor  # ``[M]``.
    weight: Tensor  # ``[M]``, mean 1: 1/T_i where lengths are normalised.
    silent: "PolicyChunks | None" = None  # chunks of rollouts that teach nothing; None: not kept.

    def __len__(self) -> int:
        return self.token.shape[0]

    def select(self, index: Tensor) -> "PolicyChunks":
        """Take the chunks of ``index``."""
        sentences = [self.obs.instruction[int(i)] for i in index]
        obs = self.obs.take(lambda value: value[index], sentences)
        return PolicyChunks(
            obs, self.token[index], self.logp[index], self.advantage[index], self.weight[index], self.silent
        )


@dataclass(frozen=True)
class PolicyImagination:
    """Imagined rollouts of a policy as experience: their reward is success, as far as it is trusted, and agreement if asked."""

    env: WorldModelVecEnv  # imagined, with a row for each rollout.
    policy: Policy  # acts by sampling.
    exploration: Exploration  # how.
    p_keyframe: float  # probability that a rollout starts at a keyframe.
    seed: int  # root of every draw.
    judge: "RolloutFilter | None" = None  # says how much each rollout counts; None: all alike.
    length_normalise: bool = True  # weigh each rollout, not each chunk, equally.
    keeps_silent: bool = False  # whether decisions hold the chunks of rollouts that teach nothing, too.
    imagining: str = "improve"  # name of the random streams of starts and rollouts.
    judging: str = "judge"  # name of its score.
    # task to instructions that the rollouts of a group are given in turn; a task without any keeps its own.
    sentences: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @cached_property
    def records(self) -> StartRecords:
        """The start records of the environment's store, by their numbers there."""
        return StartRecords(self.env.store.task, self.env.store.keyframe, self.p_keyframe, counts=True)

    def stream(self, iteration: int, what: str, *more: int) -> torch.Generator:
        """Name a random stream of an iteration."""
        root = self.imagining if what == "starts" else "update"
        return stream(stream_seed(self.seed, root, iteration), what, *more)

    def imagine(self, request: Request) -> FilterResult:
        """Let the policy act from every start, and weigh the rollouts."""
        k = request.iteration
        rollouts = imagine_rollouts(
            self.env,
            self.policy,
            self.start_records(request),
            group_size=1,
            seed=stream_seed(self.seed, self.imagining, k),
            exploration=self.exploration,
        )
        rollouts = replace(rollouts, group=request.group)
        if self.judge is None:
            return FilterResult(rollouts)
        return self.judge.judge(self.env, rollouts, seed=stream_seed(self.seed, self.judging, k))

    def start_records(self, request: Request) -> list[ResetRecord]:
        """Start record of each row, with the instruction that the row is given."""
        records = [self.env.store.records[number] for number in request.starts[request.group].tolist()]
        if not self.sentences:
            return records
        choices = [self.sentences.get(record.task) or [record.instruction] for record in records]
        sentences = [own[mate % len(own)] for own, mate in zip(choices, request.mate.tolist(), strict=True)]
        return [replace(record, instruction=sentence) for record, sentence in zip(records, sentences, strict=True)]

    lasting: ClassVar[bool] = False  # whether rollouts may last for several iterations.

    def under_way(self) -> dict[str, Any]:
        """State of the rollouts that are not over; empty where all are."""
        return {}

    def carry_on(self, under_way: Mapping[str, Any]) -> None:
        """Continue with the rollouts of :meth:`under_way`."""

    def score(self, experience: FilterResult) -> Tensor:
        """Return success times trust, and the agreement beside it where it is a reward: ``[B, 1]`` or ``[B, 2]``."""
        success = experience.rollouts.success.float()
        reward = success if experience.trust is None else success * experience.trust
        return torch.stack([reward] if experience.agreement is None else [reward, experience.agreement], dim=1)

    def reported(self, collected: Collected[FilterResult]) -> Logs:
        """Say how many rollouts succeed and how long they are, and what was computed of trust and agreement."""
        rollouts, trust, agreement, *_ = collected.experience
        named = {"grpo/trusted_success": trust, "grpo/agreement": agreement}
        return {
            "grpo/imagined_success": rollouts.success.float().mean(),
            "grpo/mean_chunks": rollouts.valid.sum(dim=0).float().mean(),
            **{name: value.mean() for name, value in named.items() if value is not None},
        }

    def learned(self, starts: Tensor, collected: Collected[FilterResult]) -> None:
        """Count successes and failures by start record."""
        rollouts = collected.experience.rollouts
        wins = group_sum(rollouts.success.double(), rollouts.group)
        self.records.learn(starts, wins, rollouts.group.bincount().double())

    def trace(self, request: Request, collected: Collected[FilterResult]) -> Trace:
        """Return groups, chunks up to the first success, which rollouts have a reward for success, and what is known of each chunk."""
        rollouts = collected.experience.rollouts
        alpha, beta = self.records.posterior(request.starts[rollouts.group])
        end, shown = rollouts.end, rollouts.probability
        return Trace(
            request.iteration,
            rollouts.group,
            rollouts.valid,
            wins=collected.terms[:, 0] > 0,
            probability=None if shown is None else held(shown[..., -1], rollouts.valid),
            surprise=-rollouts.logp.mean(dim=(2, 3)),
            predicted=(alpha / (alpha + beta)).float(),
            images=None if end is None else lambda: torch.cat([rollouts.image, end.image[None]]),
        )

    def decisions(self, experience: FilterResult, advantage: Tensor, weight: Tensor, logs: Logs) -> PolicyChunks:
        """Collect the chunks that count."""
        rollouts = experience.rollouts
        logs["grpo/kept_rollouts"] = (weight > 0).any(dim=0).float().mean()
        kept = weight > 0
        length = rollouts.valid.sum(dim=0).float() if self.length_normalise else torch.ones(kept.shape[1])
        silent = None
        if self.keeps_silent:
            without = rollouts.valid & ~kept.any(dim=0)
            silent = chunks_of(rollouts, without, advantage, without / length)
        return chunks_of(rollouts, kept, advantage, weight / length, silent)


def chunks_of(
    rollouts: ImaginedRollouts,
    kept: Tensor,
    advantage: Tensor,
    weight: Tensor,
    silent: PolicyChunks | None = None,
) -> PolicyChunks:
    """Collect the chunks that ``kept`` ``[T, B]`` marks; their weights get the mean 1."""
    chunk, row = kept.nonzero(as_tuple=True)
    often = weight[chunk, row]
    return PolicyChunks(
        obs=rollouts.observed(chunk, row),
        token=rollouts.token[chunk, row],
        logp=rollouts.logp[chunk, row],
        advantage=advantage[chunk, row],
        weight=often / often.mean() if len(row) else often,
        silent=silent,
    )
