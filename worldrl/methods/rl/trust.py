"""Settings of the trust in imagined rollouts, and what it leaves of them; ``methods.rl.filtering`` computes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from worldrl.core.errors import SettingError, nearest
from worldrl.methods.rl.interfaces import Request
from worldrl.rewards.config import GraspConfig, IdmConfig, IdmTraining
from worldrl.rollout.imagined.rollouts import ImaginedRollouts
from worldrl.rollout.trust.confidence import CONFIDENCE_SCORES

OFF, SCORE, MEMBERS = "off", "score", "member_agreement"
MOTION, GRASP = "motion_agreement", "grasp_agreement"
READ = (MOTION, GRASP)  # signs of inverse dynamics: they need no further imagination, and real episodes set their limit
AGREEMENTS = tuple(name for name in CONFIDENCE_SCORES if name.endswith("_agreement"))
WEIGHT, MASK, SHORTEN, TERM = "weight", "mask", "shorten", "term"
USES = (WEIGHT, MASK, SHORTEN, TERM)


@dataclass
class MotionUncertainty:
    """Inverse dynamics that weighs imagined rollouts."""

    real_share: float = 0.95  # share of real held-out episodes that must pass.
    model: IdmConfig = field(default_factory=IdmConfig)  # sizes of the inverse dynamics.
    # of it, in a stage of each round, on the practice episodes.
    training: IdmTraining = field(default_factory=IdmTraining)

    def __post_init__(self) -> None:
        if not 0 < self.real_share <= 1:
            raise SettingError(f"improvement.trust.idm.real_share must be in (0, 1], got {self.real_share}")


@dataclass
class GraspUncertainty:
    """Inverse dynamics of the grasp that weighs imagined rollouts."""

    real_share: float = 0.95  # share of held-out real successes that must pass.
    # its sizes and training, in a stage of each round, on the practice episodes.
    model: GraspConfig = field(default_factory=lambda: GraspConfig(steps=1500))

    def __post_init__(self) -> None:
        if not 0 < self.real_share <= 1:
            raise SettingError(f"improvement.trust.grasp.real_share must be in (0, 1], got {self.real_share}")
        if self.model.steps < 1:
            raise SettingError(f"improvement.trust.grasp.model.steps must be at least 1, got {self.model.steps}")


@dataclass
class Trust:
    """Whether and how imagined rollouts are weighed."""

    # ``off``, or ``score``, ``mean_resampled``, ``min_resampled``, ``member_agreement``, ``latent_agreement``,
    # ``motion_agreement``, ``grasp_agreement`` (``docs/reference/metrics.md``).
    confidence_score: str = OFF
    # ``weight`` (a success of low confidence counts less), ``mask`` (it counts nothing) or ``shorten`` (a rollout ends
    # where its uncertainty passes the limit), or ``term`` (GRPO: agreement is a reward of its own, beside success).
    use: str = WEIGHT
    weight: float = 0.2  # with ``use=term``, of that reward; that of success is 1.
    # p₀ or d₀; null takes the success threshold for scores, and for motion and grasp what real episodes stay below.
    # None with ``use=term``.
    limit: float | None = None
    # rollouts imagined again with the same actions and other noise, for all scores but ``score``, motion and grasp.
    resampled_rollouts: int = 2
    # the inverse dynamics behind ``motion_agreement``.
    idm: MotionUncertainty = field(
        default_factory=MotionUncertainty, metadata={"only_with": "confidence_score=motion_agreement"}
    )
    # the one behind ``grasp_agreement``.
    grasp: GraspUncertainty = field(
        default_factory=GraspUncertainty, metadata={"only_with": "confidence_score=grasp_agreement"}
    )

    def __post_init__(self) -> None:
        if self.confidence_score not in (OFF, *CONFIDENCE_SCORES):
            raise SettingError(
                f"improvement.trust.confidence_score: unknown {self.confidence_score!r}{nearest(self.confidence_score, (OFF, *CONFIDENCE_SCORES))}"
            )
        if self.use not in USES:
            raise SettingError(f"improvement.trust.use: unknown {self.use!r}{nearest(self.use, USES)}")
        if self.resampled_rollouts < 2:
            raise SettingError(
                f"improvement.trust.resampled_rollouts must be at least 2, got {self.resampled_rollouts}: one has no spread"
            )
        if self.limit is not None and self.limit <= 0:
            raise SettingError(f"improvement.trust.limit must be positive, got {self.limit}")
        if self.limit is not None and self.use == TERM:
            raise SettingError(
                f"improvement.trust.limit has no effect with use={TERM}, where the agreement itself is the reward; leave it out"
            )
        if (
            self.confidence_score in AGREEMENTS
            and self.confidence_score not in READ
            and self.limit is None
            and self.use != TERM
        ):
            raise SettingError(
                f"improvement.trust.confidence_score={self.confidence_score} needs a limit: give improvement.trust.limit (evaluate-world-model "
                "policies.folders=[...] measures the uncertainties)"
            )
        if self.use in (SHORTEN, TERM) and self.confidence_score not in (OFF, *AGREEMENTS):
            raise SettingError(
                f"improvement.trust.use={self.use} needs an uncertainty at every chunk, and {self.confidence_score} is one number; give confidence_score="
                f"{', '.join(AGREEMENTS)}"
            )
        if self.use == TERM and self.confidence_score == GRASP:
            raise SettingError(
                f"improvement.trust.use={TERM} would reward hands that never close, for which {GRASP} measures no uncertainty; give confidence_score={MOTION}"
            )
        if not self.weight > 0:
            raise SettingError(f"improvement.trust.weight must be positive, got {self.weight}")


class FilterResult(NamedTuple):
    """What judging ``B`` rollouts leaves of them."""

    rollouts: ImaginedRollouts  # shortened, or as they were.
    # in each rollout's success, ``[B]`` in [0, 1]; None where all that is left counts alike.
    trust: Tensor | None = None
    # of each rollout, ``[B]``, at most 0, a reward beside success; None unless ``use=term``.
    agreement: Tensor | None = None
    # the groups of the rollouts, where other ones came in than were asked for; None: those that were asked for.
    came: Request | None = None
    # state of the rollouts that are not over, where another process imagines; empty: there are none.
    under_way: Mapping[str, Any] = {}
