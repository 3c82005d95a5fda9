"""Unit under test: ``worldrl.methods.offline.networks``."""

import math

import pytest
import torch

from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline.networks import (
    Gaussian,
    SquashedActor,
    StackedCritic,
    least_q,
    normal_log_prob,
    squashed_log_prob,
    squashed_sample,
)


def shaken(critic: StackedCritic, seed: int = 0) -> StackedCritic:
    """Weights large enough that members, and their gradients, differ."""
    with torch.no_grad():
        for number, parameter in enumerate(critic.parameters()):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=stream(seed, number)))
    return critic


@pytest.fixture(params=[False, True], ids=["plain", "layer_norm"])
def critic(request: pytest.FixtureRequest) -> StackedCritic:
    with initial_weights(0, "critic"):
        return shaken(StackedCritic(3, 2, (16, 8), 5, layer_norm=request.param))


def pairs(rows: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = stream(1, "pairs")
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 2, generator=generator)


def test_stack_equals_its_members_one_by_one(critic: StackedCritic) -> None:
    obs, action = pairs()
    together = critic(obs, action)
    for number in range(5):
        torch.testing.assert_close(critic.member(number, obs, action), together[number], rtol=1e-5, atol=1e-5)


def test_member_is_a_plain_network() -> None:
    critic = shaken(StackedCritic(3, 2, (16, 8), 5))
    obs, action = pairs()
    x = torch.cat([obs, action], dim=1)
    for depth, linear in enumerate(critic.linears):
        x = x @ linear.weight[3] + linear.bias[3]
        x = x.relu() if depth < 2 else x
    torch.testing.assert_close(critic(obs, action)[3], x[:, 0])


def test_members_may_get_rows_of_their_own(critic: StackedCritic) -> None:
    obs, action = pairs()
    own = torch.stack([action + number for number in range(5)])
    q = critic(obs, own)
    torch.testing.assert_close(q[4], critic(obs, action + 4)[4])


def test_initial_weights_are_edacs() -> None:
    with initial_weights(0, "x"):
        critic, actor = StackedCritic(3, 2, (64, 64), 4), SquashedActor(3, 2, (64, 64))
    assert all(bool((linear.bias == 0.1).all()) for linear in critic.linears[:-1])
    assert critic.linears[-1].weight.abs().max().item() <= 3e-3
    assert actor.net[-1].weight.abs().max().item() <= 1e-3  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert 0.9 / math.sqrt(5) < critic.linears[0].weight.abs().max().item() <= 1 / math.sqrt(5)


def test_least_value_has_the_gradient_of_the_minimum(critic: StackedCritic) -> None:
    obs, action = pairs(40)
    action.requires_grad_(True)
    value, q = least_q(critic, obs, action)
    (gradient,) = torch.autograd.grad(value.square().sum(), action)
    plain = critic(obs, action)
    (expected,) = torch.autograd.grad(plain.min(dim=0).values.square().sum(), action)
    torch.testing.assert_close(q, plain.detach())
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    assert len(plain.argmin(dim=0).unique()) > 2  # or the loop over members was not tried


def test_squashed_density_is_that_of_the_change_of_variables() -> None:
    gaussian = Gaussian(torch.tensor([[0.3, -1.0]]), torch.tensor([[-0.5, 0.2]]))
    noise = torch.tensor([[0.7, -0.4]])
    action, logp = squashed_sample(gaussian, noise)
    normal = torch.distributions.Normal(gaussian.mean, gaussian.log_std.exp())
    expected = normal.log_prob(action.atanh()) - (1 - action.square()).log()
    torch.testing.assert_close(logp, expected.sum(dim=1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(squashed_log_prob(gaussian, action), logp, rtol=1e-4, atol=1e-4)


def test_squashed_density_integrates_to_one() -> None:
    gaussian = Gaussian(torch.tensor([[0.4]]), torch.tensor([[-0.7]]))
    action = torch.linspace(-1, 1, 20_001)[1:-1, None]
    density = squashed_log_prob(Gaussian(*(part.expand(len(action), 1) for part in gaussian)), action).exp()
    assert float(density.sum() * 1e-4) == pytest.approx(1, abs=2e-3)


def test_saturated_actions_have_a_finite_density() -> None:
    gaussian = Gaussian(torch.tensor([[30.0]]), torch.tensor([[0.0]]))
    _, logp = squashed_sample(gaussian, torch.zeros(1, 1))
    assert float(logp) == pytest.approx(-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 30), rel=1e-5)
    assert bool(squashed_log_prob(gaussian, torch.ones(1, 1)).isfinite())


def test_normal_density() -> None:
    gaussian = Gaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(2.0)]]))
    expected = -0.5 - 0.5 * math.log(2 * math.pi) - 0.5 - math.log(2) - 0.5 * math.log(2 * math.pi)
    assert float(normal_log_prob(gaussian, torch.tensor([[2.0, 2.0]]))) == pytest.approx(expected)
