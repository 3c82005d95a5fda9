"""The range of every numeric setting by the last word of its name: one table, checked before a command starts.

A name means the same in all commands, so its range stands here once; a longer name overrides it below a group.
The settings' dataclasses check what depends on other settings. ``tests/test_ranges.py`` requires a range for each
numeric setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from worldrl.core.errors import SettingError

MOST = 10**9
"""Steps, episodes, rows: at one millisecond each, more than eleven days."""


@dataclass(frozen=True)
class Range:
    """An interval of numbers.

    ``above``, ``below``: the lower or upper end itself is outside. ``unit``: key of :data:`COSTS`, empty for no cost.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    unit: str = ""

    def __contains__(self, value: float) -> bool:
        """Whether a number is finite and inside."""
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (value > self.low if self.above else value >= self.low) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        """For messages and ``--help``: ``at least 1``, ``above 0``, ``in [0, 1)``; omits an upper end of at least ``LARGE``."""
        if self.high >= LARGE:
            return "any number" if self.low <= -LARGE else f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"


CHANGE = "change"
"""The setting of ``reproduce`` that holds an effect's numbers by name."""
LARGE = 10**4
"""An upper end from here on is a guard against absurd requests; ``--help`` omits it."""
SHARE, BELOW_ONE, POSITIVE_SHARE = Range(0, 1), Range(0, 1, below=True), Range(0, 1, above=True)
OPEN_SHARE = Range(0, 1, above=True, below=True)
COUNT, FROM_ZERO, AT_LEAST_TWO = (Range(low, MOST, unit="times") for low in (1, 0, 2))
SIZE, SIZE_OR_NONE = (Range(low, 65_536, unit="width") for low in (1, 0))
MODULES, MODULES_OR_NONE = (Range(low, 10_000, unit="modules") for low in (1, 0))
POSITIVE, NON_NEGATIVE, FINITE = Range(0, 1e9, above=True), Range(0, 1e9), Range(-1e9, 1e9)
RATE = Range(0, 1e4, above=True)
SECONDS = Range(0, 1e6, above=True)
PROCESSES = Range(0, 10_000, unit="processes")

YEAR = 365.25 * 86_400
COSTS: dict[str, tuple[float, Callable[[float], float] | None, str]] = {
    "times": (1e-3, lambda count: count * 8, "at 1000 a second and one number each"),
    "width": (0.0, lambda width: 4 * width**2, "one square layer of that width"),
    "modules": (0.0, lambda count: count * 1_000, "1 kB each"),
    "processes": (0.0, lambda count: count * 50e6, "50 MB each"),
}
"""Least cost by unit: seconds for each, bytes of all, and an explanation."""

_NAMES: tuple[tuple[Range, str], ...] = (
    (COUNT, "accumulate|ahead|attempts|backbone_stride|batch|batch_size|batches|block|capacity|checkpoint_epochs|checkpoint_every|"
            "checkpoint_steps|children|chunk_length|chunks|clip_frames|clusters|codec_batch|context|cycles|debounce|"
            "flow_map_rollout_steps|flow_map_sampling_steps|envs|envs_per_worker|evaluate_every|every|explore_steps|explored|"
            "frame_stride|gate_episodes|given_frames|generations|group_size|groups|horizon|horizons|imagined_candidates|iterations|keyframe_margin|"
            "length|log_every|max_epochs|"
            "max_episode_steps|members|minibatch|near_goal_weight|outcome_batch|patch|patience|proposals|prune_interval|"
            "recycle_after|reference_episodes|refit_every|refresh_every|replan|restorer_batch|rollouts|rounds|segments|"
            "snapshot_steps|speed_chunks|speed_rows|stage_chunks|stages|starts_per_task|truncate_after|unroll|"
            "updates_per_step|window|elites|holdout_most"),
    (AT_LEAST_TWO, "bins"),
    (FROM_ZERO, "accept|blind_episodes|bootstrap_rows|candidates|clone_steps|codec_steps|demonstrations|flow_map_steps|on_policy_steps|"
                "episodes|epochs|evaluation_episodes|executed|executed_plans|expert_episodes|failures|filmstrips|first_index|"
                "first_step|frames|hold_steps|imagined_episodes|imagined_rollouts|latency|learning_starts|memory_frames|min_epochs|"
                "noisy_episodes|noisy_from|noisy_steps|outcome_episodes|outcome_steps|planner_episodes|policy_episodes|prompts|prune_depth|"
                "prune_stop|rank|refinement_steps|resampled_rollouts|restarts|restorer_steps|rows|sampling_steps|scattered|seeds|"
                "shift_pixels|splits|steps|stride|styles|target_critics|verify|version|video_episodes|videos|wander_episodes|"
                "warmup_steps|critics|components"),
    (SIZE, "channels|condition|features|heads|hidden|image_size|text_width|value_width|width"),
    (SIZE_OR_NONE, "keypoints|lora_rank|restorer.width"),
    (MODULES, "levels|order"),
    (MODULES_OR_NONE, "blocks|depth|ensemble_size"),
    (Range(1, 4096), "threads"),
    (Range(1, 64), "clients|processes|tabs"),
    (PROCESSES, "workers"),
    (Range(0, 64), "gpus|staleness|segment_chunks|spare_groups"),
    (Range(0, 2**63 - 1), "seed"),
    (Range(0, 65_535), "port"),
    (SECONDS, "timeout_s|render_timeout_s|minutes"),
    (RATE, "actor_rate|codec_learning_rate|critic_rate|learning_rate|new_learning_rate|on_policy_learning_rate|outcome_learning_rate|"
           "restorer_learning_rate"),
    (NON_NEGATIVE, "clone_rate|temperature_rate"),
    (SHARE, "alpha|blur|bootstrap|codec_share|collected_share|command_dropout|confirmed|discordant|distance|event_share|extremes_share|"
            "final_rate|first_chunk_share|first_share|holdout_share|imagined_share|improvement|"
            "keep_high|keep_low|min_threshold|near_goal_share|negative_share|noise_correlation|p_keyframe|precision|"
            "pure_noise_share|real_ratio|real_share|recall|refinement_share|static_share|target_precision|threshold|"
            "trained_share|validation_share|discount|gamma|reward_discount|uncertainty_discount|cosine|power|rate"),
    (BELOW_ONE, "action_dropout|dropout|outcome_dropout|ema_decay|held_out|held_out_fraction"),
    (POSITIVE_SHARE, "polyak|tau|diff"),
    (POSITIVE, "advantage_clip|advantage_max|churn_noise|clip|clip_low|clip_high|clip_norm|dual_clip|largest_temperature|"
               "log_sigma_std|lora_alpha|rho|sigma_data|sigma_high|sigma_low|sigma_start|temperature|min_disk_gb|"
               "min_memory_gb|positive_weight"),
    (NON_NEGATIVE, "action_swap_ratio|anchor|beta|bound_weight|churn|churn_high|churn_low|coefficient|colour|conservative|"
                   "dimension_weights|distance_penalty|diversity|eta|eta_low|fusion|gap|goal_offset|jitter|keep_chroma|kl|"
                   "label_width|latent_noise|light|limit|loss_weight|memory_noise|motion_weight|noise|noise_weight|"
                   "offset_noise|outcome_weight_decay|penalty|psnr|refinement_sigma|salience|shift|static_psnr|texture|"
                   "view_psnr|warmup|way_noise|waypoint_noise|weight|weight_decay|optimistic|input_clip"),
    (COUNT, "actions|actor_every|draws|kept|layers|samples|states|world_batch|world_every|world_horizon|world_steps"),
    (FROM_ZERO, "history|random_actions"),
    (RATE, "encoder_rate|head_rate|world_rate"),
    (OPEN_SHARE, "expectile|false_alarms"),
    (SHARE, "expert_fraction|mixing|quantile|radius_max|radius_min"),
    (POSITIVE, "divergence_scale|initial_temperature|largest_weight|softmax_temperature"),
    (NON_NEGATIVE, "adversary|asymmetry|conservatism|exploration_noise|inconsistency|kappa|least_spread|noise_clip|noise_policy|"
                   "noise_q|noise_spread|policy_noise|spread|spread_decay|weight_policy|weight_q|weight_spread|world_decay"),
    (FINITE, "action_high|action_low|entropy_per_action|ceiling|floor|log_sigma_mean|min_reward|target_entropy|weights"),
)  # fmt: skip
RANGES: dict[str, Range] = {name: range_ for range_, names in _NAMES for name in names.split("|")}
"""Last word of a setting's name, or its last words with dots, to its range."""
RANGES |= {"lora.alpha": POSITIVE, "agent.alpha": NON_NEGATIVE, "recurrent.updates_per_step": POSITIVE}
_NARROWER: tuple[tuple[Range, str], ...] = (
    (COUNT, "extend.steps|check-suite.steps|imagine.episodes|demo.episodes|serve-world-model.rows|evaluate.episodes|evaluate-world-model.episodes|"
            "benchmark.episodes|check-protocol.episodes|check-protocol.workers|train-vla.workers|train-vla.demonstrations|"
            "align-world-model.videos|sampler.steps|probe.episodes|policies.imagined_rollouts|execution.steps|"
            "alignment.prompts|alignment.epochs|denoising.steps|train-policy.training.steps|fine_tuning.steps|cloning.steps|"
            "train-idm.training.steps|trust.idm.training.steps|unet.sampling_steps|codec.rows|self_training.rows|"
            "wan.training.outcome_episodes|trust.grasp.model.steps|train-vla.evaluation.episodes|"
            "train-vla.evaluation.verify|train-offline.training.steps|reproduce.seeds|benchmark-offline.seeds|"
            "rank.episodes|make-dataset.training.steps|make-dataset.training.evaluation_episodes|agent.critics|"
            "planner.candidates|online.warmup"),
    (AT_LEAST_TWO, "policies.resampled_rollouts|execution.members|alignment.group_size|branch_grpo.children|sol_rl.explored|"
                   "step_aware_preference.candidates|near_goal_weight|trust.resampled_rollouts|"
                   "make-dataset.rows|planning.candidates"),
    (SIZE, "train-policy.model.keypoints|train-idm.model.keypoints|grasp.keypoints|policy.keypoints|"
           "trust.idm.model.keypoints|trust.grasp.model.keypoints"),
    (MODULES, "train-policy.model.blocks|train-idm.model.blocks|trust.idm.model.blocks|trust.grasp.model.blocks|grasp.blocks|"
              "policy.blocks|unet.blocks|"
              "train-world-model.model.outcome.ensemble_size|world_model.outcome.ensemble_size|train-offline.ensemble.depth"),
    (BELOW_ONE, "command_dropout|jitter|wan.model.dynamics.memory_noise|step_aware_preference.gap"),
    (SHARE, "success.noise_weight|train-idm.training.beta|trust.idm.training.beta|agent.kappa|agent.asymmetry"),
    (OPEN_SHARE, "dynamics.refinement_sigma|ratio.clip|ensemble_training.holdout_share|agent.mixing"),
    (POSITIVE_SHARE, "make-dataset.training.gamma|dance_grpo.trained_share|branch_grpo.extremes_share|cem.elite_share|trust.idm.real_share|"
                     "trust.grasp.real_share|agent.expert_fraction"),
    (RATE, "agent.clone_rate"),
    (Range(0.5, 1), "agent.weight"),
    (POSITIVE, "diffusion_nft.beta|sol_rl.nft.beta|trust.weight|trust.limit"),
    (NON_NEGATIVE, "imagine.weights|align-world-model.weights"),
    (Range(8, 65_536, unit="width"), "train-policy.model.image_size|train-vla.policy.image_size"),
    (Range(4, MOST, unit="times"), "train-idm.clip_frames"),
    (Range(1, 3), "train-idm.model.window|trust.idm.model.window"),
    (Range(1, 2), "unet.order"),
    (Range(0, 0.5, below=True), "probe.shift"),
)  # fmt: skip
RANGES |= {name: range_ for range_, names in _NARROWER for name in names.split("|")}

_CHANGES: tuple[tuple[Range, str], ...] = (
    (COUNT, "asked|batch_groups|behaviour_steps|buffer|chunk|critics|demonstrations|denoising|episodes|epochs|evaluations|idm_steps|judged|"
            "keypoint_steps|look_every|memory|model_steps|outcome_steps|prompts|recorded|refresh|rounds|rows|sampler_steps|seeds|starts|"
            "steps|stride|tests|trajectories|unseen|updates|world_batch|world_steps"),
    (FROM_ZERO, "behaviour_start|critic_steps|horizon|limit_plans|novelties"),
    (SIZE, "behaviour_hidden|codec_width|idm_width|model_width|width"),
    (SHARE, "centre|epsilon_end|epsilon_share|noisy_share|standardise|trajectory_share"),
    (BELOW_ONE, "ema|limits_margin"),
    (POSITIVE_SHARE, "kept|polyak"),
    (POSITIVE, "radius|ratio_clip|updates_per_step"),
    (RATE, "encoder_lr|head_lr|idm_rate|rate"),
    (NON_NEGATIVE, "critic_weight|guidance|limits_weight"),
)  # fmt: skip
RANGES |= {f"{CHANGE}.{name}": range_ for range_, names in _CHANGES for name in names.split("|")}


def range_of(key: str, command: str = "") -> Range | None:
    """Look up a setting's range by the longest known ending of ``command.key``; None for an unknown name."""
    words = [command, *key.split(".")]
    return next((RANGES[end] for n in range(len(words)) if (end := ".".join(words[n:])) in RANGES), None)


def check_range(key: str, value: Any, command: str = "") -> None:
    """Require a setting's number, or each of its numbers, to be in range; other values pass. Raises SettingError."""
    if isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            check_range(key, item, command)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            check_range(f"{key}.{name}" if key == CHANGE else key, item, command)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        allowed = range_of(key, command)
        if allowed is not None and value not in allowed:
            raise SettingError(
                f"{key} must be {_rule(allowed, value)}, got {value}{_cost(allowed, value)}; give {key}=... in that range"
            )


def _rule(allowed: Range, value: float) -> str:
    """The range in words; includes the upper end if the value exceeds it."""
    return f"{allowed}, and at most {allowed.high:g}" if value > allowed.high >= LARGE else str(allowed)


def _cost(allowed: Range, value: float) -> str:
    """The least cost of an absurd request; empty for a value below the upper end or without known cost."""
    if not allowed.high < value < math.inf or allowed.unit not in COSTS:
        return ""
    seconds, size, why = COSTS[allowed.unit]
    counted = float(min(value, 10**18))  # a lower bound of the cost, without overflow of floats
    costs = [f"{counted * seconds / YEAR:,.1f} years"] if seconds else []
    costs += [f"{size(counted) / 1e9:,.0f} GB"] if size else []
    return f", which would take at least {' and '.join(costs)} ({why})"
