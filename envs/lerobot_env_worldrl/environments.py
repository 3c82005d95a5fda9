"""Environments with lerobot's keys: worldrl's tabletop tasks in physics, and saved world models.

Neither needs lerobot. The tasks need ``worldrl_envs`` alone; worldrl itself is imported with the first world model.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

NEW_ROLLOUT = "lerobot_new_rollout"
"""Option of lerobot's resets; it means nothing to these environments."""
ONE_ARM, TWO_ARMS = "one_arm", "bimanual"


class LerobotEnv(gymnasium.Env[dict[str, Any], NDArray[np.float32]]):
    """An environment of worldrl under lerobot's names.

    Observation: ``pixels``, a Dict of camera and image (uint8 ``[Y, X, 3]``), which lerobot calls
    ``observation.images.<camera>``; ``agent_pos``, the measured state (``observation.state``), where there is one;
    ``command``, the commanded pose or joint targets (``observation.command``). Actions are clipped to the space, as
    simulators of lerobot do. ``is_success`` of the info is the episode's success; it ends with it.
    """

    render_mode = "rgb_array"

    def __init__(self, inner: gymnasium.Env[Any, Any], task: str, max_steps: int, fps: float, main: str) -> None:
        self.inner, self.task, self._max_episode_steps, self._main = inner, task, max_steps, main
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self.task_description = ""  # the instruction of the episode, from its reset on
        parts = self._renamed(getattr(inner.observation_space, "spaces", {}))
        self.observation_space = spaces.Dict({**parts, "pixels": spaces.Dict(parts["pixels"])})
        self.action_space: spaces.Box = inner.action_space  # pyright: ignore[reportIncompatibleVariableOverride]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode, which depends on the seed alone; without one, the next."""
        super().reset(seed=seed)
        own = {name: value for name, value in (options or {}).items() if name != NEW_ROLLOUT}
        obs, _ = self.inner.reset(seed=seed, options=own or None)
        self.task_description = obs["instruction"]
        return self._renamed(obs), {"is_success": False}

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one control step."""
        clipped = np.clip(action, self.action_space.low, self.action_space.high)
        obs, reward, terminated, truncated, _ = self.inner.step(clipped)
        return self._renamed(obs), float(reward), terminated, truncated, {"is_success": terminated}

    def render(self) -> Any:
        """Draw an image for films."""
        return self.inner.render()

    def close(self) -> None:
        """Release the environment."""
        self.inner.close()

    def _renamed(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        images = {name.removesuffix("_image"): value for name, value in parts.items() if name.endswith("image")}
        pixels = {self._main if camera == "image" else camera: value for camera, value in images.items()}
        names = {"agent_pos": "state", "command": "command"}
        return {"pixels": pixels, **{new: parts[old] for new, old in names.items() if old in parts}}


# --- tabletop tasks -------------------------------------------------------------------------------------------------


def embedded_tasks(wanted: str | None) -> tuple[str, ...]:
    """Tasks by their names or by groups (``one_arm``, ``bimanual``, a kind), separated by commas; all of one arm for None.

    Raises ValueError (tasks of both robots: their actions differ).
    """
    from worldrl_envs import get_task, kinds, task_names

    groups = {ONE_ARM: task_names(), **{kind: task_names(kind) for kind in (*kinds(), TWO_ARMS)}}
    chosen = [name for part in (wanted or ONE_ARM).split(",") for name in groups.get(part.strip(), (part.strip(),))]
    tasks = tuple(dict.fromkeys(get_task(name).name for name in chosen))
    arms = {name in groups[TWO_ARMS] for name in tasks}
    if len(arms) > 1:
        raise ValueError(f"--env.task: {wanted} has tasks of one arm and of two; evaluate them one after the other")
    return tasks


def make_embedded(task: str, *, cameras: Sequence[str], image_size: int) -> LerobotEnv:
    """One task in physics, observed by its main camera if none is named; films are 384 pixels per side."""
    from worldrl_envs import env_id, get_task

    shown: dict[str, Any] = {"image_size": image_size, **({"cameras": tuple(cameras)} if cameras else {})}
    env = gymnasium.make(env_id(task), disable_env_checker=True, render_mode="rgb_array", **shown)
    main = next(iter(env.get_wrapper_attr("IMAGES")))
    return LerobotEnv(env, task, get_task(task).horizon, env.metadata["render_fps"], main)


# --- world models ---------------------------------------------------------------------------------------------------


def imagined_tasks(wanted: str | None, *, world_model: str, data: str, device: str) -> tuple[str, ...]:
    """Tasks of the dataset by their names, separated by commas; all for None. ValueError names an unknown one."""
    tasks = _opened(world_model, data, device)[1].tasks
    chosen = [name.strip() for name in wanted.split(",")] if wanted else tasks
    if unknown := [name for name in chosen if name not in tasks]:
        raise ValueError(f"--env.task: {data} has no episode of {unknown[0]!r}; it has {', '.join(tasks)}")
    return tuple(chosen)


def make_imagined(task: str, *, world_model: str, data: str, device: str) -> LerobotEnv:
    """One task in a world model, from the first frames of a dataset's episodes.

    Environments of one process share the model. An episode lasts at most as long as the task's longest recorded one.
    """
    from worldrl.rewards.success import SuccessRule
    from worldrl.rollout.imagined.env import WorldModelVecEnv
    from worldrl.rollout.imagined.registration import ImaginedEnv
    from worldrl.rollout.imagined.reset_store import ResetStore

    model, store, horizon, main = _opened(world_model, data, device)
    begun = zip(store.records, store.keyframe, strict=True)
    first = ResetStore([record for record, keyframe in begun if record.task == task and not keyframe])
    rule = SuccessRule(model.config.outcome.threshold, model.config.outcome.debounce)
    mode = AutoresetMode.DISABLED
    rows = WorldModelVecEnv(model, first, rule, num_envs=1, horizon=horizon[task], autoreset_mode=mode)
    steps = -(-horizon[task] // model.chunk_length) * model.chunk_length  # it ends with a chunk
    return LerobotEnv(ImaginedEnv(rows=rows, render_mode="rgb_array"), task, steps, model.embodiment.control_hz, main)


@cache
def _opened(world_model: str, data: str, device: str) -> tuple[Any, Any, dict[str, int], str]:
    """World model, start states, longest episode of each task, and the dataset's main camera."""
    from worldrl.core.observation import MAIN_CAMERAS
    from worldrl.data.lerobot.dataset import EpisodeDataset
    from worldrl.rollout.imagined.registration import dataset_store
    from worldrl.world_models.loading import open_world_model

    for name, folder in (("world_model", world_model), ("data", data)):
        if not folder:
            raise ValueError(f"--env.{name}: give its folder; see docs/guide/lerobot.md")
    model = open_world_model(world_model, device)
    main = next(name for name in MAIN_CAMERAS if name in EpisodeDataset.open(data).header.cameras)
    return model, *dataset_store(data, model, margin=1), main
