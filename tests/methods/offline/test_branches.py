"""Branched rollouts in a scripted world: which rows they make, where they end, and what options change.

Unit under test: ``branch`` and ``Branches``.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import StateWorld
from worldrl.core.rng import stream
from worldrl.core.transitions import Outcome, concat
from worldrl.methods.offline.branches import BranchConfig, Branches, branch


@dataclass
class Line:
    """s' = s + a; reward 10·s'; the task ends beyond 3; uncertainty is s'."""

    starts: Tensor
    obs_size: int = 1
    action_size: int = 1
    measures_uncertainty: bool = True

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.starts[index], self.starts[index]

    def step(self, state: Tensor, action: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Outcome]:
        after = state + action
        return after, Outcome(after, 10 * after[:, 0], after[:, 0] > 3, after[:, 0])

    def select(self, state: Tensor, index: Tensor) -> Tensor:
        return state[index]


class OneStepRight:
    """Always acts +1; writes down what it saw."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        self.seen.append(obs)
        return torch.ones(len(obs), 1)


def run(config: BranchConfig, starts: tuple[float, ...] = (0.0, 2.0, 3.0)) -> tuple[Any, OneStepRight]:
    agent: Any = OneStepRight()
    world: StateWorld = Line(torch.tensor(starts)[:, None])
    parts, _ = branch(world, agent, torch.arange(len(starts)), config, generator=stream(0, "branch"))
    return concat(parts), agent


def test_rows_follow_each_rollout_to_its_end() -> None:
    rows, agent = run(BranchConfig(horizon=3))
    assert rows.obs[:, 0].tolist() == [0, 2, 3, 1, 3, 2]  # step by step; who terminated drops out
    assert rows.next_obs[:, 0].tolist() == [1, 3, 4, 2, 4, 3]
    assert rows.terminated.tolist() == [False, False, True, False, True, False]
    assert rows.truncated.tolist() == [False, False, False, False, False, True]  # by the horizon alone
    assert rows.reward.tolist() == [10, 30, 40, 20, 40, 30]
    assert [len(obs) for obs in agent.seen] == [3, 2, 1]


def test_nothing_is_simulated_once_all_have_ended() -> None:
    rows, agent = run(BranchConfig(horizon=50), starts=(2.0, 3.0))
    assert len(agent.seen) == 2
    assert len(rows) == 3


def test_termination_at_the_horizon_is_not_truncation() -> None:
    rows, _ = run(BranchConfig(horizon=1), starts=(3.0,))
    assert (rows.terminated.tolist(), rows.truncated.tolist()) == ([True], [False])


def test_penalty_lowers_the_reward_alone() -> None:
    plain, _ = run(BranchConfig(horizon=2))
    penalised, _ = run(BranchConfig(horizon=2, penalty=2.5))
    torch.testing.assert_close(penalised.reward, plain.reward - 2.5 * plain.next_obs[:, 0])
    assert torch.equal(penalised.next_obs, plain.next_obs)


def test_uncertain_steps_stay_and_still_bootstrap() -> None:
    rows, agent = run(BranchConfig(horizon=3, truncate_above=1.5), starts=(0.0, 2.0))
    assert rows.next_obs[:, 0].tolist() == [1, 3, 2]
    assert rows.truncated.tolist() == [False, True, True]
    assert not rows.terminated.any()
    assert [len(obs) for obs in agent.seen] == [2, 1]


def test_a_generation_draws_starts_from_the_whole_dataset_and_is_repeatable() -> None:
    world: Any = Line(torch.linspace(-1, 1, 7)[:, None])
    branches = Branches(world, 7, BranchConfig(starts=500, horizon=2))
    agent: Any = OneStepRight()
    rows, logs = branches.generate(agent, generator=stream(0, "generation"))
    again, _ = branches.generate(agent, generator=stream(0, "generation"))
    assert torch.equal(rows.obs, again.obs)
    assert len(rows.obs[:500].unique()) == 7
    assert len(rows) == 1000
    assert float(logs["imagination/length"]) == 2
    assert float(logs["imagination/reward"]) == pytest.approx(float(10 * rows.next_obs.mean()), rel=1e-5)


@pytest.mark.parametrize("over", [{"penalty": 1.0}, {"truncate_above": 2.0}])
def test_a_world_without_uncertainty_cannot_be_penalised(over: dict) -> None:
    world: Any = Line(torch.zeros(1, 1), measures_uncertainty=False)
    Branches(world, 1, BranchConfig())
    with pytest.raises(SettingError, match="measures no uncertainty"):
        Branches(world, 1, BranchConfig(**over))


@pytest.mark.parametrize("over", [{"starts": 0}, {"horizon": 0}, {"penalty": -1.0}])
def test_impossible_settings_are_refused(over: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(over))):
        BranchConfig(**over)
