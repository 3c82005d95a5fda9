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
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
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

VIDEO_REWARDS: Registry[Any] = Registry("video reward", "worldrl.video_rewards")
"""Rewards of whole imagined videos: called with a folder (may be empty), the terms wanted (none: all) and a device."""

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
