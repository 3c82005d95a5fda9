"""The three planners on scores whose best chunk is known."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.policies.exploration import Exploration
from worldrl.rollout.planning.best_of_n import best_of_n
from worldrl.rollout.planning.cem import cem
from worldrl.rollout.planning.config import CemConfig, MppiConfig, Planner, PlanningConfig
from worldrl.rollout.planning.mppi import mppi

TARGET = torch.tensor([[0.5, -0.3, 0.1], [-0.4, 0.2, 0.6]])
BOUNDS = (-torch.ones(3), torch.ones(3))


def distance(target=TARGET):
    return lambda chunks: -((chunks - target) ** 2).sum(dim=(1, 2))


def drawn(count):
    return 0.6 * torch.randn(count, 2, 3, generator=stream(0, "candidates"))


def run(method, config, score=None, *, count=64, seed=1):
    score, plans = score or distance(), drawn(count)
    return method(plans, score(plans), score, config, bounds=BOUNDS, generator=stream(seed, "plan"))


def test_best_of_n_takes_the_highest_score_and_of_equal_ones_the_first():
    candidates = drawn(5)
    plan = best_of_n(candidates, torch.tensor([0.2, 0.9, 0.1, 0.9, 0.3]))
    assert torch.equal(plan.action, candidates[1])
    assert plan.score == pytest.approx(0.9)
    assert torch.equal(best_of_n(candidates, torch.zeros(5)).action, candidates[0])


def test_cem_reaches_the_optimum_of_a_quadratic_score():
    plan = run(cem, CemConfig(iterations=15), count=512)
    assert (plan.action - TARGET).abs().max() < 0.02
    assert plan.score == pytest.approx(float(distance()(plan.action[None])), abs=1e-6)


def test_cem_without_iterations_is_best_of_n_and_its_score_never_falls():
    assert torch.equal(run(cem, CemConfig(iterations=0)).action, best_of_n(drawn(64), distance()(drawn(64))).action)
    scores = [run(cem, CemConfig(iterations=number)).score for number in range(6)]
    assert scores == sorted(scores)
    assert scores[-1] > scores[0]


def test_mppi_reaches_the_optimum_of_a_quadratic_score():
    plan = run(mppi, MppiConfig(iterations=30, softmax_temperature=0.02), count=512)
    assert (plan.action - TARGET).abs().max() < 0.15
    assert plan.score == pytest.approx(float(distance()(plan.action[None])), abs=1e-6)


def test_one_step_of_mppi_is_the_weighted_mean():
    candidates = drawn(8)
    weights = torch.softmax(distance()(candidates) / 0.5, dim=0)
    expected = (weights[:, None, None] * candidates).sum(dim=0)
    assert torch.allclose(run(mppi, MppiConfig(1, 0.5), count=8).action, expected)


@pytest.mark.parametrize(("method", "config"), [(cem, CemConfig(10)), (mppi, MppiConfig(10, 0.02))])
def test_plans_stay_in_the_robots_range(method, config):
    plan = run(method, config, distance(3 * TARGET))
    assert plan.action.abs().max() <= 1
    assert (plan.action - (3 * TARGET).clamp(-1, 1)).abs().max() < 0.4


@pytest.mark.parametrize(("method", "config"), [(cem, CemConfig(2)), (mppi, MppiConfig(3, 0.1))])
def test_plans_repeat_with_their_generator(method, config):
    assert torch.equal(run(method, config).action, run(method, config).action)
    assert not torch.equal(run(method, config).action, run(method, config, seed=2).action)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"candidates": 1}, r"planning\.candidates: must be at least 2, got 1"),
        ({"horizon": 0}, r"planning\.horizon: must be at least 1"),
        ({"threshold": 1.5}, r"planning\.threshold: must be in \[0, 1\]"),
    ],
)
def test_numbers_out_of_range_are_refused(changed, text):
    with pytest.raises(SettingError, match=text):
        PlanningConfig(**changed)


def test_candidates_are_drawn_by_the_kind_of_policy():
    assert PlanningConfig().exploration(waypoint=True) == Exploration(0.25, 0.0, 0.5)
    assert PlanningConfig().exploration(waypoint=False) == Exploration(2.0, 0.3, 0.0)
    asked = PlanningConfig(temperature=1.5, waypoint_noise=0.1)
    assert asked.exploration(waypoint=True) == Exploration(1.5, 0.0, 0.1)
    with pytest.raises(SettingError, match=r"planning\.waypoint_noise=0\.1: needs a policy with a waypoint"):
        asked.exploration(waypoint=False)


def test_an_unknown_planner_is_refused_with_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'mppi'"):
        Planner("mpi", PlanningConfig())
