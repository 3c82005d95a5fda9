"""Arms of ``wovr``, ``sword`` and ``world-vla-loop``: each differs from another in one mechanism of its paper."""

from dataclasses import dataclass

DEFAULT, WORLD = "default", "world"
"""What the arms of the loop and those of a world model differ from."""
PSNR, OUTCOMES, LOOKS = "psnr", "outcomes", "looks"
"""What an arm of a world model is measured by."""
QUANTITY = {
    PSNR: "PSNR after {horizon} steps on unseen episodes (dB), difference",
    OUTCOMES: "share of unseen episodes whose outcome is predicted correctly, difference",
    LOOKS: "the same in visual styles that no training has, difference",
}


@dataclass(frozen=True)
class LoopArm:
    """One run of ``train-vla``; real success after it is compared with that of ``default``."""

    name: str
    statement: str  # of the paper
    settings: tuple[str, ...] = ()  # of train-vla, beside those of all
    # whether all rounds' cycles of imagining and learning are in the world model of the first.
    one_world: bool = False
    without: bool = False  # whether the arm leaves the mechanism out, rather than adds it


@dataclass(frozen=True)
class WorldArm:
    """Dynamics that learn from nothing on the recordings of all; compared with those of ``world``."""

    name: str
    statement: str  # of the paper
    settings: tuple[str, ...] = ()  # of train-world-model, beside those of all
    without: bool = False  # whether the arm leaves the mechanism out, rather than adds it
    measure: str = PSNR
    styled: bool = False  # whether it also learns from copies in sampled visual styles


Arm = LoopArm | WorldArm

WOVR: tuple[Arm, ...] = (
    LoopArm("keyframes", "starts at keyframes raise real success", ("improvement.p_keyframe=0.3",)),
    LoopArm("no-masks", "masks raise real success", ("improvement.stop_at_success=false",), without=True),
    LoopArm("no-coevolution", "a refined world model raises real success", one_world=True, without=True),
    WorldArm("no-anchor", "the first frame as an anchor lessens drift", ("model.dynamics.reference=false",), without=True),
    WorldArm("no-memory-noise", "noise on the memory lessens drift", ("model.dynamics.memory_noise=0",), without=True),
)  # fmt: skip
SWORD: tuple[Arm, ...] = (
    WorldArm("no-own-frames", "training on the model's own frames lessens drift", ("training.bootstrap=0",), without=True),
    WorldArm("latent-buffer", "a buffer of its latents lessens drift", ("training.bootstrap_rows=64",)),
    WorldArm("styles", "augmented styles carry over to unseen ones", measure=LOOKS, styled=True),
)  # fmt: skip
WORLD_VLA_LOOP: tuple[Arm, ...] = (
    LoopArm(
        "no-near-success", "near misses in the collection raise real success",
        ("collection.expert_episodes=0", "collection.policy_episodes=100"), without=True,
    ),
    LoopArm("near-goal", "failures nearest to the goal raise real success", ("collection.near_goal_share=0.33",)),
    LoopArm("no-closed-loop", "the closed loop raises real success", one_world=True, without=True),
    LoopArm("from-supervised", "rounds from the supervised policy raise success", ("improve_from=supervised",)),
    WorldArm(
        "no-joint-reward", "success in the loss of the dynamics predicts outcomes better",
        ("model.success.loss_weight=0",), without=True, measure=OUTCOMES,
    ),
)  # fmt: skip
