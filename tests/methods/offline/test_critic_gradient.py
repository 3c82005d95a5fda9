"""Unit under test: ``worldrl.methods.offline.critic_gradient``, against the Gram form, autograd and differences."""

import pytest
import torch

from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline.critic_gradient import diverse_td_gradients, diversity_loss, diversity_slope
from worldrl.methods.offline.networks import StackedCritic
from worldrl.methods.offline.targets import td_loss


def gram_form(gradient: torch.Tensor) -> torch.Tensor:
    """L_div as EDAC writes it: the N × N products of unit gradients, without the diagonal."""
    unit = (gradient / gradient.norm(dim=-1, keepdim=True)).transpose(0, 1)  # [B, N, A]
    gram = unit @ unit.mT
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    return off.sum(dim=(1, 2)).mean() / (len(gradient) - 1)


def make_critic(hidden: tuple[int, ...] = (16, 12, 8)) -> StackedCritic:
    with initial_weights(0, "critic"):
        critic = StackedCritic(3, 2, hidden, 4).double()
    with torch.no_grad():
        for number, parameter in enumerate(critic.parameters()):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=stream(0, number), dtype=torch.float64))
    return critic


def batch(rows: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = stream(1, "batch")
    return tuple(torch.randn(rows, *size, generator=generator, dtype=torch.float64) for size in ((3,), (2,), ()))  # pyright: ignore[reportReturnType]


def test_identity_equals_the_gram_form() -> None:
    gradient = torch.randn(6, 11, 3, generator=stream(0, "g"), dtype=torch.float64)
    torch.testing.assert_close(diversity_loss(gradient), gram_form(gradient))


@pytest.mark.parametrize(
    ("angles", "expected"), [([0.0, 0.0], 2.0), ([0.0, torch.pi / 2], 0.0), ([0.0, torch.pi], -2.0)]
)
def test_two_critics_by_hand(angles: list[float], expected: float) -> None:
    angle = torch.tensor(angles)
    gradient = 3 * torch.stack([angle.cos(), angle.sin()], dim=1)[:, None]  # [2, 1, 2]
    assert float(diversity_loss(gradient)) == pytest.approx(expected, abs=1e-6)


def test_slope_of_the_diversity_by_finite_differences() -> None:
    gradient = torch.randn(4, 3, 2, generator=stream(0, "g"), dtype=torch.float64)
    assert torch.autograd.gradcheck(diversity_loss, gradient.clone().requires_grad_(True))
    probe = gradient.clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(diversity_loss(probe), probe)
    torch.testing.assert_close(diversity_slope(gradient), expected)


def test_slope_is_zero_where_the_gradient_is_zero_in_length_only() -> None:
    gradient = torch.randn(3, 2, 2, generator=stream(0, "g"), dtype=torch.float64)
    gradient[1, 0] = 0
    assert bool(diversity_slope(gradient).isfinite().all())


@pytest.mark.parametrize("diversity", [0.0, 0.7])
@pytest.mark.parametrize("hidden", [(8,), (16, 12, 8)])
def test_closed_form_equals_autograd(hidden: tuple[int, ...], diversity: float) -> None:
    critic = make_critic(hidden)
    obs, action, target = batch()
    own = action.expand(4, -1, -1).clone().requires_grad_(True)
    q = critic(obs, own)
    (gradient,) = torch.autograd.grad(q.sum(), own, create_graph=True)
    parameters = list(critic.parameters())
    expected = torch.autograd.grad(td_loss(q, target) + diversity * diversity_loss(gradient), parameters)
    found, logs = diverse_td_gradients(critic, obs, action, target, diversity)
    for parameter, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found[parameter], value)
    torch.testing.assert_close(logs["critic/td"], td_loss(q, target).detach())
    assert ("critic/diversity" in logs) == (diversity > 0)


def test_closed_form_by_finite_differences() -> None:
    critic = make_critic((6,))
    obs, action, target = batch(5)

    def loss() -> float:
        own = action.expand(4, -1, -1).clone().requires_grad_(True)
        q = critic(obs, own)
        (gradient,) = torch.autograd.grad(q.sum(), own)
        return (td_loss(q, target) + 0.5 * diversity_loss(gradient)).item()

    found, _ = diverse_td_gradients(critic, obs, action, target, 0.5)
    weight = critic.linears[0].weight
    for place in [(0, 0, 0), (1, 3, 2), (3, 4, 5)]:
        sides = []
        for nudge in (1e-6, -2e-6):
            with torch.no_grad():
                weight[place] += nudge
            sides.append(loss())
        with torch.no_grad():
            weight[place] += 1e-6
        assert float(found[weight][place]) == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-7)
