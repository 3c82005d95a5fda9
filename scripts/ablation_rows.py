"""The rows of ``scripts/ablations.py``: what each leaves out or adds, and how much its scale records and trains."""

from dataclasses import dataclass

QUICK, PRACTISED, FULL = "quick", "practised", "full"
SCRATCH = (
    "start=scratch", "rounds=1", "scratch.expert_episodes=200", "scratch.training.codec_steps=1500",
    "scratch.training.steps=3000", "scratch.training.outcome_steps=400",
)  # fmt: skip
DYNAMICS = ("start=scratch", "codec=bundled", "gates=warn")
LEARNING = ("codec_steps=0", "batch=32", "learning_rate=6e-4", "warmup=100", "bootstrap=0.3")
STEPS = {
    QUICK: ("steps=1200", "outcome_steps=800", "ema_decay=0.99"),
    PRACTISED: ("steps=3000", "outcome_steps=1200", "ema_decay=0.997"),
}
RECORDINGS = {
    QUICK: {
        "common": ("expert_episodes=0", "policy_episodes=100", "wander_episodes=15", "temperature=1.0"),
        "near": ("expert_episodes=0", "blind_episodes=100"),
        "plain": ("expert_episodes=100",),
    },
    PRACTISED: {
        "common": ("expert_episodes=0", "policy_episodes=150", "wander_episodes=20", "temperature=1.0"),
        "near": ("expert_episodes=0", "blind_episodes=200"),
        "plain": ("expert_episodes=200",),
    },
}
"""Per task."""
GRPO = "improvement.algorithm=grpo"
UNCLIPPED = ("improvement.grpo.clip_low=1", "improvement.grpo.clip_high=1e9", "improvement.grpo.dual_clip=1e9")
"""The ratio of new to old probability lies in [0, ∞)."""
USUAL = ("common", "near")
STYLED = (*USUAL, "common-styled", "near-styled")


@dataclass(frozen=True)
class WorldRow:
    """What one world model does otherwise than the full one."""

    name: str  # short
    model: tuple[str, ...] = ()  # its settings
    training: tuple[str, ...] = ()  # settings of its training
    data: tuple[str, ...] = USUAL  # recordings that it learns from at the quick and the practised scale
    scratch: tuple[str, ...] = ()  # settings of train-vla at the full scale, beside those
    practice: tuple[str, ...] = ()  # settings of train-vla at the practised scale, beside those
    scales: tuple[str, ...] = (QUICK, PRACTISED, FULL)  # at which it is measured


@dataclass(frozen=True)
class LoopRow:
    """What one train-vla run does otherwise than the default one."""

    name: str  # short, begins with `loop_`
    settings: tuple[str, ...] = ()  # of train-vla
    against: str = "loop_full"  # the row that it differs from in one thing


Row = WorldRow | LoopRow
ROWS: tuple[Row, ...] = (
    WorldRow("full"),
    WorldRow("no_anchor", model=("dynamics.reference=false",)),
    WorldRow("no_memory_noise", model=("dynamics.memory_noise=0",)),
    WorldRow("no_bootstrapping", training=("bootstrap=0",)),
    # Sword's: bootstrapped steps go on from rollouts as deep as episodes, not from two chunks of the model's own.
    WorldRow("latent_buffer", training=("bootstrap_rows=64",)),
    WorldRow("no_success_loss", model=("success.loss_weight=0",)),
    WorldRow("no_noise_weight", model=("success.noise_weight=0",)),
    # As many episodes, none of them the blind expert's.
    WorldRow(
        "no_near_success", data=("common", "plain"),
        scratch=("scratch.expert_episodes=0", "collection.expert_episodes=0", "collection.policy_episodes=300"),
        practice=("collection.expert_episodes=0", "collection.policy_episodes=100"),
    ),
    WorldRow("styles", data=STYLED, scratch=("styles=1",), practice=("styles=1",)),
    WorldRow("no_static_clips", training=("static_share=0",)),
    WorldRow("no_first_chunks", training=("first_chunk_share=0",)),
    WorldRow("no_action_modulation", model=("dynamics.action_modulation=false",)),
    WorldRow("no_action_tokens", model=("dynamics.action_tokens=false",)),
    WorldRow("no_pose_map", model=("dynamics.pose_map=false",)),
    WorldRow("no_debounce", model=("outcome.debounce=1",)),
    LoopRow("loop_full"),
    # As many cycles of imagining and learning, none of them in a world model that saw what the first one taught.
    LoopRow("loop_no_coevolution", ("rounds=1", "improvement.self_training.cycles=2")),
    LoopRow("loop_no_masks", ("improvement.stop_at_success=false",)),
    LoopRow("loop_no_near_success", ("collection.expert_episodes=0", "collection.policy_episodes=100")),
    LoopRow("loop_near_goal", ("collection.near_goal_share=0.33",)),
    LoopRow("loop_keyframes", ("improvement.p_keyframe=0.3",)),
    LoopRow("loop_hallucination", ("improvement.p_keyframe=1.0", "improvement.keyframe_schedule=hallucination")),
    LoopRow("loop_from_supervised", ("improve_from=supervised",)),
    LoopRow("loop_groups_of_4", ("improvement.self_training.group_size=4",)),
    LoopRow("loop_opinions", ("improvement.trust.confidence_score=min_resampled",)),
    LoopRow("loop_grasp", ("improvement.trust.confidence_score=grasp_agreement",)),
    LoopRow("loop_strict", ("target_precision=0.93",)),
    LoopRow("loop_grpo", (GRPO,)),
    LoopRow("loop_grpo_no_masks", (GRPO, "improvement.stop_at_success=false"), against="loop_grpo"),
    LoopRow("loop_grpo_no_filter", (GRPO, "improvement.grpo.keep_low=0", "improvement.grpo.keep_high=1"), against="loop_grpo"),
    LoopRow("loop_grpo_no_clip", (GRPO, *UNCLIPPED), against="loop_grpo"),
    LoopRow("loop_grpo_no_lengths", (GRPO, "improvement.grpo.length_normalise=false"), against="loop_grpo"),
    # Inverse dynamics as a reward of its own: what was read off the imagined frames against what was commanded.
    LoopRow("loop_grpo_motion", (GRPO, "improvement.trust.confidence_score=motion_agreement", "improvement.trust.use=term"), against="loop_grpo"),
)  # fmt: skip


ROW = {row.name: row for row in ROWS}


def rows_of(scale: str) -> tuple[Row, ...]:
    """Rows that a scale has; the loop's belong to all."""
    return tuple(row for row in ROWS if isinstance(row, LoopRow) or scale in row.scales)
