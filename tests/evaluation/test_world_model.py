"""Numbers of the world model's evaluation, against a simulator that is right and ones that are wrong on purpose."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.statistics.intervals import wilson
from worldrl.evaluation.world_model.rollout_error import (
    Replay,
    action_swap_ratio,
    closed_loop_psnr,
    outcome_report,
    outcomes,
    padded_actions,
    psnr,
    replay,
    replayed_success,
    squared_error,
    static_psnr,
)
from worldrl.rewards.success import SuccessRule


@pytest.fixture
def actions(push_episodes):
    return np.stack([padded_actions(episode, 20) for episode in push_episodes])


def test_actions_are_cut_or_held_with_the_gripper_as_it_is(push_episode):
    episode = push_episode(0, 10, close_at=4)
    np.testing.assert_array_equal(padded_actions(episode, 6), episode.action[:6])
    longer = padded_actions(episode, 14)
    np.testing.assert_array_equal(longer[:10], episode.action)
    np.testing.assert_array_equal(longer[10:], [[0, 0, 0, 0, 0, 0, 1]] * 4)


def test_the_true_simulator_makes_no_error(push_simulator, push_episodes, actions):
    result = replay(push_simulator(), push_episodes, actions, seed=0, batch=3)
    assert result.real.shape == result.imagined.shape == (8, 10, 16, 16, 3)
    assert squared_error(result).max() == 0
    assert result.valid.sum(axis=1).tolist() == [(12 + n) // 2 for n in range(8)]
    for row, episode in enumerate(push_episodes):
        np.testing.assert_array_equal(result.real[row, 3], episode.frames[8, 0])
        np.testing.assert_array_equal(result.real[row, -1], episode.frames[min(20, len(episode)), 0])


def test_batches_do_not_change_a_replay(world_model, push_episodes, actions):
    whole, parts = (replay(world_model, push_episodes, actions, seed=0, batch=b) for b in (64, 3))
    assert np.abs(whole.imagined.astype(int) - parts.imagined).max() <= 1
    np.testing.assert_allclose(whole.probability, parts.probability, atol=1e-5)
    other = replay(world_model, push_episodes, actions, seed=1)
    assert np.abs(whole.imagined.astype(int) - other.imagined).max() > 5


def test_success_is_replayed_without_decoding_an_image(world_model, push_episodes, actions, monkeypatch):
    whole = replay(world_model, push_episodes, actions, seed=0, batch=3)
    monkeypatch.setattr(world_model, "decode", lambda *_: pytest.fail("an image was decoded"))
    assert np.array_equal(replayed_success(world_model, push_episodes, actions, seed=0, batch=3), whole.probability)


def test_nothing_is_imagined_beyond_the_longest_episode_of_a_task(push_simulator, push_episode, monkeypatch):
    """A task of 8 control steps beside one of 20: its rows stop there, and each row is what it is alone."""
    red, green = (
        push_episode(n, steps, task=task)
        for n, (task, steps) in enumerate((("PickRedCube", 8), ("PickGreenCylinder", 20)))
    )
    episodes, imagined = [green, red, green], []
    simulator = push_simulator(uncertainty=0.4)
    imagine = simulator.imagine
    monkeypatch.setattr(
        simulator, "imagine", lambda state, *a, **k: imagined.append(len(state.place)) or imagine(state, *a, **k)
    )
    held = np.stack([padded_actions(episode, 20) for episode in episodes])
    result = replay(simulator, episodes, held, seed=0, batch=1)
    assert len(imagined) == 2 + 5 + 5
    assert (result.probability[1, :4] > 0).all()
    assert (result.probability[1, 4:] == 0).all()
    assert squared_error(result).max() == 0
    np.testing.assert_array_equal(result.imagined[1, 4:], np.repeat(result.imagined[1, 3:4], 6, axis=0))
    for n, episode in enumerate(episodes):
        alone = replay(push_simulator(uncertainty=0.4), [episode], held[n : n + 1], seed=0, row=n)
        np.testing.assert_array_equal(result.probability[n], alone.probability[0])


def made(real, imagined, valid, stride=2):
    probability = np.zeros(valid.shape, np.float32)
    return Replay(real.astype(np.uint8), imagined.astype(np.uint8), valid, probability, stride)


def test_psnr_in_closed_form_and_only_of_episodes_that_last():
    real = np.zeros((2, 16, 4, 4, 3))
    imagined = real.copy()
    imagined[0] += 51  # 0.2 of the range: 0.04
    imagined[1] += 255
    valid = np.ones((2, 16), bool)
    valid[1, 4:] = False
    values = closed_loop_psnr(made(real, imagined, valid), (8, 10, 32, 64))
    assert values["closed_loop.psnr@10"] == pytest.approx(-10 * np.log10(0.04), abs=1e-4)
    assert values["closed_loop.psnr@8"] == pytest.approx(-10 * np.log10((0.04 + 1) / 2), abs=1e-4)
    assert values.keys() == {"closed_loop.psnr@8", "closed_loop.psnr@10", "closed_loop.psnr@32"}
    assert psnr(0.0) == 100


def test_a_model_that_ignores_its_actions_scores_one(push_simulator, push_episodes, world_model):
    assert action_swap_ratio(push_simulator(blind=True), push_episodes, 16, seed=0) == 1
    assert np.isnan(action_swap_ratio(world_model, push_episodes[:1], 16, seed=0))


def test_a_model_that_follows_its_actions_scores_more(push_simulator, push_episodes):
    assert action_swap_ratio(push_simulator(error=4), push_episodes, 16, seed=0) > 5


def test_holding_still(push_simulator, push_episodes):
    assert static_psnr(push_simulator(), push_episodes, 16, seed=0) == 100
    assert static_psnr(push_simulator(error=4), push_episodes, 16, seed=0) == pytest.approx(
        -20 * np.log10(4 / 255), abs=0.01
    )


def test_imagined_outcomes_of_the_true_simulator_are_the_real_ones(push_simulator, push_episodes, actions):
    actual = np.array([episode.success for episode in push_episodes])
    assert 0 < actual.sum() < 8
    rule = SuccessRule(0.5, 1)
    right = replay(push_simulator(), push_episodes, actions, seed=0)
    np.testing.assert_array_equal(outcomes(right, rule), actual)
    assert not outcomes(right, SuccessRule(0.95, 1)).any()
    eager = replay(push_simulator(uncertainty=0.9), push_episodes, actions, seed=0)
    assert outcomes(eager, rule).all()
    late = replace(right, probability=np.eye(8, 10, dtype=np.float32))
    assert not outcomes(late, SuccessRule(0.5, 2)).any()  # one frame each


def test_outcome_report_by_hand():
    report = outcome_report(np.array([1, 1, 0, 0, 1], bool), np.array([1, 0, 1, 0, 1], bool))
    assert report == {
        "precision": wilson(2, 3),
        "recall": wilson(2, 3),
        "outcome_alignment": wilson(3, 5),
        "false_success_rate": wilson(1, 2),
    }
    nothing = outcome_report(np.zeros(3, bool), np.zeros(3, bool))
    assert nothing["precision"] is None
    assert nothing["recall"] is None
    assert nothing["false_success_rate"]["k"] == 0
