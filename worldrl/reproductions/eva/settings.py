"""Settings of ``eva``: demonstrations, models, alignment and tests."""

from __future__ import annotations

from dataclasses import dataclass

from worldrl.core.errors import SettingError, nearest
from worldrl.evaluation.policy.protocol import CLEAN, DOMAINS
from worldrl.recipes.run import choose_tasks
from worldrl.rewards.execution_critic import TERM as EXECUTION
from worldrl.rewards.motion.broken_limits import CLEAR, WITHIN
from worldrl.rollout.imagined.starts import task_horizons

KIND = "bimanual"
TERM = "moving_executability"
"""The reward: EVA's, with constants re-fitted to the noise floor, times the motion content."""
GIVEN = ("recorded", "restored", "imagined-true-actions")
"""Arms that plan nothing: kept demonstrations, and which link between a picture and a success is weak."""
CONTROLS = ("longer", "imitate")
"""Arms that go on with the planner's own training instead of aligning it; the second with what practice executed."""
ALIGNED = ("flow-grpo", "branch-grpo", "sol-rl", "full-pool")
ARMS = (*GIVEN, "none", *CONTROLS, "best-of-n", "staged", *ALIGNED)
COMPARED = ("none", "flow-grpo")
"""Arms that every claim is of."""
ALL = "all"
TRAINED = 3
"""What a trained row counts."""


@dataclass(frozen=True)
class EvaSettings:
    """Settings of demonstrations, models, alignment and tests.

    Attributes:
        seeds: how many.
        tasks: ``bimanual`` for all seven, or names joined by ``+``.
        domain: ``clean``, or ``randomised`` in look, clutter and table height: of demonstrations, practice and tests alike.
        arms: ``all``, or names joined by ``+``, ``none`` and ``flow-grpo`` among them; ``imitate`` needs practice, and is not
            one of all without.
        demonstrations: per task, failures of the expert among them; only successes are learned from.
        noisy_share: of them whose expert is disturbed, so that states beside its path are seen, and how it comes back.
        noise: how much, in the expert's own units: 1 cm of each tool per control step.
        hold_steps: control steps after the first success, so that a plan can end in rest.
        kept: share of the successes that neither model learns from.
        image_size: pixels of the head camera.
        chunk: control steps of a chunk.
        stride: control steps between imagined frames.
        codec_width: tokens of the frame codec.
        codec_steps: of its training.
        width: of the video model.
        depth: its blocks.
        world_steps: of its training.
        world_rate: its peak learning rate.
        ema: of the averaged weights that are kept.
        batch: windows per step.
        first_chunk_share: of the windows, those that start an episode, as every plan does.
        event_share: those around gripper changes and contacts.
        static_share: static clips.
        action_dropout: windows that are told the instruction instead of their actions, which is to plan; the rest keeps what
            ``imagined-true-actions`` diagnoses.
        bootstrap: steps that go on from what the model imagined itself.
        unroll: chunks of a window.
        latent_noise: on the codec's latents where the inverse dynamics learns through it, and where its noise is measured.
        idm_width: channels of the inverse dynamics.
        idm_steps: of its training.
        idm_rate: its peak learning rate.
        executed_plans: plans per task that are executed before any alignment, from states of their own, for a critic (``eva_critic``)
            whose reward is mixed with the executability by GDPO; 0 trains none.
        critic_steps: of the critic's training.
        critic_weight: of its reward beside the executability's 1.
        limits_weight: of the smooth penalty on broken limits (``rewards.motion.broken_limits``) beside the executability's 1, by
            GDPO; 0 leaves it out.
        limits_margin: share of each bound, of a position of half its range, from which inside on that penalty begins; 0 begins where a
            bound is broken, which some two plans in a hundred do. Measured bounds are 1.5 times what real motion keeps to: 0.33 begins
            about where it ends.
        limit_plans: plans of each arm with weights of its own whose broken limits are counted without executing them, all tasks
            together (``eva_limits``); 0 counts those of executed plans alone.
        iterations: of the alignment.
        prompts: starts per iteration.
        chunks: length of the videos that are aligned, and of those that the reward's constants are measured on.
        denoising: steps per chunk, in alignment and in tests.
        rate: learning rate of the alignment.
        ratio_clip: range of the ratios in GRPO and BranchGRPO; a chunk of 64 pixels has a tenth of the numbers that 1e-4 is for.
        explored: videos per start that Sol-RL looks at, with a quarter of the steps.
        look_every: iterations between two measurements of the reward on kept starts.
        tests: initial states per task.
        horizon: control steps that are planned; then the last targets are held to the task's limit. 0 plans to that limit.
        proposals: videos per stage of the staged plans.
    """

    seeds: int = 5
    tasks: str = KIND
    domain: str = CLEAN
    arms: str = ALL
    demonstrations: int = 240
    noisy_share: float = 0.5
    noise: float = 0.2
    hold_steps: int = 24
    kept: float = 0.1
    image_size: int = 64
    chunk: int = 16
    stride: int = 4
    codec_width: int = 128
    codec_steps: int = 4000
    width: int = 192
    depth: int = 6
    world_steps: int = 20000
    world_rate: float = 6e-4
    ema: float = 0.998
    batch: int = 32
    first_chunk_share: float = 0.3
    event_share: float = 0.2
    static_share: float = 0.0
    action_dropout: float = 0.9
    bootstrap: float = 0.5
    unroll: int = 3
    latent_noise: float = 0.15
    idm_width: int = 48
    idm_steps: int = 12000
    idm_rate: float = 2e-3
    executed_plans: int = 0
    critic_steps: int = 900
    critic_weight: float = 4.0
    limits_weight: float = 0.0
    limits_margin: float = 0.0
    limit_plans: int = 0
    iterations: int = 100
    prompts: int = 8
    chunks: int = 3
    denoising: int = 4
    rate: float = 3e-5
    ratio_clip: float = 1e-3
    explored: int = 48
    look_every: int = 5
    tests: int = 60
    horizon: int = 0
    proposals: int = 4

    def __post_init__(self) -> None:
        """Check the ranges that the rooms below do not check."""
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
            return tuple(arm for arm in ARMS if arm != "imitate" or self.executed_plans)
        return tuple(arm for arm in ARMS if arm in self.arms.split("+"))

    @property
    def video_frames(self) -> int:
        """Frames of an aligned video, the recorded first one among them."""
        return 1 + self.chunks * self.chunk // self.stride


def task_names_of(settings: EvaSettings) -> list[str]:
    """Return the names of the tasks."""
    return choose_tasks([], KIND) if settings.tasks == KIND else choose_tasks(settings.tasks.split("+"), None)


def check_arms(settings: EvaSettings) -> None:
    """Refuse arms that do not exist, cannot be, or say nothing alone; SettingError."""
    named = settings.methods if settings.arms == ALL else settings.arms.split("+")
    for arm in named:
        if arm not in ARMS:
            raise SettingError(f"change.arms: unknown arm {arm!r}{nearest(arm, ARMS)}")
    if missing := [arm for arm in COMPARED if arm not in named]:
        raise SettingError(f"change.arms: every claim is of {' and '.join(COMPARED)}; add {missing[0]}")
    if "imitate" in named and not settings.executed_plans:
        raise SettingError("change.arms: imitate learns from executed plans; give change.executed_plans=N with it")


def term_weights(settings: EvaSettings) -> dict[str, float]:
    """What is optimised: the reward's terms with their weights, in the order of ``Parts.reward``."""
    limits = {limits_term(settings): settings.limits_weight} if settings.limits_weight else {}
    return {TERM: 1.0, **limits, **({EXECUTION: settings.critic_weight} if settings.executed_plans else {})}


def limits_term(settings: EvaSettings) -> str:
    """Name the penalty on limits: broken ones, or with a margin those that are nearly broken, too."""
    return CLEAR if settings.limits_margin else WITHIN


def check_limits(settings: EvaSettings) -> None:
    """Refuse a penalty on limits that cannot be, or a margin without one; SettingError."""
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
    """Videos per start: as many as BranchGRPO's tree has leaves when it splits once in every chunk."""
    return 2**settings.chunks


def alignment_rows(settings: EvaSettings) -> int:
    """What plain GRPO's alignment costs in rows of the network.

    It evaluates every row of its videos once and trains on those whose step added noise, all but the last of each chunk.
    """
    videos = settings.iterations * settings.prompts * group_size(settings) * settings.chunks
    return videos * (settings.denoising + TRAINED * (settings.denoising - 1))


def collection_rows(settings: EvaSettings) -> int:
    """What planning for practice costs."""
    return settings.executed_plans * plan_rows(settings)


def plan_rows(settings: EvaSettings) -> int:
    """What one plan of every task costs."""
    return settings.denoising * sum(chunks_to(settings, task) for task in task_names_of(settings))


def chunks_to(settings: EvaSettings, task: str) -> int:
    """Chunks of a plan that lasts to the horizon."""
    return -(-(settings.horizon or task_horizons([task])[task]) // settings.chunk)
