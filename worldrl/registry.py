"""Names for interchangeable parts: a configuration says ``kind: token``, and the registry finds the class.

A part is written as ``"module:attribute"`` and imported at its first use, so listing names stays cheap and a
configuration file can only choose among registered names, never name an arbitrary callable. Other packages add
parts through entry points, for example in their ``pyproject.toml``::

    [project.entry-points."worldrl.policies"]
    my_policy = "my_package.policy:MyPolicy"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from worldrl.core.errors import SettingError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Name to lazily imported factory, one instance per kind of part.

    Args:
        kind: what the names stand for, used in messages, for example ``"policy"``.
        group: entry-point group that other packages may add to.
        setting: how a command line names a part, for example ``"train-vla improvement.algorithm={}"``; empty: by other means.
    """

    def __init__(self, kind: str, group: str, setting: str = "") -> None:
        self.kind = kind
        self.group = group
        self.setting = setting
        self._targets: dict[str, str] = {}
        self._plugins_read = False

    def register(self, name: str, target: str) -> None:
        """Add a part.

        Args:
            name: what configurations call it.
            target: ``"module:attribute"``.

        Raises:
            SettingError: the name is taken, or the target has another form.
        """
        module, separator, attribute = target.partition(":")
        if not (module and separator and attribute):
            raise SettingError(f"{self.kind} {name!r}: target must read 'module:attribute', got {target!r}")
        if name in self._targets:
            raise SettingError(
                f"{self.kind} {name!r} is registered twice: {self._targets[name]!r} and {target!r}; rename one"
            )
        self._targets[name] = target

    def target(self, name: str) -> str:
        """Return where the part called ``name`` is, ``"module:attribute"``; imports nothing."""
        self._read_plugins()
        return self._targets[name]

    def names(self) -> list[str]:
        """Every registered name, sorted; imports no part."""
        self._read_plugins()
        return sorted(self._targets)

    def get(self, name: str) -> Callable[..., T]:
        """Import and return the factory called ``name``.

        Raises:
            SettingError: unknown name, or a target that does not exist.
        """
        self._read_plugins()
        if name not in self._targets:
            raise SettingError(f"unknown {self.kind} {name!r}{nearest(name, self._targets)}")
        module_name, _, attribute = self._targets[name].partition(":")
        module = importlib.import_module(module_name)
        try:
            return cast("Callable[..., T]", getattr(module, attribute))
        except AttributeError as error:
            raise SettingError(f"{self.kind} {name!r}: module {module_name} has no {attribute!r}") from error

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        for plugin in _plugins(self.group):
            self.register(plugin.name, plugin.value)
        self._plugins_read = True


def _plugins(group: str) -> list[EntryPoint]:
    """Entry points of a group, in a fixed order; a seam for tests."""
    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


WORLD_MODELS: Registry[Any] = Registry("world model", "worldrl.world_models")
POLICIES: Registry[Any] = Registry("policy", "worldrl.policies")
REWARDS: Registry[Any] = Registry("reward", "worldrl.rewards")
ALGORITHMS: Registry[Any] = Registry("algorithm", "worldrl.algorithms")
BENCHMARKS: Registry[Any] = Registry("benchmark", "worldrl.benchmarks")
TERMINATIONS: Registry[Any] = Registry("termination rule", "worldrl.terminations")
"""Rules of (obs, action, next_obs), for tasks that ``world_models.state.terminations`` does not know."""

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

WORLD_MODELS.register("video", "worldrl.world_models.video.model:VideoWorldModel")
WORLD_MODELS.register("wan", "worldrl.world_models.wan.model:WanWorldModel")
POLICIES.register("token", "worldrl.policies.token.policy:TokenPolicy")
REWARDS.register("success", "worldrl.rewards.success:SuccessRule")
VIDEO_REWARDS.register("idm", "worldrl.rewards.motion.decoded:idm_reward")
VIDEO_REWARDS.register("similarity", "worldrl.rewards.motion.similarity:similarity_reward")
VIDEO_REWARDS.register("foresight", "worldrl.rewards.motion.foresight:foresight_reward")
VIDEO_REWARDS.register("success", "worldrl.rewards.video_success:success_reward")
VIDEO_REWARDS.register("execution", "worldrl.rewards.execution_critic:execution_reward")
ALGORITHMS.register("behaviour_cloning", "worldrl.methods.imitation.behaviour_cloning:train_policy")
ALGORITHMS.register("grpo", "worldrl.methods.rl.improve:improve")
for _name, _class in (
    ("bc", "bc:Bc"),
    ("td3_bc", "td3_bc:Td3Bc"),
    ("iql", "iql:Iql"),
    ("cql", "cql:Cql"),
    ("sac", "sac:Sac"),
    ("sac_n", "sac_n:SacN"),
    ("edac", "edac:Edac"),
    ("ravl", "ravl:Ravl"),
    ("mbpo", "mbpo:Mbpo"),
    ("mopo", "mopo:Mopo"),
    ("combo", "combo:Combo"),
    ("rambo", "rambo:Rambo"),
    ("mobile", "mobile:Mobile"),
    ("ro2o", "ro2o:Ro2o"),
    ("f_dvl", "dual_rl:FDvl"),
    ("recoil", "dual_rl:Recoil"),
    ("neubay", "neubay.neubay:Neubay"),
):
    ALGORITHMS.register(_name, f"worldrl.methods.offline.{_class}")
BENCHMARKS.register("embedded", "worldrl.evaluation.policy.protocol:embedded_protocol")
BENCHMARKS.register("libero", "worldrl.evaluation.policy.suites:libero_protocol")
for _family in ("maniskill", "robotwin", "isaac"):
    BENCHMARKS.register(_family, "worldrl.evaluation.policy.suites:described_protocol")
for _rule in ("never", "hopper", "walker2d", "ant", "humanoid", "inverted_pendulum"):
    TERMINATIONS.register(_rule, f"worldrl.world_models.state.terminations:{_rule}")
REWARD_MIXES.register("gdpo", "worldrl.rewards.mixing:mix")
REWARD_MIXES.register("mean", "worldrl.rewards.mixing:mean_of_terms")
ADVANTAGES.register("group_std", "worldrl.methods.rl.advantages:group_std")
ADVANTAGES.register("batch_std", "worldrl.methods.rl.advantages:batch_std")
ADVANTAGES.register("mean_only", "worldrl.methods.rl.advantages:mean_only")
ADVANTAGES.register("leave_one_out", "worldrl.methods.rl.advantages:leave_one_out")
ADVANTAGES.register("median", "worldrl.methods.rl.advantages:median")
ADVANTAGES.register("as_given", "worldrl.methods.rl.advantages:as_given")
ADVANTAGES.register("by_depth", "worldrl.methods.alignment.branch_grpo:by_depth")
SELECTORS.register("everything", "worldrl.methods.rl.selection:everything")
SELECTORS.register("informative", "worldrl.methods.rl.selection:informative")
SELECTORS.register("random_steps", "worldrl.methods.rl.selection:random_steps")
SELECTORS.register("extremes", "worldrl.methods.rl.selection:extremes")
SELECTORS.register("largest_variance", "worldrl.methods.rl.selection:largest_variance")
SELECTORS.register("successes", "worldrl.methods.rl.selection:successes")
SELECTORS.register("parent_best", "worldrl.methods.alignment.branch_grpo:parent_best")
START_SAMPLERS.register("balanced", "worldrl.methods.rl.starts:balanced")
START_SAMPLERS.register("permuted", "worldrl.methods.rl.starts:permuted")
START_SAMPLERS.register("mopps", "worldrl.methods.rl.starts:mopps")
BUDGETS.register("uniform", "worldrl.methods.rl.starts:uniform")
BUDGETS.register("root_variance", "worldrl.methods.rl.starts:root_variance")
SCHEDULES.register("at_once", "worldrl.methods.rl.method:at_once")
SCHEDULES.register("two_stages", "worldrl.methods.alignment.sol_rl:TwoStages")
LOG_PROBS.register("tokens", "worldrl.methods.rl.grpo:TokenLogProb")
LOG_PROBS.register("denoising", "worldrl.methods.alignment.ratio:DenoisingLogProb")
LOG_PROBS.register("forward_process", "worldrl.methods.alignment.diffusion_nft:ForwardProcess")
LOG_PROBS.register("pairs", "worldrl.methods.alignment.step_aware_preference:PairLogProb")
LOSSES.register("clipped", "worldrl.methods.rl.losses:clipped")
LOSSES.register("gaussian_trust", "worldrl.methods.rl.losses:gaussian_trust")
LOSSES.register("nft", "worldrl.methods.rl.losses:nft")
LOSSES.register("preference", "worldrl.methods.rl.losses:preference")
CONTROLS.register("unchecked", "worldrl.methods.rl.control:Unchecked")
CONTROLS.register("kl_stop", "worldrl.methods.rl.control:KlStop")
CONTROLS.register("effective_share", "worldrl.methods.rl.control:EffectiveShare")
ALIGNMENTS.register("flow_grpo", "worldrl.methods.alignment.flow_grpo:flow_grpo")
ALIGNMENTS.register("dance_grpo", "worldrl.methods.alignment.dance_grpo:dance_grpo")
ALIGNMENTS.register("branch_grpo", "worldrl.methods.alignment.branch_grpo:branch_grpo")
ALIGNMENTS.register("diffusion_nft", "worldrl.methods.alignment.diffusion_nft:diffusion_nft")
ALIGNMENTS.register("sol_rl", "worldrl.methods.alignment.sol_rl:sol_rl")
ALIGNMENTS.register("step_aware_preference", "worldrl.methods.alignment.step_aware_preference:step_aware_preference")
IMPROVEMENTS.register("grpo", "worldrl.methods.rl.grpo:train_grpo")
IMPROVEMENTS.register("self_training", "worldrl.methods.rl.filtered_cloning:self_train")
