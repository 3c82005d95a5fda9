"""Units under test: ``worldrl.reproductions.edge_of_reach.plane``, ``edge_parts`` and ``edge_of_reach_2d``."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.statistics.intervals import auroc
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.reproductions.catalogue import changed
from worldrl.reproductions.edge_of_reach.parts import PatchedSac
from worldrl.reproductions.edge_of_reach.plane import Plane, PlaneWorld, picture
from worldrl.reproductions.edge_of_reach.plane_agents import SETTINGS, play

PLANE = Plane()


def test_reach_by_brute_force() -> None:
    """From a fine sample of the start's rim, the closed form says exactly what moving does."""
    side = 0.05 * (2 * torch.arange(41) / 40 - 1)
    rim = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    states = 2 * torch.rand(300, 2, generator=stream(0, "reach")) - 1
    for steps in (1, 3, 4, 5):
        away = (states[:, None] - rim[None]).abs().amax(-1).amin(1)  # moves are ±0.1 in each coordinate
        sure = (away - 0.1 * steps).abs() > 3e-3
        assert torch.equal(PLANE.reachable(states, steps)[sure], (away <= 0.1 * steps)[sure])


def test_the_edge_of_the_plane_is_the_edge() -> None:
    """With rollouts of 5 steps the ledge is at 0.45; what is reached at the fifth step only lies beyond it."""
    on_axis = torch.tensor([[0.449, 0.0], [0.451, 0.0], [0.0, -0.549], [0.551, 0.0]])
    assert PLANE.at_edge(on_axis, 5).tolist() == [False, True, True, False]
    assert PLANE.fallen(on_axis).tolist() == [False, True, True, True]


def test_world_is_the_plane_and_knows_everything() -> None:
    world = PlaneWorld(PLANE, torch.tensor([[0.0, 0.0], [0.4, -0.4]]))
    state, obs = world.start(torch.tensor([1, 0]), generator=stream(0, "w"))
    _, outcome = world.step(state, torch.tensor([[1.0, -1.0], [0.5, 0.0]]), generator=stream(0, "w"))
    assert torch.equal(obs, world.starts.flip(0))
    torch.testing.assert_close(outcome.obs, torch.tensor([[0.5, -0.5], [0.05, 0.0]]))
    assert not bool(outcome.uncertainty.any())
    assert not bool(outcome.terminated.any())
    _, after = world.step(outcome.obs, -torch.ones(2, 2), generator=stream(0, "w"))
    assert torch.equal(after.obs[0], outcome.obs[0])  # fallen: nothing moves it any more
    assert float(after.reward[0]) == 0
    assert float(after.reward[1]) > 0


def test_novelties_are_zero_on_the_ledge_and_grow_with_depth() -> None:
    strange = Plane(novelties=16)
    states = 2 * torch.rand(500, 2, generator=stream(2, "seen")) - 1
    seen, stands = strange.observe(states), ~strange.fallen(states)
    assert torch.equal(seen[:, :2], states)
    assert not bool(seen[stands, 2:].any())
    assert bool((seen[~stands, 2:].abs().amax(1) > 0).all())
    half, whole = (strange.observe(torch.tensor([[0.45 + depth, 0.1]]))[:, 2:] for depth in (0.05, 0.1))
    assert float(half.abs().max()) <= 0.5
    assert 0.5 < float(whole.abs().max()) <= 1.0
    one = torch.sin(torch.tensor(2 * torch.pi * 0.55 / 0.4))  # the first wave runs along x: depth 1 at 0.55
    torch.testing.assert_close(whole[0, 0], one, rtol=0, atol=1e-3)


def test_novelties_change_what_is_seen_and_nothing_else() -> None:
    """Same draws: same rewards, same places, with and without."""
    bare, strange = (Plane(novelties=n).data(50, generator=stream(0, "d")) for n in (0, 16))
    assert strange.obs.shape == strange.next_obs.shape == (50, 18)
    assert torch.equal(strange.obs[:, :2], bare.obs)
    assert torch.equal(strange.next_obs[:, :2], bare.next_obs)
    assert torch.equal(strange.reward, bare.reward)
    world, start = PlaneWorld(Plane(novelties=3), torch.tensor([[0.44, 0.0]])), torch.tensor([0])
    state, seen = world.start(start, generator=stream(0, "w"))
    arrived, outcome = world.step(state, torch.tensor([[1.0, 0.0]]), generator=stream(0, "w"))
    assert seen.shape == outcome.obs.shape == (1, world.obs_size)
    assert torch.equal(arrived, outcome.obs[:, :2])
    assert bool(outcome.obs[:, 2:].any())


def test_fewer_than_no_novelties_are_refused() -> None:
    with pytest.raises(SettingError, match=r"change\.novelties"):
        changed(SETTINGS["quick"], {"novelties": -1})


def test_reward_by_hand() -> None:
    origin, places = torch.zeros(3, 2), torch.tensor([[0.55, 0.55], [0.55, 0.05], [-1.0, -1.0]])
    assert PLANE.reward(origin, places).tolist() == pytest.approx([1.0, 1 - (0.5 / 0.9) ** 2, 0.0], abs=1e-6)
    assert PLANE.reward(places, places).tolist() == [0.0, 0.0, 0.0]  # all three have fallen


def test_oracle_at_states_with_a_known_best_path() -> None:
    """At the ledge's corner, the last step off the cliff pays 1 once; staying pays 1 - 2 (0.1 / 0.9)² for ever."""
    stay = 1 - 2 * (0.1 / 0.9) ** 2
    corner = torch.tensor([[0.45, 0.45]])
    assert float(PLANE.value(corner)) == pytest.approx(20 * stay, rel=1e-3)
    before = 1 - 2 * (0.2 / 0.9) ** 2  # two steps away, what the first one pays
    assert float(PLANE.value(torch.tensor([[0.25, 0.25]]))) == pytest.approx(before + 0.95 * 20 * stay, rel=1e-3)
    assert float(PLANE.q(corner, torch.ones(1, 2))) == pytest.approx(1.0, abs=1e-4)  # falls: paid once, then nothing


def test_oracle_satisfies_bellman_between_grid_points_too() -> None:
    states = 0.8 * torch.rand(200, 2, generator=stream(1, "bellman")) - 0.4
    best = PLANE.q(states, PLANE.best_action(states))
    torch.testing.assert_close(best, PLANE.value(states), rtol=2e-3, atol=0.05)


@pytest.mark.parametrize("novelties", [0, 4])
def test_patch_changes_targets_at_the_edge_and_nowhere_else(novelties: int) -> None:
    plane = Plane(novelties=novelties)
    facts = Facts(torch.zeros(2 + novelties), torch.ones(2 + novelties), 2)
    with initial_weights(0, "patch"):
        agent = PatchedSac(SacConfig(hidden=(8,), discount=0.95), facts, plane)
    arrived = plane.observe(torch.tensor([[0.44, 0.05], [0.5, 0.0], [0.1, -0.46]]))  # on the ledge, beyond it twice
    no, nought = torch.zeros(3, dtype=torch.bool), torch.zeros(3, 2)
    batch = Transitions(torch.zeros_like(arrived), nought, torch.tensor([1.0, 2.0, 3.0]), arrived, no, no)
    y = agent.target(batch, stream(0, "y"))
    assert y[1:].tolist() == [2.0, 3.0]  # nothing comes after a fall
    draws = stream(0, "y")
    agent.sample(arrived, draws)  # the oracle is asked about an action of its own
    assert y[0] == Sac.target(agent, batch, draws)[0]
    assert agent.patched == pytest.approx(2 / 3)


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


def test_best_policy_is_the_best_of_all_played() -> None:
    settings = replace(SETTINGS["quick"], steps=20)
    starts = PLANE.data(16, generator=stream(0, "starts")).obs
    _, best = play(settings, starts, PLANE.best_action)
    _, onwards = play(settings, starts, torch.ones_like)
    _, still = play(settings, starts, torch.zeros_like)
    assert bool((best > onwards).all())
    assert bool((best > still).all())
    assert float(onwards.max()) < 5  # five paid steps, then the cliff


def test_image_shows_start_edge_and_path() -> None:
    image = picture(PLANE, [[-1.0, -1.0]])
    assert image.dtype == np.uint8
    assert image[-1, 0].tolist() == [255, 25, 25]  # lower left
    middle = image[len(image) // 2, len(image) // 2]
    assert middle[2] > middle[0]
