"""Imagination shows a policy of several observations those of the last control steps (``n_obs_steps``)."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights
from worldrl.methods.rl.imagination import PolicyImagination, imagined_env
from worldrl.methods.rl.interfaces import Request
from worldrl.policies.exploration import Exploration
from worldrl.policies.lerobot.folder import read_lerobot_folder
from worldrl.policies.lerobot.policy import LerobotPolicy
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.policy_rollouts import imagine_policy_rows
from worldrl.rollout.imagined.recent import after_chunk, recorded
from worldrl.rollout.imagined.reset_store import ResetStore, record_at
from worldrl.rollout.imagined.rollouts import imagine_rollouts
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel

MORE = ("wrist_image", "state")
FAKE = Path(__file__).parents[1] / "policies" / "fake_network.py"
fake = load_file("fake_network", FAKE)
RULE, HORIZON = SuccessRule(0.9999, 2), {"PickRedCube": 16, "PickGreenCylinder": 16}


class Recalling:
    """Moves a little, and keeps what it observed."""

    chunk_length, more, n_obs_steps = 4, MORE, 2

    def __init__(self, policy):
        self.actions, self.policy, self.seen = policy.actions, policy, []

    def act(self, obs, **given):
        self.seen.append(obs)
        return self.policy.act(replace(obs, past=()), **given)


@pytest.fixture(scope="module")
def make_model(make_world_model):
    """Build a model of two cameras and the measured state that imagines every control step."""

    def make(**dynamics):
        plain = make_world_model(**{"frame_stride": 1, "memory_frames": 3, **dynamics})
        names = {"cameras": ["image", "wrist_image"], "state": "measured"}
        with initial_weights(0, "steps"):
            return VideoWorldModel(
                VideoWorldModelConfig.from_json({**plain.config.to_json(), **names}), plain.embodiment
            ).eval()

    return make


def records_of(model, two_view_episodes, step):
    layout = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride, "more": MORE}
    return [record_at(e, step, source="x", **layout) for e in two_view_episodes[:2]]


@pytest.fixture
def watched(make_model, monkeypatch):
    """A model, and what it imagined: the state before each chunk, and the chunk."""
    model, chunks = make_model(), []
    imagine = model.imagine

    def watch(state, action, *, generators):
        after, imagined = imagine(state, action, generators=generators)
        chunks.append((state, imagined))
        return after, imagined

    monkeypatch.setattr(model, "imagine", watch)
    return model, chunks


@pytest.mark.parametrize("by", ["environment", "rows"])
def test_the_policy_observes_the_models_last_two_frames(watched, two_view_episodes, tiny_policy, by):
    model, chunks = watched
    policy, records = Recalling(tiny_policy()), records_of(model, two_view_episodes, 4)
    if by == "environment":
        env = imagined_env(model, ResetStore(records), RULE, rows=2, horizon=HORIZON, n_obs_steps=2)
        rollouts = imagine_rollouts(env, policy, records, group_size=1, seed=0, exploration=Exploration())
        for t, obs in enumerate(policy.seen):  # what GRPO shows again
            again = rollouts.observed(torch.tensor([t, t]), torch.tensor([0, 1]))
            for name in MORE:
                assert torch.equal(again.past[0].more[name], obs.past[0].more[name])
            assert torch.equal(again.past[0].image, obs.past[0].image)
            assert torch.equal(again.past[0].command, obs.past[0].command)
            assert torch.equal(again.image, obs.image)
    else:
        imagine_policy_rows(model, policy, records, 12, seed=0, exploration=Exploration())
    first, *later = policy.seen
    for row, episode in enumerate(two_view_episodes[:2]):
        for obs, step in ((first.past[0], 3), (first, 4)):
            assert np.array_equal(obs.image[row], episode.view("scene")[step])
            assert np.array_equal(obs.more["wrist_image"][row], episode.view("wrist")[step])
            assert np.array_equal(obs.more["state"][row], episode.state[step])
            assert np.array_equal(obs.command[row], episode.command[step])
    assert len(later) >= 2
    for obs, (state, imagined) in zip(later, chunks, strict=False):
        sheets = model.decode(imagined.latent, state.first)
        for shown, at in ((obs.past[0], -2), (obs, -1)):
            assert torch.equal(shown.image, sheets[:, at, :16])
            assert torch.equal(shown.more["wrist_image"], sheets[:, at, 16:])
            assert torch.equal(shown.more["state"], imagined.state[:, at])
            assert torch.equal(shown.command, imagined.command[:, at])
        assert not torch.equal(obs.past[0].command, obs.command)


def test_at_an_episodes_start_the_first_observation_stands_for_those_before(make_model, two_view_episodes, tiny_policy):
    model, policy = make_model(), Recalling(tiny_policy())
    imagine_policy_rows(model, policy, records_of(model, two_view_episodes, 0), 4, seed=0, exploration=Exploration())
    (obs,) = policy.seen
    (before,) = obs.past
    for name in ("image", "command"):
        assert torch.equal(getattr(before, name), getattr(obs, name))
    assert all(torch.equal(before.more[name], obs.more[name]) for name in MORE)


def test_observations_older_than_a_chunk_stay_those_that_were_shown(make_model, two_view_episodes):
    model = make_model(memory_frames=6)
    records = records_of(model, two_view_episodes, 8)
    before = recorded(records, MORE, 6)
    action = torch.full((2, 4, 7), 0.1)
    state, imagined = model.imagine(model.start(records), action, generators=[torch.Generator() for _ in records])
    after = after_chunk(before, model, state, imagined)
    for name, shown in after.items():
        assert shown.shape == before[name].shape
        assert torch.equal(shown[:, :2], before[name][:, -2:])
    assert torch.equal(after["command"][:, 2:], imagined.command)


def test_a_stored_state_continues_with_the_observations_before(make_model, two_view_episodes):
    model = make_model()
    store = ResetStore(records_of(model, two_view_episodes, 4))
    env, other = (imagined_env(model, store, RULE, rows=2, horizon=HORIZON, n_obs_steps=2) for _ in range(2))
    everyone, action = np.arange(2), np.full((2, 4, 7), 0.1, np.float32)
    for one in (env, other):
        one.reset(seed=0, options={"records": store.records})
    env.chunk_step(action)
    other.set_state(env.get_state())
    for _ in range(2):
        mine, its = env.observed(everyone), other.observed(everyone)
        assert all(torch.equal(value, its[name]) for name, value in mine.items())
        for one in (env, other):
            one.chunk_step(action)


def test_log_probabilities_of_two_observations_are_reproduced_from_what_was_stored(
    make_world_model, two_view_episodes, tmp_path
):
    folder = fake.publish(tmp_path / "diffusion", type="diffusion", n_obs_steps=2)
    launch = Launch("fake policy", sys.executable, f"{FAKE}:Fake", {"folder": str(folder)})
    model = make_world_model(frame_stride=1)
    layout = {"memory_frames": model.memory_frames, "frame_stride": 1}
    store = ResetStore([record_at(e, 4, source="x", **layout) for e in two_view_episodes])
    env = imagined_env(model, store, RULE, rows=4, horizon=HORIZON, n_obs_steps=2)
    policy = LerobotPolicy(read_lerobot_folder(folder), launch)
    try:
        source = PolicyImagination(env, policy, Exploration(), 0.0, 0)
        experience = source.imagine(Request.make(0, torch.tensor([0, 1]), torch.tensor([2, 2])))
        valid = experience.rollouts.valid.float()
        chunks = source.decisions(experience, torch.ones_like(valid), valid, {})
        part = chunks.select(torch.randperm(len(chunks), generator=torch.Generator())[:5])
        temperature = source.exploration.temperature
        again = policy.likelihood(part.obs, part.token, temperature=temperature).logp
        torch.testing.assert_close(again.detach(), part.logp, rtol=1e-4, atol=1e-4)
        swapped = replace(part.obs, past=(replace(part.obs, past=()),))
        other = policy.likelihood(swapped, part.token, temperature=temperature).logp
        assert not torch.allclose(other.detach(), part.logp, rtol=1e-3, atol=1e-3)
    finally:
        policy.close()


def test_a_model_that_imagines_or_remembers_too_few_frames_is_refused_by_setting(
    make_model, two_view_episodes, tiny_policy
):
    policy = Recalling(tiny_policy())
    for dynamics, setting in (({"frame_stride": 2}, "frame_stride=1"), ({"memory_frames": 1}, "memory_frames=2")):
        model = make_model(**dynamics)
        records = records_of(model, two_view_episodes, 4)
        named = rf"^the policy observes 2 .*; train one with world_model\.dynamics\.{setting}$"
        with pytest.raises(SettingError, match=named):
            imagine_policy_rows(model, policy, records, 4, seed=0, exploration=Exploration())
        with pytest.raises(SettingError, match=named):
            imagined_env(model, ResetStore(records), RULE, rows=2, horizon=HORIZON, n_obs_steps=2)
    model = make_model()
    records = records_of(model, two_view_episodes, 4)
    env = imagined_env(model, ResetStore(records), RULE, rows=2, horizon=HORIZON)
    with pytest.raises(SettingError, match="make it with n_obs_steps=2"):
        imagine_rollouts(env, policy, records, group_size=1, seed=0, exploration=Exploration())
