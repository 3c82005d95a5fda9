"""A plane whose dynamics are known exactly, for the edge-of-reach problem (Sims et al. 2024).

    s ∈ [-size, size]²,  a ∈ [-1, 1]²,  s' = clip(s + step · a),  r = floor + (1 - floor) exp(-‖s' - goal‖² / 2σ²)

The data lie in a disc around the origin, the goal outside it. After ``j`` steps from the disc, exactly the states with
‖(|s| - j · step)₊‖ ≤ radius can be reached (each coordinate moves by at most ``step`` on its own), so the states at the
edge of a rollout of k steps are those that pass with j = k and fail with j = k - 1. The paper's own environment is
published as a picture only; this one is a stand-in with the same ingredients.

Shapes legend: ``B`` rows, ``G`` grid points per axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.transitions import Outcome, Transitions

GRID = 201
"""Points per axis of the oracle's table, a hundredth of ``size`` apart."""
TOLERANCE = 1e-6
"""Largest change of the table at which value iteration ends, as a share of the largest value."""
CELLS = 81
"""Cells per axis in which states count as the same; with the default lengths a quarter of a move wide."""
PIXELS = 96


@dataclass(frozen=True)
class Plane:
    """The environment, which is its own exact world; see the module.

    Attributes:
        size: half of the square's side, which the lengths below are to be read against.
        step: largest move per coordinate; a multiple of the grid's ``size`` / 100.
        radius: of the disc of data.
        goal: both coordinates of the reward's peak.
        width: σ of the reward.
        floor: reward far from the goal, as a robot earns for being upright; what is bootstrapped at the edge grows
            from it.
        discount: γ of the oracle.
    """

    size: float = 10.0
    step: float = 1.0
    radius: float = 3.0
    goal: float = 2.5
    width: float = 2.0
    floor: float = 0.5
    discount: float = 0.95

    def reward(self, arrived: Tensor) -> Tensor:
        """Return r ``[B]`` of arriving at ``[B, 2]``."""
        bump = torch.exp(-((arrived - self.goal) ** 2).sum(-1) / (2 * self.width**2))
        return self.floor + (1 - self.floor) * bump

    def move(self, state: Tensor, action: Tensor) -> Tensor:
        """Return s' ``[B, 2]``."""
        return (state + self.step * action).clamp(-self.size, self.size)

    def reachable(self, state: Tensor, steps: int) -> Tensor:
        """Whether ``[B, 2]`` can be reached from the disc in at most ``steps``: bool ``[B]``."""
        return (state.abs() - steps * self.step).clamp(min=0).norm(dim=-1) <= self.radius

    def at_edge(self, state: Tensor, horizon: int) -> Tensor:
        """Whether ``[B, 2]`` can be reached in ``horizon`` steps and no fewer: bool ``[B]``."""
        return self.reachable(state, horizon) & ~self.reachable(state, horizon - 1)

    def cell(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cell, row and column int64 ``[B]``, in which ``[B, 2]`` lies."""
        row, column = ((state / self.size + 1) / 2 * (CELLS - 1)).round().long().unbind(-1)
        return row, column

    def visited(self, states: Tensor) -> Tensor:
        """Mark the cells that hold any of ``[N, 2]``: bool ``[CELLS, CELLS]``."""
        seen = torch.zeros(CELLS, CELLS, dtype=torch.bool)
        seen[self.cell(states)] = True
        return seen

    def disc(self, rows: int, *, generator: torch.Generator) -> Tensor:
        """Draw states ``[rows, 2]`` uniformly in the disc."""
        distance = self.radius * torch.rand(rows, generator=generator).sqrt()
        angle = 2 * torch.pi * torch.rand(rows, generator=generator)
        return distance[:, None] * torch.stack([angle.cos(), angle.sin()], -1)

    def data(self, rows: int, *, generator: torch.Generator) -> Transitions:
        """Draw a dataset: states of the disc, uniform actions, no endings."""
        obs = self.disc(rows, generator=generator)
        action = 2 * torch.rand(rows, 2, generator=generator) - 1
        arrived, no = self.move(obs, action), torch.zeros(rows, dtype=torch.bool)
        return Transitions(obs, action, self.reward(arrived), arrived, no, no)

    # -- oracle ------------------------------------------------------------------------------------------------------

    @cached_property
    def value_table(self) -> Tensor:
        """V*, ``[G, G]`` over x and y, by value iteration.

        A move covers every grid point of the square of side 2 · step around a state, and the reward belongs to where
        it arrives, so one sweep is a maximum filter: V ← max over the square of (r + γ V). It begins with the value
        of staying at the peak for ever, from which all others follow in as many sweeps as a path has steps.
        """
        axis = torch.linspace(-self.size, self.size, GRID)
        reward = self.reward(torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1))
        reach = round(self.step / self.size * (GRID - 1) / 2)
        value = torch.where(reward == reward.max(), reward / (1 - self.discount), 0.0)
        while True:
            arrived = (reward + self.discount * value)[None, None]
            rows = F.max_pool2d(arrived, (2 * reach + 1, 1), 1, (reach, 0))
            new = F.max_pool2d(rows, (1, 2 * reach + 1), 1, (0, reach))[0, 0]
            if float((new - value).abs().max()) <= TOLERANCE * float(new.max()):
                return new
            value = new

    def value(self, state: Tensor) -> Tensor:
        """Interpolate V* at ``[B, 2]``: ``[B]``."""
        place = (state / self.size).flip(-1)[None, :, None]  # grid_sample wants (column, row) = (y, x)
        return F.grid_sample(self.value_table[None, None], place, align_corners=True)[0, 0, :, 0]

    def q(self, state: Tensor, action: Tensor) -> Tensor:
        """Q*(s, a) = r + γ V*(s'), ``[B]``."""
        arrived = self.move(state, action)
        return self.reward(arrived) + self.discount * self.value(arrived)

    def best_action(self, state: Tensor) -> Tensor:
        """Return the best of 11 × 11 actions under Q*: ``[B, 2]``."""
        axis = torch.linspace(-1, 1, 11)
        moves = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        rows = len(state)
        q = self.q(state.repeat_interleave(len(moves), 0), moves.repeat(rows, 1))
        return moves[q.reshape(rows, -1).argmax(1)]


class PlaneWorld:
    """The plane as a :class:`~worldrl.core.interfaces.StateWorld`: the true dynamics, whose uncertainty is exactly 0.

    Args:
        plane: the environment.
        starts: ``[N, 2]``, the dataset's states.
    """

    obs_size = 2
    action_size = 2

    def __init__(self, plane: Plane, starts: Tensor) -> None:
        self.plane, self.starts = plane, starts

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Begin at recorded rows."""
        return self.starts[index], self.starts[index]

    def step(self, state: Tensor, action: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Outcome]:
        """Move every row."""
        arrived = self.plane.move(state, action)
        zero = torch.zeros(len(state))
        return arrived, Outcome(arrived, self.plane.reward(arrived), zero.bool(), zero)

    def select(self, state: Tensor, index: Tensor) -> Tensor:
        """Keep rows."""
        return state[index]


def picture(plane: Plane, paths: Any, horizon: int) -> NDArray[np.uint8]:
    """Draw the reward (grey), the disc (blue), the states at the edge (yellow) and where paths went (red).

    Args:
        plane: the environment.
        paths: numbers ``[points, 2]``.
        horizon: k.

    Returns:
        uint8 ``[PIXELS, PIXELS, 3]``, y upwards.
    """
    axis = torch.linspace(-plane.size, plane.size, PIXELS)
    y, x = torch.meshgrid(-axis, axis, indexing="ij")
    at = torch.stack([x, y], -1).reshape(-1, 2)
    image = (0.25 + 0.75 * plane.reward(at))[:, None].expand(-1, 3).clone()
    image[plane.at_edge(at, horizon)] *= torch.tensor([1.0, 0.9, 0.3])
    image[plane.reachable(at, 0)] += torch.tensor([-0.1, 0.0, 0.3])
    image = image.clamp(0, 1).reshape(PIXELS, PIXELS, 3)
    at = torch.as_tensor(paths, dtype=torch.float32).reshape(-1, 2) / plane.size
    place = ((at + 1) / 2 * (PIXELS - 1)).round().long()
    image[PIXELS - 1 - place[:, 1], place[:, 0]] = torch.tensor([1.0, 0.1, 0.1])
    return (255 * image).byte().numpy()
