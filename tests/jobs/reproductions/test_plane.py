"""Units under test: ``worldrl.jobs.reproductions.plane``, ``edge_parts`` and ``edge_of_reach_2d``."""

import math

import numpy as np
import pytest
import torch

from worldrl.algorithms.offline.agent import Facts
from worldrl.algorithms.offline.branches import BranchConfig, Branches
from worldrl.algorithms.offline.sac import Sac, SacConfig
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.jobs.reproductions.edge_of_reach_2d import SETTINGS, above_floor, play
from worldrl.jobs.reproductions.edge_parts import PatchedSac, auroc
from worldrl.jobs.reproductions.plane import Plane, PlaneWorld, picture

PLANE = Plane()


def test_reach_by_brute_force() -> None:
    """From a fine sample of the disc, the closed form says exactly what moving does."""
    angle = torch.linspace(0, 2 * torch.pi, 721)[:-1]
    rim = 3 * torch.stack([angle.cos(), angle.sin()], -1)
    states = 20 * torch.rand(300, 2, generator=stream(0, "reach")) - 10
    for steps in (1, 3, 4, 5):
        away = (states[:, None] - rim[None]).abs().amax(-1).amin(1)  # moves are ±1 in each coordinate
        inside = states.norm(dim=-1) <= 3
        sure = (away - steps).abs() > 1e-2
        expected = (away <= steps) | inside
        assert torch.equal(PLANE.reachable(states, steps)[sure], expected[sure])


def test_edge_is_what_takes_exactly_the_horizon() -> None:
    on_axis = torch.tensor([[4.9, 0.0], [5.1, 0.0], [5.9, 0.0], [6.1, 0.0]])
    assert PLANE.at_edge(on_axis, 3).tolist() == [False, True, True, False]


def test_world_is_the_plane_and_knows_everything() -> None:
    world = PlaneWorld(PLANE, torch.tensor([[0.0, 0.0], [9.9, -9.9]]))
    state, obs = world.start(torch.tensor([1, 0]), generator=stream(0, "w"))
    _, outcome = world.step(state, torch.tensor([[1.0, -1.0], [0.5, 0.0]]), generator=stream(0, "w"))
    assert torch.equal(obs, world.starts.flip(0))
    torch.testing.assert_close(outcome.obs, torch.tensor([[10.0, -10.0], [0.5, 0.0]]))
    assert not bool(outcome.uncertainty.any())
    assert not bool(outcome.terminated.any())


def test_reward_by_hand() -> None:
    places = torch.tensor([[2.5, 2.5], [2.5, 4.5], [-10.0, -10.0]])
    expected = [1.0, 0.5 + 0.5 * math.exp(-0.5), 0.5]
    assert PLANE.reward(places).tolist() == pytest.approx(expected, abs=1e-4)


def test_oracle_at_states_with_a_known_best_path() -> None:
    goal = torch.tensor([[2.5, 2.5]])
    assert float(PLANE.value(goal)) == pytest.approx(20, rel=1e-4)  # stay: Σ 0.95^t
    near = torch.tensor([[0.5, 2.5]])  # two steps away, one unit from the goal on the way
    expected = float(PLANE.reward(torch.tensor([[1.5, 2.5]]))) + 0.95 * 20
    assert float(PLANE.value(near)) == pytest.approx(expected, rel=1e-4)


def test_oracle_satisfies_bellman_between_grid_points_too() -> None:
    states = 18 * torch.rand(200, 2, generator=stream(1, "bellman")) - 9
    best = PLANE.q(states, PLANE.best_action(states))
    torch.testing.assert_close(best, PLANE.value(states), rtol=2e-3, atol=0.05)


def test_patch_changes_targets_where_no_row_begins() -> None:
    facts = Facts(torch.zeros(2), torch.ones(2), 2)
    with initial_weights(0, "patch"):
        agent = PatchedSac(SacConfig(hidden=(8,), discount=0.95), facts, PLANE)
    agent.seen = PLANE.visited(torch.tensor([[1.0, 0.0], [-3.0, 4.0]]))
    arrived = torch.tensor([[1.1, 0.05], [7.7, 0.0], [4.0, -3.0]])  # in a cell with a row, far away, a mirrored place
    no = torch.zeros(3, dtype=torch.bool)
    batch = Transitions(torch.zeros(3, 2), torch.zeros(3, 2), torch.tensor([1.0, 2.0, 3.0]), arrived, no, no)
    y = agent.target(batch, stream(0, "y"))
    action = agent.sample(arrived, stream(0, "y"))[0].detach()
    expected = batch.reward + 0.95 * PLANE.q(arrived, action)
    torch.testing.assert_close(y[1:], expected[1:])
    assert abs(float(y[0]) - 1) < 2  # a fresh critic's value, not the oracle's 18


def test_uncertainty_of_the_true_plane_takes_nothing_off() -> None:
    """A method that subtracts the model's uncertainty learns from the same rows as one that does not."""
    world, rows = PlaneWorld(PLANE, torch.zeros(4, 2)), []
    for penalty in (0.0, 5.0):
        with initial_weights(0, "agent"):
            agent = Sac(SacConfig(hidden=(8,)), Facts(torch.zeros(2), torch.ones(2), 2))
        branches = Branches(world, 4, BranchConfig(8, 3, penalty))
        rows.append(branches.generate(agent, generator=stream(0, "rows"))[0])
    assert torch.equal(rows[0].reward, rows[1].reward)
    assert torch.equal(rows[0].obs, rows[1].obs)


def test_auroc_counts_ties_half() -> None:
    assert auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0])) == pytest.approx((1 + 0.5 + 1 + 1) / 4)


def test_score_is_what_is_earned_above_the_floor() -> None:
    settings = SETTINGS["quick"]  # 50 steps at a floor of 0.5
    best = torch.tensor([45.0, 45.0])
    assert above_floor(settings, torch.tensor([25.0, 25.0]), best) == 0
    assert above_floor(settings, torch.tensor([25.0, 35.0]), best) == pytest.approx(0.25)


def test_best_policy_is_the_best_of_all_played() -> None:
    settings = SETTINGS["tiny"]
    starts = PLANE.disc(16, generator=stream(0, "starts"))
    _, best = play(settings, starts, PLANE.best_action)
    _, towards = play(settings, starts, lambda obs: (2.5 - obs).sign())
    _, still = play(settings, starts, torch.zeros_like)
    assert bool((best >= towards - 1e-3).all())
    assert bool((best > still).all())


def test_picture_shows_disc_edge_and_path() -> None:
    image = picture(PLANE, [[-10.0, -10.0]], 3)
    assert image.dtype == np.uint8
    assert image[-1, 0].tolist() == [255, 25, 25]  # lower left
    middle = image[len(image) // 2, len(image) // 2]
    assert middle[2] > middle[0]
