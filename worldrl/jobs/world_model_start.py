"""Which world model a job begins with: the bundled weights, a folder, or none, and whether it fits what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from worldrl.core.artefact import read_config
from worldrl.core.embodiment import AnyEmbodiment, embodiment_from_json
from worldrl.core.errors import SettingError
from worldrl.core.jsonfile import difference
from worldrl.core.log import console
from worldrl.core.rng import initial_weights
from worldrl.jobs.wan_settings import WanSettings
from worldrl.paths import weights_dir
from worldrl.world_models.config import VideoWorldModelConfig
from worldrl.world_models.loading import AnyVideoModel, open_world_model
from worldrl.world_models.video import KIND, VideoWorldModel, extended, extended_config
from worldrl.world_models.wan import WanWorldModel

BUNDLED, SCRATCH = "bundled", "scratch"
WORLD_MODEL = "world_model"
"""Folder name of a world model inside a stage, and of the bundled one."""
OTHER_ROBOT = "start: the world model in {folder} was made for another robot; use start=scratch"


def require_kind(start: str, config: VideoWorldModelConfig) -> None:
    """Refuse weights of another dynamics backend than the settings ask for.

    Raises:
        ArtefactError: no world model in that folder.
        SettingError: the kinds differ.
    """
    if start == SCRATCH:
        return
    asked, held = config.dynamics.kind, config_of(start).dynamics.kind
    if held is not asked:
        raise SettingError(
            f"start: the dynamics in {weights_folder(start)} are {held}, dynamics.kind is {asked}; use start=scratch"
        )


def tell_settled(start: str, config: VideoWorldModelConfig) -> None:
    """Say on the console which settings of the model are in vain, since the weights bring their own.

    What stands at its default was not asked for, and is not told.

    Raises:
        ArtefactError: no world model in that folder.
    """
    if start == SCRATCH:
        return
    held = extended_config(config_of(start), config).to_json()
    if changed := difference(asked_for(config.to_json(), VideoWorldModelConfig().to_json(), held), held):
        console().print(f"start={start}: its weights bring their own {changed}", markup=False)


def asked_for(wanted: dict[str, Any], default: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    """Return ``held`` with every value of ``wanted`` that is not its default; nested dicts of the same keys."""

    def one(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return asked_for(cast("dict[str, Any]", value), default[name], held[name])
        return held[name] if value == default[name] else value

    return {name: one(name, value) for name, value in wanted.items()}


def config_of(start: str) -> VideoWorldModelConfig:
    """Read the configuration of the weights that ``start`` names; ArtefactError without any."""
    return VideoWorldModelConfig.from_json(read_config(weights_folder(start), kind=KIND))


def require_robot(start: str, robot: AnyEmbodiment) -> None:
    """Refuse weights of another robot before anything is recorded for this one.

    Raises:
        ArtefactError: no world model in that folder.
        SettingError: the robots differ.
    """
    if start == SCRATCH:
        return
    folder = weights_folder(start)
    if embodiment_from_json(read_config(folder)["embodiment"]) != robot:
        raise SettingError(OTHER_ROBOT.format(folder=folder))


def starting_world_model(
    start: str,
    config: VideoWorldModelConfig | WanSettings | None,
    embodiment: AnyEmbodiment,
    *,
    seed: int,
    device: torch.device,
) -> AnyVideoModel:
    """Return the world model that training begins with.

    Args:
        start: ``bundled`` (the weights that come with worldrl), ``scratch`` (with Wan, published weights and action
            channels of one's own), or a world-model folder.
        config: sizes, used from scratch, the backend that is asked for, and whether it plans and has a restorer: weights
            without are then extended, untrained; None takes whatever a folder holds.
        embodiment: constants of the data's robot.
        seed: of the initial weights.
        device: where it goes.

    Raises:
        ArtefactError: no world model in that folder, or no published weights in ``config.folder``.
        SettingError: its robot is not the data's, or its backend not the one that is asked for.
    """
    if isinstance(config, WanSettings):
        if start == SCRATCH:
            return WanWorldModel.from_base(config.folder, config.model, embodiment, seed=seed).to(device)
    elif config is not None:
        require_kind(start, config)
        if start == SCRATCH:
            with initial_weights(seed, "world-model"):
                return VideoWorldModel(config, embodiment).to(device)
    folder = weights_folder(start)
    model = open_world_model(folder, device)
    if model.embodiment != embodiment:
        raise SettingError(OTHER_ROBOT.format(folder=folder))
    if isinstance(config, VideoWorldModelConfig) and isinstance(model, VideoWorldModel):
        return extended(model, config, seed=seed)
    return model


def weights_folder(start: str) -> Path:
    """Return the world-model folder that ``start`` names: ``bundled``, or the folder itself."""
    return weights_dir() / WORLD_MODEL if start == BUNDLED else Path(start)
