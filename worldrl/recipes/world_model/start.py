"""Which world model a job begins with: the bundled weights, a folder, or none, and whether it fits what is asked for."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from worldrl.core.embodiment import AnyEmbodiment, embodiment_from_json
from worldrl.core.errors import SettingError, nearest
from worldrl.core.image_fit import ImageFit
from worldrl.core.rng import initial_weights
from worldrl.core.storage.artefact import read_config, read_manifest
from worldrl.core.storage.capacity import require_model_memory
from worldrl.core.storage.log import console
from worldrl.paths import bundled_weights, weights_dir
from worldrl.world_models.loading import AnyVideoModel, open_world_model
from worldrl.world_models.video.config import CodecKind, VideoWorldModelConfig
from worldrl.world_models.video.extension import (
    FREE,
    WAN_FREE,
    adds_views,
    asked_for,
    changes,
    extended,
    extended_config,
    transferred,
)
from worldrl.world_models.video.model import KIND, VideoWorldModel
from worldrl.world_models.video.training_config import WorldModelTraining
from worldrl.world_models.wan.config import KIND as WAN_KIND
from worldrl.world_models.wan.config import WanConfig

if TYPE_CHECKING:
    from worldrl.recipes.world_model.wan_settings import WanSettings

BUNDLED, SCRATCH = "bundled", "scratch"
WORLD_MODEL = "world_model"  # Folder name of a world model inside a stage, and of the bundled one
SHIPPED = "bundled (one camera), bundled/world_model_wrist (two cameras and the measured state)"
"""What ``--help`` says of the world models that worldrl ships."""
OTHER_ROBOT = (
    "start: the world model in {folder} was made for another robot; use start=scratch, which may take weights={start} for the "
    "parts that fit"
)


def require_kind(start: str, config: VideoWorldModelConfig) -> None:
    """SettingError for weights of another dynamics backend than asked for; ArtefactError without a world model."""
    if start == SCRATCH:
        return
    asked, held = config.dynamics.kind, config_of(start).dynamics.kind
    if held is not asked:
        raise SettingError(
            f"start: the dynamics in {weights_folder(start)} are {held}, dynamics.kind is {asked}; use start=scratch"
        )


def require_trained_codec(config: VideoWorldModelConfig, training: WorldModelTraining, wanted: str) -> None:
    """SettingError, saying to give ``wanted``, for dynamics from nothing on a frame codec that nobody trains."""
    if config.codec_kind is CodecKind.patch and training.steps and not training.codec_steps:
        raise SettingError(
            f"start=scratch: the frame codec would stay untrained, and no image could be decoded; give {wanted}"
        )


def check_start(start: str, config: VideoWorldModelConfig, training: WorldModelTraining) -> None:
    """Refuse settings that do not fit the weights to begin with, before anything is read; print the others.

    What stands at its default was not asked for, and the weights keep their own. ArtefactError without a world model;
    SettingError for weights made otherwise, or parts that would be added and never trained.
    """
    if start == SCRATCH:
        return
    require_kind(start, config)
    held = config_of(start)
    taken = extended_config(held, config)
    if taken.outcome.ensemble_size > held.outcome.ensemble_size and not training.outcome_steps:
        raise SettingError(
            f"outcome.ensemble_size={taken.outcome.ensemble_size} adds members to the {held.outcome.ensemble_size} of {weights_folder(start)}, which "
            "training.outcome_steps=0 leaves untrained; give it steps"
        )
    _require_steps(start, held, taken, training.steps)
    if taken.outcome.conditioning != held.outcome.conditioning and not training.outcome_steps:
        raise SettingError(
            f"outcome.conditioning={taken.outcome.conditioning}: the outcome head of {weights_folder(start)} has learned from "
            f"{held.outcome.conditioning}, and training.outcome_steps=0 does not train it again; give it steps"
        )
    _tell(start, config.to_json(), held.to_json(), taken.to_json())


def check_weights(weights: str, config: VideoWorldModelConfig, training: WorldModelTraining, group: str) -> None:
    """Refuse weights of another robot of which ``training`` would leave a part as it is, or whose sizes are not asked for.

    ``group`` names the training's settings. ArtefactError without a world model; SettingError.
    """
    require_kind(weights, config)
    held = config_of(weights)
    extended_config(held, config, setting="weights", mend="begin without weights")
    for name in ("codec_steps", "steps", "outcome_steps", *(["restorer_steps"] if held.restorer.width else [])):
        if not getattr(training, name):
            raise SettingError(
                f"{group}.{name}=0: would leave a part of weights={weights} as it was for its own robot; give it steps"
            )


def _require_steps(
    start: str, held: VideoWorldModelConfig | WanConfig, taken: VideoWorldModelConfig | WanConfig, steps: int
) -> None:
    """SettingError for cameras or a state that are added to weights and never trained."""
    if not steps and (taken.cameras, taken.state) != (held.cameras, held.state):
        raise SettingError(
            f"cameras and state: [{', '.join(taken.cameras)}] with state={taken.state} adds parts to {weights_folder(start)}, "
            "which training.steps=0 leaves untrained; give it steps"
        )


def _tell(start: str, wanted: dict[str, Any], held: dict[str, Any], taken: dict[str, Any]) -> None:
    """Say what of the settings the weights take over, and where they keep their own."""
    differences = {
        "taken over": changes(held, taken),
        "its own kept": {name: both for name, both in changes(wanted, taken).items() if name in FREE | WAN_FREE},
    }
    for what, found in differences.items():
        if found:
            shown = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in found.items())
            console().print(f"start={start}: {what}: {shown}", markup=False)


def config_of(start: str) -> VideoWorldModelConfig:
    """Read the configuration of the weights that ``start`` names; ArtefactError without any."""
    return VideoWorldModelConfig.from_json(read_config(weights_folder(start), kind=KIND))


def images_of(start: str) -> ImageFit:
    """Read the images of the weights that ``start`` names, and how others become them; ArtefactError without any."""
    return stored_config(start).codec.images


def stored_config(start: str) -> VideoWorldModelConfig | WanConfig:
    """Read the configuration of the weights that ``start`` names; ArtefactError without any, or of another artefact."""
    kept = _plain_config(start)
    return WanConfig.from_json(kept) if kept.get("base") else VideoWorldModelConfig.from_json(kept)


def _plain_config(start: str) -> dict[str, Any]:
    folder = weights_folder(start)
    kind = read_manifest(folder)["kind"]
    return read_config(folder, kind=WAN_KIND if kind == WAN_KIND else KIND)


def is_wan(start: str) -> bool:
    """Whether the weights that ``start`` names are a Wan world model's; ArtefactError without any."""
    return isinstance(stored_config(start), WanConfig)


def check_wan_start(start: str, config: WanSettings) -> None:
    """Refuse Wan settings that do not fit the weights to begin with, before anything is read; print the others.

    ArtefactError without a world model; SettingError as :func:`check_start`.
    """
    if start == SCRATCH:
        _require_trained_ensemble(config)
    elif isinstance(held := stored_config(start), WanConfig):
        taken = wan_as_asked(weights_folder(start), held, config.model)
        _require_steps(start, held, taken, config.training.steps)
        _tell(start, config.model.to_json(), held.to_json(), taken.to_json())


def require_robot(start: str, robot: AnyEmbodiment) -> None:
    """SettingError for weights of another robot, before anything is recorded; ArtefactError without a world model."""
    if start == SCRATCH:
        return
    if robot_of(start) != robot:
        raise SettingError(OTHER_ROBOT.format(folder=weights_folder(start), start=start))


def robot_of(start: str) -> AnyEmbodiment:
    """Read the robot of the weights that ``start`` names; ArtefactError without a world model."""
    return embodiment_from_json(_plain_config(start)["embodiment"])


def starting_world_model(
    start: str,
    config: VideoWorldModelConfig | WanSettings | None,
    embodiment: AnyEmbodiment,
    *,
    seed: int,
    device: torch.device,
) -> AnyVideoModel:
    """Return the world model that training begins with.

    ``start`` is ``bundled``, ``scratch`` (with Wan, published weights and own action channels) or a folder. ``config``
    gives sizes from scratch, the backend, and what existing weights are to do otherwise
    (:mod:`worldrl.world_models.video.extension`); None takes whatever a folder holds. ArtefactError without world model
    or published weights; SettingError for another robot, or as :func:`check_start`.
    """
    from worldrl.recipes.world_model.wan_settings import WanSettings
    from worldrl.world_models.wan.model import WanWorldModel

    if isinstance(config, WanSettings):
        if start == SCRATCH:
            _require_trained_ensemble(config)
            return WanWorldModel.from_base(config.folder, deepcopy(config.model), embodiment, seed=seed).to(device)
    elif config is not None:
        require_kind(start, config)
        if start == SCRATCH:
            require_model_memory(lambda: VideoWorldModel(deepcopy(config), embodiment), device, "model")
            with initial_weights(seed, "world-model"):
                return VideoWorldModel(deepcopy(config), embodiment).to(
                    device
                )  # calibrated later, the settings are not
    folder = weights_folder(start)
    model = open_world_model(folder, device)
    if model.embodiment != embodiment:
        raise SettingError(OTHER_ROBOT.format(folder=folder, start=start))
    if isinstance(config, VideoWorldModelConfig) and isinstance(model, VideoWorldModel):
        return extended(model, config, seed=seed)
    if isinstance(config, WanSettings) and isinstance(model, WanWorldModel):
        return model.extended(wan_as_asked(folder, model.config, config.model), seed=seed)
    return model


def transferred_world_model(
    weights: str, config: VideoWorldModelConfig, embodiment: AnyEmbodiment, *, seed: int, device: torch.device
) -> VideoWorldModel:
    """Return a world model that begins with what fits of the ``weights`` of any robot, and print what does not.

    Raises ArtefactError without a world model; SettingError for one of another backend, or of other sizes than given.
    """
    folder = weights_folder(weights)
    model = open_world_model(folder, device)
    if not isinstance(model, VideoWorldModel) or model.config.dynamics.kind is not config.dynamics.kind:
        raise SettingError(f"weights: {folder} is not of backbone=video with dynamics.kind={config.dynamics.kind}")
    model, untrained = transferred(model, config, embodiment, seed=seed)
    count = len(model.state_dict())
    rest = f"; untrained: {', '.join(untrained)}" if untrained else ""
    console().print(f"weights={weights}: {count - len(untrained)} of {count} taken{rest}", markup=False, soft_wrap=True)
    return model


def wan_as_asked(folder: Path, held: WanConfig, wanted: WanConfig) -> WanConfig:
    """Return saved weights' configuration with what is asked for and fits any weights; SettingError names the rest."""
    own = held.to_json()
    asked = asked_for(wanted.to_json(), WanConfig().to_json(), own)
    if refused := [
        f"wan.model.{name}={value} ({old})"
        for name, (old, value) in changes(own, asked).items()
        if not (adds_views(old, value) if name == "cameras" else name in (FREE | WAN_FREE) - {"outcome.ensemble_size"})
    ]:
        raise SettingError(
            f"start: the weights in {folder} are not made for {', '.join(refused)}, in brackets what they are made for; leave "
            "it out, or use start=scratch"
        )
    return WanConfig.from_json(asked)


def _require_trained_ensemble(config: WanSettings) -> None:
    if (ensemble := config.model.outcome.ensemble_size) and not config.training.outcome_steps:
        raise SettingError(
            f"wan.model.outcome.ensemble_size={ensemble}: its members would stay untrained; give wan.training.outcome_steps above 0, or ensemble_size=0"
        )


def is_bundled(start: str) -> bool:
    """Whether ``start`` names weights that worldrl ships: ``bundled``, or ``bundled/NAME`` as in a manifest."""
    return start == BUNDLED or start.startswith(f"{BUNDLED}/")


def weights_folder(start: str) -> Path:
    """Return the world-model folder that ``start`` names: a bundled one, or the folder itself.

    SettingError for a name of which nothing is bundled.
    """
    if not is_bundled(start):
        return Path(start)
    name = start.removeprefix(BUNDLED).strip("/") or WORLD_MODEL
    shipped = {folder.name for folder in bundled_weights() if folder.name.startswith(WORLD_MODEL)} | {WORLD_MODEL}
    if name not in shipped:
        raise SettingError(f"{start}: no such world model is bundled{nearest(name, shipped)}")
    return weights_dir() / name
