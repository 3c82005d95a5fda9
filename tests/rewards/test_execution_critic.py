"""The critic of executed plans: what it learns, its uncertainty, and that it is measured on what execution would do."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.statistics.intervals import auroc
from worldrl.core.types import ImaginedVideos
from worldrl.rewards import execution_critic
from worldrl.rewards.execution_critic import (
    ExecutionConfig,
    ExecutionCritic,
    ExecutionReward,
    execution_reward,
    fit_execution,
    held_to,
    pessimistic,
)
from worldrl.rewards.motion.decoded import DecodedReward
from worldrl.rewards.motion.inverse_dynamics import Decoded, read_once
from worldrl.rewards.motion.terms import RewardTerms

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


def test_it_learns_from_targets_and_instruction(learned):
    """The same motion opens the drawer and drops the pot, so neither alone would do."""
    read, said, success = plans(300, 1)
    score = learned.reward(read, said)
    assert auroc(score[success].numpy(), score[~success].numpy()) > 0.85
    told_wrong = learned.reward(read, [SENTENCES[sentence == SENTENCES[0]] for sentence in said])
    assert auroc(told_wrong[success].numpy(), told_wrong[~success].numpy()) < 0.25


def test_a_plans_reward_is_less_than_the_members_mean_where_they_disagree(learned):
    """The mean alone, which a plan could climb where one member errs, is not what is returned."""
    read, said, _ = plans(50, 2)
    rows = learned.inputs(read, said)
    p = torch.sigmoid(learned(rows.expand(SMALL.members, *rows.shape)))
    score = learned.reward(read, said)
    assert p.std(dim=0).median() > 0.01
    torch.testing.assert_close(score, p.mean(dim=0) - p.std(dim=0, correction=0))


def test_what_lies_far_from_all_that_was_executed_earns_nothing(learned):
    """In one direction the members agree that it succeeds, further than any plan went: nothing but the distance knows better."""
    careful = fit_execution(replace(SMALL, distance_penalty=1.0), *plans(400, 0), seed=0, folder=None, log=None)[0]
    read, said, _ = plans(200, 6)
    away = {shift: read + shift for shift in (-6.0, 6.0)}
    assert max(learned.reward(away[shift], said).mean() for shift in away) > 0.4
    for shifted in away.values():
        assert (careful.beyond(shifted) == 1).all()
        assert careful.reward(shifted, said).max() <= 0
    near = careful.beyond(read) == 0
    assert near.float().mean() > 0.95
    assert torch.equal(careful.reward(read, said)[near], learned.reward(read, said)[near])
    between = careful.beyond(read + 2.2)
    assert ((between > 0) & (between < 1)).any()
    with pytest.raises(SettingError, match=r"execution\.distance_penalty"):
        ExecutionConfig(distance_penalty=-1.0)


def test_the_distance_counts_directions_by_how_far_plans_reach_in_them(tmp_path):
    """Targets that move together: off their common line a small step is far, along it a larger one is not."""
    draw = torch.Generator().manual_seed(0)
    along = torch.randn(400, 1, generator=draw)
    read = torch.cat([along, along + 0.1 * torch.randn(400, 1, generator=draw)], dim=1)[:, None].repeat(1, 2, 1)
    config = replace(SMALL, distance_penalty=2.0, steps=1)
    critic, _ = fit_execution(config, read, ["go"] * 400, along[:, 0] > 0, seed=0, folder=None, log=None)
    step = torch.tensor([[1.5, 1.5], [1.5, -1.5]])[:, None].repeat(1, 2, 1)
    assert critic.beyond(step).tolist() == [0.0, 1.0]
    rows = critic.inputs(step, ["go", "go"])
    sure = pessimistic(critic(rows.expand(3, *rows.shape)))
    torch.testing.assert_close(critic.reward(step, ["go", "go"]), sure - torch.tensor([0.0, 2.0]))
    critic.save(tmp_path / "critic")
    assert ExecutionCritic.load(tmp_path / "critic").beyond(step).tolist() == [0.0, 1.0]


def test_training_that_is_cut_continues_to_the_same_critic(tmp_path, monkeypatch):
    data, config = (
        plans(60, 3),
        ExecutionConfig(members=2, hidden=4, text_width=4, steps=6, batch=8, distance_penalty=1.0),
    )
    whole = fit_execution(config, *data, seed=1, folder=None, log=None)[0]
    fit = execution_critic.fit_module

    class CutError(Exception):
        pass

    def cut(name, critic, loss, **given):
        def until_three(step):
            if step == 3:
                raise CutError
            return loss(step)

        return fit(name, critic, until_three, **given, every_checkpoint=3)

    monkeypatch.setattr(execution_critic, "fit_module", cut)
    with pytest.raises(CutError):
        fit_execution(config, *data, seed=1, folder=tmp_path, log=None)
    monkeypatch.setattr(execution_critic, "fit_module", fit)
    resumed, report = fit_execution(config, *data, seed=1, folder=tmp_path, log=None)
    assert report.resumed_from == 3
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
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


class Counting(Reader):
    """Counts how often it is asked."""

    calls = 0

    def decode(self, frames):
        self.calls += 1
        return super().decode(frames)


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


def test_several_rewards_of_one_reader_decode_a_video_once():
    """The numbers are those of decoding for each; other frames, a copy of the videos among them, are read again."""
    reader, critic = Counting(), ExecutionCritic(SMALL, 4, 3)
    frames = torch.randint(0, 256, (2, 5, 4, 4, 3), dtype=torch.uint8)
    videos = ImaginedVideos(frames, torch.zeros(2, 4, 1), 0.2, list(SENTENCES))
    way = DecodedReward(
        reader, {"way": lambda q, dt, limits: q.diff(dim=1).abs().sum((1, 2))}, SimpleNamespace(dt=0.2, limits=None)
    )
    parts = [way, ExecutionReward(reader, critic)]
    apart = [part.score(ImaginedVideos(frames, videos.latent, 0.2, list(SENTENCES))) for part in parts]
    reader.calls = 0
    assert torch.equal(RewardTerms(parts).score(videos), torch.cat(apart, dim=1))
    assert torch.equal(read_once(reader, videos), Reader().decode(frames).mean)
    assert reader.calls == 1
    assert torch.equal(read_once(reader, replace(videos, frames=frames // 2)), Reader().decode(frames // 2).mean)
    assert read_once(Counting(), videos) is not read_once(reader, videos)


def test_its_folder_is_asked_for(tmp_path):
    with pytest.raises(SettingError, match=r"folders\.execution"):
        execution_reward("", [], torch.device("cpu"))
    with pytest.raises(ArtefactError):
        execution_reward(str(tmp_path), [], torch.device("cpu"))
