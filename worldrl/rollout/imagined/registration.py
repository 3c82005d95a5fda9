"""``worldrl/Imagined-v0``: a saved world model as a Gymnasium environment, started from a dataset's frames.

Importing this module registers the id; Gymnasium imports it from the part before the colon::

    gymnasium.make("worldrl.rollout.imagined.registration:worldrl/Imagined-v0", world_model=FOLDER, data=DATASET)
    gymnasium.make_vec(
        "worldrl.rollout.imagined.registration:worldrl/Imagined-v0", num_envs=4, world_model=FOLDER, data=DATASET,
        vectorization_mode="vector_entry_point",
    )
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore, keyframe_records, record_at
from worldrl.rollout.spaces import whole
from worldrl.world_models.loading import AnyVideoModel, open_world_model

ENV_ID = "worldrl/Imagined-v0"


def dataset_store(data: Path | str, model: AnyVideoModel, *, margin: int) -> tuple[ResetStore, dict[str, int]]:
    """Collect a dataset's start states, and the length of each task's longest episode (control steps).

    The start states are first frames and those ``margin`` control steps before keyframes, of all episodes. Raises
    ArtefactError (the dataset is missing or damaged). Raises SettingError (the dataset is empty, or its frames or its
    robot are not the model's).
    """
    dataset = EpisodeDataset.open(data, images=model.config.codec.images)
    size = model.config.codec.image_size
    if not len(dataset) or dataset.image_size != (size, size) or dataset.embodiment != model.embodiment:
        raise SettingError(
            f"data: {data} must hold episodes of {size} by {size} pixels and of the world model's robot; it has "
            f"{len(dataset)} of {dataset.image_size}, {dataset.embodiment}"
        )
    episodes = list(dataset.load())
    layout = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride, "more": model.more}
    first = [record_at(e, 0, source=f"episode {number}, start", **layout) for number, e in enumerate(episodes)]
    horizon = {task: max(len(e) for e in episodes if e.task == task) for task in dataset.tasks()}
    return ResetStore(first, keyframe_records(episodes, margin=margin, **layout)), horizon


def make_vec(
    *,
    num_envs: int,
    world_model: Path | str,
    data: Path | str,
    horizon: int | None = None,
    p_keyframe: float = 0.25,
    keyframe_margin: int = 8,
    group_size: int = 1,
    seed: int = 0,
    device: str = "cpu",
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
) -> WorldModelVecEnv:
    """Make the vector environment of a saved world model, with its own calibrated rule of success.

    ``data`` is the folder of a dataset with the start states. ``horizon=None`` takes each task's longest recorded
    episode. Keyframe starts begin ``keyframe_margin`` control steps before the keyframe. The other settings are those
    of :class:`~worldrl.rollout.imagined.env.WorldModelVecEnv`. Raises ArtefactError (a folder is missing or damaged).
    Raises SettingError (a value out of range, or a dataset that does not fit the model).
    """
    margin = whole("keyframe_margin", keyframe_margin, 0)
    model = open_world_model(Path(world_model), str(resolve_device(device)))
    store, lengths = dataset_store(data, model, margin=margin)
    return WorldModelVecEnv(
        model,
        store,
        SuccessRule.of(model.config.outcome),
        num_envs=num_envs,
        horizon=lengths if horizon is None else horizon,
        group_size=group_size,
        p_keyframe=p_keyframe,
        seed=seed,
        autoreset_mode=autoreset_mode,
    )


class ImaginedEnv(gymnasium.Env[dict[str, Any], NDArray[np.float32]]):
    """One imagined rollout: a single row of :class:`~worldrl.rollout.imagined.env.WorldModelVecEnv`.

    Observation, action, reward, termination and truncation are that class's; the image changes on every
    ``chunk_length``-th step. A reset without a seed begins the next episode. ``settings`` are those of
    :func:`make_vec`, without ``num_envs``, ``group_size`` and ``autoreset_mode``; ``rows`` replaces them, an
    environment of one row and autoreset mode ``DISABLED``, so that several may share a world model.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, *, render_mode: str | None = None, rows: WorldModelVecEnv | None = None, **settings: Any
    ) -> None:
        self.render_mode = render_mode
        self.rows = rows or make_vec(num_envs=1, autoreset_mode=AutoresetMode.DISABLED, **settings)
        self.observation_space = self.rows.single_observation_space
        self.action_space = self.rows.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; ``options`` may hold ``records``, one :class:`~worldrl.core.types.ResetRecord`."""
        obs, info = self.rows.reset(seed=seed, options=options)
        super().reset(seed=seed)
        return _row(obs), _row(info)

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one action; ActionError when it is not finite or outside the action space."""
        obs, reward, terminated, truncated, info = self.rows.step(np.asarray(action)[None])
        return _row(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _row(info)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current image."""
        return None if self.render_mode is None else self.rows.render()[0]

    def close(self) -> None:
        """Release the model."""
        self.rows.close()


def _row(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value[0] for name, value in values.items()}


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point="worldrl.rollout.imagined.registration:ImaginedEnv",
        vector_entry_point="worldrl.rollout.imagined.registration:make_vec",
    )
