"""What a camera that stands still tells of the commands: closed forms, from demonstrations alone.

Where something moves in the image is the robot, and its command is known. So the place of what moves is affine in the
command, and the inverse says where in the room a place of the image is::

    place = B c + a              least squares over consecutive frames; place: centroid of the pixels that change
    w = C place(w) + D phase     least squares over the waypoints

A head of few demonstrations that starts with ``C`` finds the objects; one that starts anywhere sometimes does not.

Shapes legend: ``M`` samples, ``A`` numbers of a command, ``G`` grippers, ``Y X`` pixels.
"""

import torch
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.nn.vision import cell_coordinates
from worldrl.policies.samples import Samples
from worldrl.policies.token.waypoint import closing

MOVED = 30  # change of a pixel's three channels in sum beyond which it moves
LEAST_PIXELS = 16  # of a frame that shows motion
MOST_FRAMES = 4096  # that are compared, evenly spaced
STILL_CAMERA = 0.5  # least share of the places' variance that commands explain, in each direction of the image
RIDGE = 1e-3  # of the least squares, in variances


def moving_places(samples: Samples) -> tuple[Tensor, Tensor]:
    """Centroids of what moves from a frame to the next, ``[n, 2]`` in [-1, 1], and the commands between, ``[n, A]``."""
    assert samples.first is not None
    start = (samples.first[1:] == samples.first[:-1]).nonzero().squeeze(1)
    start = start[:: max(1, -(-len(start) // MOST_FRAMES))]
    height, width = samples.image.shape[1:3]
    pixels = cell_coordinates(height, width, device=samples.image.device, dtype=torch.float32)
    places, seen = list[Tensor](), list[Tensor]()
    for index in start.split(64):
        change = (samples.image[index + 1].int() - samples.image[index].int()).abs().sum(dim=3).flatten(1)
        change = change * (change > MOVED)
        moves = (change > 0).sum(dim=1) >= LEAST_PIXELS
        weight = change[moves].float()
        places.append(weight @ pixels / weight.sum(dim=1, keepdim=True))
        seen.append(index[moves])
    index = torch.cat(seen)
    return torch.cat(places), (samples.command[index] + samples.command[index + 1]) / 2


def least_squares(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Fit ``outputs [n, q] = inputs [n, p] W + w`` with a small ridge; return ``W [p, q]`` and ``w [q]``."""
    x, y = inputs.double(), outputs.double()
    centred = x - x.mean(dim=0)
    penalty = RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    weight = torch.linalg.solve(centred.T @ centred / len(x) + penalty, centred.T @ (y - y.mean(dim=0)) / len(x))
    return weight.float(), (y.mean(dim=0) - x.mean(dim=0) @ weight).float()


def camera_map(samples: Samples, actions: ActionSpec, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return ``C`` ``[A, 2]`` and ``[D d]`` ``[A, G + 1]`` for commands in standard deviations; None: they tell none.

    Each arm's rows are for the place that its own motion would have: of ``n`` arms the centroid moves by an ``n``-th.
    """
    known = torch.isfinite(samples.waypoints).all(dim=1)
    if samples.first is None or not known.any():
        return None
    places, commands = moving_places(samples)
    if len(places) <= actions.size:
        return None
    commands = (commands - mean) / deviation
    towards, origin = least_squares(commands, places)
    left = (places - commands @ towards - origin).var(dim=0)
    if (left > (1 - STILL_CAMERA) * places.var(dim=0)).any():
        return None
    waypoints, phase = (samples.waypoints[known] - mean) / deviation, closing(samples.command[known], actions)
    matrix, rest = list[Tensor](), list[Tensor]()
    for arm in actions.arms:
        place = len(actions.arms) * waypoints[:, arm] @ towards[arm] + origin
        weight, constant = least_squares(torch.cat([place, phase], dim=1), waypoints[:, arm])
        matrix.append(weight[:2].T)
        rest.append(torch.cat([weight[2:].T, constant[:, None]], dim=1))
    return torch.cat(matrix), torch.cat(rest)
