"""Unit under test: ``worldrl.reproductions.neubay.pendulum``."""

import gymnasium
import numpy as np
import pytest
import torch

from worldrl.core.rng import stream
from worldrl.reproductions.neubay.pendulum import REWARD_SCALE, STEPS, observe, record, swing


def test_step_is_gymnasiums() -> None:
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    angle, speed = (torch.tensor([value]) for value in env.unwrapped.state)  # pyright: ignore[reportAttributeAccessIssue]
    draws = stream(0, "torque")
    for _ in range(60):
        action = 2.4 * torch.rand(1, 1, generator=draws) - 1.2
        angle, speed, reward = swing(angle, speed, action)
        obs, real, *_ = env.step(np.array([2 * float(action.clamp(-1, 1))], np.float32))
        torch.testing.assert_close(observe(angle, speed)[0].float(), torch.from_numpy(obs), rtol=1e-4, atol=1e-4)
        assert float(reward) == pytest.approx(REWARD_SCALE * float(real), rel=1e-3, abs=1e-5)
    env.close()


def test_recorded_episodes_lie_in_blocks() -> None:
    rows, episode = record(3, generator=stream(0, "data"))
    assert len(rows) == 3 * STEPS == len(episode)
    same = episode[1:] == episode[:-1]
    assert torch.equal(rows.obs[1:][same], rows.next_obs[:-1][same])
    assert rows.truncated.nonzero()[:, 0].tolist() == [STEPS - 1, 2 * STEPS - 1, 3 * STEPS - 1]
    assert not bool(rows.terminated.any())
