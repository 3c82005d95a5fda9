"""What ``lerobot-eval`` and ``lerobot-train`` are given: ``--env.type=worldrl`` and ``--env.type=worldrl_imagined``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from lerobot.configs import FeatureType, PolicyFeature  # pyright: ignore[reportMissingImports]
from lerobot.envs.configs import EnvConfig  # pyright: ignore[reportMissingImports]
from lerobot.envs.utils import _LazyAsyncVectorEnv, freeze_after_episode_end  # pyright: ignore[reportMissingImports]

from lerobot_env_worldrl.environments import LerobotEnv, embedded_tasks, imagined_tasks, make_embedded, make_imagined

VECTORS = {"agent_pos": "observation.state", "command": "observation.command"}
Makers = Mapping[str, Callable[[], LerobotEnv]]


class PlayedConfig(EnvConfig):
    """What both types share. ``features`` and ``features_map`` are filled in with the environments."""

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """None: the environments are made here."""
        return {}

    def vectorised(self, makers: Makers, n_envs: int, asynchronous: bool) -> dict[str, dict[int, Any]]:
        """``n_envs`` environments per group of lerobot's results, which is a task here: ``{name: {0: environment}}``."""
        shown = next(iter(makers.values()))()
        self.features, self.features_map = features_of(shown)
        made = {"observation_space": shown.observation_space, "action_space": shown.action_space}
        lazy = partial(_LazyAsyncVectorEnv, **made, metadata=shown.metadata)
        shown.close()
        vector = lazy if asynchronous and n_envs > 1 else in_this_process
        return {name: {0: vector([make] * n_envs)} for name, make in makers.items()}


@EnvConfig.register_subclass("worldrl")
@dataclass
class WorldrlConfig(PlayedConfig):
    """worldrl's tabletop tasks in physics.

    ``task``: names or groups, separated by commas; empty takes the twelve of one arm. ``cameras``: names, separated by
    commas; empty takes the main one. ``image_size``: pixels per side.
    """

    fps: int = 20
    cameras: str = ""
    image_size: int = 64

    def create_envs(self, n_envs: int, use_async_envs: bool = True) -> dict[str, dict[int, Any]]:
        """Make the environments of the chosen tasks."""
        shown = {
            "cameras": [name.strip() for name in self.cameras.split(",") if name.strip()],
            "image_size": self.image_size,
        }
        makers = {task: partial(make_embedded, task, **shown) for task in embedded_tasks(self.task)}
        return self.vectorised(makers, n_envs, use_async_envs)


@EnvConfig.register_subclass("worldrl_imagined")
@dataclass
class WorldrlImaginedConfig(PlayedConfig):
    """A saved world model. What succeeds in it is imagined.

    ``world_model``: its folder. ``data``: a dataset of the same robot, whose first frames begin the episodes. ``task``:
    names, separated by commas; empty takes all of the dataset. ``device``: of the world model.
    """

    fps: int = 20
    world_model: str = ""
    data: str = ""
    device: str = "cpu"

    def create_envs(self, n_envs: int, use_async_envs: bool = True) -> dict[str, dict[int, Any]]:
        """Make the environments of the chosen tasks, all in this process: they share the world model."""
        of = {"world_model": self.world_model, "data": self.data, "device": self.device}
        makers = {f"imagined_{task}": partial(make_imagined, task, **of) for task in imagined_tasks(self.task, **of)}
        return self.vectorised(makers, n_envs, asynchronous=False)


def in_this_process(makers: list[Callable[[], LerobotEnv]]) -> SyncVectorEnv:
    """Step one environment after the other; one that is over rests until the rollout ends, as in lerobot's own."""
    frozen = [freeze_after_episode_end(make) for make in makers]
    return SyncVectorEnv(frozen, autoreset_mode=AutoresetMode.NEXT_STEP)


def features_of(env: LerobotEnv) -> tuple[dict[str, PolicyFeature], dict[str, str]]:
    """Name an environment's features for lerobot, and say which of a policy's they are.

    Images have a policy's name at once: lerobot records no feature with a slash, such as ``pixels/scene``.
    """
    shown: Any = env.observation_space
    cameras = {f"observation.images.{name}": space for name, space in shown["pixels"].spaces.items()}
    features = {name: PolicyFeature(FeatureType.VISUAL, space.shape) for name, space in cameras.items()}
    vectors = {name: space for name, space in shown.spaces.items() if name in VECTORS}
    features |= {name: PolicyFeature(FeatureType.STATE, space.shape) for name, space in vectors.items()}
    features["action"] = PolicyFeature(FeatureType.ACTION, env.action_space.shape)
    return features, {name: VECTORS.get(name, name) for name in features}
