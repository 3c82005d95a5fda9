"""The environments under vector wrappers and Stable-Baselines3."""

import gymnasium
import numpy as np
import pytest

import worldrl_envs


def test_async_vector_of_pixels():
    envs = gymnasium.make_vec(
        "worldrl/PickRedCube-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn"},
    )
    obs, _ = envs.reset(seed=0)
    assert obs["image"].shape == (2, 64, 64, 3)
    assert obs["instruction"] == ("pick up the red cube",) * 2
    obs, reward, _, _, info = envs.step(np.zeros((2, 7), np.float32))
    assert reward.shape == (2,)
    assert info["privileged"]["red_cube"].shape == (2, 7)
    assert info["init_id"].tolist() == [-1, -1]
    envs.close()


def test_ppo_learns_a_few_steps():
    ppo = pytest.importorskip("stable_baselines3").PPO
    env = gymnasium.make(worldrl_envs.env_id("PickRedCube"), obs="state")
    ppo("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, device="cpu", seed=0).learn(64)
    env.close()


@pytest.mark.parametrize("task", ["PickRedCube", "BimanualLiftPot"])
def test_ppo_learns_from_images_without_the_instruction(task):
    ppo = pytest.importorskip("stable_baselines3").PPO
    whole = gymnasium.make(worldrl_envs.env_id(task), image_size=36)
    env = gymnasium.wrappers.FilterObservation(whole, ["image", "state", "command"])
    ppo("MultiInputPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", seed=0).learn(32)
    env.close()
