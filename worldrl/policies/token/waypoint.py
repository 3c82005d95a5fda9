"""Waypoint: the commanded pose at the next change of a gripper, read from images and instruction.

After the last change it is the next corner of the path, then its end: its corners alone describe a push (as in
AWE, Shi et al. 2023, "Waypoint-Based Imitation Learning for Robotic Manipulation", 2307.14326).

A decoder of few demonstrations that sees images and commanded pose follows whatever tells its episodes apart, and
misses the object. So a head reads the waypoint, and the decoder receives the way to it instead of the images::

    points in the images, instruction, phase ─► waypoint w (standard deviations of the commands)
    way = w - command ─► [clamp(way, -5, 5), tanh(way / NEAR)], instruction, phase ─► decoder

The phase is whether each gripper is commanded to close, and how far it is measured to be open. The decoder of a robot whose
actions are targets also receives the commanded pose. The head learns from the demonstrations' own commands.

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
from worldrl.nn.vision import Points

NEAR = 0.2  # way (standard deviations of the commands) within which it is given on a finer scale
CORNER = 1.0  # distance from a straight line (standard deviations of the commands) beyond which a path turns
CELLS = 0.03  # weight of the likelihood by cells; at 0.1 and above it disturbs the aim within a cell
LEAST_SCALE = 0.1  # of that likelihood, in standard deviations of the commands
ROBUST = 0.1  # error (standard deviations) above which the loss is linear


@dataclass(frozen=True)
class Waypoint:
    """Waypoints that a head read, in standard deviations of the commands."""

    affine: Tensor  # ``[B, A]``, by the camera's map alone.
    correction: Tensor  # ``[B, A]``
    pose: Tensor  # ``[B, A]``, their sum, which the decoder steers to; in cloning with another gradient.
    log_heat: Tensor  # ``[B, N, arms]``, log-probability that an arm's place is a cell.
    of_cells: Tensor  # ``[B, N, A]``, what the affine part would be at each cell.
    scale: Tensor  # ``[A]``, that of the Laplace distribution around it.


class WaypointHead(nn.Module):
    """Waypoint from the place of one thing for each arm, by one map of the camera, and a correction that starts at 0.

        p = Σ_k π_k p_k        π = softmax(pick(instruction, phase)), p_k the points of the first camera
        w = C p + D phase + d + b(instruction, phase) + correction(all points, instruction, phase)

    An image of a table is nearly affine, and equally so for every instruction: all demonstrations tell ``C``, which is
    two numbers for each of a command. A matrix of all points learns the demonstrations by heart.
    """

    def __init__(self, actions: ActionSpec, seen: tuple[int, int], text: int, phase: int, hidden: int) -> None:
        super().__init__()
        (points, features), context, size = seen, text + phase, actions.size
        self.arm_of = [arm for arm, part in enumerate(actions.arms) for _ in range(part.start, part.stop)]
        self.camera = nn.Parameter(torch.zeros(size, 2))  # C
        self.phase = nn.Parameter(torch.zeros(size, phase + 1))  # [D d]
        self.log_scale = nn.Parameter(torch.full((size,), -1.0))
        self.pick = nn.Linear(context, len(actions.arms) * points)
        self.origin = Mlp(context, hidden, size)
        self.correction = Perceptron(features + context, hidden, size)
        for last in (self.origin[-1], self.correction[-1]):
            for parameter in last.parameters():
                nn.init.zeros_(parameter)

    @torch.no_grad()
    def start(self, camera: Tensor, phase: Tensor) -> None:
        """Take ``C`` ``[A, 2]`` and ``[D d]`` ``[A, G + 1]`` (:func:`worldrl.policies.token.camera.camera_map`).

        What is measured of the grippers begins with 0.
        """
        grippers = phase.shape[1] - 1
        self.camera.copy_(camera)
        self.phase.zero_()
        self.phase[:, :grippers], self.phase[:, -1] = phase[:, :-1], phase[:, -1]

    def forward(self, images: Sequence[Points], text: Tensor, phase: Tensor, *, cloning: bool = False) -> Waypoint:
        """Read the points of each camera, instruction ``[B, text]`` and phase ``[B, phase]``.

        In ``cloning`` the affine part has a loss of its own. There the decoder's gradient reaches the correction's weights
        and neither ``C`` nor the points: it would teach them whatever tells few demonstrations apart.
        """
        context, points = torch.cat([text, phase], dim=1), images[0]
        chosen = self.pick(context).unflatten(1, (-1, points.place.shape[1])).log_softmax(dim=2)  # [B, arms, K]
        place = (chosen.exp() @ points.place)[:, self.arm_of]  # [B, A, 2]
        always = phase.new_ones(len(phase), 1)  # a robot without grippers has no phase
        origin = torch.cat([phase, always], dim=1) @ self.phase.T + self.origin(context)
        features = torch.cat([*(image.flat for image in images), context], dim=1)
        heat = (chosen[..., None] + points.score.log_softmax(dim=2)[:, None]).logsumexp(dim=2)  # [B, arms, N]
        affine, correction = (place * self.camera).sum(dim=2) + origin, self.correction(features)
        return Waypoint(
            affine,
            correction,
            pose=affine.detach() + self.correction(features.detach()) if cloning else affine + correction,
            log_heat=heat.mT,
            of_cells=points.cells @ self.camera.T + origin[:, None],
            scale=self.log_scale.exp().clamp_min(LEAST_SCALE),
        )


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
    """How far each gripper is commanded to close by ``command`` ``[..., A]``: -1 open, 1 closed; ``[..., G]``."""
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


def waypoint_loss(waypoint: Waypoint, target: Tensor, actions: ActionSpec) -> Tensor:
    """Loss of waypoints ``[B, A]``; rows of NaN in ``target`` have none.

    The robust error of the affine part, that of the correction which is added to it, and :func:`cell_loss`. In one
    error the correction would learn the few demonstrations by heart before ``C`` fits them.
    """
    known = torch.isfinite(target).all(dim=1)
    target, count = torch.where(known[:, None], target, waypoint.affine.detach()), known.sum().clamp_min(1)
    error = CELLS * cell_loss(waypoint, target, actions)
    for read in (waypoint.affine, waypoint.affine.detach() + waypoint.correction):
        error = error + smooth_l1_loss(read, target, beta=ROBUST, reduction="none").mean(dim=1)
    return (error * known).sum() / count


def cell_loss(waypoint: Waypoint, target: Tensor, actions: ActionSpec) -> Tensor:
    """Negative log-likelihood of ``target`` ``[B, A]`` where each arm's place is one of the cells, a mean over ``A``.

    A Laplace distribution around what the camera's map makes of the cell. The error of an expected place has
    no gradient at a cell of hardly any heat. This has one, so points on another object find the one that is meant.
    """
    beside = (target[:, None] - waypoint.of_cells).abs() / waypoint.scale + waypoint.scale.log()  # [B, N, A]
    arms = [waypoint.log_heat[..., arm] - beside[..., part].sum(dim=2) for arm, part in enumerate(actions.arms)]
    return -torch.stack(arms).logsumexp(dim=2).sum(dim=0) / actions.size
