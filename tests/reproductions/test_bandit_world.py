"""Unit under test: ``worldrl.reproductions.neubay.bandit_world``."""

import math

import pytest
import torch

from worldrl.core.rng import initial_weights, stream
from worldrl.reproductions.neubay.bandit_world import (
    ElitePredictions,
    RewardEnsemble,
    RewardTraining,
    elite_predictions,
    fit_rewards,
    gaussian_nll,
)


def test_likelihood_by_hand() -> None:
    found = gaussian_nll(torch.tensor(1.0), torch.tensor(math.log(2.0)), torch.tensor(5.0))
    assert float(found) == pytest.approx(0.5 * 4 + math.log(2))


def test_members_agree_on_the_arm_of_the_data_alone() -> None:
    config = RewardTraining(members=16, elites=12, epochs=50, learning_rate=4e-3)
    reward = torch.bernoulli(torch.full((1000,), 0.5), generator=stream(0, "data"))
    with initial_weights(0, "ensemble"):
        ensemble = RewardEnsemble(16, 2, 16)
    loss = fit_rewards(ensemble, reward, config, generator=stream(0, "fit"))
    found = elite_predictions(ensemble, loss, config.elites)
    assert found.mu.shape == (12, 2)
    assert float(found.mu[:, 0].mean()) == pytest.approx(float(reward.mean()), abs=0.05)
    assert float(found.sigma[:, 0].mean()) == pytest.approx(0.5, abs=0.05)
    assert float(found.uncertainty[1]) > 5 * float(found.uncertainty[0])


def test_member_at_its_best_epoch_is_kept() -> None:
    """Trained on nothing but noise around 0, the weights left behind are those of the loss that is returned."""
    config = RewardTraining(members=4, elites=4, epochs=30, learning_rate=0.05)
    reward = torch.randn(200, generator=stream(1, "data"))
    with initial_weights(1, "ensemble"):
        ensemble = RewardEnsemble(4, 2, 8)
    loss = fit_rewards(ensemble, reward, config, generator=stream(1, "fit"))
    order = torch.randperm(200, generator=stream(1, "fit"))
    held = reward[order][:40]
    arm = torch.tensor([1.0, 0.0]).expand(4, 40, 2)
    mu, log_sigma = ensemble(arm)
    torch.testing.assert_close(gaussian_nll(mu, log_sigma, held).mean(1).detach(), loss)


def test_rollout_belongs_to_one_member() -> None:
    table = ElitePredictions(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2), torch.zeros(2))
    paid = table.rewards(torch.tensor([0, 1, 1, 0]), generator=stream(0, "pay"))
    assert paid.tolist() == [1.0, 4.0, 2.0, 3.0]


def test_resampled_rollouts_of_standardised_rewards_become_resampled_rollouts_of_rewards() -> None:
    found = ElitePredictions(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([0.0, 1.0])).rescaled(
        0.5, 0.25
    )
    assert (found.mu.tolist(), found.sigma.tolist()) == ([[0.5, 1.0]], [[0.25, 0.5]])
    assert found.uncertainty.tolist() == [0.0, 0.25]
