"""Improvement in imagination, by whichever algorithm the settings name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import Policy, TrainablePolicy
from worldrl.core.lookup import named
from worldrl.core.statistics.intervals import Rate
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.log import MetricLog
from worldrl.methods.rl.config import PACE, FilteredCloning, GrpoConfig, Parts
from worldrl.methods.rl.trust import OFF, TERM, Trust
from worldrl.policies.exploration import Exploration, ExplorationSettings
from worldrl.policies.samples import Samples
from worldrl.policies.token.policy import TokenPolicy, reads_waypoint
from worldrl.rollout.imagined.env import WorldModelVecEnv

if TYPE_CHECKING:
    from worldrl.methods.rl.filtering import RolloutFilter
    from worldrl.methods.rl.imagining import Imaginers

ALGORITHMS = {
    "self_training": "worldrl.methods.rl.filtered_cloning:self_train",
    "grpo": "worldrl.methods.rl.grpo:train_grpo",
}
BOTH = "both"
TARGET_PRECISION = {"self_training": 0.85, "grpo": 0.7}
"""Precision of imagined success at its threshold. Self-training imitates a false success; for GRPO it is noise, and so is
each real success that a strict threshold hides."""
SCHEDULES = ("fixed", "hallucination")


@dataclass
class Improvement:
    """Settings of :func:`improve`."""

    # ``self_training``, ``grpo``, or ``both``: self-training in the first round, GRPO in each later one.
    algorithm: str = "self_training"
    p_keyframe: float = 0.0  # probability that a rollout or a group starts at a keyframe instead of an initial state.
    # ``fixed``, or ``hallucination``: the fewer false positives from keyframes than from the beginning, the more often,
    # up to ``p_keyframe`` (:func:`keyframe_probability`).
    keyframe_schedule: str = "fixed"
    keyframe_margin: int = 8  # control steps before the keyframe.
    # whether what an imagined rollout does after its first success is masked out (off only for ablations).
    stop_at_success: bool = True
    starts_per_task: int = 512  # initial states rendered per task.
    # how the policy's actions are drawn, in imagination and in practice.
    exploration: ExplorationSettings = field(default_factory=ExplorationSettings)
    # its settings.
    self_training: FilteredCloning = field(
        default_factory=FilteredCloning, metadata={"only_with": "algorithm=self_training|both"}
    )
    # its settings.
    grpo: GrpoConfig = field(default_factory=GrpoConfig, metadata={"only_with": "algorithm=grpo|both"})
    # whether and how imagined rollouts are weighed before they are learned from.
    trust: Trust = field(default_factory=Trust)

    def __post_init__(self) -> None:
        if self.algorithm not in (*ALGORITHMS, BOTH):
            raise SettingError(
                f"improvement.algorithm: unknown {self.algorithm!r}{nearest(self.algorithm, (*ALGORITHMS, BOTH))}"
            )
        if self.keyframe_schedule not in SCHEDULES:
            raise SettingError(
                f"improvement.keyframe_schedule: unknown {self.keyframe_schedule!r}"
                f"{nearest(self.keyframe_schedule, SCHEDULES)}"
            )
        if not 0 <= self.p_keyframe <= 1:
            raise SettingError(f"improvement.p_keyframe must be in [0, 1], got {self.p_keyframe}")
        if self.trust.use == TERM and self.trust.confidence_score != OFF and self.algorithm != "grpo":
            raise SettingError(
                f"improvement.trust.use={TERM} is a reward beside success, and self_training knows none; give improvement.algorithm=grpo, "
                "or use=weight"
            )
        if self.grpo.partial and self.trust.confidence_score != OFF and self.algorithm != "self_training":
            raise SettingError(
                f"improvement.trust.confidence_score={self.trust.confidence_score} weighs rollouts that are over together; leave out "
                "improvement.grpo.segment_chunks and spare_groups, or the trust"
            )
        if self.algorithm != "self_training":
            self.exploration.drawn(imitates_waypoints=False)
        if self.starts_per_task < 1:
            raise SettingError(f"improvement.starts_per_task must be at least 1, got {self.starts_per_task}")

    def of_round(self, number: int) -> "Improvement":
        """Settle which algorithm a round has; rounds count from 1."""
        if self.algorithm != BOTH:
            return self
        return replace(self, algorithm="self_training" if number == 1 else "grpo")

    @property
    def target_precision(self) -> float:
        """Precision that imagined success must have, in a round whose algorithm is settled."""
        return TARGET_PRECISION[self.algorithm]

    def exploration_of(self, policy: Policy) -> Exploration:
        """Say how the policy's actions are drawn, in a round whose algorithm is settled."""
        return self.exploration.drawn(imitates_waypoints=reads_waypoint(policy) and self.algorithm == "self_training")

    @property
    def imagines_elsewhere(self) -> bool:
        """Whether other processes imagine for the learner."""
        elsewhere = {"self_training": self.self_training.processes > 1, "grpo": self.grpo.staleness > 0}
        return elsewhere[self.algorithm] if self.algorithm in elsewhere else any(elsewhere.values())

    @property
    def rows(self) -> int:
        """Rollouts imagined at once, in a round whose algorithm is settled."""
        return self.grpo.rows if self.algorithm == "grpo" else self.self_training.rows


def keyframe_probability(config: Improvement, beginning: Rate | None, keyframe: Rate | None) -> float:
    """Share the starts out by measured hallucination: h₀ / (h₀ + h₁), at most ``config.p_keyframe``.

    h₀ and h₁ follow from the imagined successes from initial states (``beginning``) and from keyframes that were confirmed.
    """
    if config.keyframe_schedule == "fixed":
        return config.p_keyframe
    h0, h1 = hallucination(beginning), hallucination(keyframe)
    return min(config.p_keyframe, h0 / (h0 + h1) if h0 + h1 else 0.5)


def hallucination(confirmed: Rate | None) -> float:
    """Return the share of imagined successes that were not confirmed; what could not be measured counts as all wrong."""
    return 1.0 if confirmed is None else 1 - confirmed["rate"]


def improve(
    policy: TrainablePolicy,
    env: WorldModelVecEnv,
    config: Improvement,
    *,
    demonstrations: Samples,
    collected: Samples | None = None,
    paraphrases: Mapping[str, Sequence[str]],
    seed: int,
    folder: Path,
    log: MetricLog,
    series: str = "improve",
    judge: "RolloutFilter | None" = None,
    parts: Parts | None = None,
    imaginers: "Imaginers | None" = None,
) -> Sequence[float]:
    """Improve ``policy`` in place; a killed improvement continues bit for bit. Returns imagined success rates by batch.

    ``config.algorithm`` is settled (``of_round``), else SettingError. ``env`` has ``config.rows`` rows; real successes that were ``collected`` serve self-training, demonstrations
    also a loss of GRPO that needs them, ``parts`` replace the algorithm's own. ``imaginers`` make the processes that
    imagine besides (None: on this machine).
    """
    common = {
        "exploration": config.exploration_of(policy),
        "p_keyframe": config.p_keyframe,
        "seed": seed,
        "folder": folder,
        "log": log,
        "series": series,
        "judge": judge,
        "parts": parts,
        "imaginers": imaginers,
        "paraphrases": paraphrases,
    }
    if config.algorithm == BOTH:
        raise SettingError(f"improvement.algorithm={BOTH}: a round has one of the two; give config.of_round(number)")
    train = named(ALGORITHMS[config.algorithm])
    if config.algorithm == "grpo":
        return train(policy, env, config.grpo, demonstrations=demonstrations, **common)
    if not isinstance(policy, TokenPolicy):
        raise SettingError(
            f"improvement.algorithm: self_training imitates tokens, which {type(policy).__name__} has none of; use grpo"
        )
    return train(policy, env, demonstrations, collected, config.self_training, **common)


def pace_of(folder: Path) -> dict[str, Any]:
    """Read what :func:`improve` stored of its lag and speed in ``folder``; nothing without ``grpo.staleness``."""
    return {"staleness": read_json(folder / PACE)} if (folder / PACE).is_file() else {}
