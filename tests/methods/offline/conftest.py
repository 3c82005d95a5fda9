"""What the tests of offline agents share: random rows, facts of them, and a world in closed form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from worldrl.core.rng import stream
from worldrl.core.transitions import Outcome, Transitions
from worldrl.methods.offline.agent import Facts


def _rows(count: int = 32, *, obs: int = 3, action: int = 2, seed: int = 0, terminated: float = 0.2) -> Transitions:
    generator = stream(seed, "rows")

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Transitions(
        normal(count, obs),
        0.9 * (2 * torch.rand(count, action, generator=generator) - 1),
        normal(count),
        normal(count, obs),
        torch.rand(count, generator=generator) < terminated,
        torch.zeros(count, dtype=torch.bool),
    )


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., Transitions]:
    """Make random transitions."""
    return _rows


@pytest.fixture
def facts() -> Facts:
    """Facts of three observations and two actions that change nothing."""
    return Facts(torch.zeros(3), torch.ones(3), 2, 0.0, 1000.0, updates=100)


@dataclass(frozen=True)
class LineWorld:
    """s' = s + 0.1 (a, a_0), r = −|s'|², u = |a_0|, ends where |s'| > ``edge``: a StateWorld of three observations."""

    starts: torch.Tensor
    edge: float = 10.0
    obs_size: int = 3
    action_size: int = 2

    def start(self, index: torch.Tensor, *, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        obs = self.starts[index]
        return obs, obs

    def step(self, state: Any, action: torch.Tensor, *, generator: torch.Generator) -> tuple[Any, Outcome]:
        obs = state + 0.1 * torch.cat([action, action[:, :1]], dim=1)
        reward = -obs.square().sum(dim=1)
        return obs, Outcome(obs, reward, obs.norm(dim=1) > self.edge, action[:, 0].abs())

    def select(self, state: Any, index: torch.Tensor) -> Any:
        return state[index]


@pytest.fixture
def line_world() -> LineWorld:
    """A world in closed form that starts at 32 random states."""
    return LineWorld(_rows(32).obs)
