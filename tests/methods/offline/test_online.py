"""Units under test: COPlanner's planning, WSRL's online phase, snapshot resets."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, numpy_stream, stream
from worldrl.core.transitions import Outcome
from worldrl.data.offline.trajectories import DatasetInfo, VectorEpisode, from_episodes
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.online.coplanner import Planner, UpMpcConfig, plan_scores, up_mpc
from worldrl.methods.offline.online.snapshot_resets import SnapshotConfig, SnapshotResets, k_means
from worldrl.methods.offline.online.wsrl import WsrlConfig, fine_tune
from worldrl.methods.offline.sac import Sac
from worldrl.methods.offline.training import OfflineTraining
from worldrl.recipes.offline.online_phase import PlannerConfig, check_online, online_agent
from worldrl.registry import ALGORITHMS

# --- COPlanner ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One number: the first action chooses reward a and uncertainty a²; everything later pays 1; ends beyond ``edge``."""

    edge: float = 10.0
    obs_size: int = 1
    action_size: int = 1

    def start_at(self, obs: torch.Tensor, *, generator: torch.Generator) -> Any:
        return obs, obs

    def select(self, state: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return state[index]

    def step(self, state: torch.Tensor, action: torch.Tensor, *, generator: torch.Generator) -> Any:
        later = state[:, 0] > 0
        obs = state + 1
        reward = torch.where(later, 1.0, action[:, 0])
        return obs, Outcome(obs, reward, obs[:, 0] > self.edge, torch.where(later, 0.5, action[:, 0].square()))


class Proposer:
    """Draws actions uniformly from [-1, 1]."""

    def act(self, obs: torch.Tensor, *, generator: torch.Generator | None) -> torch.Tensor:
        if generator is None:
            return torch.zeros(len(obs), 1)
        return 2 * torch.rand(len(obs), 1, generator=generator) - 1


def test_plan_score_by_hand() -> None:
    config = UpMpcConfig(horizon=3, reward_discount=0.5, uncertainty_discount=0.8)
    state, action = torch.zeros(1, 1), torch.tensor([[0.6]])
    score = plan_scores(Choice(), state, Proposer(), action, config, -2.0, generator=stream(0, "p"))  # pyright: ignore[reportArgumentType]
    expected = (0.6 + 0.5 + 0.25) - 2 * (0.36 + 0.8 * 0.5 + 0.64 * 0.5)
    assert float(score) == pytest.approx(expected)
    ends = plan_scores(Choice(edge=1.5), state, Proposer(), action, config, 0.0, generator=stream(0, "p"))  # pyright: ignore[reportArgumentType]
    assert float(ends) == pytest.approx(0.6 + 0.5)  # the second step ends it


def test_planner_shuns_or_seeks_uncertainty() -> None:
    config = UpMpcConfig(candidates=200, horizon=1, conservative=2.0, optimistic=5.0)
    obs = torch.zeros(4, 1)
    careful = Planner(Choice(), Proposer(), config, explores=False).act(obs, generator=stream(0, "p"))  # pyright: ignore[reportArgumentType]
    curious = Planner(Choice(), Proposer(), config, explores=True).act(obs, generator=stream(0, "p"))  # pyright: ignore[reportArgumentType]
    assert careful.flatten().tolist() == pytest.approx([0.25] * 4, abs=0.05)  # the maximum of a − 2 a²
    assert curious.flatten().tolist() == pytest.approx([1.0] * 4, abs=0.05)
    assert Planner(Choice(), Proposer(), config, explores=True).act(obs, generator=None).tolist() == [[0.0]] * 4  # pyright: ignore[reportArgumentType]


def test_one_candidate_is_the_policy(line_world: Any) -> None:
    config = UpMpcConfig(candidates=1, horizon=2)

    class Two(Proposer):
        def act(self, obs: torch.Tensor, *, generator: torch.Generator | None) -> torch.Tensor:
            return 2 * torch.rand(len(obs), 2, generator=generator) - 1

    state, obs = line_world.start(torch.arange(5), generator=stream(0, "s"))
    chosen = up_mpc(line_world, state, obs, Two(), config, 1.0, generator=stream(0, "u"))  # pyright: ignore[reportArgumentType]
    assert torch.equal(chosen, Two().act(obs, generator=stream(0, "u")))


# --- WSRL -----------------------------------------------------------------------------------------------------------

PENDULUM = DatasetInfo("pendulum", (-2.0,), (2.0,), env_id="Pendulum-v1")


def online(warmup: int) -> tuple[Any, Any, list[Any]]:
    facts = Facts(torch.zeros(3), torch.ones(3), 1)
    with initial_weights(0, "agent"):
        sizes = {"hidden": (8, 8), "critics": 3, "target_critics": 2, "layer_norm": True}
        agent = Sac(Sac.config_class(**sizes, actor_cosine=False), facts)
    before = [p.clone() for p in agent.actor.parameters()]
    env = gymnasium.make("Pendulum-v1", max_episode_steps=7)
    config = WsrlConfig(steps=20, warmup=warmup, updates_per_step=4, batch_size=8, capacity=100)
    return agent, fine_tune("wsrl", agent, env, PENDULUM, config, seed=0), before


def test_warm_up_keeps_the_policy_and_four_updates_follow_each_step(same_tree: Any) -> None:
    agent, report, before = online(20)
    assert (report.updates, report.ends) == (0, [7, 14])
    assert all(torch.equal(a, b) for a, b in zip(before, agent.actor.parameters(), strict=True))
    agent, report, before = online(12)
    assert report.updates == agent.updates == 4 * 8
    assert not torch.equal(before[0], next(agent.actor.parameters()))
    same_tree(agent.state_dict(), online(12)[0].state_dict())


@pytest.mark.parametrize("name", ["sac", "iql"])
def test_each_environment_step_takes_four_critic_steps_and_one_of_the_actor(name: str) -> None:
    parent: Any = ALGORITHMS.get(name)
    rows: dict[str, list[int]] = {"critic": [], "actor": []}

    class Counted(parent):
        def _update_critic(self, batch: Any) -> Any:
            rows["critic"].append(len(batch))
            return super()._update_critic(batch)

        def update_critic(self, batch: Any, *rest: Any) -> Any:
            rows["critic"].append(len(batch))
            return super().update_critic(batch, *rest)

        def _update_actor(self, batch: Any, *rest: Any) -> Any:
            rows["actor"].append(len(batch))
            return super()._update_actor(batch, *rest)

        def update_actor(self, batch: Any, *rest: Any) -> Any:
            rows["actor"].append(len(batch))
            return super().update_actor(batch, *rest)

    agent = Counted(parent.config_class(hidden=(8, 8)), Facts(torch.zeros(3), torch.ones(3), 1))
    config = WsrlConfig(steps=12, warmup=10, batch_size=24, capacity=100)
    fine_tune("wsrl", agent, gymnasium.make("Pendulum-v1", max_episode_steps=7), PENDULUM, config, seed=0)
    assert rows == {"critic": [6] * 8, "actor": [24] * 2}
    with pytest.raises(SettingError, match=r"online\.batch_size"):
        WsrlConfig(batch_size=10)


class KilledError(Exception):
    """The process died."""


def online_until(
    folder: Path | None,
    env: Any,
    info: DatasetInfo,
    dies_at: int | None = None,
    stops_at: int | None = None,
    checkpoint_every: int = 10,
) -> tuple[Any, Any, int]:
    """Continue learning for 60 steps, die before one of them, or get Ctrl-C in it.

    Returns:
        Agent, report and the steps taken in this start.
    """
    facts = Facts(torch.zeros(*env.observation_space.shape), torch.ones(*env.observation_space.shape), 1)
    with initial_weights(0, "agent"):
        agent = Sac(Sac.config_class(hidden=(8, 8), actor_cosine=False), facts)
    taken, step = [], env.step

    def counted(action: Any) -> Any:
        if dies_at == len(taken):
            raise KilledError
        if stops_at == len(taken):
            os.kill(os.getpid(), signal.SIGINT)
        taken.append(action)
        return step(action)

    env.step = counted
    config = WsrlConfig(
        steps=60, warmup=8, updates_per_step=2, batch_size=8, capacity=40, checkpoint_every=checkpoint_every
    )
    return agent, fine_tune("wsrl", agent, env, info, config, seed=0, folder=folder), len(taken)


@pytest.mark.parametrize("kind", ["pendulum", "snapshots"])
def test_killed_phase_resumes_from_the_end_of_an_episode_bit_for_bit(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, same_tree: Any
) -> None:
    def made() -> tuple[Any, DatasetInfo]:
        if kind == "pendulum":
            return gymnasium.make("Pendulum-v1", max_episode_steps=7), PENDULUM
        teacher = request.getfixturevalue("teacher")
        config = SnapshotConfig(clusters=3, truncate_after=4, snapshot_steps=50)
        return SnapshotResets(gymnasium.make("InvertedPendulum-v5"), teacher, config, seed=0), teacher.info

    agent, report, steps = online_until(None, *made())
    assert steps == 60
    with pytest.raises(KilledError):
        online_until(tmp_path / "kept", *made(), dies_at=45)
    again, resumed, steps = online_until(tmp_path / "kept", *made())
    assert steps < 60 - 20
    assert (resumed.returns, resumed.ends, resumed.updates) == (report.returns, report.ends, report.updates)
    same_tree(again.state_dict(), agent.state_dict())
    assert online_until(tmp_path / "kept", *made())[2] == 0  # it had finished


def test_ctrl_c_waits_for_the_episodes_end_and_loses_nothing(tmp_path: Path, same_tree: Any) -> None:
    def made() -> tuple[Any, DatasetInfo]:
        return gymnasium.make("Pendulum-v1", max_episode_steps=7), PENDULUM

    with pytest.raises(KeyboardInterrupt):
        online_until(tmp_path / "kept", *made(), stops_at=30, checkpoint_every=1000)
    again, resumed, steps = online_until(tmp_path / "kept", *made(), checkpoint_every=1000)
    assert steps == 60 - 35  # the fifth episode of seven steps was running
    agent, report, _ = online_until(None, *made())
    assert (resumed.returns, resumed.updates) == (report.returns, report.updates)
    same_tree(again.state_dict(), agent.state_dict())


def test_policy_can_be_normalised() -> None:
    with initial_weights(0, "agent"):
        agent = Sac(Sac.config_class(hidden=(8, 8), actor_layer_norm=True), Facts(torch.zeros(3), torch.ones(3), 1))
    assert [type(layer).__name__ for layer in agent.actor.net][:3] == ["Linear", "LayerNorm", "ReLU"]


GOES_ON = ["cql", "edac", "f_dvl", "iql", "mbpo", "mopo", "ravl", "ro2o", "sac", "sac_n", "td3_bc"]


@pytest.mark.parametrize("name", GOES_ON)
def test_online_steps_change_the_actor_after_all_planned_updates(name: str, make_rows: Any) -> None:
    agent_class: Any = ALGORITHMS.get(name)
    with initial_weights(0, "agent"):
        agent = agent_class(agent_class.config_class(hidden=(8, 8)), Facts(torch.zeros(3), torch.ones(3), 1, updates=2))
    for step in range(2):
        agent.update(make_rows(8, action=1), generator=stream(0, step))
    learner = online_agent(agent)
    before = learner.act(make_rows().obs, generator=None)
    config = WsrlConfig(steps=6, warmup=4, batch_size=8, capacity=100)
    fine_tune("online", learner, gymnasium.make("Pendulum-v1", max_episode_steps=7), PENDULUM, config, seed=0)
    assert not torch.equal(before, learner.act(make_rows().obs, generator=None))


def test_every_agent_that_may_continue_is_checked() -> None:
    training = OfflineTraining()
    settings = SimpleNamespace(
        world="ensemble", online=SimpleNamespace(steps=1), planner=PlannerConfig(), training=training
    )
    for name in set(ALGORITHMS.names()) - {"behaviour_cloning", "grpo", *GOES_ON}:
        with pytest.raises(SettingError, match=r"online\.steps"):
            check_online(settings, ALGORITHMS.get(name))  # pyright: ignore[reportArgumentType]


def test_graphed_updates_do_not_go_online() -> None:
    settings = SimpleNamespace(world="none", online=SimpleNamespace(steps=1), planner=PlannerConfig())
    settings.training = OfflineTraining(updates="graphed")
    with pytest.raises(SettingError, match=r"training.updates=graphed: a graph is of one update of one batch"):
        check_online(settings, Sac)


def test_td3_bc_explores_with_noise_of_a_tenth(facts: Facts) -> None:
    agent_class: Any = ALGORITHMS.get("td3_bc")
    with initial_weights(0, "agent"):
        agent = agent_class(agent_class.config_class(hidden=(8, 8)), facts)
    obs = torch.zeros(4000, 3)
    shift = agent.explore(obs, generator=stream(0, "e")) - agent.act(obs, generator=stream(0, "e"))
    assert float(shift.std()) == pytest.approx(0.1, rel=0.05)
    assert float(shift.mean()) == pytest.approx(0, abs=0.01)


def test_published_numbers_and_a_warm_up_that_fits() -> None:
    assert (WsrlConfig().updates_per_step, WsrlConfig().warmup) == (4, 5000)
    with pytest.raises(SettingError, match=r"online\.warmup"):
        WsrlConfig(steps=10, warmup=11)


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_k_means_finds_separate_heaps_of_any_size() -> None:
    draws = numpy_stream(0, "heaps")
    sizes, centres = (100, 10, 5), ((0, 0), (10, 0), (0, 10))
    points = np.concatenate([draws.normal(c, 0.1, (n, 2)) for n, c in zip(sizes, centres, strict=True)])
    label = k_means(points, 3, generator=numpy_stream(0, "k"))
    parts = [set(label[begin:end]) for begin, end in ((0, 100), (100, 110), (110, 115))]
    assert [len(part) for part in parts] == [1, 1, 1]
    assert len(set.union(*parts)) == 3
    with pytest.raises(SettingError, match="clusters"):
        k_means(points[:2], 3, generator=numpy_stream(0, "k"))
    assert len(k_means(np.ones((4, 2)), 3, generator=numpy_stream(0, "k"))) == 4


@pytest.fixture(scope="module")
def teacher() -> Any:
    """One episode of an inverted pendulum that falls, with its states."""
    pytest.importorskip("imageio", reason="Gymnasium's MuJoCo environments import it")
    env: Any = gymnasium.make("InvertedPendulum-v5")
    obs, _ = env.reset(seed=0)
    seen, qpos, qvel, steps = [obs], [], [], []
    for _ in range(20):
        qpos.append(env.unwrapped.data.qpos.copy())
        qvel.append(env.unwrapped.data.qvel.copy())
        steps.append(env.step(np.array([0.1], np.float32)))
        seen.append(steps[-1][0])
        if steps[-1][2]:
            break
    count = len(steps)
    info = DatasetInfo("teacher", (-3.0,), (3.0,), env_id="InvertedPendulum-v5")
    episode = VectorEpisode(
        np.stack(seen).astype(np.float32),
        np.full((count, 1), 0.1, np.float32),
        np.array([step[1] for step in steps], np.float32),
        bool(steps[-1][2]),
        False,
        np.stack(qpos),
        np.stack(qvel),
    )
    return from_episodes(info, [episode])


def test_episodes_begin_at_snapshots_spread_over_clusters(teacher: Any) -> None:
    config = SnapshotConfig(clusters=3, truncate_after=2, snapshot_steps=4)
    env = SnapshotResets(gymnasium.make("InvertedPendulum-v5"), teacher, config, seed=0)
    obs, info = env.reset(seed=1)
    np.testing.assert_allclose(obs, teacher.obs[info["snapshot"]], atol=1e-6)
    assert [env.step(np.zeros(1, np.float32))[3] for _ in range(2)] == [False, True]
    rows = [env.draw(numpy_stream(0, number)) for number in range(600)]
    share = [np.isin(rows, members).mean() for members in env.members]
    assert share == pytest.approx([1 / 3] * 3, abs=0.08)
    env.reset(seed=1)
    env.step(np.zeros(1, np.float32))
    env.step(np.zeros(1, np.float32))
    _, info = env.reset(seed=1)  # four steps are used up
    assert "snapshot" not in info
    assert not env.step(np.zeros(1, np.float32))[3]


def test_snapshots_need_states() -> None:
    episode = VectorEpisode(
        np.zeros((3, 3), np.float32), np.zeros((2, 1), np.float32), np.zeros(2, np.float32), False, True
    )
    bare = from_episodes(PENDULUM, [episode])
    with pytest.raises(SettingError, match="simulator states"):
        SnapshotResets(gymnasium.make("Pendulum-v1"), bare, SnapshotConfig(), seed=0)
