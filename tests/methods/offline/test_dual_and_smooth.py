"""Units under test: f-DVL's conjugates, ReCOIL's loss, RO2O's smoothing terms."""

from typing import Any

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.dual_rl import (
    FDvl,
    Recoil,
    chi_square_conjugate,
    dual_value_loss,
    recoil_loss,
    total_variation_conjugate,
)
from worldrl.methods.offline.networks import Gaussian
from worldrl.methods.offline.ro2o import (
    Ro2o,
    asymmetric_square,
    gaussian_kl,
    out_of_distribution_loss,
    worst_smoothness,
    worst_symmetric_kl,
)

Y = torch.linspace(-4, 3, 29, dtype=torch.float64)


def make(agent_class: Any, facts: Facts, parts: dict[str, Any] | None = None, **over: Any) -> Any:
    with initial_weights(0, "agent"):
        return agent_class(agent_class.config_class(**({"hidden": (8, 8)} | over)), facts, **(parts or {}))


# --- f-DVL ----------------------------------------------------------------------------------------------------------


def test_conjugates_are_the_largest_of_xy_minus_f() -> None:
    x = torch.linspace(0, 10, 200_001, dtype=torch.float64)
    for y in Y.tolist():
        expected = float((x * y - (x - 1).square()).max())
        assert float(chi_square_conjugate(torch.tensor(y))) == pytest.approx(expected, abs=1e-8)
        if y <= 0.5:
            expected = float((x * y - (x - 1).abs() / 2).max())
            assert float(total_variation_conjugate(torch.tensor(y))) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("conjugate", [chi_square_conjugate, total_variation_conjugate])
def test_conjugate_is_convex_and_its_slope_is_a_visit_ratio(conjugate: Any) -> None:
    y = Y.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(conjugate(y).sum(), y)
    assert bool((slope >= 0).all())
    assert bool((slope.diff() >= -1e-12).all())
    assert float(slope[Y == 0]) == pytest.approx(1)


def test_value_of_the_dual_loss_by_hand() -> None:
    """χ², λ = ½, actions of value 0 and 2: mean ratio 1 gives V = 1 while both ratios are positive."""
    q = torch.tensor([0.0, 2.0], dtype=torch.float64)
    for weight, expected in ((0.5, 1.0), (2 / 3, 2.0)):
        v = torch.linspace(-2, 4, 60_001, dtype=torch.float64)
        loss = torch.stack([(1 - weight) * v + weight * chi_square_conjugate(each - v) for each in q]).mean(dim=0)
        assert float(v[loss.argmin()]) == pytest.approx(expected, abs=1e-3)
    found = dual_value_loss(q - 1, torch.ones(2, dtype=torch.float64), chi_square_conjugate, 0.5)
    assert float(found) == pytest.approx(0.5 + 0.5 * ((-1 + 0.25) + (1 + 0.25)) / 2)


@pytest.mark.parametrize("divergence", ["chi_square", "total_variation"])
@pytest.mark.parametrize("weight", [0.6, 0.7, 0.9])
def test_f_dvl_adds_nothing_to_the_value_of_a_single_action(facts: Facts, divergence: str, weight: float) -> None:
    agent, q = make(FDvl, facts, divergence=divergence, weight=weight), torch.full((1,), 3.0)
    v = torch.linspace(0, 6, 601)
    loss = torch.stack([agent.value_loss(q - each, each[None]) for each in v])
    assert float(v[loss.argmin()]) == pytest.approx(3.0, abs=0.011)


@pytest.mark.parametrize("divergence", ["chi_square", "total_variation"])
def test_f_dvl_value_rises_with_its_weight_and_is_bounded_by_the_best_action(facts: Facts, divergence: str) -> None:
    q, v, best = torch.tensor([0.0, 1.0, 2.0]), torch.linspace(-2, 6, 1601), []
    for weight in (0.55, 0.7, 0.9, 0.99):
        agent = make(FDvl, facts, divergence=divergence, weight=weight)
        loss = torch.stack([agent.value_loss(q - each, each.expand(3)) for each in v])
        best.append(float(v[loss.argmin()]))
    assert best == sorted(best)
    assert best[0] < 1.5
    assert best[-1] == pytest.approx(2.0, abs=0.05)


def test_unknown_divergence_is_reported() -> None:
    with pytest.raises(SettingError, match=r"agent\.divergence"):
        FDvl.config_class(divergence="kl")


def test_f_dvl_value_learns_from_uniform_actions_too(facts: Facts, make_rows: Any) -> None:
    batch, agent = make_rows(16), make(FDvl, facts, random_actions=2, weight=1.0)
    advantage, value = torch.zeros(16), torch.ones(16)
    wider, values = agent.value_rows(batch, advantage, value, stream(0, "v"))
    assert (wider[:16].tolist(), values[:16].tolist()) == ([0] * 16, [1] * 16)
    torch.testing.assert_close(values[16:], agent.values(batch.obs).repeat(2))
    draws = 2 * torch.rand(32, 2, generator=stream(0, "v")) - 1
    q = agent.target_critic(batch.obs.repeat(2, 1), draws).min(dim=0).values
    torch.testing.assert_close(wider[16:], q - values[16:])


# --- ReCOIL ---------------------------------------------------------------------------------------------------------


def test_recoil_pays_the_experts_share_of_the_mixture() -> None:
    """Three tabular actions, visited (E, S) = (1/2, 1/6), (1/2, 1/6), (0, 2/3): Q − γV' is 2 β d^E / mix."""
    expert, other, beta = torch.tensor([3.0, 3.0, 0.0]), torch.tensor([1.0, 1.0, 4.0]), 0.5
    expert_rows = torch.repeat_interleave(torch.arange(3), expert.long())
    rows = torch.cat([expert_rows, torch.repeat_interleave(torch.arange(3), other.long())])
    q = torch.zeros(1, 3, requires_grad=True)
    next_value = torch.full((len(rows),), 2.0)
    for _ in range(800):
        loss = recoil_loss(
            q[:, expert_rows],
            torch.zeros(len(expert_rows)),
            q[:, rows],
            next_value,
            conjugate=chi_square_conjugate,
            mixing=beta,
            discount=0.9,
        )
        (slope,) = torch.autograd.grad(loss, q)
        q = (q - 2 * slope).detach().requires_grad_(True)
    share = expert / (expert + other)
    torch.testing.assert_close(q.detach()[0], 1.8 + 2 * share, rtol=1e-3, atol=1e-3)


def test_recoil_agent_joins_expert_rows(facts: Facts, make_rows: Any) -> None:
    agent = make(Recoil, facts, {"expert": make_rows(10, seed=3)}, mixing=0.2)
    logs = agent.update(make_rows(32), generator=stream(0, "x"))
    assert agent.expert_rows == 8
    assert all(bool(value.isfinite()) for value in logs.values())
    with pytest.raises(SettingError, match="expert"):
        make(Recoil, facts).update(make_rows(), generator=stream(0, "x"))


# --- RO2O -----------------------------------------------------------------------------------------------------------


def test_asymmetric_square() -> None:
    assert asymmetric_square(torch.tensor([2.0, -2.0]), 0.2).tolist() == pytest.approx([3.2, 0.8])


def test_smoothness_takes_the_worst_noise_of_each_row() -> None:
    q = torch.zeros(2, 2)
    noised = torch.zeros(2, 3, 2)  # N = 2, n = 3, B = 2
    noised[:, 1, 0] = torch.tensor([1.0, 3.0])
    noised[:, 2, 1] = torch.tensor([-2.0, -2.0])
    assert float(worst_smoothness(noised, q, 0.2)) == pytest.approx(((0.8 + 7.2) / 2 + 0.8) / 2)


def test_kl_of_gaussians_and_its_worst_noise() -> None:
    p = Gaussian(torch.tensor([[0.3, -1.0]]), torch.tensor([[-0.5, 0.2]]))
    q = Gaussian(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.1, -0.3]]))

    def normal(g: Gaussian) -> torch.distributions.Normal:
        return torch.distributions.Normal(g.mean, g.log_std.exp())

    expected = torch.distributions.kl_divergence(normal(p), normal(q)).sum(dim=1)
    torch.testing.assert_close(gaussian_kl(p, q), expected)
    noised = Gaussian(torch.stack([p.mean, q.mean]), torch.stack([p.log_std, q.log_std]))
    torch.testing.assert_close(worst_symmetric_kl(p, noised), (gaussian_kl(p, q) + gaussian_kl(q, p)).mean())


def test_uncertainty_pushes_values_down_where_members_disagree() -> None:
    q = torch.tensor([[0.0], [2.0]], requires_grad=True)
    loss = out_of_distribution_loss(q, 0.5)
    (slope,) = torch.autograd.grad(loss, q)
    assert loss.item() == pytest.approx((0.5 * 2**0.5) ** 2)
    assert slope.flatten().tolist() == pytest.approx([0.5 * 2**0.5] * 2)
    same = torch.tensor([[1.0], [1.0]])
    assert float(out_of_distribution_loss(same, 0.5)) == 0


def test_ro2o_agent_learns_and_lowers_its_uncertainty(facts: Facts, make_rows: Any, same_tree: Any) -> None:
    agent, again = (make(Ro2o, facts, draws=3, critics=3, spread_decay=0.3, hidden=(8,)) for _ in range(2))
    for step in range(4):
        logs = agent.update(make_rows(), generator=stream(0, step))
        again.update(make_rows(), generator=stream(0, step))
    assert agent.spread == pytest.approx(0.1)
    assert {"critic/smoothness", "critic/uncertainty"} <= set(logs)
    same_tree(agent.state_dict(), again.state_dict())
    obs = torch.zeros(2, 3)
    noised = agent.noised(obs, 0.01, stream(0, "n"))
    assert noised.shape == (3, 2, 3)
    assert float(noised.abs().max()) <= 0.01
    assert torch.equal(noised[:, 0], noised[:, 1])
