"""Settings of the algorithms that improve a policy in imagination, and names of their parts."""

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

PACE = "staleness.json"
"""What a training with ``staleness`` tells of its lag and speed, among its checkpoints."""


@dataclass
class PartNames:
    """Parts that replace a method's own, by name; empty keeps its own. ``worldrl methods`` lists the names."""

    advantage: str = ""  # how a rollout is compared with its group mates.
    selection: str = ""  # which decisions are learned from.
    starts: str = ""  # where rollouts begin.
    budget: str = ""  # how many rollouts each start gets.
    loss: str = ""  # what a gradient step descends.
    control: str = ""  # how far a step may go.


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
    """Settings of GRPO."""

    iterations: int = 30  # batches of imagined groups.
    checkpoint_every: int = 5  # iterations between checkpoints.
    groups: int = 16  # start states ``N`` per iteration.
    # rollouts ``G`` per start state; 1 with an advantage that compares with the start's record.
    group_size: int = 8
    learning_rate: float = 1e-4  # AdamW.
    weight_decay: float = 0.0  # AdamW.
    epochs: int = 1  # passes over each batch.
    minibatch: int = 256  # chunks per gradient step at most; those of a pass have about as many.
    clip_low: float = 0.2  # ε_low.
    clip_high: float = 0.28  # ε_high, larger so that rare good tokens may grow (clip-higher).
    dual_clip: float = 3.0  # bound of the ratio for negative advantages.
    clip_norm: float = 1.0  # gradient norm.
    # groups with a lower success rate are left out where success alone tells their rollouts apart.
    keep_low: float = 0.1
    keep_high: float = 0.9  # groups with a higher one, likewise.
    kl: float = 0.0  # β, weight of the KL to the starting policy; 0 switches it off.
    # α, weight of the KL to the starting policy on rollouts that teach nothing, as all of their group succeed or fail: it
    # holds tasks that are not learned from. 0 switches it off.
    anchor: float = 0.0
    length_normalise: bool = True  # weigh each rollout, not each chunk, equally.
    # give the rollouts of a group different instructions of the task, in turn; the group stays one (PS-GRPO).
    paraphrased: bool = False
    # iterations by which the weights that imagine a batch lie behind those that learn from it; above 0 a process of its
    # own imagines meanwhile.
    staleness: int = 0
    # chunks by which rollouts advance in an iteration; those that are not over continue in the next one, with the
    # weights of then (partial rollouts). 0 waits for all.
    segment_chunks: int = 0
    # groups imagined besides ``groups``; an iteration stops once ``groups`` are complete, the others continue (APRIL).
    spare_groups: int = 0
    parts: PartNames = field(default_factory=PartNames)  # other parts than GRPO's own, by name.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("iterations", "checkpoint_every", "groups"), of="improvement.grpo")
        if self.group_size < 1 or (self.group_size == 1 and not self.parts.advantage):
            raise SettingError(
                f"improvement.grpo.group_size={self.group_size}: a group of one has no signal; give 2 or more, or "
                "improvement.grpo.parts.advantage=against_record"
            )
        if self.partial:
            self._check_partial()
        if not 0 <= self.keep_low < self.keep_high <= 1:
            raise SettingError(
                f"improvement.grpo.keep_low must be in [0, keep_high), and keep_high in (keep_low, 1], got {self.keep_low} and {self.keep_high}"
            )

    @property
    def partial(self) -> bool:
        """Whether rollouts may last for several iterations."""
        return bool(self.segment_chunks or self.spare_groups)

    @property
    def rows(self) -> int:
        """Rollouts imagined at once."""
        return (self.groups + self.spare_groups) * self.group_size

    def _check_partial(self) -> None:
        name = "segment_chunks" if self.segment_chunks else "spare_groups"
        if self.parts.budget:
            raise SettingError(
                f"improvement.grpo.{name} needs groups of one size, and parts.budget={self.parts.budget} makes others; leave one of "
                "them out"
            )
        if self.parts.control == "verified":
            raise SettingError(
                f"improvement.grpo.{name} has rollouts under way between updates, and parts.control=verified imagines others then; "
                "leave one of them out"
            )


@dataclass
class FilteredCloning:
    """Settings of :func:`self_train`."""

    cycles: int = 3  # repetitions of imagining and cloning; rollouts of earlier cycles are kept.
    rollouts: int = 1024  # imagined in each cycle.
    rows: int = 128  # of those at once.
    group_size: int = 1  # rollouts from each start.
    imagined_share: float = 0.7  # share of each gradient step's samples that is imagined; 0 takes none.
    # share of them that is real: successes of the collection of all rounds, by the policy and of executed imagined
    # rollouts. The rest are demonstrations.
    collected_share: float = 0.0
    collected_expert: bool = False  # whether the collecting expert's successes are among those: more demonstrations.
    # whether imagined successes teach actions besides their waypoints; null: where a policy has no waypoint.
    imagined_actions: bool | None = None
    parts: PartNames = field(default_factory=PartNames)  # other parts than its own, by name; no loss and no control.
    processes: int = 1  # processes that imagine side by side, each with its share of the threads; 1 takes none besides.
    # the improve step.
    cloning: BehaviourCloning = field(default_factory=lambda: BehaviourCloning(steps=700, batch_size=96))

    def __post_init__(self) -> None:
        require_at_least_one(self, ("cycles", "rollouts", "rows", "group_size", "processes"), of="self_training")
        for kind in ("loss", "control"):
            if name := getattr(self.parts, kind):
                raise SettingError(
                    f"self_training.parts.{kind}={name}: self_training imitates, and its loss is the cross-entropy; leave it out or give "
                    "improvement.algorithm=grpo"
                )
        for kind in ("starts", "budget"):
            if self.processes > 1 and (name := getattr(self.parts, kind)):
                raise SettingError(
                    f"self_training.processes={self.processes}: parts.{kind}={name} draws each batch from what the one before it "
                    "showed; give processes=1, or leave it out"
                )
        if self.rows % self.group_size:
            raise SettingError(f"self_training.group_size must divide rows {self.rows}, got {self.group_size}")
        if not 0 <= self.imagined_share + self.collected_share <= 1:
            raise SettingError(
                f"self_training.imagined_share and collected_share must not exceed 1 together, got {self.imagined_share} "
                f"and {self.collected_share}"
            )

    def teaches_actions(self, *, waypoint: bool) -> bool:
        """Whether imagined successes teach actions, to a policy with or without a ``waypoint``.

        Raises SettingError (they would teach nothing).
        """
        if self.imagined_actions is None:
            return not waypoint
        if not self.imagined_actions and not waypoint:
            raise SettingError(
                "improvement.self_training.imagined_actions=false: this policy has no waypoint to learn; leave it out"
            )
        return self.imagined_actions

    @property
    def batches(self) -> int:
        """Batches of ``rows`` rollouts per cycle."""
        return -(-self.rollouts // self.rows) if self.imagined_share else 0
