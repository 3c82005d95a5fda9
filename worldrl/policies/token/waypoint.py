"""Waypoint: the commanded pose at the next change of a gripper, read from images and instruction alone.

Along a demonstration the commanded pose tells where the hand goes. A decoder of few demonstrations learns to follow it,
and uses the image too little: it closes the gripper beside the object. So a head reads the waypoint from the
images, and the decoder receives the way to it::

    images, instruction ─► waypoint w (standard deviations of the commands)
    way = w - command ─► [clamp(way, -5, 5), tanh(way / NEAR)] ─► decoder

The head learns from the demonstrations' own commands and from the decoder's gradient.

Shapes legend: ``B`` rows, ``T`` steps, ``A`` numbers of an action and of a command.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from worldrl.core.types import Episode

NEAR = 0.2  # way (standard deviations of the commands) within which it is given on a finer scale
ROBUST = 0.1  # error (standard deviations) above which the loss is linear


@dataclass(frozen=True)
class Augmented:
    """What training did to each row's observation."""

    command_seen: Tensor  # bool ``[B]``; False hides command and way.
    absolute_seen: Tensor  # bool ``[B]``; False hides command, measured state and points, but not the way.
    noise: Tensor  # float ``[B, A]``, added to the way, in standard deviations of the commands.
    offset: Sequence[Tensor]  # int64 ``[B, 2]`` per camera: from where its image is shown (``nn.vision.shift``).


def next_waypoints(episode: Episode) -> NDArray[np.float32]:
    """Waypoint of each frame with an action, ``[T, A]``; after the last change of a gripper the last command."""
    closed = episode.actions.closed(episode.command)
    changes = np.flatnonzero((closed[1:] != closed[:-1]).any(axis=1))
    ends = np.append(changes, len(episode.command) - 1)
    return episode.command[ends[np.searchsorted(ends, np.arange(len(episode)))]]


def way_features(way: Tensor) -> Tensor:
    """Give a way ``[B, A]`` in standard deviations on a coarse and a fine scale, ``[B, 2 A]``."""
    return torch.cat([way.clamp(-5, 5), torch.tanh(way / NEAR)], dim=1)


def waypoint_loss(waypoint: Tensor, target: Tensor) -> Tensor:
    """Robust error of waypoints ``[B, A]`` in standard deviations; rows of NaN in ``target`` have none."""
    known = torch.isfinite(target).all(dim=1, keepdim=True)
    error = smooth_l1_loss(waypoint, torch.where(known, target, waypoint.detach()), beta=ROBUST, reduction="none")
    return error.mean(dim=1).sum() / known.sum().clamp_min(1)
