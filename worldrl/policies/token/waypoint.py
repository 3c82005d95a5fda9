"""Waypoint: the commanded pose at the next change of a gripper, read from images and instruction.

After the last change it is the next corner of the path, then its end: how to push is told by its corners alone (as in
AWE, Shi et al. 2023, "Waypoint-Based Imitation Learning for Robotic Manipulation", 2307.14326).

A decoder of few demonstrations that sees images and commanded pose follows whatever tells its episodes apart, and
misses the object. So a head reads the waypoint, and the decoder receives the way to it instead of the images::

    points in the images, instruction, phase ─► waypoint w (standard deviations of the commands)
    way = w - command ─► [clamp(way, -5, 5), tanh(way / NEAR)], instruction, phase ─► decoder

The phase is whether each gripper is told to close, and how far it is measured to be open. The decoder of a robot whose
actions are targets also receives the commanded pose. The head learns from the demonstrations' own commands and from the
decoder's gradient.

Shapes legend: ``B`` rows, ``T`` steps, ``A`` numbers of an action and of a command, ``G`` grippers, ``K`` points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from worldrl.core.actions import ActionSpec
from worldrl.nn.blocks import Mlp, Perceptron

NEAR = 0.2  # way (standard deviations of the commands) within which it is given on a finer scale
CORNER = 1.0  # distance from a straight line (standard deviations of the commands) beyond which a path turns
ROBUST = 0.1  # error (standard deviations) above which the loss is linear


class WaypointHead(nn.Module):
    """Waypoint ``[B, A]`` from what is seen: affine in the places of points, and a correction that starts at 0.

        w = M(phase) places + b(instruction, phase) + correction(places, values, instruction, phase)

    An image of a table is nearly affine, and equally so for every instruction: all demonstrations tell ``M``. A
    perceptron of the places alone aims too far inside near the table's edges.
    """

    def __init__(self, seen: tuple[int, int], text: int, phase: int, hidden: int, size: int) -> None:
        super().__init__()
        (places, values), context = seen, text + phase
        self.size = size
        self.matrix = Mlp(phase + 1, hidden, size * places)
        self.origin = Mlp(context, hidden, size)
        self.correction = Perceptron(places + values + context, hidden, size)
        for parameter in self.correction[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, places: Tensor, values: Tensor, text: Tensor, phase: Tensor) -> Tensor:
        """Map places ``[B, 2 K]``, features there, instruction and phase to waypoints in standard deviations."""
        always = phase.new_ones(len(phase), 1)  # a robot without grippers has no phase
        matrix = self.matrix(torch.cat([phase, always], dim=1)).unflatten(1, (self.size, -1))  # [B, A, 2 K]
        affine = (matrix @ places[..., None]).squeeze(-1) + self.origin(torch.cat([text, phase], dim=1))
        return affine + self.correction(torch.cat([places, values, text, phase], dim=1))


@dataclass(frozen=True)
class Augmented:
    """What training did to each row's observation."""

    # bool ``[B]``; False hides command and measured state from the decoder of a policy without a waypoint.
    command_seen: Tensor
    noise: Tensor  # float ``[B, A]``, added to the way, in standard deviations of the commands.
    offset: Sequence[Tensor]  # int64 ``[B, 2]`` per camera: from where its image is shown (``nn.vision.shift``).


def waypoints_along(
    command: NDArray[np.float32], actions: ActionSpec, deviation: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Waypoint of each of ``command`` ``[T+1, A]`` but the last: at the next change of a gripper, then corner, then end.

    ``deviation`` is the commands' standard deviation ``[A]``.
    """
    closed = actions.closed(command)
    changes = np.flatnonzero((closed[1:] != closed[:-1]).any(axis=1))
    pose = np.delete(command / deviation, list(actions.grippers), axis=1)
    rest = changes[-1] + 1 if len(changes) else 0
    ends = np.array([*changes, *corners(pose, rest, len(command) - 1), len(command) - 1])
    return command[ends[np.searchsorted(ends, np.arange(len(command) - 1))]]


def corners(path: NDArray[np.float32], first: int, last: int) -> list[int]:
    """Rows between ``first`` and ``last`` of ``path`` at which straight lines come within ``CORNER`` of all others.

    The row farthest from the line is a corner, and divides the path into two (Ramer, Douglas and Peucker).
    """
    if last - first < 2:
        return []
    line, off = path[last] - path[first], path[first + 1 : last] - path[first]
    share = np.clip(off @ line / max(float(line @ line), 1e-12), 0, 1)
    distance = np.linalg.norm(off - share[:, None] * line, axis=1)
    corner = first + 1 + int(distance.argmax())
    if distance.max() <= CORNER:
        return []
    return [*corners(path, first, corner), corner, *corners(path, corner, last)]


def closing(command: Tensor, actions: ActionSpec) -> Tensor:
    """How far each gripper is told to close by ``command`` ``[..., A]``: -1 open, 1 closed; ``[..., G]``."""
    share = (command[..., list(actions.grippers)] - actions.gripper_open) / (
        actions.gripper_closed - actions.gripper_open
    )
    return 2 * share - 1


def arm_alone(way: Tensor, actions: ActionSpec) -> Tensor:
    """Return a way ``[B, A]`` with 0 for each gripper."""
    return way.index_fill(1, torch.tensor(actions.grippers, dtype=torch.int64, device=way.device), 0)


def way_features(way: Tensor) -> Tensor:
    """Give a way ``[B, A]`` in standard deviations on a coarse and a fine scale, ``[B, 2 A]``."""
    return torch.cat([way.clamp(-5, 5), torch.tanh(way / NEAR)], dim=1)


def waypoint_loss(waypoint: Tensor, target: Tensor) -> Tensor:
    """Robust error of waypoints ``[B, A]`` in standard deviations; rows of NaN in ``target`` have none."""
    known = torch.isfinite(target).all(dim=1, keepdim=True)
    error = smooth_l1_loss(waypoint, torch.where(known, target, waypoint.detach()), beta=ROBUST, reduction="none")
    return error.mean(dim=1).sum() / known.sum().clamp_min(1)
