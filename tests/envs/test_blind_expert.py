"""The blind expert lifts whether or not it holds: its actions must not tell the outcome."""

import gymnasium
import numpy as np
import pytest

import worldrl_envs  # noqa: F401  (registers the ids)
from worldrl_envs.experts import ScriptedExpert


def closing_and_lifting(*, blind: bool, goal_offset: float, seed: int) -> tuple[bool, int, float]:
    """Run one pick; return success, how often the gripper closed, and the height reached with it closed."""
    env = gymnasium.make("worldrl/PickRedCube-v0", obs="state", terminate_on_success=False)
    expert = ScriptedExpert("PickRedCube", generator=np.random.default_rng(seed), goal_offset=goal_offset, blind=blind)
    env.reset(seed=seed, options={"index": 0})
    expert.reset(env)
    success, closings, height, before = False, 0, 0.0, -1.0
    for _ in range(64):
        action = expert.act(env)
        closings += int(action[6] > 0 >= before)
        before = action[6]
        _, _, _, _, info = env.step(action)
        success |= bool(info["is_success"])
        if action[6] > 0:
            height = max(height, float(env.unwrapped.command[2]))
    env.close()
    return success, closings, height


@pytest.mark.parametrize("seed", range(6))
def test_a_blind_pick_closes_once_and_lifts_even_when_it_misses(seed):
    success, closings, height = closing_and_lifting(blind=True, goal_offset=0.025, seed=seed)
    assert closings == 1
    assert height > 0.1, f"lifted to {height:.3f} m, success {success}"


def test_some_blind_picks_miss_and_a_seeing_expert_tries_again():
    blind = [closing_and_lifting(blind=True, goal_offset=0.025, seed=seed) for seed in range(6)]
    seeing = [closing_and_lifting(blind=False, goal_offset=0.025, seed=seed) for seed in range(6)]
    assert not all(success for success, _, _ in blind)
    assert max(closings for _, closings, _ in seeing) > 1
    assert sum(success for success, _, _ in seeing) > sum(success for success, _, _ in blind)


def test_without_an_offset_a_blind_pick_succeeds():
    assert all(closing_and_lifting(blind=True, goal_offset=0.0, seed=seed)[0] for seed in range(4))
