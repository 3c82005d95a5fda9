"""Settings of the algorithms that improve a policy in imagination, and names of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from worldrl.core.errors import SettingError, require_at_least_one
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.rl.interfaces import (
    AdvantageEstimator,
    BudgetAllocator,
    PolicyLoss,
    SampleSelector,
    StartSampler,
    UpdateController,
)


@dataclass
class PartNames:
    """Parts that replace a method's own, by name; empty keeps its own. ``worldrl methods`` lists the names.

    Attributes:
        advantage: how a rollout is compared with its group mates.
        selection: which decisions are learned from.
        starts: where rollouts begin.
        budget: how many rollouts each start gets.
        loss: what a gradient step descends.
        control: how far a step may go.
    """

    advantage: str = ""
    selection: str = ""
    starts: str = ""
    budget: str = ""
    loss: str = ""
    control: str = ""


@dataclass(frozen=True)
class Parts:
    """What :class:`PartNames` name; None keeps the method's own."""

    advantage: AdvantageEstimator | None = None
    selection: SampleSelector | None = None
    starts: StartSampler | None = None
    budget: BudgetAllocator | None = None
    loss: PolicyLoss | None = None
    control: Callable[..., UpdateController] | None = None


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
        keep_low: groups with a lower success rate are left out where success alone tells their rollouts apart.
        keep_high: groups with a higher one, likewise.
        kl: β, weight of the KL to the starting policy; 0 switches it off.
        length_normalise: weigh each rollout, not each chunk, equally.
        parts: other parts than GRPO's own, by name.
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
    parts: PartNames = field(default_factory=PartNames)

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


@dataclass
class FilteredCloning:
    """Settings of :func:`self_train`.

    Attributes:
        cycles: repetitions of imagining and cloning; rollouts of earlier cycles are kept.
        rollouts: imagined in each cycle.
        rows: of those at once.
        group_size: rollouts from each start.
        imagined_share: share of each gradient step's samples that is imagined; the rest are demonstrations.
        cloning: the improve step.
    """

    cycles: int = 1
    rollouts: int = 3072
    rows: int = 128
    group_size: int = 1
    imagined_share: float = 0.7
    cloning: BehaviourCloning = field(default_factory=lambda: BehaviourCloning(steps=1500, batch_size=96))

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_at_least_one(self, ("cycles", "rollouts", "rows", "group_size"), of="self_training")
        if self.rows % self.group_size:
            raise SettingError(f"self_training.group_size must divide rows {self.rows}, got {self.group_size}")
        if not 0 < self.imagined_share <= 1:
            raise SettingError(f"self_training.imagined_share must be in (0, 1], got {self.imagined_share}")

    @property
    def batches(self) -> int:
        """Batches of ``rows`` rollouts per cycle."""
        return -(-self.rollouts // self.rows)
