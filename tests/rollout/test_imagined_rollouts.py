from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import ActionError, SettingError
from worldrl.core.types import Chunk, PolicyObs
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.imagined.rollouts import imagine_rollouts


class Scheduled:
    """Row with start image grey ``g`` succeeds in its chunk ``g``; keeps what it was shown."""

    chunk_length, actions, more, n_obs_steps = 4, TOOL_ACTIONS, (), 1

    def __init__(self, plan):
        self.plan, self.shown, self.temperatures = plan, [], []

    def act(self, obs, *, generators, temperature=1.0, correlated_noise=None):
        self.shown.append(list(obs.instruction))
        self.temperatures.append(temperature)
        now = len(self.shown)
        action = torch.zeros(len(obs.instruction), 4, 7)
        action[:, :, 0] = torch.tensor([1.0 if self.plan[word] == now else -1.0 for word in obs.instruction])[:, None]
        token = torch.stack([torch.randint(5, (4, 7), generator=g) for g in generators])
        return Chunk(action, token, -torch.ones(len(token), 4, 7))


@pytest.fixture
def make_env(scripted_world, make_record):
    def make(rows, horizon=12, **over):
        return WorldModelVecEnv(
            scripted_world, ResetStore([make_record()]), SuccessRule(0.6, 2), num_envs=rows, horizon=horizon,
            autoreset_mode=AutoresetMode.DISABLED, **over,
        )  # fmt: skip

    return make


def test_rows_that_are_over_wait_with_an_action_in_range(make_env, make_record, monkeypatch):
    """A joint whose range does not hold 0, as a wrist that was always turned a little."""
    plan, given = {"a": 1, "b": 3}, []
    env, policy = make_env(2), Scheduled(plan)
    policy.actions = replace(TOOL_ACTIONS, low=(-1, -1, -1, -1, 0.25, -1, -1))
    step = env.chunk_step
    monkeypatch.setattr(env, "chunk_step", lambda action: given.append(action.copy()) or step(action))
    starts = [make_record(number, instruction=word) for number, word in enumerate(plan)]
    imagine_rollouts(env, policy, starts, group_size=1, seed=0, exploration=Exploration())
    assert len(given) == 3
    for action in given[1:]:  # "a" is over
        assert action[0].tolist() == [[0, 0, 0, 0, 0.25, 0, 0]] * 4


def test_rows_that_do_not_stop_at_success_run_to_the_horizon_and_succeed_all_the_same(make_env, make_record):
    plan = {"a": 1, "b": 3, "c": 9}
    starts = [make_record(number, instruction=word) for number, word in enumerate(plan)]
    env = make_env(3, stop_at_success=False)
    result = imagine_rollouts(env, Scheduled(plan), starts, group_size=1, seed=0, exploration=Exploration())
    assert result.success.tolist() == [True, True, False]
    assert result.valid.all()


def test_rows_run_until_success_or_horizon_and_are_not_asked_again(make_env, make_record, scripted_world):
    plan = {"a": 1, "b": 3, "c": 9}
    starts = [make_record(number, instruction=word) for number, word in enumerate(plan)]
    policy = Scheduled(plan)
    result = imagine_rollouts(make_env(6), policy, starts, group_size=2, seed=0, exploration=Exploration(1.3))
    assert result.success.tolist() == [True, True, True, True, False, False]
    assert result.valid.sum(dim=0).tolist() == [1, 1, 3, 3, 3, 3]
    assert result.valid[:, 0].tolist() == [True, False, False]
    assert result.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert result.instruction == ("a", "a", "b", "b", "c", "c")
    assert policy.shown == [list("aabbcc"), list("bbcc"), list("bbcc")]
    assert set(policy.temperatures) == {1.3}
    assert scripted_world.rows_simulated == [6, 4, 4]
    assert (result.logp[1, :2] == 0).all()
    assert (result.logp[1, 2:] == -1).all()
    assert result.token.shape == (3, 6, 4, 7)


def test_the_first_image_is_the_start_and_each_chunk_sees_the_one_before(make_env, make_record):
    starts = [make_record(7), make_record(9)]
    env = make_env(4)
    result = imagine_rollouts(
        env,
        Scheduled(dict.fromkeys([starts[0].instruction], 99)),
        starts,
        group_size=2,
        seed=0,
        exploration=Exploration(),
    )
    assert result.image[0, :, 0, 0, 0].tolist() == [7, 7, 9, 9]
    np.testing.assert_array_equal(result.command[0], np.stack([starts[0].command] * 4))
    assert not torch.equal(result.image[0], result.image[1])


def test_same_seed_same_rollouts_and_every_row_its_own_draws(make_env, make_record, tiny_policy, same_tree):
    def play(seed):
        return vars(
            imagine_rollouts(
                make_env(4), tiny_policy(), [make_record(1)], group_size=4, seed=seed, exploration=Exploration()
            )
        )

    one, other = play(0), play(1)
    same_tree(one, play(0))
    assert not torch.equal(one["token"], other["token"])
    assert len({tuple(row.flatten().tolist()) for row in one["token"][0]}) == 4


def test_stored_log_probabilities_are_the_policys(make_env, make_record, tiny_policy):
    policy = tiny_policy()
    result = imagine_rollouts(make_env(4), policy, [make_record(1)], group_size=4, seed=0, exploration=Exploration(1.5))
    for t in range(len(result.valid)):
        row = result.valid[t]
        words = [result.instruction[r] for r in row.nonzero()[:, 0]]
        again = policy.log_prob(
            PolicyObs(result.image[t, row], result.command[t, row], words), result.token[t, row], temperature=1.5
        )
        torch.testing.assert_close(again, result.logp[t, row], atol=1e-5, rtol=0)


def test_what_does_not_fit_is_refused(make_env, make_record, tiny_policy):
    with pytest.raises(SettingError, match="one record per reset row: 6, got 4"):
        imagine_rollouts(make_env(6), tiny_policy(), [make_record()], group_size=4, seed=0, exploration=Exploration())
    with pytest.raises(ActionError, match="shape"):
        imagine_rollouts(
            make_env(4), tiny_policy(chunk_length=3), [make_record()], group_size=4, seed=0, exploration=Exploration()
        )
