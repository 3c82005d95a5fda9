"""MuJoCo Warp against C MuJoCo, on warp's CPU device; skipped where the extra ``warp`` is not installed.

Units under test: ``rollout/warp.py``, ``rollout/warp_physics.py``. Kernels are compiled for minutes when they are first met
(``WARP_CACHE_PATH`` keeps them), hence slow: ``pytest -m slow tests/rollout/test_warp.py``.
"""

import importlib.util
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from worldrl.core.errors import ActionError, MissingExtraError, SettingError
from worldrl.rollout.suites.warp import ENV_ID
from worldrl.rollout.suites.warp_physics import WarpPhysics
from worldrl_envs.experts import ScriptedExpert
from worldrl_envs.observations import state_vector

needs_warp = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mujoco_warp") is None,
        reason="mujoco-warp is not installed: pip install -e '.[warp]' brings it",
    ),
    pytest.mark.filterwarnings("default"),  # warp's own, of its own code
]
TASK = "PickRedCube"
TOOL, ROBOT, CUBE = slice(0, 3), slice(0, 15), slice(15, 18)
"""Places of the state vector: 8 measured numbers, 7 commanded ones, then the cube's pose."""


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(MissingExtraError, match=r"warp is not installed.*\.\[warp\]"):
        gymnasium.make_vec(ENV_ID, num_envs=1, task=TASK)


def test_what_it_does_not_play_is_refused():
    with pytest.raises(SettingError, match="two arms"):
        gymnasium.make_vec(ENV_ID, num_envs=1, task="BimanualLiftPot")
    with pytest.raises(SettingError, match="autoreset_mode"):
        gymnasium.make_vec(ENV_ID, num_envs=1, task=TASK, autoreset_mode="SameStep")


@pytest.fixture(scope="module")
def copies():
    env = gymnasium.make_vec(ENV_ID, num_envs=3, task=TASK, device="cpu", autoreset_mode="Disabled").unwrapped
    yield env
    env.close()


@pytest.fixture(scope="module")
def one():
    env = gymnasium.make(f"worldrl/{TASK}-v0", obs="state").unwrapped
    yield env
    env.close()


def play(one, copies, actions, init_id):
    """Observations of C MuJoCo ``[T+1, D]`` and of three copies ``[T+1, 3, D]``; the third starts elsewhere."""
    theirs = [copies.reset(options={"init_id": [init_id, init_id, init_id + 1]})[0]]
    ours = [one.reset(options={"init_id": init_id})[0]]
    for action in actions:
        ours.append(one.step(action)[0])
        theirs.append(copies.step(np.tile(action, (3, 1)))[0])
    return np.stack(ours), np.stack(theirs)


class TestAgreement:
    pytestmark = needs_warp

    def test_free_motion_agrees_step_by_step(self, one, copies):
        """Above the table, nothing touched but by the table: single precision is all that differs."""
        draw = np.random.default_rng(0)
        actions = draw.uniform(-0.5, 0.5, (8, 7)).astype(np.float32)
        actions[:, 2] = np.abs(actions[:, 2])
        ours, theirs = play(one, copies, actions, 0)
        np.testing.assert_allclose(theirs[0, 0], ours[0], atol=2e-6)
        apart = np.abs(theirs[:, 0] - ours)
        assert apart[:, ROBOT].max() < 1e-5, apart[:, ROBOT].max(axis=1)
        # What rests on the table tilts by how a processor's compiler orders sums of contacts: 3e-6 on one machine, 3e-5 on another.
        assert apart.max() < 1e-4, apart.max(axis=1)
        np.testing.assert_array_equal(theirs[:, 0], theirs[:, 1])  # copies that start alike stay alike
        assert np.abs(theirs[:, 2, CUBE] - theirs[:, 0, CUBE]).max() > 0.01  # the third is another episode

    def test_a_grasp_and_a_lift_succeed_in_both(self, one, copies):
        """The expert's actions, open loop in both: they stay together through the contacts too."""
        expert = ScriptedExpert(TASK, generator=np.random.default_rng(0))
        one.reset(options={"init_id": 4})
        expert.reset(one)
        actions, success = [], False
        while not success:
            actions.append(expert.act(one))
            success = one.step(actions[-1])[2]
        ours, theirs = play(one, copies, actions, 4)
        apart = np.abs(theirs[:, 0] - ours)
        assert apart[:, TOOL].max() < 1e-5, apart[:, TOOL].max(axis=1)
        assert apart[:, CUBE].max() < 1e-4, apart[:, CUBE].max(axis=1)
        assert theirs[-1, 0, CUBE][2] - theirs[0, 0, CUBE][2] > 0.06  # it hangs between the fingers
        assert copies._stage[0] == len(copies.task.stages)

    def test_vector_and_contacts_are_read_as_the_suite_reads_them(self, copies):
        copies.reset(options={"init_id": [0, 1, 2]})
        down = np.array([[0, 0, -1, 0, 0, 0, 1]] * 3, np.float32)
        for _ in range(3):
            obs, *_, info = copies.step(down)
        readings, scene = copies.physics.read(), copies._scene
        for row in range(3):
            scene.data = readings.view(row, copies._geom_id)
            np.testing.assert_allclose(obs[row], state_vector(scene, copies._command[row]), atol=1e-6)
            assert info["contact"][row] == scene.contact()

    def test_rows_end_and_begin_again_by_themselves(self):
        env = gymnasium.make_vec(ENV_ID, num_envs=2, task=TASK, device="cpu", seed=5).unwrapped
        env.task = replace(env.task, horizon=2)
        still = np.zeros((2, 7), np.float32)
        first, _ = env.reset(seed=5)
        assert not env.step(still)[3].any()
        assert env.step(still)[3].all()  # truncated at the horizon
        again, reward, terminated, truncated, _ = env.step(still)  # reset here, the action ignored
        assert not np.any([reward, terminated, truncated])
        assert np.abs(again[:, CUBE] - first[:, CUBE]).max() > 1e-3  # the rows' second episodes
        np.testing.assert_array_equal(env.reset(seed=5)[0], first)

    def test_bad_actions_change_nothing(self, copies):
        before, _ = copies.reset(options={"init_id": [0, 1, 2]})
        with pytest.raises(ActionError):
            copies.step(np.full((3, 7), np.nan, np.float32))
        np.testing.assert_array_equal(copies._observe(copies.physics.read()), before)

    def test_too_little_room_is_an_error_not_other_physics(self, one):
        model = one.sim.model
        physics = WarpPhysics(model, copies=1, device="cpu", contacts=64, constraints=4)
        one.reset(options={"init_id": 0})
        state = {name: getattr(one.sim.data, name)[None] for name in ("qpos", "mocap_pos", "mocap_quat", "ctrl")}
        physics.restore(np.array([0]), state)
        physics.step(state["ctrl"], 1)
        with pytest.raises(SettingError, match="constraints=4 per copy are too few"):
            physics.read()

    def test_an_unknown_device_is_named(self, one):
        with pytest.raises(SettingError, match="'teapot'"):
            WarpPhysics(one.sim.model, copies=1, device="teapot", contacts=1, constraints=1)
