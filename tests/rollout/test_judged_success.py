"""The task itself as a reward of videos: by a frozen world model's outcome head, of the right kind and distance of frames."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.types import ImaginedVideos
from worldrl.registry import VIDEO_REWARDS
from worldrl.rewards import video_success as judged_success
from worldrl.rewards.video_success import SuccessReward, success_reward
from worldrl.world_models.video.head_predictions import read_success

CPU = torch.device("cpu")


@pytest.fixture
def judge(make_world_model):
    model = make_world_model(planning=True, spread=0.3)
    model.config.outcome.conditioning = "instruction"
    return model


@pytest.fixture
def videos(judge):
    frames = torch.randint(0, 256, (3, 5, 16, 16, 3), dtype=torch.uint8, generator=stream(0, "videos"))
    apart = judge.frame_stride / judge.embodiment.control_hz
    return ImaginedVideos(frames, torch.zeros(3, 4, 1, 1, 1), apart, ["a", "b", "c"])


def test_a_video_is_worth_its_surest_frames_in_a_row(judge, videos, monkeypatch):
    probability = torch.tensor([[0.9, 0.1, 0.9, 0.1], [0.2, 0.6, 0.7, 0.3], [0.5, 0.5, 0.5, 0.5]])
    monkeypatch.setattr(judged_success, "read_success", lambda *_: probability)
    assert judge.config.outcome.debounce == 2
    torch.testing.assert_close(SuccessReward(judge).score(videos)[:, 0], torch.tensor([0.1, 0.6, 0.5]))
    judge.config.outcome.debounce = 9  # longer than an unfinished video: all of its frames
    torch.testing.assert_close(SuccessReward(judge).score(videos)[:, 0], torch.tensor([0.1, 0.2, 0.5]))


def test_a_saved_world_model_predicts_success(judge, videos, tmp_path):
    judge.save(tmp_path / "judge")
    reward = VIDEO_REWARDS.get("success")(str(tmp_path / "judge"), [], CPU)
    found = read_success(judge, videos.frames, videos.instruction)
    expected = torch.minimum(found[:, 1:], found[:, :-1]).amax(dim=1)
    torch.testing.assert_close(reward.score(videos)[:, 0], expected)
    assert reward.names == ("success",)
    assert not any(parameter.requires_grad for parameter in reward.model.parameters())


def test_a_critic_of_another_kind_is_refused(judge, videos, tmp_path):
    with pytest.raises(SettingError, match="a world model that is not trained"):
        success_reward("", [], CPU)
    judge.save(tmp_path / "judge")
    with pytest.raises(SettingError, match="unknown term 'successes'"):
        success_reward(str(tmp_path / "judge"), ["successes"], CPU)
    with pytest.raises(SettingError, match=r"frames are .* s apart, the videos' 9 s"):
        SuccessReward(judge).score(replace(videos, frame_s=9.0))
    acted = replace(videos, command=torch.zeros(3, 5, 7), action=torch.zeros(3, 8, 7))
    with pytest.raises(
        SettingError,
        match=r"is conditioned on instruction, these videos on actions; .*model\.outcome\.conditioning=actions",
    ):
        SuccessReward(judge).score(acted)
    judge.config.outcome.conditioning = "actions"
    assert SuccessReward(judge).score(acted).shape == (3, 1)
    with pytest.raises(SettingError, match="is conditioned on actions, these videos on instruction"):
        SuccessReward(judge).score(videos)
