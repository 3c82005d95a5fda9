"""Waypoint: the commanded pose at the next change of a gripper, read from images and instruction.

A decoder of few demonstrations that sees images and commanded pose follows whatever tells its episodes apart, and
misses the object. So a head reads the waypoint, and the decoder receives the way to it instead of the images::

    images, instruction, phase ─► waypoint w (standard deviations of the commands)
    way = w - command ─► [clamp(way, -5, 5), tanh(way / NEAR)], instruction, phase ─► decoder

The phase is whether each gripper is told to close, and how far it is measured to be open. The decoder of a robot whose
actions are targets also receives the commanded pose. The head learns from the demonstrations' own commands and from the
decoder's gradient.

Shapes legend: ``B`` rows, ``T`` steps, ``A`` numbers of an action and of a command, ``G`` grippers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from worldrl.core.actions import ActionSpec
from worldrl.core.types import Episode

NEAR = 0.2  # way (standard deviations of the commands) within which it is given on a finer scale
ROBUST = 0.1  # error (standard deviations) above which the loss is linear


@dataclass(frozen=True)
class Augmented:
    """What training did to each row's observation."""

    # bool ``[B]``; False hides command and measured state from the decoder of a policy without a waypoint.
    command_seen: Tensor
    noise: Tensor  # float ``[B, A]``, added to the way, in standard deviations of the commands.
    offset: Sequence[Tensor]  # int64 ``[B, 2]`` per camera: from where its image is shown (``nn.vision.shift``).


def next_waypoints(episode: Episode) -> NDArray[np.float32]:
    """Waypoint of each frame with an action, ``[T, A]``."""
    return waypoints_along(episode.command, episode.actions)


def waypoints_along(command: NDArray[np.float32], actions: ActionSpec) -> NDArray[np.float32]:
    """Waypoint of each of ``command`` ``[T+1, A]`` but the last; after the last change of a gripper the last command."""
    closed = actions.closed(command)
    changes = np.flatnonzero((closed[1:] != closed[:-1]).any(axis=1))
    ends = np.append(changes, len(command) - 1)
    return command[ends[np.searchsorted(ends, np.arange(len(command) - 1))]]


def closing(command: Tensor, actions: ActionSpec) -> Tensor:
    """How far each gripper is told to close by ``command`` ``[B, A]``: -1 open, 1 closed; ``[B, G]``."""
    share = (command[:, list(actions.grippers)] - actions.gripper_open) / (
        actions.gripper_closed - actions.gripper_open
    )
    return 2 * share - 1


def way_features(way: Tensor) -> Tensor:
    """Give a way ``[B, A]`` in standard deviations on a coarse and a fine scale, ``[B, 2 A]``."""
    return torch.cat([way.clamp(-5, 5), torch.tanh(way / NEAR)], dim=1)


def waypoint_loss(waypoint: Tensor, target: Tensor) -> Tensor:
    """Robust error of waypoints ``[B, A]`` in standard deviations; rows of NaN in ``target`` have none."""
    known = torch.isfinite(target).all(dim=1, keepdim=True)
    error = smooth_l1_loss(waypoint, torch.where(known, target, waypoint.detach()), beta=ROBUST, reduction="none")
    return error.mean(dim=1).sum() / known.sum().clamp_min(1)
