"""Existing weights under other settings: fitting settings are applied, missing parts are added, others are refused.

A setting at its default counts as not given, and the weights keep their own value.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel

FREE = frozenset(
    {
        "codec.latent_noise", "codec.salience", "codec.fit",
        "dynamics.memory_noise", "dynamics.motion_weight", "dynamics.pure_noise_share", "dynamics.shift",
        "dynamics.sampling_steps", "dynamics.refinement_steps", "dynamics.refinement_sigma", "dynamics.refinement_share",
        "dynamics.planning", "dynamics.flow_map",
        "dynamics.unet.offset_noise", "dynamics.unet.log_sigma_mean", "dynamics.unet.log_sigma_std",
        "dynamics.unet.sigma_low", "dynamics.unet.sigma_high", "dynamics.unet.sigma_start", "dynamics.unet.rho",
        "dynamics.unet.sampling_steps", "dynamics.unet.order",
        "success.loss_weight", "success.positive_weight", "success.noise_weight", "gripper.loss_weight",
        "outcome.ensemble_size", "outcome.threshold", "outcome.min_threshold", "outcome.debounce",
        "outcome.conditioning", "state", "state_head.loss_weight",
    }
)  # fmt: skip
"""Settings that fit any weights: of losses, training, sampling and thresholds; and parts that can be added untrained."""
WAN_FREE = frozenset({"codec.dtype", "codec.rows", "dynamics.bell_weight"})  # further ones of a Wan world model
RESTORER = "restorer."  # settings of the frame restorer are free where the weights have none


def extended(model: VideoWorldModel, wanted: VideoWorldModelConfig, *, seed: int) -> VideoWorldModel:
    """Return the model under the settings that ``wanted`` gives, with what they add to it, untrained.

    Without added member or view, and with the same sampling, all numbers and images stay. Raises SettingError: a
    given setting does not fit these weights, or the backend cannot plan.
    """
    config = extended_config(model.config, wanted)
    if config == model.config and (model.pose_head is None) == (not model.embodiment.measured_pose):
        return model
    with initial_weights(seed, "planning"):
        larger = VideoWorldModel(config, model.embodiment)
    larger.load_state_dict(overlaid(larger.state_dict(), model.state_dict()))
    return larger.to(model.device).train(model.training)


def transferred(
    model: VideoWorldModel, wanted: VideoWorldModelConfig, embodiment: AnyEmbodiment, *, seed: int
) -> tuple[VideoWorldModel, list[str]]:
    """Return a model for another robot with every weight that fits, and the names of the weights that do not.

    These begin untrained. Raises SettingError: a given setting does not fit the weights.
    """
    with initial_weights(seed, "world-model"):
        fresh = VideoWorldModel(extended_config(model.config, wanted), embodiment)
    own, held = fresh.state_dict(), model.state_dict()
    taken = overlaid(own, held)
    other = [name for name, value in own.items() if name not in held or taken[name].shape != value.shape]
    fresh.load_state_dict({name: own[name] if name in other else taken[name] for name in own})
    return fresh.to(model.device), other


def overlaid(larger: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a larger model with those that are held; an embedding of further views keeps its own."""

    def longer(value: Tensor, first: Tensor) -> Tensor:
        return torch.cat([first, value[len(first) :]]) if value.dim() and len(value) > len(first) else first

    return {name: longer(value, held[name]) if name in held else value for name, value in larger.items()}


def extended_config(
    held: VideoWorldModelConfig,
    wanted: VideoWorldModelConfig,
    *,
    setting: str = "start",
    mend: str = "use start=scratch",
) -> VideoWorldModelConfig:
    """The weights' configuration with the given values that fit; SettingError names all that do not.

    ``setting`` names the weights, ``mend`` what to do without them.
    """
    own = held.to_json()
    asked = asked_for(wanted.to_json(), VideoWorldModelConfig().to_json(), own)
    if wanted.codec_kind is held.codec_kind:
        asked["codec"]["kind"] = own["codec"]["kind"]
    if refused := [
        f"{name}={value} ({old})"
        for name, (old, value) in changes(own, asked).items()
        if not _fits(name, old, value, held)
    ]:
        raise SettingError(
            f"{setting}: these weights do not fit {', '.join(refused)}, with their own values in brackets; leave it out, "
            f"or {mend}"
        )
    return VideoWorldModelConfig.from_json(asked)


def _fits(name: str, old: Any, value: Any, held: VideoWorldModelConfig) -> bool:
    if name.startswith(RESTORER):
        return not held.restorer.width
    if name == "cameras":
        return adds_views(old, value)
    return name in FREE and not (name == "outcome.ensemble_size" and value < old)


def adds_views(old: list[str], value: list[str]) -> bool:
    """Whether views are added after those that the weights have."""
    return value[: len(old)] == old


def asked_for(wanted: dict[str, Any], default: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    """Return ``held`` with every value of ``wanted`` that is not its default; nested dicts of the same keys."""

    def one(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return asked_for(cast("dict[str, Any]", value), default[name], held[name])
        return held[name] if value == default[name] else value

    return {name: one(name, value) for name, value in wanted.items()}


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return both values of every difference between nested dicts of the same keys, by dotted name."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, value in new.items():
        if isinstance(value, dict):
            found |= changes(old[name], cast("dict[str, Any]", value), f"{prefix}{name}.")
        elif value != old[name]:
            found[prefix + name] = old[name], value
    return found
