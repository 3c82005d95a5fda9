"""Staged rollouts over a planner whose worth is known: the best is kept, others are proposed until one is good enough."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import row_noise, row_streams
from worldrl.core.types import Imagined
from worldrl.rollout.imagined.staged_rollouts import StagedConfig, staged_rollouts


@dataclass(frozen=True)
class WalkState:
    """Where each row is."""

    place: torch.Tensor

    def select(self, index):
        return WalkState(self.place[index])

    def state_dict(self):
        return {"place": self.place}


class Walk:
    """A random walk; its latents are where it is, its images are grey."""

    def start(self, records):
        return WalkState(torch.zeros(len(records)))

    def imagine(self, state, action, *, generators):
        assert action is None
        after = WalkState(state.place + row_noise(generators, ()))
        rows = len(after.place)
        return after, Imagined(after.place.view(-1, 1, 1, 1, 1), (1,), torch.zeros(rows, 1, 7), torch.zeros(rows, 1))

    def decode(self, latent, first):
        return torch.full((*latent.shape[:2], 16, 16, 3), 7, dtype=torch.uint8)

    def restore(self, data):
        return WalkState(**data)


class Far:
    """How far a walk came, and the number of frames so far."""

    names = ("far", "frames")

    def __init__(self):
        self.rows = []

    def score(self, videos):
        self.rows.append(videos.rows)
        assert videos.frames.shape[1] == videos.latent.shape[1] + 1
        return torch.stack([videos.latent[:, -1, 0, 0, 0], torch.full((videos.rows,), videos.latent.shape[1])], dim=1)


def mix(terms, group):
    return terms[:, 0]


def plan(records, seed=0, reward=None, **over):
    return staged_rollouts(Walk(), reward or Far(), mix, records, StagedConfig(**over), frame_s=0.1, seed=seed)


@pytest.fixture
def records(make_record):
    return [make_record(grey) for grey in (10, 20, 30)]


def test_one_stage_is_best_of_n(records):
    reward = Far()
    found = plan(records, reward=reward, proposals=8, stage_chunks=3)
    assert reward.rows == [24]
    for row in range(3):
        streams = row_streams(0, ("staged", 0, 0, row), 8)
        ends = torch.stack([sum(row_noise([s], ()) for _ in range(3))[0] for s in streams])
        assert found.terms[row, 0] == pytest.approx(ends.max().item(), abs=1e-5)
    assert torch.equal(found.latent[:, -1, 0, 0, 0], found.terms[:, 0])
    assert found.terms[:, 1].tolist() == [3, 3, 3]
    assert found.frames[:, 0, 0, 0, 0].tolist() == [10, 20, 30]
    assert found.chunks == 3 * 8 * 3
    assert found.accepted is None  # nothing was asked of it
    assert plan(records, proposals=8, min_reward={"far": -100.0}).accepted.all()


def test_choosing_often_goes_farther_than_choosing_once(records):
    """The same number of imagined chunks, spent on stages: a greedy walk beats the best of eight whole ones."""
    means = [
        np.mean([plan(records, seed, proposals=8, **over).terms[:, 0].mean() for seed in range(5)])
        for over in ({"stages": 1, "stage_chunks": 6}, {"stages": 6, "stage_chunks": 1})
    ]
    assert means[1] > means[0] + 2


def test_each_stage_continues_from_what_was_kept(records):
    found = plan(records, proposals=4, stages=3, stage_chunks=1)
    steps = found.latent[:, :, 0, 0, 0].diff(dim=1, prepend=torch.zeros(3, 1))
    for row in range(3):
        for stage in range(3):
            drawn = row_noise(row_streams(0, ("staged", stage, 0, row), 4), ())
            assert steps[row, stage] == pytest.approx(drawn.max().item(), abs=1e-5)
    assert torch.equal(found.state.place, found.latent[:, -1, 0, 0, 0])


def test_only_what_is_not_good_enough_is_proposed_again(records):
    reward = Far()
    found = plan(records, reward=reward, proposals=2, stage_chunks=1, attempts=4, min_reward={"far": 1.2})
    drawn = [
        [row_noise(row_streams(0, ("staged", 0, attempt, row), 2), ()).max().item() for attempt in range(4)]
        for row in range(3)
    ]
    for row in range(3):
        needed = next((n + 1 for n, best in enumerate(drawn[row]) if best >= 1.2), 4)
        assert found.attempts[0, row] == needed
        assert found.terms[row, 0] == pytest.approx(max(drawn[row][:needed]))
        assert found.accepted[0, row] == (max(drawn[row][:needed]) >= 1.2)
    assert reward.rows[0] == 6
    assert found.chunks == sum(reward.rows)
    assert len(set(found.attempts[0].tolist())) > 1


def test_a_plan_does_not_depend_on_the_others(records):
    every, alone = plan(records, proposals=4, stages=2), plan(records[:1], proposals=4, stages=2)
    assert torch.equal(every.latent[:1], alone.latent)


def test_a_world_model_plans_in_stages(make_world_model, records):
    model = make_world_model(planning=True)

    class Bright:
        names = ("bright",)

        def score(self, videos):
            return videos.frames[:, 1:].float().mean(dim=(1, 2, 3, 4))[:, None]

    config = StagedConfig(proposals=3, stages=2, stage_chunks=1, attempts=2, min_reward={"bright": 256})
    found = staged_rollouts(model, Bright(), lambda terms, _: terms[:, 0], records, config, frame_s=0.1, seed=0)
    assert found.frames.shape == (3, 5, 16, 16, 3)
    assert not found.accepted.any()
    assert torch.equal(found.state.memory[:, -2:], found.latent[:, -2:])
    torch.testing.assert_close(Bright().score(type("V", (), {"frames": found.frames})), found.terms)


def test_mistakes_are_reported(records):
    with pytest.raises(SettingError, match="no term 'fast'; it has far, frames"):
        plan(records, min_reward={"fast": 1.0})
    with pytest.raises(SettingError, match="at least one record"):
        plan([])
    with pytest.raises(SettingError, match=r"staged\.attempts"):
        StagedConfig(attempts=0)
    with pytest.raises(SettingError, match=r"staged\.attempts: 2 attempts need .* staged\.min_reward"):
        StagedConfig(attempts=2)
