"""Unit under test: ``worldrl.methods.offline.latent.latent_keypoints``, on rows whose chunk says where a bright cell is."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.bc import Bc, BcConfig
from worldrl.methods.offline.latent.latent_keypoints import KeypointTraining, fit_keypoints, parted
from worldrl.rollout.imagined.latent_world import RecordedLatents
from worldrl.world_models.latent.keypoints import KeypointEncoder

SHAPE, ROWS, EPISODES = (2, 8, 8), 240, 20
SHORT = KeypointTraining(steps=120, batch=32, learning_rate=3e-3, hidden=32, look_every=20)


def recorded(rows: int = ROWS, episodes: int = EPISODES) -> RecordedLatents:
    """Rows whose latents have one bright cell in channel 0 and noise elsewhere, and whose action is its (x, y)."""
    draws = stream(0, "rows")
    latent = 0.1 * torch.randn(rows, *SHAPE, generator=draws)
    y, x = torch.randint(8, (2, rows), generator=draws)
    latent[torch.arange(rows), 0, y, x] += 3.0
    obs = torch.cat([latent.flatten(1), torch.ones(rows, 3)], dim=1)
    action = torch.stack([x, y], dim=1).float() / 4 - 1
    no = torch.zeros(rows, dtype=torch.bool)
    source = torch.arange(rows) * episodes // rows
    return RecordedLatents(Transitions(obs, action, torch.zeros(rows), obs, no, no), source, source, ())


@pytest.fixture(scope="module")
def fitted() -> tuple[KeypointEncoder, float, int]:
    encoder, report = fit_keypoints(recorded(), SHAPE, 4, SHORT, seed=3)
    return encoder, report.explained, report.step


def test_places_in_held_out_episodes_are_explained(fitted: tuple[KeypointEncoder, float, int]) -> None:
    _, explained, step = fitted
    assert explained > 0.8
    assert step % SHORT.look_every == 0
    assert 0 < step <= SHORT.steps


def test_training_is_the_same_every_time(fitted: tuple[KeypointEncoder, float, int]) -> None:
    """Who is killed computes it anew, so the same seed must give the same encoder, bit for bit; another seed another."""
    again, report = fit_keypoints(recorded(), SHAPE, 4, SHORT, seed=3)
    assert (report.explained, report.step) == fitted[1:]
    assert all(
        torch.equal(a, b) for a, b in zip(again.state_dict().values(), fitted[0].state_dict().values(), strict=True)
    )
    other, _ = fit_keypoints(recorded(), SHAPE, 4, replace(SHORT, steps=1), seed=4)
    assert not torch.equal(other.query, again.query)


def test_best_look_is_kept_and_not_the_last() -> None:
    """Where held-out episodes do the opposite, what is learned is wrong there, more so the longer: the first look is best."""
    latents = recorded()
    held = parted(latents.source, SHORT.held_out)[1]
    latents.rows.action[held] *= -1
    early, at_once = fit_keypoints(latents, SHAPE, 4, replace(SHORT, steps=20), seed=3)
    kept, report = fit_keypoints(latents, SHAPE, 4, SHORT, seed=3)
    assert (report.step, report.explained) == (20, at_once.explained)
    assert torch.equal(kept.query, early.query)


def test_an_agents_training_leaves_the_encoder_alone(fitted: tuple[KeypointEncoder, float, int]) -> None:
    encoder = fitted[0]
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    latents = recorded().through(encoder)
    assert latents.rows.obs.shape == (ROWS, 3 * 4 + 3)
    assert not latents.rows.obs.requires_grad
    with initial_weights(0, "bc"):
        agent = Bc(BcConfig((8,)), Facts.of(latents.rows, [0.0, 1.0]))
    agent.take_step(latents.rows, stream(0, "step"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_points_of_the_rows_it_learned_from_are_standardised(fitted: tuple[KeypointEncoder, float, int]) -> None:
    latents = recorded()
    learned, _ = parted(latents.source, SHORT.held_out)
    points = latents.through(fitted[0]).rows.obs[learned, : fitted[0].points_size]
    torch.testing.assert_close(points.mean(dim=0), torch.zeros(12), atol=1e-3, rtol=0)
    torch.testing.assert_close(points.std(dim=0, correction=0), torch.ones(12), atol=1e-3, rtol=0)


def test_whole_episodes_are_held_out() -> None:
    source = torch.tensor([0, 0, 2, 2, 2, 5, 7])  # 1 and others were too short to give rows
    learned, held = parted(source, 3)
    assert source[held].tolist() == [0, 0, 7]
    assert source[learned].tolist() == [2, 2, 2, 5]


def test_one_episode_alone_is_refused() -> None:
    with pytest.raises(SettingError, match="1 with a whole chunk is too few"):
        fit_keypoints(recorded(episodes=1), SHAPE, 4, SHORT, seed=0)
    with pytest.raises(SettingError, match="held_out must be at least 2"):
        KeypointTraining(held_out=1)
