"""Settings of behaviour cloning and of distillation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError, nearest, require_at_least_one
from worldrl.core.training.ranks import DeviceSettings

LIKELIHOOD, ONE_TOKEN_ROLLOUT = OBJECTIVES = ("likelihood", "one_token_rollout")


@dataclass
class Imitation:
    """How any policy is trained on demonstrations; the defaults are those of behaviour cloning."""

    steps: int = 1500  # optimiser steps.
    batch_size: int = 128  # samples per step.
    learning_rate: float = 1e-3  # peak of the warm-up cosine schedule.
    warmup_steps: int = 50  # steps of linear warm-up.
    weight_decay: float = 1e-3  # of AdamW.
    clip_norm: float = 1.0  # largest gradient norm.
    held_out_fraction: float = 0.1  # share of the episodes kept for the held-out loss.
    checkpoint_every: int = 250  # steps between checkpoints; each holds the trained weights and two moments of each.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("steps", "batch_size", "checkpoint_every"))
        if not 0 <= self.held_out_fraction < 1:
            raise SettingError(f"held_out_fraction: must be in [0, 1), got {self.held_out_fraction}")
        if self.weight_decay < 0:
            raise SettingError(f"weight_decay: must not be negative, got {self.weight_decay}")
        if not 0 <= self.warmup_steps < self.steps:
            raise SettingError(f"warmup_steps: must be below steps={self.steps}, got {self.warmup_steps}")


@dataclass(frozen=True)
class Augmentation:
    """What training does to the observations of one policy."""

    command_dropout: float
    way_noise: float
    shift_pixels: int


@dataclass
class BehaviourCloning(Imitation, DeviceSettings):
    """Settings of :func:`train_policy`."""

    # loss of a token: likelihood of the demonstrated one, or one_token_rollout (``one_token_rollout.py``), which rewards
    # what the policy itself would draw.
    objective: str = LIKELIHOOD
    label_width: float = 1.0  # standard deviation, in bins, of the soft labels; 0 is one-hot.
    dimension_weights: tuple[float, ...] = ()  # weight of each action dimension in the loss; empty weighs all alike.
    # probability that a sample's commanded pose is hidden; null: 0.1. Of a policy without a waypoint.
    command_dropout: float | None = None
    # noise of the way to the waypoint, in standard deviations of the commands, for which the chunks are corrected
    # (``corrective_noise.py``); null: 0.5, and 0.1 where actions are targets. Of a policy with a waypoint.
    way_noise: float | None = None
    # largest random shift of the image, in pixels; null: 8 for a policy with a waypoint, 3 for one without.
    shift_pixels: int | None = None
    jitter: float = 0.1  # strength of the brightness and colour jitter.
    ema_decay: float = 0.0  # decay of the averaged weights that are returned; 0 returns the last weights.
    # number type of the image encoder's convolutions in training: ``float32``, ``bfloat16``, or ``auto``: bfloat16
    # where the device has units for it. The policy acts in float32.
    dtype: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dimension_weights = tuple(self.dimension_weights)
        if self.objective not in OBJECTIVES:
            raise SettingError(
                f"objective: one of {', '.join(OBJECTIVES)}, got {self.objective!r}{nearest(self.objective, OBJECTIVES)}"
            )
        for name in ("command_dropout", "ema_decay", "jitter"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise SettingError(f"{name}: must be in [0, 1), got {getattr(self, name)}")
        for name in ("label_width", "shift_pixels", "way_noise"):
            if (getattr(self, name) or 0) < 0:
                raise SettingError(f"{name}: must not be negative, got {getattr(self, name)}")
        weights = self.dimension_weights
        if weights and (min(weights) < 0 or sum(weights) == 0):
            raise SettingError(f"dimension_weights: numbers >= 0, not all 0, got {weights}")

    def augmentation(self, *, waypoint: bool, targets: bool = False) -> Augmentation:
        """Return what training does to the observations of a policy with or without a waypoint; SettingError: neither's.

        Without, the points of a shifted image are wrong by the shift, so a larger one blurs the aim. ``targets``:
        whether its actions are targets, so that no chunk is corrected for the noise.
        """
        other, own, default = ("command_dropout", "way_noise", 8) if waypoint else ("way_noise", "command_dropout", 3)
        if getattr(self, other) is not None:
            raise SettingError(
                f"{other}: is of a policy with waypoint={not waypoint}, and this one has the other; leave it out"
            )
        shift = default if self.shift_pixels is None else self.shift_pixels
        given = getattr(self, own)
        usual = 0.5 if waypoint and not targets else 0.1
        value = usual if given is None else given
        return Augmentation(0.0 if waypoint else value, value if waypoint else 0.0, shift)

    def weights(self, actions: ActionSpec) -> Tensor:
        """Return the weight of each action dimension, ``[A]``; SettingError: their number is not the robot's."""
        given = self.dimension_weights or (1.0,) * actions.size
        if len(given) != actions.size:
            raise SettingError(f"dimension_weights: one for each of {', '.join(actions.names)}, got {given}")
        return torch.tensor(given)


@dataclass
class Distillation:
    """Settings of :func:`~worldrl.methods.imitation.distillation.distil`."""

    steps: int = 400  # gradient steps; 0 for none.
    batch_size: int = 96  # frames of a step.
    learning_rate: float = 3e-4  # AdamW, half a cosine.

    def __post_init__(self) -> None:
        require_at_least_one(self, ("batch_size",), of="distillation")
