"""MIND-V's physical foresight: the reward by hand, and a predictor that learns a law of motion."""

import math

import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import stream
from worldrl.rewards.motion.foresight import FeaturePredictor, ForesightConfig, fit_foresight, physical_foresight


def test_the_worst_windows_get_the_weight():
    similarity = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    heavy = math.exp(1 / 0.5)
    assert physical_foresight(similarity, 0.5).tolist() == pytest.approx([1 / (1 + heavy), 0.5])
    assert physical_foresight(similarity, 1e6)[0].item() == pytest.approx(0.5, abs=1e-4)  # the mean
    assert physical_foresight(similarity, 1e-3)[0].item() == pytest.approx(0.0, abs=1e-4)  # the worst


def circles(videos, frames=12):
    """Points on circles at one speed, from anywhere, ``[N, T, 2]``."""
    start = 6 * torch.rand(videos, 1, generator=stream(0, "start"))
    angle = start + 0.7 * torch.arange(frames)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def test_a_predictor_foresees_what_follows_the_law(tmp_path):
    config = ForesightConfig(context=2, ahead=2, hidden=32, steps=150, batch=32, learning_rate=1e-2)
    predictor, report = fit_foresight(config, list(circles(20)), seed=0, folder=None, log=None)
    assert report.steps == 150
    real = circles(8)
    assert predictor.similarity(real).shape == (8, 9)
    assert predictor.reward(real).min() > 0.95
    jumped = real.clone()
    jumped[:, 6:] = jumped[:, 6:].flip(1)
    assert predictor.reward(jumped).max() < predictor.reward(real).min()
    predictor.save(tmp_path / "foresight")
    again = FeaturePredictor.load(tmp_path / "foresight")
    assert torch.equal(again.reward(real), predictor.reward(real))
    with pytest.raises(ArtefactError):
        FeaturePredictor.load(tmp_path / "nothing")


def test_a_still_video_does_not_score_best():
    """As published it does: nothing is foreseen as well. Times its motion it earns nothing, and a slow one little."""
    config = ForesightConfig(context=2, ahead=2, hidden=32, steps=150, batch=32, learning_rate=1e-2)
    predictor, _ = fit_foresight(config, list(circles(20)), seed=0, folder=None, log=None)
    real = circles(8)
    still = real[:, :1].expand_as(real)
    tremble = still + 0.05 * torch.randn(real.shape, generator=stream(0, "tremble"))
    lazy = real.clone()
    lazy[:, 4:] = real[:, 4:5]  # moves for a third of the time
    # A predictor that expects of a standing point that it stands, as one that has learned from rests does.
    predictor.net[2].weight.data.zero_()
    predictor.net[2].bias.data.zero_()
    assert predictor.reward(still).min() > predictor.reward(real).max()
    predictor.measure_pace(real, tremble)
    scores = {
        name: predictor.moving_reward(video) for name, video in (("real", real), ("still", still), ("lazy", lazy))
    }
    assert scores["still"].tolist() == [0] * 8
    assert predictor.moving_reward(tremble).max() < 0.1
    half = (1 + predictor.reward(real)) / 2
    torch.testing.assert_close(scores["real"], half)  # all of the motion there is: the pace is 0.9 of the median
    assert (scores["lazy"] < (1 + predictor.reward(lazy)) / 4).all()
    with pytest.raises(SettingError, match="cannot be separated from the codec's noise"):
        predictor.measure_pace(still, tremble)


def test_motion_of_features_by_hand():
    """Two standardised features, one of which moves by 3 in two frames: m = 3 / sqrt(2)."""
    predictor = FeaturePredictor(ForesightConfig(context=1, ahead=2, hidden=4), 2)
    path = torch.stack([1.5 * torch.arange(5.0), torch.zeros(5)], dim=-1)[None]
    assert predictor.motion_content(path).item() == pytest.approx(3 / math.sqrt(2))
    predictor.get_buffer("tremble").fill_(1 / math.sqrt(2))
    predictor.get_buffer("pace").fill_(5 / math.sqrt(2))
    expected = (1 + predictor.reward(path).item()) / 2 * 0.5
    assert predictor.moving_reward(path).item() == pytest.approx(expected)


def test_an_untrained_predictor_expects_that_nothing_changes():
    predictor = FeaturePredictor(ForesightConfig(context=3, ahead=1, hidden=4), 5)
    context = torch.randn(2, 3, 5, generator=stream(0, "context"))
    bias = predictor.net[2].bias
    torch.testing.assert_close(predictor(context), context[:, -1] + bias)


def test_what_is_too_short_is_refused():
    config = ForesightConfig(context=4, ahead=4, steps=1)
    with pytest.raises(SettingError, match="no video has 8 frames"):
        fit_foresight(config, [torch.zeros(7, 3)], seed=0, folder=None, log=None)
    with pytest.raises(SettingError, match="needs 8 frames"):
        FeaturePredictor(config, 3).similarity(torch.zeros(1, 7, 3))
    with pytest.raises(SettingError, match=r"foresight\.context"):
        ForesightConfig(context=0)
    with pytest.raises(SettingError, match=r"foresight\.steps"):
        ForesightConfig(steps=-1)
