"""Imagination hands a policy the observation that it was trained on: every camera and the measured state."""

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
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.policy_rollouts import imagine_policy_rows
from worldrl.rollout.imagined.reset_store import ResetStore, record_at
from worldrl.rollout.imagined.rollouts import imagine_rollouts
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel

MORE = ("wrist_image", "state")
FAKE = Path(__file__).parents[1] / "policies" / "fake_network.py"
fake = load_file("fake_network", FAKE)


@pytest.fixture(scope="module")
def model(make_world_model):
    plain = make_world_model()
    names = {"cameras": ["image", "wrist_image"], "state": "measured"}
    config = VideoWorldModelConfig.from_json({**plain.config.to_json(), **names})
    with initial_weights(0, "views"):
        return VideoWorldModel(config, plain.embodiment).eval()


@pytest.fixture
def make_env(model, two_view_episodes):
    def make(world_model=model, more=MORE):
        layout = {"memory_frames": world_model.memory_frames, "frame_stride": world_model.frame_stride}
        records = [record_at(e, 4, source="x", more=more, **layout) for e in two_view_episodes]
        rule = SuccessRule(0.99, 2)
        return WorldModelVecEnv(
            world_model, ResetStore(records), rule, num_envs=2, horizon=16, autoreset_mode="Disabled"
        )

    return make


@pytest.fixture
def make_policy(two_view_episodes):
    def make(cameras=("image", "wrist_image"), state="measured"):
        small = {"image_size": 16, "chunk_length": 4, "bins": 5, "width": 8, "blocks": 1, "keypoints": 2}
        config = TokenPolicyConfig(**small, text_width=8, hidden=16, cameras=list(cameras), state=state)
        with initial_weights(0, "policy"):
            return TokenPolicy(config, PolicyStatistics.from_episodes(two_view_episodes)).eval()

    return make


def test_the_first_observation_is_the_recorded_one_and_later_ones_are_the_models(model, make_env, two_view_episodes):
    env = make_env()
    assert env.single_observation_space["wrist_image"].shape == (16, 16, 3)
    assert env.single_observation_space["state"].shape == (8,)
    obs, _ = env.reset(options={"records": env.store.records[:2]})
    assert obs in env.observation_space
    for row in range(2):
        episode = two_view_episodes[2 * row + 1]  # of the first task by name
        assert np.array_equal(obs["image"][row], episode.view("scene")[4])
        assert np.array_equal(obs["wrist_image"][row], episode.view("wrist")[4])
        assert np.array_equal(obs["state"][row], episode.state[4])
    obs, *_ = env.chunk_step(np.zeros((2, model.chunk_length, 7), np.float32))
    assert obs in env.observation_space
    sheet = model.decode_newest(env._state, 1)[:, 0].numpy()
    assert np.array_equal(obs["image"], sheet[:, :16])
    assert np.array_equal(obs["wrist_image"], sheet[:, 16:])
    assert np.array_equal(obs["state"], env._state.measured.numpy())
    kept = env.get_state()
    again, *_ = env.chunk_step(np.zeros((2, model.chunk_length, 7), np.float32))
    env.set_state(kept)
    repeated, *_ = env.chunk_step(np.zeros((2, model.chunk_length, 7), np.float32))
    assert all(np.array_equal(again[name], repeated[name]) for name in ("image", "wrist_image", "state"))


def test_a_rollout_keeps_what_the_policy_observed(make_env, make_policy):
    env, exploration = make_env(), Exploration()
    rollouts = imagine_rollouts(
        env, make_policy(), env.store.records[:2], group_size=1, seed=0, exploration=exploration
    )
    assert rollouts.more.keys() == set(MORE)
    assert rollouts.more["wrist_image"].shape == rollouts.image.shape
    assert rollouts.more["state"].shape[-1] == 8
    assert torch.equal(rollouts.more["state"][0, 0], torch.from_numpy(env.store.records[0].state))
    less = imagine_rollouts(
        env, make_policy(["image"], "none"), env.store.records[:2], group_size=1, seed=0, exploration=exploration
    )
    assert less.more == {}


def test_rollouts_to_the_horizon_hand_over_the_same_observations(model, make_env, make_policy, monkeypatch):
    starts, policy, seen = make_env().store.records[:2], make_policy(), []
    act = policy.act
    monkeypatch.setattr(policy, "act", lambda obs, **given: seen.append(obs) or act(obs, **given))
    imagine_policy_rows(model, policy, starts, 8, seed=0, exploration=Exploration())
    assert [sorted(obs.more) for obs in seen] == [["state", "wrist_image"]] * 2
    for row, record in enumerate(starts):
        assert np.array_equal(seen[0].image[row], record.memory[-1][:16])
        assert np.array_equal(seen[0].more["wrist_image"][row], record.memory[-1][16:])
        assert np.array_equal(seen[0].more["state"][row], record.state)
    assert not torch.equal(seen[1].more["state"], seen[0].more["state"])


def test_a_policy_that_observes_more_than_the_model_imagines_is_refused(make_world_model, make_env, make_policy):
    plain = make_world_model()
    env = make_env(plain, ())
    with pytest.raises(SettingError, match=r"takes image, wrist_image, state \| the world model shows image"):
        imagine_rollouts(env, make_policy(), env.store.records[:2], group_size=1, seed=0, exploration=Exploration())
    with pytest.raises(SettingError, match="does not fit the world model"):
        imagine_policy_rows(plain, make_policy(), env.store.records[:2], 8, seed=0, exploration=Exploration())


def test_start_states_without_state_or_camera_are_refused(make_env, model):
    with pytest.raises(SettingError, match="measured state"):
        make_env(more=("wrist_image",))
    env = make_env()
    for over, named in (
        ({"state": np.zeros(3, np.float32)}, "state"),
        ({"reference": np.zeros((16, 16, 3), np.uint8)}, "reference"),
    ):
        bad = [replace(env.store.records[0], **over), env.store.records[1]]
        with pytest.raises(SettingError, match=named):
            env.reset(options={"records": bad})


def test_a_lerobot_policy_of_two_cameras_learns_by_grpo_in_imagination(make_env, model, tmp_path):
    sees, numbers = {"type": "VISUAL", "shape": [3, 16, 16]}, {"type": "STATE", "shape": [7]}
    seen = {"observation.images.scene": sees, "observation.images.wrist": sees, "observation.state": numbers}
    folder = fake.publish(tmp_path / "smolvla", input_features=seen)
    launch = Launch("fake policy", sys.executable, f"{FAKE}:Fake", {"folder": str(folder)})
    policy = LerobotPolicy(read_lerobot_folder(folder), launch)
    try:
        assert policy.more == ("wrist_image",)
        env = make_env()
        rule = SuccessRule(0.01, 1)
        env = imagined_env(model, env.store, rule, rows=4, horizon={"PickRedCube": 16, "PickGreenCylinder": 16})
        source = PolicyImagination(env, policy, Exploration(), 0.0, 0)
        starts = torch.tensor([0, 1])
        experience = source.imagine(Request.make(0, starts, torch.tensor([2, 2])))
        valid = experience.rollouts.valid.float()
        chunks = source.decisions(experience, torch.ones_like(valid), valid, {})
        assert chunks.obs.more["wrist_image"].shape == chunks.obs.image.shape
        part = chunks.select(torch.arange(3))
        again = policy.likelihood(part.obs, part.token, temperature=source.exploration.temperature).logp
        torch.testing.assert_close(again.detach().cpu(), part.logp, rtol=1e-4, atol=1e-4)
    finally:
        policy.close()
