"""Names for interchangeable parts: a configuration contains ``kind: token``, and the registry finds the class.

A part is ``"module:attribute"``, imported at first use: listing names is cheap, and a configuration cannot name
an arbitrary callable. Other packages add parts through entry points, for example in ``pyproject.toml``::

    [project.entry-points."worldrl.policies"]
    my_policy = "my_package.policy:MyPolicy"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from worldrl.core.errors import SettingError, nearest
from worldrl.core.lookup import named

T = TypeVar("T")


class Registry(Generic[T]):
    """Name to lazily imported factory, one instance per kind of part.

    ``kind`` is used in messages; ``group`` is the entry-point group of plug-ins; ``setting`` is how a command line names
    a part, for example ``"train-vla improvement.algorithm={}"``, or empty.
    """

    def __init__(self, kind: str, group: str, setting: str = "") -> None:
        self.kind = kind
        self.group = group
        self.setting = setting
        self._targets: dict[str, str] = {}
        self._plugins_read = False

    def register(self, name: str, target: str) -> None:
        """Add a part ``"module:attribute"``; SettingError for a name that is taken or a target of another form."""
        module, separator, attribute = target.partition(":")
        if not (module and separator and attribute):
            raise SettingError(f"{self.kind} {name!r}: target must read 'module:attribute', got {target!r}")
        if name in self._targets:
            raise SettingError(
                f"{self.kind} {name!r} is registered twice: {self._targets[name]!r} and {target!r}; rename one"
            )
        self._targets[name] = target

    def register_all(self, folder: str = "", **targets: str) -> None:
        """Add parts of worldrl: ``name="module:attribute"``, the module below ``worldrl.<folder>``."""
        for name, target in targets.items():
            self.register(name, ".".join(filter(None, ("worldrl", folder, target))))

    def target(self, name: str) -> str:
        """Return the part's ``"module:attribute"``; imports nothing."""
        self._read_plugins()
        return self._targets[name]

    def names(self) -> list[str]:
        """Every registered name, sorted; imports no part."""
        self._read_plugins()
        return sorted(self._targets)

    def get(self, name: str) -> Callable[..., T]:
        """Import and return the factory called ``name``; SettingError for an unknown name or a missing target."""
        self._read_plugins()
        if name not in self._targets:
            raise SettingError(f"unknown {self.kind} {name!r}{nearest(name, self._targets)}")
        module, _, attribute = self._targets[name].partition(":")
        try:
            return cast("Callable[..., T]", named(self._targets[name]))
        except AttributeError as error:
            raise SettingError(f"{self.kind} {name!r}: module {module} has no {attribute!r}") from error

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        for plugin in _plugins(self.group):
            self.register(plugin.name, plugin.value)
        self._plugins_read = True


def _plugins(group: str) -> list[EntryPoint]:
    """Entry points of a group in a fixed order; tests replace this function."""
    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


WORLD_MODELS: Registry[Any] = Registry("world model", "worldrl.world_models")
POLICIES: Registry[Any] = Registry("policy", "worldrl.policies")
REWARDS: Registry[Any] = Registry("reward", "worldrl.rewards")
ALGORITHMS: Registry[Any] = Registry("algorithm", "worldrl.algorithms")
TERMINATIONS: Registry[Any] = Registry("termination rule", "worldrl.terminations")
"""Rules of (obs, action, next_obs), for tasks without a rule in ``world_models.state.terminations``."""

VIDEO_REWARDS: Registry[Any] = Registry("video reward", "worldrl.video_rewards", "align-world-model rewards=[{}]")
"""Rewards of whole imagined videos: called with a folder (may be empty), the terms wanted (none: all) and a device."""

# The interfaces of RL in imagination: worldrl.methods.rl.interfaces. Settings name them under ``parts``.
REWARD_MIXES: Registry[Any] = Registry("reward mix", "worldrl.reward_mixes", "align-world-model mixing={}")
ADVANTAGES: Registry[Any] = Registry("advantage estimator", "worldrl.advantage_estimators", "parts.advantage={}")
SELECTORS: Registry[Any] = Registry("sample selector", "worldrl.sample_selectors", "parts.selection={}")
START_SAMPLERS: Registry[Any] = Registry("start sampler", "worldrl.start_samplers", "parts.starts={}")
BUDGETS: Registry[Any] = Registry("budget allocator", "worldrl.budget_allocators", "parts.budget={}")
SCHEDULES: Registry[Any] = Registry("rollout schedule", "worldrl.rollout_schedules")
LOG_PROBS: Registry[Any] = Registry("log-probability", "worldrl.log_probs")
LOSSES: Registry[Any] = Registry("policy loss", "worldrl.policy_losses", "parts.loss={}")
CONTROLS: Registry[Any] = Registry("update controller", "worldrl.update_controllers", "parts.control={}")
ALIGNMENTS: Registry[Any] = Registry("alignment method", "worldrl.alignments", "align-world-model method={}")
IMPROVEMENTS: Registry[Any] = Registry("improvement", "worldrl.improvements", "train-vla improvement.algorithm={}")

# fmt: off
WORLD_MODELS.register_all(video="world_models.video.model:VideoWorldModel", wan="world_models.wan.model:WanWorldModel")
POLICIES.register_all(token="policies.token.policy:TokenPolicy")
REWARDS.register_all(success="rewards.success:SuccessRule")
VIDEO_REWARDS.register_all(
    idm="rewards.motion.decoded:idm_reward", similarity="rewards.motion.similarity:similarity_reward",
    foresight="rewards.motion.foresight:foresight_reward", success="rewards.video_success:success_reward",
    execution="rewards.execution_critic:execution_reward", rules="rewards.motion.kept_rules:rules_reward",
)
ALGORITHMS.register_all(
    behaviour_cloning="methods.imitation.behaviour_cloning:train_policy", grpo="methods.rl.improve:improve",
)
ALGORITHMS.register_all(
    "methods.offline", bc="bc:Bc", td3_bc="td3_bc:Td3Bc", iql="iql:Iql", cql="cql:Cql", sac="sac:Sac", sac_n="sac_n:SacN",
    edac="edac:Edac", ravl="ravl:Ravl", mbpo="mbpo:Mbpo", mopo="mopo:Mopo", combo="combo:Combo", rambo="rambo:Rambo",
    mobile="mobile:Mobile", ro2o="ro2o:Ro2o", f_dvl="dual_rl:FDvl", recoil="dual_rl:Recoil", neubay="neubay.neubay:Neubay",
)
TERMINATIONS.register_all(
    "world_models.state", never="terminations:never", hopper="terminations:hopper", walker2d="terminations:walker2d",
    ant="terminations:ant", humanoid="terminations:humanoid", inverted_pendulum="terminations:inverted_pendulum",
)
REWARD_MIXES.register_all("rewards", gdpo="mixing:mix", mean="mixing:mean_of_terms")
ADVANTAGES.register_all(
    "methods.rl", group_std="advantages:group_std", batch_std="advantages:batch_std", mean_only="advantages:mean_only",
    leave_one_out="advantages:leave_one_out", median="advantages:median", as_given="advantages:as_given",
    mixed_certainty="advantages:mixed_certainty", against_one="advantages:against_one", shrunk="advantages:shrunk",
    against_record="advantages:against_record", single_rollout="advantages:single_rollout",
    entropy_aware="advantages:entropy_aware", novelty="advantages:novelty",
    process_advantage="credit:process_advantage", verified_steps="credit:verified_steps",
    redistributed="credit:redistributed", anchored="credit:anchored", shared_steps="credit:shared_steps",
)
ADVANTAGES.register_all(
    "methods.alignment", by_depth="branch_grpo:by_depth", fork_relative="branch_grpo:fork_relative",
)
SELECTORS.register_all(
    "methods.rl", everything="selection:everything", informative="selection:informative",
    random_steps="selection:random_steps", extremes="selection:extremes",
    largest_variance="selection:largest_variance", successes="selection:successes",
    two_levels="selection:two_levels", advancing="selection:advancing",
)
SELECTORS.register_all("methods.alignment", parent_best="branch_grpo:parent_best")
START_SAMPLERS.register_all(
    "methods.rl", balanced="starts:balanced", permuted="starts:permuted", mopps="starts:mopps",
    hardest="starts:hardest", difficulty_bins="starts:difficulty_bins",
    self_evolving_curriculum="starts:self_evolving_curriculum",
)
BUDGETS.register_all(
    "methods.rl", uniform="budgets:uniform", root_variance="budgets:root_variance", knapsack="budgets:knapsack",
    shrinking_interval="budgets:shrinking_interval", equal_treatment="budgets:equal_treatment",
    hardness_weighted="budgets:hardness_weighted",
)
SCHEDULES.register_all("methods", at_once="rl.method:at_once", two_stages="alignment.sol_rl:TwoStages")
LOG_PROBS.register_all(
    "methods", tokens="rl.grpo:TokenLogProb", denoising="alignment.ratio:DenoisingLogProb",
    forward_process="alignment.diffusion_nft:ForwardProcess", pairs="alignment.step_aware_preference:PairLogProb",
)
LOSSES.register_all(
    "methods.rl", clipped="losses:clipped", gaussian_trust="losses:gaussian_trust", nft="losses:nft",
    preference="losses:preference", prefix_minimum="ratios:prefix_minimum", balanced_clip="ratios:balanced_clip",
    leftover="ratios:leftover", kept_gradient="ratios:kept_gradient", decoupled="ratios:decoupled",
    mismatch_mask="ratios:mismatch_mask", with_demonstrations="ratios:with_demonstrations",
)
CONTROLS.register_all(
    "methods.rl", unchecked="control:Unchecked", kl_stop="control:KlStop", effective_share="control:EffectiveShare",
    verified="control:Verified",
)
ALIGNMENTS.register_all(
    "methods.alignment", flow_grpo="flow_grpo:flow_grpo", dance_grpo="dance_grpo:dance_grpo",
    branch_grpo="branch_grpo:branch_grpo", diffusion_nft="diffusion_nft:diffusion_nft", sol_rl="sol_rl:sol_rl",
    step_aware_preference="step_aware_preference:step_aware_preference",
)
IMPROVEMENTS.register_all("methods.rl", grpo="grpo:train_grpo", self_training="filtered_cloning:self_train")
