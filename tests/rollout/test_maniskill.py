"""The real ManiSkill behind its worker: needs ``worldrl setup maniskill`` and a Vulkan device; run with ``-m maniskill``.

Units under test: ``workers/maniskill.py``, ``workers/maniskill_expert.py``, ``rollout/maniskill.py``.
"""

import json

import numpy as np
import pytest

from worldrl.cli import main
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.policies.token.policy import TokenPolicy
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.rollout.suites.maniskill import maniskill_launch
from worldrl.simulators.environments import find_environment
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.workers.maniskill import facts

pytestmark = pytest.mark.maniskill


@pytest.fixture(scope="module", autouse=True)
def environment():
    try:
        return find_environment("maniskill")
    except WorkerEnvironmentError as error:
        pytest.skip(str(error))


def pool(*, cameras=(), **settings):
    return SimulatorPool(
        maniskill_launch("maniskill_cubes", cameras=cameras, image_size=64), timeout_s=900.0, **settings
    )


def test_traces_do_not_depend_on_workers_or_on_what_was_played_before():
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 7)).astype(np.float32)
    traces = []
    for workers, before in ((1, ()), (2, (3,))):
        with pool(workers=workers, slots=2) as simulators:
            for init_id in before:
                simulators.reset({slot: Start("PushCube-v1", init_id, 0) for slot in (0, 1)}, render=False)
                simulators.step({0: actions[0], 1: actions[1]}, render=())
            rows = simulators.reset({slot: Start("PushCube-v1", slot, 0) for slot in (0, 1)}, render=False)
            trace = [rows[0]["state"], rows[1]["state"]]
            for action in actions:
                rows = simulators.step({0: action, 1: action}, render=())
                trace += [rows[0]["state"], rows[1]["state"]]
            traces.append(np.stack(trace))
    np.testing.assert_array_equal(*traces)


def test_signs_are_liberos_and_images_are_drawn():
    with pool(cameras=("scene",)) as simulators:
        first = simulators.reset({0: Start("PickCube-v1", 0, 0)})[0]
        assert first["image"].shape == (64, 64, 3)
        assert first["image"].std() > 10
        turn, close = np.zeros(7, np.float32), np.zeros(7, np.float32)
        turn[5], turn[6], close[6] = 1, -1, 1
        for _ in range(5):
            turned = simulators.step({0: turn}, render=())[0]
        assert turned["command"][5] > first["command"][5] + 0.1  # about +z; ManiSkill's own sign turns the other way
        assert turned["state"][6] > 0.035  # open
        for _ in range(5):
            closed = simulators.step({0: close}, render=())[0]
        assert closed["state"][6] < 0.01
        np.testing.assert_allclose(closed["command"][:3], closed["state"][:3])


@pytest.mark.parametrize("task", facts.TASKS)
def test_every_task_is_made_from_the_wheels_assets_reset_drawn_and_stepped(task):
    launch = maniskill_launch("maniskill", cameras=("scene",), image_size=64)
    with SimulatorPool(launch, timeout_s=900.0) as simulators:
        first, other = (simulators.reset({0: Start(task, number, 0)})[0] for number in (0, 1))
        again = simulators.reset({0: Start(task, 0, 0)})[0]
        rows = [simulators.step({0: np.array([0, 0, 1, 0, 0, 0, 1], np.float32)})[0] for _ in range(3)]
    np.testing.assert_array_equal(first["image"], again["image"])
    np.testing.assert_array_equal(first["state"], again["state"])
    assert (first["image"] != other["image"]).any()  # another number is another start
    assert not first["success"]
    assert first["image"].std() > 10
    assert (rows[-1]["image"] != first["image"]).any()
    assert rows[-1]["state"][2] > first["state"][2] + 0.02  # up
    assert rows[-1]["state"][6] < first["state"][6] - 0.005  # the fingers close


@pytest.mark.parametrize("task", [name for name, task in facts.TASKS.items() if task.expert])
def test_the_expert_plays(task):
    with pool() as simulators:
        specs = [EpisodeSpec(task, number, 0, init_id=number) for number in range(3)]
        horizon = {task: facts.TASKS[task].horizon}
        outcomes = list(play_episodes(simulators, specs, ExpertActor(), Rules(horizon)))
    assert sum(outcome.success_once for outcome in outcomes) >= 2


def test_a_policy_is_shown_maniskills_images_and_measured(tiny_policy, tmp_path, monkeypatch):
    """Untrained, so its rate says nothing; what it is shown, given and does is ManiSkill's."""
    shown, act = [], TokenPolicy.act

    def watched(policy, obs, **settings):
        chunk = act(policy, obs, **settings)
        shown.append((obs, chunk.action.numpy()))
        return chunk

    monkeypatch.setattr(TokenPolicy, "act", watched)
    tiny_policy(image_size=64).save(tmp_path / "policy")
    tokens = (
        "suite=maniskill_cubes",
        "tasks=[PushCube-v1]",
        "episodes=1",
        "workers=1",
        "envs=1",
        "failures=0",
        "timeout_s=900",
    )
    assert main(["benchmark", *tokens, f"policy={tmp_path / 'policy'}", f"run_dir={tmp_path / 'run'}"]) == 0
    with pool(cameras=("scene",)) as simulators:
        rows = [simulators.reset({0: Start("PushCube-v1", 0, 0)})[0]]
        rows += [simulators.step({0: action})[0] for action in shown[0][1][0]]
    for (obs, _), row in zip(shown[:2], (rows[0], rows[-1]), strict=True):  # a chunk lies between the two decisions
        np.testing.assert_array_equal(obs.image[0].numpy(), row["image"])
        np.testing.assert_allclose(obs.command[0].numpy(), row["command"])
        assert list(obs.instruction) == [facts.TASKS["PushCube-v1"].instruction]
    assert np.abs(rows[-1]["state"] - rows[0]["state"]).max() > 0.01
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert metrics["success"]["n"] == 1
    protocol = metrics["protocol"]
    assert (protocol["suite_version"], protocol["packages"]) == (facts.VERSION, dict(facts.PACKAGES))
    assert protocol["conventions"]["render"] in facts.DEVICES
