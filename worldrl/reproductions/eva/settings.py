"""Settings of ``eva``: demonstrations, models, alignment and tests."""

from dataclasses import dataclass

from worldrl.core.errors import SettingError, nearest
from worldrl.evaluation.policy.protocol import CLEAN, DOMAINS
from worldrl.recipes.run import choose_tasks
from worldrl.rewards.execution_critic import TERM as EXECUTION
from worldrl.rewards.motion.broken_limits import CLEAR, WITHIN
from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND

KIND = "bimanual"
TERM = "moving_executability"
"""The reward: EVA's, with constants re-fitted to the noise floor, times the motion content."""
GIVEN = ("recorded", "restored", "imagined-true-actions")
"""Arms that plan nothing: kept demonstrations, and which link between an image and a success is weak."""
CONTROLS = ("longer", "imitate")
"""Arms that continue with the planner's own training instead of aligning it; the second with what practice executed."""
OTHERS = ("dance-grpo", "fork-relative", "diffusion-nft", "coupled-nft", "step-aware-preference", "mean-mixing")
"""Aligned arms that run only where they are named."""
ALIGNED = ("flow-grpo", "branch-grpo", "sol-rl", "full-pool", *OTHERS)
ARMS = (*GIVEN, "none", *CONTROLS, "best-of-n", "staged", *ALIGNED)
COMPARED = ("none", "flow-grpo")  # Arms that every claim is of
ALL = "all"
TRAINED = 3  # What a trained row counts


@dataclass(frozen=True)
class EvaSettings:
    """Settings of demonstrations, models, alignment and tests."""

    seeds: int = 5
    tasks: str = KIND  # `bimanual` for all seven, or names joined by `+`
    # `clean`, or `randomised` in visual style, clutter and table height; of all recordings and tests.
    domain: str = CLEAN
    # `all`, or names joined by `+`, with `none` and `flow-grpo`; `imitate` needs `executed_plans`, and without them is
    # not one of all. The arms of `OTHERS` are not among all.
    arms: str = ALL
    demonstrations: int = 240  # per task, failures of the expert included; only successes are learned from
    # Share of demonstrations with a disturbed expert, so that states beside its path and recoveries occur.
    noisy_share: float = 0.5
    noise: float = 0.2  # of the disturbed expert; 1 is 1 cm of each tool per control step
    hold_steps: int = 24  # control steps after the first success, so that a plan can end in rest
    kept: float = 0.1  # share of the successes that no model learns from
    image_size: int = 64  # pixels of the head camera
    chunk: int = 16  # control steps of a chunk
    stride: int = 4  # control steps between imagined frames
    codec_width: int = 128  # tokens of the frame codec
    codec_steps: int = 4000
    width: int = 192
    depth: int = 6
    world_steps: int = 20000  # of the video model's training, with `world_rate` as its peak learning rate
    world_rate: float = 6e-4
    ema: float = 0.998  # decay of the averaged weights that are used
    batch: int = 32  # windows per step
    first_chunk_share: float = 0.3  # share of windows at the start of an episode, as every plan
    event_share: float = 0.2  # share of windows around gripper changes and contacts
    static_share: float = 0.0  # share of static clips
    # Share of windows with the instruction in place of actions, as in planning; the other windows serve
    # `imagined-true-actions`.
    action_dropout: float = 0.9
    bootstrap: float = 0.5  # share of steps that continue from the model's own imagination
    unroll: int = 3  # chunks of a window
    latent_noise: float = 0.15  # on the codec's latents, in training and measuring the inverse dynamics model
    idm_width: int = 48  # channels of the inverse dynamics model
    idm_steps: int = 12000
    idm_rate: float = 2e-3
    # Plans per task that are executed before any alignment, for the critic (`critic.py`); 0 trains none.
    executed_plans: int = 0
    critic_steps: int = 900
    critic_weight: float = 4.0  # of the critic's reward beside the executability's 1, mixed by GDPO
    # Of the smooth penalty on broken limits (`rewards.motion.broken_limits`) beside the executability's 1, mixed by
    # GDPO; 0 leaves it out.
    limits_weight: float = 0.0
    # Share of each bound (of a position: of half its range) inside it where that penalty begins. 0 begins at the bound,
    # which some two plans in a hundred break. Bounds are 1.5 times the range of real motion, so 0.33 begins about where
    # that ends.
    limits_margin: float = 0.0
    # Plans of each arm with weights of its own whose broken limits are counted without execution, all tasks together
    # (`limits.py`); 0 counts those of executed plans alone.
    limit_plans: int = 0
    iterations: int = 100
    prompts: int = 8  # starts per iteration of the alignment
    chunks: int = 3  # length of the aligned videos, and of those that measure the reward's constants
    denoising: int = 4  # steps per chunk, in alignment and in tests
    rate: float = 3e-5  # learning rate of the alignment
    # Range of the ratios in GRPO and BranchGRPO; a chunk of 64 pixels has a tenth of the numbers that 1e-4 is for.
    ratio_clip: float = 1e-3
    explored: int = 48  # videos per start in Sol-RL's exploration, with a quarter of the steps
    look_every: int = 5  # iterations between two measurements of the reward on held-out starts
    tests: int = 60  # initial states per task
    horizon: int = 0  # planned control steps; the last targets are held afterwards. 0 plans to the task's limit.
    proposals: int = 4  # videos per stage of the staged plans

    def __post_init__(self) -> None:
        for name in ("noisy_share", "kept"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"change.{name}: must be in [0, 1], got {getattr(self, name)}")
        task_names_of(self)
        check_arms(self)
        if self.domain not in DOMAINS:
            raise SettingError(f"change.domain must be one of {', '.join(DOMAINS)}, got {self.domain!r}")
        check_limits(self)
        if self.executed_plans < 0 or self.critic_weight <= 0:
            raise SettingError(
                f"change.executed_plans must be 0 or more and change.critic_weight above 0, got {self.executed_plans} and {self.critic_weight}"
            )

    @property
    def methods(self) -> tuple[str, ...]:
        """The arms that are run, in their order."""
        if self.arms == ALL:
            return tuple(arm for arm in ARMS if arm not in OTHERS and (arm != "imitate" or self.executed_plans))
        return tuple(arm for arm in ARMS if arm in self.arms.split("+"))

    @property
    def video_frames(self) -> int:
        """Frames of an aligned video, the recorded first one included."""
        return 1 + self.chunks * self.chunk // self.stride


def task_names_of(settings: EvaSettings) -> list[str]:
    """Return the names of the tasks."""
    return choose_tasks([], KIND) if settings.tasks == KIND else choose_tasks(settings.tasks.split("+"), None)


def check_arms(settings: EvaSettings) -> None:
    """SettingError for unknown arms, impossible ones, or a choice without a comparison."""
    named = settings.methods if settings.arms == ALL else settings.arms.split("+")
    for arm in named:
        if arm not in ARMS:
            raise SettingError(f"change.arms: unknown arm {arm!r}{nearest(arm, ARMS)}")
    if missing := [arm for arm in COMPARED if arm not in named]:
        raise SettingError(f"change.arms: every claim is of {' and '.join(COMPARED)}; add {missing[0]}")
    if "imitate" in named and not settings.executed_plans:
        raise SettingError("change.arms: imitate learns from executed plans; give change.executed_plans=N with it")


def term_weights(settings: EvaSettings) -> dict[str, float]:
    """Weights of the optimised terms, in the order of ``Parts.reward``."""
    limits = {limits_term(settings): settings.limits_weight} if settings.limits_weight else {}
    return {TERM: 1.0, **limits, **({EXECUTION: settings.critic_weight} if settings.executed_plans else {})}


def limits_term(settings: EvaSettings) -> str:
    """Name of the penalty on limits: on broken ones, with a margin also on nearly broken ones."""
    return CLEAR if settings.limits_margin else WITHIN


def check_limits(settings: EvaSettings) -> None:
    """SettingError for an impossible penalty on limits, or a margin without one."""
    for name in ("limits_weight", "limit_plans"):
        if getattr(settings, name) < 0:
            raise SettingError(f"change.{name} must be 0 or more, got {getattr(settings, name)}")
    if not 0 <= settings.limits_margin < 1:
        raise SettingError(f"change.limits_margin must be in [0, 1), got {settings.limits_margin}")
    if settings.limits_margin and not settings.limits_weight:
        raise SettingError(
            "change.limits_margin: is of the penalty on limits; give change.limits_weight above 0 with it"
        )


# --- what is spent --------------------------------------------------------------------------------------------------


def group_size(settings: EvaSettings) -> int:
    """Videos per start: the leaves of BranchGRPO's tree with one split per chunk."""
    return 2**settings.chunks


def alignment_rows(settings: EvaSettings) -> int:
    """Rows of plain GRPO's alignment: each evaluated once, all but each chunk's last (no noise) trained on."""
    videos = settings.iterations * settings.prompts * group_size(settings) * settings.chunks
    return videos * (settings.denoising + TRAINED * (settings.denoising - 1))


def collection_rows(settings: EvaSettings) -> int:
    """Rows of planning the collection."""
    return settings.executed_plans * plan_rows(settings)


def plan_rows(settings: EvaSettings) -> int:
    """Rows of one plan of every task."""
    return settings.denoising * sum(chunks_to(settings, task) for task in task_names_of(settings))


def chunks_to(settings: EvaSettings, task: str) -> int:
    """Chunks of a plan that lasts to the horizon."""
    return -(-(settings.horizon or EMBEDDED_BACKEND.horizons([task])[task]) // settings.chunk)
