"""Unit under test: ``worldrl.evaluation.offline.scores``."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.evaluation.offline.scores import (
    OfflineEvaluation,
    discounted_return,
    evaluate_offline,
    mean_or_single,
    score_over_seeds,
)
from worldrl.rollout.vector.episodes import environment_info, make_environment, memoryless


class Agent:
    """Pushes the pendulum along its spin; noise where it is given a generator."""

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        action = obs[:, 2:3] / 8
        return action if generator is None else action + 0.2 * torch.randn(action.shape, generator=generator)


ENV = make_environment("Pendulum-v1", max_episode_steps=20)
INFO = environment_info(ENV, "test")


def run(episodes: int | list[int], **over: object) -> OfflineEvaluation:
    return evaluate_offline(memoryless(Agent()), ENV, INFO, seed=4, episodes=episodes, **over)  # type: ignore[arg-type]


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_episode_is_the_same_alone_and_among_others(deterministic: bool) -> None:
    whole = run(5, deterministic=deterministic)
    alone = [run([index], deterministic=deterministic) for index in (4, 2, 0, 1, 3)]
    parts = {int(part.index[0]): part.returns[0] for part in alone}
    assert [parts[index] for index in range(5)] == whole.returns.tolist()
    assert len(set(whole.returns)) == 5


def test_sampled_and_deterministic_episodes_start_alike_and_differ_after() -> None:
    greedy, sampled = run(2), run(2, deterministic=False)
    assert greedy.returns.tolist() != sampled.returns.tolist()
    assert run(2, deterministic=False).returns.tolist() == sampled.returns.tolist()


class Elsewhere:
    """An agent whose weights are not on the CPU, as on a GPU: what it is asked about must be where it is."""

    device = torch.device("meta")

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        assert obs.device == self.device
        return torch.zeros(1, 1)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        assert obs.device == self.device
        return torch.zeros(1)


def test_observations_go_to_the_device_of_agent_and_critic() -> None:
    agent = Elsewhere()
    found = evaluate_offline(memoryless(agent), ENV, INFO, seed=4, episodes=1, value=agent.value, device=agent.device)
    assert found.predicted is not None


def test_over_estimation_is_promise_less_discounted_reward() -> None:
    starts: list[list[float]] = []

    def value(obs: Tensor, action: Tensor) -> Tensor:
        starts.append([*obs[0].tolist(), *action[0].tolist()])
        return torch.full((1, 1), 3.0)

    result = run(3, value=value, gamma=0.5)
    assert result.predicted is not None
    assert result.predicted.tolist() == [3, 3, 3]
    assert [start[3] for start in starts] == pytest.approx([start[2] / 8 for start in starts])
    measured = result.metrics(INFO)["over_estimation"]
    assert measured["n"] == 3
    assert measured["mean"] == pytest.approx(3 - result.discounted.mean())
    assert measured["lo"] < measured["mean"] < measured["hi"]
    assert discounted_return(np.array([1.0, 2.0, 4.0]), 0.5) == 1 + 1 + 1
    assert mean_or_single(np.array([3.0])) == {"n": 1, "mean": 3.0}
    assert run(1).metrics(INFO)["over_estimation"] is None


def test_scores_on_every_scale_there_is() -> None:
    result = run(2)
    mean = float(result.returns.mean())
    assert result.metrics(INFO)["scores"] == {"raw": {"value": mean, "scale": "raw", "min": None, "max": None}}
    own = result.metrics(replace(INFO, ref_min=mean - 30, ref_max=mean + 10))["scores"]
    assert own["dataset"]["value"] == pytest.approx(75)
    both = result.metrics(replace(INFO, env_id="Hopper-v5", ref_min=0.0, ref_max=1.0))["scores"]
    assert both["d4rl"]["value"] == pytest.approx(100 * (mean + 20.272305) / (3234.3 + 20.272305))
    assert set(both) == {"d4rl", "dataset"}


def test_no_episode_is_refused() -> None:
    with pytest.raises(SettingError, match="needs at least one"):
        run([])


def test_scores_over_seeds_leave_the_outer_quarters_out() -> None:
    result = score_over_seeds([0.0, 50.0, 60.0, 1000.0], generator=numpy_stream(0, "b"))
    assert result["value"] == 55
    assert result["lo"] <= 55 <= result["hi"]
    assert result["n"] == 4
    tasks = score_over_seeds([[1.0, 9.0], [1.0, 9.0]], generator=numpy_stream(0, "b"))
    assert (tasks["value"], tasks["lo"], tasks["hi"]) == (5, 5, 5)  # drawn within tasks: no spread between them
    with pytest.raises(SettingError, match="not finite"):
        score_over_seeds([1.0, float("nan")], generator=numpy_stream(0, "b"))
