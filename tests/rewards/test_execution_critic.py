"""The critic of executed plans: what it learns, what it doubts, and that it is judged on what execution would do."""

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.stats import auroc
from worldrl.core.types import ImaginedVideos
from worldrl.rewards.execution_critic import (
    ExecutionConfig,
    ExecutionCritic,
    ExecutionReward,
    execution_reward,
    fit_execution,
    held_to,
    pessimistic,
)
from worldrl.rewards.inverse_dynamics import Decoded

SMALL = ExecutionConfig(members=3, hidden=32, text_width=4, steps=400, batch=32, learning_rate=5e-3)
SENTENCES = ("open the drawer", "lift the pot")


def plans(count, seed):
    """Plans of six frames that end near 1 to succeed, or near -1 where the pot is meant."""
    draw = np.random.default_rng(seed)
    read = torch.from_numpy(draw.normal(size=(count, 6, 3)).astype(np.float32))
    said = [SENTENCES[k] for k in draw.integers(0, 2, count)]
    sign = torch.tensor([1.0 if sentence == SENTENCES[0] else -1.0 for sentence in said])
    return read, said, read[:, -1, 0] * sign > 0


@pytest.fixture(scope="module")
def learned():
    return fit_execution(SMALL, *plans(400, 0), seed=0, folder=None, log=None)[0]


def test_the_disagreement_is_taken_off():
    logit = torch.tensor([[0.0, 2.0], [0.0, -2.0]])
    p = torch.sigmoid(torch.tensor(2.0))
    torch.testing.assert_close(pessimistic(logit), torch.tensor([0.5, 0.5 - float(p - 0.5)]))


def test_a_short_plan_holds_its_last_targets():
    read = torch.arange(6.0).reshape(1, 3, 2)
    held = held_to(read, 5)
    assert torch.equal(held[:, :3], read)
    assert held[0, 3:].tolist() == [[4, 5], [4, 5]]
    with pytest.raises(SettingError, match="plans of 2 frames, and a video has 3"):
        held_to(read, 2)


def test_it_learns_from_targets_and_sentence(learned):
    """The same motion opens the drawer and drops the pot, so neither alone would do."""
    read, said, success = plans(300, 1)
    score = learned.reward(read, said)
    assert auroc(score[success].numpy(), score[~success].numpy()) > 0.85
    told_wrong = learned.reward(read, [SENTENCES[sentence == SENTENCES[0]] for sentence in said])
    assert auroc(told_wrong[success].numpy(), told_wrong[~success].numpy()) < 0.25


def test_training_is_repeatable_goes_on_and_is_kept(tmp_path):
    data, config = plans(60, 3), ExecutionConfig(members=2, hidden=4, text_width=4, steps=6, batch=8)
    whole, other = (fit_execution(config, *data, seed=1, folder=folder, log=None)[0] for folder in (None, tmp_path))
    again, report = fit_execution(config, *data, seed=1, folder=tmp_path, log=None)
    assert report.resumed_from == 6
    for critic in (other, again):
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), critic.parameters(), strict=True))
    read, said, _ = plans(5, 4)
    whole.save(tmp_path / "critic")
    assert torch.equal(ExecutionCritic.load(tmp_path / "critic").reward(read, said), whole.reward(read, said))


def test_one_outcome_teaches_nothing():
    read, said, success = plans(20, 5)
    with pytest.raises(SettingError, match="all 20 plans failed"):
        fit_execution(SMALL, read, said, torch.zeros_like(success), seed=0, folder=None, log=None)
    with pytest.raises(SettingError, match="members"):
        ExecutionConfig(members=1)


class Reader:
    """Reads a frame's brightness into every target."""

    basis = None

    def decode(self, frames):
        mean = frames.float().mean(dim=(2, 3, 4))[..., None].expand(-1, -1, 3)
        return Decoded(mean, torch.zeros_like(mean))


def test_the_reward_reads_what_follows_the_recorded_frame():
    critic = ExecutionCritic(SMALL, 4, 3)
    frames = torch.randint(0, 256, (2, 5, 4, 4, 3), dtype=torch.uint8)
    videos = ImaginedVideos(frames, torch.zeros(2, 4, 1), 0.2, list(SENTENCES))
    reward = ExecutionReward(Reader(), critic)
    other = ImaginedVideos(frames.clone(), videos.latent, 0.2, list(SENTENCES))
    other.frames[:, 0] = 0
    assert reward.score(videos).shape == (2, 1)
    assert torch.equal(reward.score(videos), reward.score(other))
    expected = critic.reward(Reader().decode(frames).mean[:, 1:], list(SENTENCES))
    torch.testing.assert_close(reward.score(videos)[:, 0], expected)


def test_its_folder_is_asked_for(tmp_path):
    with pytest.raises(SettingError, match=r"folders\.execution"):
        execution_reward("", [], torch.device("cpu"))
    with pytest.raises(ArtefactError):
        execution_reward(str(tmp_path), [], torch.device("cpu"))
