"""Correlated exploration: each token keeps its distribution, a rollout leans one way."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import row_streams
from worldrl.core.types import CorrelatedNoise
from worldrl.policies.exploration import Exploration, ExplorationSettings, at_temperature, uniform_draws

ROWS = 4000


def draws(share, steps=3):
    correlated_noise = Exploration(noise_correlation=share).correlated_noise(row_streams(0, ["habit"], ROWS), 7)
    return uniform_draws(row_streams(0, ["own"], ROWS), steps, 7, correlated_noise)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_each_draw_is_uniform_whatever_lasts(share):
    ordered = draws(share)[:, 1, 4].double().sort().values
    grid = (torch.arange(ROWS) + 0.5) / ROWS
    assert (ordered - grid).abs().max() < 1.63 / ROWS**0.5  # Kolmogorov-Smirnov, 1 %
    assert ordered.min() >= 0
    assert ordered.max() < 1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_steps_go_together_by_the_share_and_dimensions_do_not(share):
    normal = torch.special.ndtri(draws(share).double().clamp(1e-9, 1 - 1e-9))
    correlation = torch.corrcoef(torch.stack([normal[:, 0, 2], normal[:, 2, 2], normal[:, 0, 5]]))
    assert correlation[0, 1].item() == pytest.approx(share, abs=0.05)
    assert abs(correlation[0, 2].item()) < 0.05


def test_all_of_it_correlated_means_the_same_draw_at_every_step():
    uniform = draws(1.0)
    assert torch.equal(uniform[:, 0], uniform[:, 2])


def test_a_row_keeps_its_defaults_when_others_leave():
    correlated_noise = Exploration().correlated_noise(row_streams(0, ["habit"], 5), 7)
    index = torch.tensor([3, 1])
    part = uniform_draws([row_streams(1, ["own"], 5)[i] for i in index], 2, 7, correlated_noise.select(index))
    assert torch.equal(part, uniform_draws(row_streams(1, ["own"], 5), 2, 7, correlated_noise)[index])
    # Off the end of any table of the normal distribution.
    far = CorrelatedNoise(torch.full((1, 7), 40.0), 0.5, torch.zeros(1, 7))
    assert uniform_draws(row_streams(0, ["own"], 1), 2, 7, far).max() < 1


@pytest.mark.parametrize(
    "over", [{"temperature": 0.0}, {"noise_correlation": -0.1}, {"noise_correlation": 1.1}, {"waypoint_noise": -0.1}]
)
def test_what_cannot_be_is_refused(over):
    for settings in (Exploration, ExplorationSettings):
        with pytest.raises(SettingError, match=f"exploration.{next(iter(over))}"):
            settings(**over)


def test_displacement_of_the_waypoint_has_the_asked_spread_and_lasts():
    noise = Exploration(0.25, 0.0, waypoint_noise=0.4).correlated_noise(row_streams(0, ["habit"], ROWS), 7)
    assert noise.waypoint.std(dim=0).tolist() == pytest.approx([0.4 / 3**0.5] * 7, rel=0.05)
    size = noise.waypoint.pow(2).mean(dim=1).sqrt()  # of a rollout: from near 0 to as asked
    assert size.quantile(0.1) < 0.06
    assert size.quantile(0.9) > 0.34
    alone = Exploration(0.25, 0.0).correlated_noise(row_streams(0, ["habit"], 2), 7)
    assert alone is None
    uniform = uniform_draws(row_streams(1, ["own"], 2), 3, 7, noise.select(torch.arange(2)))
    assert torch.equal(uniform, uniform_draws(row_streams(1, ["own"], 2), 3, 7))


def test_waypoints_are_displaced_where_their_successes_are_imitated():
    assert ExplorationSettings().drawn(imitates_waypoints=True) == Exploration(0.25, 0.0, 0.5)
    assert ExplorationSettings().drawn(imitates_waypoints=False) == Exploration(1.0, 0.3, 0.0)
    given = ExplorationSettings(temperature=0.5, waypoint_noise=0.0)
    assert given.drawn(imitates_waypoints=True) == Exploration(0.5, 0.3, 0.0)
    assert ExplorationSettings(waypoint_noise=0.1).drawn(imitates_waypoints=True) == Exploration(0.25, 0.0, 0.1)
    with pytest.raises(SettingError, match=r"waypoint_noise=0\.1: needs a policy with a waypoint"):
        ExplorationSettings(waypoint_noise=0.1).drawn(imitates_waypoints=False)


@pytest.mark.parametrize(
    ("given", "name"),
    [((0.0,), "temperature"), ((None, 0.3), "noise_correlation: greedy"), ((1.0, 2.0), "noise_correlation")],
)
def test_actions_that_could_not_be_drawn_so_are_refused(given, name):
    with pytest.raises(SettingError, match=name):
        at_temperature(*given)
    assert at_temperature(None) is None
