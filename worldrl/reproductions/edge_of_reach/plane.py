"""A ledge whose dynamics are known exactly, for the edge-of-reach problem (Sims et al. 2024).

    s ∈ [-size, size]²,  a ∈ [-1, 1]²,  s' = clip(s + step · a),  r = max(0, 1 - ‖s' - goal‖² / far²)

Beyond the ledge, max |s_i| > ledge, a state has fallen: s' = s and r = 0 for ever after. Episodes and rollouts begin in
the square max |s_i| ≤ start, so exactly the square max |s_i| ≤ start + j · step is reachable after j steps. The ledge
ends where a rollout of k steps can be before its last step. So the states that are reached only at step k, the edge of
reach, are the cliff: the reward grows towards it, the step into it still pays, and no row begins there. The paper's own
environment is published as an image only; this one is a stand-in.

An agent observes the position and, in the cliff, numbers that are 0 on the ledge (:meth:`Plane.observe`): a robot at
the edge of reach has a pose unlike all that it acted from. With the position alone, critics of common targets
extrapolate into the cliff alike.

Shapes legend: ``B`` rows, ``G`` grid points per axis.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.transitions import Outcome, Transitions

GRID = 201  # Points per axis of the oracle's table, a hundredth of `size` apart
TOLERANCE = 1e-6  # Largest change of the table at which value iteration ends, as a share of the largest value
SLACK = 1e-5  # Rounding error that counts as no fall
PIXELS = 96
GOLDEN = math.pi * (3 - math.sqrt(5))
"""Golden angle (rad) between neighbouring waves: no two of few directions are close."""
WAVELENGTH = 0.4  # Length of the waves, as a share of `size`: two moves to either side


@dataclass(frozen=True)
class Plane:
    """The environment, which is its own exact world; see the module."""

    horizon: int = 5  # k of the rollouts, which puts the ledge k - 1 steps from the start
    size: float = 1.0  # half of the square's side; the other lengths are relative to it
    step: float = 0.1  # largest move per coordinate; a multiple of the grid's `size` / 100
    start: float = 0.05  # half side of the square where episodes begin
    beyond: float = 0.1  # distance of the reward's peak beyond the ledge, in both coordinates
    far: float = 0.9  # distance from the peak at which the reward is 0
    discount: float = 0.95  # γ of the oracle
    novelties: int = 0  # further observed numbers, all 0 on the ledge; see observe

    @property
    def ledge(self) -> float:
        """Largest coordinate before a fall."""
        return self.start + (self.horizon - 1) * self.step

    @property
    def goal(self) -> float:
        """Both coordinates of the reward's peak."""
        return self.ledge + self.beyond

    def fallen(self, state: Tensor) -> Tensor:
        """Whether ``[B, 2]`` is beyond the ledge: bool ``[B]``."""
        return state.abs().amax(-1) > self.ledge + SLACK

    def reward(self, state: Tensor, arrived: Tensor) -> Tensor:
        """Return r ``[B]`` of a step from ``[B, 2]`` to ``[B, 2]``."""
        paid = (1 - ((arrived - self.goal) / self.far).square().sum(-1)).clamp(min=0)
        return torch.where(self.fallen(state), 0.0, paid)

    def move(self, state: Tensor, action: Tensor) -> Tensor:
        """Return s' ``[B, 2]``."""
        return torch.where(
            self.fallen(state)[:, None], state, (state + self.step * action).clamp(-self.size, self.size)
        )

    def observe(self, state: Tensor) -> Tensor:
        """Return the position and waves of a height equal to the depth fallen, ``[B, 2 + novelties]``."""
        turn = GOLDEN * torch.arange(self.novelties)
        waves = torch.sin(2 * math.pi / WAVELENGTH * (state @ torch.stack([turn.cos(), turn.sin()])) + turn)
        depth = ((state.abs().amax(-1, keepdim=True) - self.ledge - SLACK) / self.step).clamp(min=0)
        return torch.cat([state, depth * waves], -1)

    def reachable(self, state: Tensor, steps: int) -> Tensor:
        """Whether ``[B, 2]`` is reachable from the start in at most ``steps`` ≤ k: bool ``[B]``."""
        return state.abs().amax(-1) <= self.start + steps * self.step + SLACK

    def at_edge(self, state: Tensor, horizon: int) -> Tensor:
        """Whether ``[B, 2]`` is reachable in ``horizon`` ≤ k steps and no fewer: bool ``[B]``."""
        return self.reachable(state, horizon) & ~self.reachable(state, horizon - 1)

    def data(self, rows: int, *, generator: torch.Generator) -> Transitions:
        """Draw a dataset: uniform states of the starting square and uniform actions, no endings."""
        state = self.start * (2 * torch.rand(rows, 2, generator=generator) - 1)
        action = 2 * torch.rand(rows, 2, generator=generator) - 1
        arrived, no = self.move(state, action), torch.zeros(rows, dtype=torch.bool)
        return Transitions(self.observe(state), action, self.reward(state, arrived), self.observe(arrived), no, no)

    # -- oracle ------------------------------------------------------------------------------------------------------

    @cached_property
    def value_table(self) -> Tensor:
        """V*, ``[G, G]`` over x and y: V ← max over the square of side 2 · step of (r + γ V), 0 beyond the ledge."""
        axis = torch.linspace(-self.size, self.size, GRID)
        at = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
        paid, stands = self.reward(torch.zeros(2), at), ~self.fallen(at)
        reach = round(self.step / self.size * (GRID - 1) / 2)
        value = torch.zeros(GRID, GRID)
        while True:
            arrived = (paid + self.discount * value)[None, None]
            rows = F.max_pool2d(arrived, (2 * reach + 1, 1), 1, (reach, 0))
            new = F.max_pool2d(rows, (1, 2 * reach + 1), 1, (0, reach))[0, 0] * stands
            if float((new - value).abs().max()) <= TOLERANCE * float(new.max()):
                return new
            value = new

    def value(self, state: Tensor) -> Tensor:
        """Interpolate V* at ``[B, 2]``: ``[B]``; 0 beyond the ledge."""
        place = (state / self.size).flip(-1)[None, :, None]  # grid_sample wants (column, row) = (y, x)
        found = F.grid_sample(self.value_table[None, None], place, align_corners=True)[0, 0, :, 0]
        return torch.where(self.fallen(state), 0.0, found)

    def q(self, state: Tensor, action: Tensor) -> Tensor:
        """Q*(s, a) = r + γ V*(s'), ``[B]``."""
        arrived = self.move(state, action)
        return self.reward(state, arrived) + self.discount * self.value(arrived)

    def best_action(self, state: Tensor) -> Tensor:
        """Return the best of 21 × 21 actions under Q*: ``[B, 2]``."""
        axis = torch.linspace(-1, 1, 21)
        moves = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        rows = len(state)
        q = self.q(state.repeat_interleave(len(moves), 0), moves.repeat(rows, 1))
        return moves[q.reshape(rows, -1).argmax(1)]


class PlaneWorld:
    """The plane as a :class:`~worldrl.core.interfaces.StateWorld` without uncertainty; ``starts`` ``[N, 2]`` are the data's states."""

    action_size = 2

    def __init__(self, plane: Plane, starts: Tensor) -> None:
        self.plane, self.starts = plane, starts

    @property
    def obs_size(self) -> int:
        """Two coordinates and the novelties."""
        return 2 + self.plane.novelties

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Begin at recorded rows."""
        return self.starts[index], self.plane.observe(self.starts[index])

    def step(self, state: Tensor, action: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Outcome]:
        """Move every row."""
        arrived = self.plane.move(state, action)
        zero = torch.zeros(len(state))
        return arrived, Outcome(self.plane.observe(arrived), self.plane.reward(state, arrived), zero.bool(), zero)

    def select(self, state: Tensor, index: Tensor) -> Tensor:
        """Keep rows."""
        return state[index]


def picture(plane: Plane, paths: Any) -> NDArray[np.uint8]:
    """Draw rewards (grey), the start (blue), the edge of reach (yellow) and paths ``[points, 2]`` (red), y upwards."""
    axis = torch.linspace(-plane.size, plane.size, PIXELS)
    y, x = torch.meshgrid(-axis, axis, indexing="ij")
    at = torch.stack([x, y], -1).reshape(-1, 2)
    image = (0.25 + 0.75 * plane.reward(torch.zeros(2), at))[:, None].expand(-1, 3).clone()
    image[plane.at_edge(at, plane.horizon)] *= torch.tensor([1.0, 0.9, 0.3])
    image[plane.reachable(at, 0)] += torch.tensor([-0.1, 0.0, 0.3])
    image = image.clamp(0, 1).reshape(PIXELS, PIXELS, 3)
    at = torch.as_tensor(paths, dtype=torch.float32).reshape(-1, 2) / plane.size
    place = ((at + 1) / 2 * (PIXELS - 1)).round().long()
    image[PIXELS - 1 - place[:, 1], place[:, 0]] = torch.tensor([1.0, 0.1, 0.1])
    return (255 * image).byte().numpy()
