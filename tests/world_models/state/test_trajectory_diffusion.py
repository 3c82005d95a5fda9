"""The trajectory model: its loss, sampler and guidance against closed forms.

Units under test: ``TrajectoryDiffusion``, ``fit_trajectories``, ``sample_trajectories``, guidance, ``GuidedRollouts``.
"""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Imagination
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.nn.trajectory_unet import TrajectoryUNet
from worldrl.world_models.state.guided_rollouts import GuidedRolloutConfig, GuidedRollouts, trajectory_quality
from worldrl.world_models.state.trajectory_diffusion import (
    TrajectoryDiffusion,
    TrajectoryDiffusionConfig,
    TrajectoryTraining,
    fit_trajectories,
    published_trajectory_diffusion,
)
from worldrl.world_models.state.trajectory_sampling import (
    GuidanceConfig,
    SamplerConfig,
    churn_share,
    guidance_gradient,
    guidance_weight,
    published_sampler,
    sample_trajectories,
)

TINY = TrajectoryDiffusionConfig(length=8, features=16, levels=2)


def make(seed: int = 0) -> TrajectoryDiffusion:
    with initial_weights(seed, "trajectory"):
        model = TrajectoryDiffusion(TINY, 2, 1)
    model.mean.copy_(torch.tensor([1.0, -2.0, 0.1, 5.0, 0.2]))
    model.std.copy_(torch.tensor([2.0, 0.5, 0.7, 3.0, 0.4]))
    return model.eval()


class Gaussian(TrajectoryDiffusion):
    """The exact denoiser of independent numbers N(centre, spread²): D = (spread²x + σ²·centre)/(spread² + σ²)."""

    centre, spread = 0.7, 0.5

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        variance = sigma.square()[:, None, None]
        return (self.spread**2 * x + variance * self.centre) / (self.spread**2 + variance)


# --- the network ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8, 11, 32])
def test_the_network_keeps_the_shape_and_listens_to_the_level(length: int) -> None:
    with initial_weights(0, "net"):
        net = TrajectoryUNet(5, 16, 3, 8)
    x = torch.randn(2, 5, length, generator=stream(0, "x"))
    one, two = net(x, torch.tensor([0.1, 0.1])), net(x, torch.tensor([0.1, 1.5]))
    assert one.shape == x.shape
    assert torch.equal(one[0], two[0])
    assert not torch.allclose(one[1], two[1])


def test_the_published_size() -> None:
    with torch.device("meta"):
        model = TrajectoryDiffusion(published_trajectory_diffusion(), 11, 3)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(177.6, rel=0.02)


# --- loss and sampler ----------------------------------------------------------------------------------------------


def test_the_loss_of_an_untrained_network_is_about_one() -> None:
    model = make()
    torch.nn.init.zeros_(model.net.out.weight)
    torch.nn.init.zeros_(model.net.out.bias)
    clean = torch.randn(4000, 8, 5, generator=stream(0, "clean"))
    # with F = 0: D = c_skip·x, and λ·E(D - y)² = 1 at every level for data of unit variance
    assert model.loss(clean, generator=stream(0, "loss")).item() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("sampler", [SamplerConfig(), SamplerConfig(steps=40, churn=0.0), published_sampler()])
def test_the_sampler_draws_from_the_distribution_it_was_given(sampler: SamplerConfig) -> None:
    model = Gaussian(replace(TINY, length=20), 2, 1)
    x = sample_trajectories(model, 400, sampler, generator=stream(0, "draw"))
    assert x.shape == (400, 20, 5)
    assert x.mean().item() == pytest.approx(0.7, abs=0.01)
    assert x.std().item() == pytest.approx(0.5, rel=0.06 if sampler.steps < 100 else 0.02)


def test_churn_follows_the_published_amounts() -> None:
    assert churn_share(1.0, published_sampler()) == 0.3125 == churn_share(1.0, SamplerConfig())
    assert churn_share(60.0, published_sampler()) == 0 == churn_share(0.04, published_sampler())
    assert churn_share(1.0, SamplerConfig(steps=8, churn=80.0)) == pytest.approx(math.sqrt(2) - 1)


def test_same_generator_same_trajectories() -> None:
    model, sampler = make(), SamplerConfig(steps=3)
    one, two, other = (sample_trajectories(model, 2, sampler, generator=stream(k, "draw")) for k in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


# --- guidance ------------------------------------------------------------------------------------------------------


def test_the_weights_of_guidance_by_hand() -> None:
    config = GuidanceConfig(coefficient=2.0, cosine=0.3)
    assert guidance_weight(0, 4, config) == pytest.approx(2 * (1 + 0.3 * math.sin(math.pi / 4)))
    assert guidance_weight(1, 4, config) == pytest.approx(2 * (0.75 + 0.3))
    assert guidance_weight(3, 4, config) == 0
    assert guidance_weight(0, 4, GuidanceConfig()) == 0


def policy(obs: Tensor, action: Tensor) -> Tensor:
    """A Gaussian of unit width around a bounded function of the observation, without its constant."""
    return -0.5 * (action - torch.sin(obs.sum(dim=1, keepdim=True))).square().sum(dim=1)


def test_the_gradient_of_guidance_by_finite_differences() -> None:
    draw = stream(0, "guidance")
    obs, action = (torch.randn(2, 3, n, generator=draw, dtype=torch.float64) for n in (2, 2))
    mean, std = torch.tensor([0.1, -0.3]).double(), torch.tensor([0.8, 1.3]).double()

    def total(a: Tensor) -> float:
        return float(policy(obs.flatten(0, 1), torch.tanh(a * std + mean).flatten(0, 1)).sum())

    gradient = guidance_gradient(policy, obs, action, mean, std, normalise=False)
    for place in [(0, 0, 0), (0, 2, 1), (1, 1, 0)]:
        bump = torch.zeros_like(action)
        bump[place] = 1e-6
        slope = (total(action + bump) - total(action - bump)) / 2e-6
        assert gradient[place].item() == pytest.approx(slope, rel=1e-6)
    unit = guidance_gradient(policy, obs, action, mean, std, normalise=True)
    assert unit.flatten(1).norm(dim=1).tolist() == pytest.approx([1, 1])
    torch.testing.assert_close(unit[0] * gradient[0].norm(), gradient[0])


@pytest.mark.parametrize("at_denoised", [False, True])
def test_guidance_raises_the_likelihood_of_the_actions(at_denoised: bool) -> None:
    model, sampler = Gaussian(TINY, 2, 1), SamplerConfig(steps=16, churn=0.0)

    def likelihood(coefficient: float) -> float:
        guidance = GuidanceConfig(coefficient=coefficient, at_denoised=at_denoised)
        x = sample_trajectories(model, 100, sampler, generator=stream(0, "d"), guidance=guidance, log_prob=policy)
        rows = model.transitions(x)
        return float(policy(rows.obs, rows.action).mean())

    assert likelihood(1.0) > likelihood(0.3) > likelihood(0.0) + 0.03


def test_guidance_of_nothing_changes_nothing() -> None:
    model, sampler = make(), SamplerConfig(steps=3)
    plain = sample_trajectories(model, 2, sampler, generator=stream(0, "draw"))
    zero = sample_trajectories(
        model, 2, sampler, generator=stream(0, "draw"), guidance=GuidanceConfig(), log_prob=policy
    )
    assert torch.equal(plain, zero)


# --- training ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def circles() -> tuple[Transitions, Tensor]:
    """Twenty episodes of a point on a unit circle that turns by 0.3 per step, from random places."""
    turns = torch.rand(20, 1, generator=stream(0, "circles")) * 6.28 + 0.3 * torch.arange(17)
    place = torch.stack([turns.cos(), turns.sin()], dim=-1)
    action = 0.5 * torch.rand(20, 16, 1, generator=stream(1, "circles"))
    no = torch.zeros(20, 16, dtype=torch.bool)
    end = no.clone()
    end[:, -1] = True
    columns = (place[:, :-1], action, place[:, :-1, 0], place[:, 1:], no, end)
    episode = torch.arange(20).repeat_interleave(16)
    return Transitions(*(column.flatten(0, 1) for column in columns)), episode


TRAINING = TrajectoryTraining(steps=4, batch_size=8, stride=1, checkpoint_steps=2)


def test_resumed_training_is_the_uninterrupted_one(
    circles: tuple[Transitions, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, report = fit_trajectories("toy", *circles, TINY, TRAINING, seed=0)
    loss, calls = TrajectoryDiffusion.loss, []

    def killed_in_the_fourth_step(model: TrajectoryDiffusion, clean: Tensor, **over: Any) -> Tensor:
        calls.append(clean)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return loss(model, clean, **over)

    with monkeypatch.context() as patch:
        patch.setattr(TrajectoryDiffusion, "loss", killed_in_the_fourth_step)
        with pytest.raises(KeyboardInterrupt):
            fit_trajectories("toy", *circles, TINY, TRAINING, seed=0, folder=tmp_path)
    resumed, second = fit_trajectories("toy", *circles, TINY, TRAINING, seed=0, folder=tmp_path)
    assert second.fit.resumed_from == 2
    assert report.windows == 19 * 8  # one of twenty episodes is kept out, and the last step of each is cut off
    assert report.validation_loss == second.validation_loss is not None
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_rows_on_another_device_train_the_same_model(circles: tuple[Transitions, Tensor], elsewhere: Any) -> None:
    rows, episode = circles
    there = Transitions(*(elsewhere(getattr(rows, item.name)) for item in fields(rows)))
    moved, _ = fit_trajectories("toy", there, episode, TINY, TRAINING, seed=0)
    stayed, _ = fit_trajectories("toy", rows, episode, TINY, TRAINING, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(moved.parameters(), stayed.parameters(), strict=True))


def test_length_in_epochs(circles: tuple[Transitions, Tensor]) -> None:
    training = replace(TRAINING, steps=0, epochs=2, batch_size=100)
    assert training.steps_for(250) == 4
    assert training.steps_for(20) == 2
    _, report = fit_trajectories("toy", *circles, TINY, training, seed=0)
    assert report.fit.steps == 2 * (report.windows // 100)
    with pytest.raises(SettingError, match="steps=4 and epochs=2"):
        TrajectoryTraining(steps=4, epochs=2)


def test_folder_round_trip(tmp_path: Path) -> None:
    model = make(seed=4)
    model.save(tmp_path / "model")
    loaded = TrajectoryDiffusion.load(tmp_path / "model")
    x, sigma = torch.randn(2, 8, 5, generator=stream(0, "x")), torch.tensor([0.1, 3.0])
    assert torch.equal(loaded.denoise(x, sigma), model.denoise(x, sigma))
    assert torch.equal(loaded.denormalise(x), model.denormalise(x))


# --- imagined rollouts --------------------------------------------------------------------------------------------------------


class Agent:
    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return policy(obs, action)


def test_imagined_rollouts_are_rows_for_the_present_agent() -> None:
    policy_rollouts = GuidedRollouts(
        make(), GuidedRolloutConfig(5, batch=2), SamplerConfig(steps=3), GuidanceConfig(coefficient=1.0)
    )
    checked: Imagination = policy_rollouts
    rows, logs = checked.generate(Agent(), generator=stream(0, "dream"))
    assert rows.action.abs().max() <= 1
    assert float(logs["imagination/rows"]) == len(rows)
    unguided, _ = checked.generate(None, generator=stream(0, "dream"))
    assert not torch.equal(rows.action[:5], unguided.action[:5])
    with pytest.raises(SettingError, match="has no log_prob"):
        checked.generate(object(), generator=stream(0, "dream"))


def test_quality_is_error_and_likelihood_of_rows_that_continue() -> None:
    class Still:
        """A simulator in which nothing ever moves."""

        def physics_of(self, obs: Any) -> tuple[Any, Any]:
            return obs, obs

        def place(self, qpos: Any, qvel: Any) -> None:
            self.obs = qpos

        def step(self, action: Any) -> tuple[Any, float, bool]:
            return self.obs, 0.0, False

    obs = torch.zeros(4, 2)
    rows = Transitions(
        obs,
        torch.zeros(4, 1),
        torch.zeros(4),
        torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 4.0], [100.0, 0.0]]),
        torch.tensor([False, False, False, True]),
        torch.zeros(4, dtype=torch.bool),
    )
    simulator: Any = Still()
    quality = trajectory_quality(simulator, Agent(), rows)
    assert quality == {"dynamics_error": 4.0, "dynamics_error_median": 2.0, "log_prob": 0.0, "rows": 3.0}
