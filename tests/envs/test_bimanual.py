"""The bimanual suite: conventions, starts, domains, success on hand-made states."""

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import worldrl_envs
from worldrl_envs.behaviours import make_explorer
from worldrl_envs.bimanual import predicates
from worldrl_envs.bimanual.control import ARM_SIZE, ARMS, GRIPPERS, SIXAXIS_PAIR, home_command, next_command
from worldrl_envs.bimanual.experts import Driver
from worldrl_envs.errors import ActionError, OptionError
from worldrl_envs.paths import mjcf
from worldrl_envs.skills import Goal

TASKS = worldrl_envs.task_names("bimanual")
CAMERAS = ("head", "left_wrist", "right_wrist")
LOW, HIGH = np.array(SIXAXIS_PAIR.low), np.array(SIXAXIS_PAIR.high)


def same(a, b):
    """Exact equality of observations, also nested."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(a, b)


def put(env, **positions):
    """Teleport free objects, upright and without velocity."""
    sim = env.unwrapped.sim
    placement = sim.placement()
    for name, position in positions.items():
        at = sim.model.joint(name).qposadr[0]
        placement.qpos[at : at + 7] = (*position, 1, 0, 0, 0)
    sim.restore(placement)


def wait(env, steps):
    """Hold still; the last info."""
    for _ in range(steps):
        info = env.step(env.unwrapped.hold_action())[4]
    return info


# --- registration ---


def test_every_task_is_registered_beside_the_one_armed_ones():
    assert len(TASKS) == 7
    assert not set(TASKS) & set(worldrl_envs.task_names())
    for name in TASKS:
        spec = worldrl_envs.get_task(name)
        assert gymnasium.spec(f"worldrl/{name}-v0").max_episode_steps == spec.horizon
        assert len(set(spec.paraphrases)) == len(spec.paraphrases) >= 8
        assert spec.instruction not in spec.paraphrases
        assert not set(spec.phrases.train) & set(spec.phrases.held_out)


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")  # absolute joint targets are in radians
@pytest.mark.parametrize(("task", "obs"), [("BimanualPutCubeInDrawer", "pixels"), ("BimanualLiftPot", "state")])
def test_gymnasium_checker(task, obs, make):
    check_env(make(task, obs=obs, image_size=32, cameras=CAMERAS, render_mode="rgb_array").unwrapped)


def test_vector_environments_and_ppo():
    envs = gymnasium.make_vec("worldrl/BimanualStackCubes-v0", num_envs=2, image_size=16, cameras=CAMERAS)
    obs, _ = envs.reset(seed=0)
    assert obs["image"].shape == obs["left_wrist_image"].shape == obs["right_wrist_image"].shape == (2, 16, 16, 3)
    assert obs["state"].shape == obs["command"].shape == (2, 14)
    envs.step(obs["command"])
    envs.close()
    ppo = pytest.importorskip("stable_baselines3").PPO
    env = gymnasium.make("worldrl/BimanualLiftPot-v0", obs="state")
    env = gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    ppo("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", seed=0).learn(32)
    env.close()


# --- actions ---


def test_limits_are_those_of_the_model():
    model = mujoco.MjModel.from_xml_path(str(mjcf("sixaxis")))
    for arm in range(2):
        joints = slice(arm * ARM_SIZE, arm * ARM_SIZE + 6)
        np.testing.assert_array_equal(model.jnt_range[:6], np.stack([LOW, HIGH], 1)[joints])


def test_command_follows_no_faster_than_the_joints_turn():
    home = home_command()
    action = home.astype(np.float64)
    action[0], action[6], action[13] = 0.5, 0.0, 0.95
    after = next_command(home, action)
    expected = home.astype(np.float64)
    expected[0] += 3.1416 / 20
    expected[6], expected[13] = 0.9, 0.95  # two openings per second, 20 steps
    np.testing.assert_allclose(after, expected, atol=1e-7)
    reached = home
    for _ in range(20):
        reached = next_command(reached, action)
    np.testing.assert_array_equal(reached, action.astype(np.float32))


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (9, np.nan, r"action\[9\] \(right_joint3\): must be finite, got nan"),
        (0, 2.7, r"action\[0\] \(left_joint1\): must be in \[-2.6, 2.6\]"),
        (13, -0.1, r"action\[13\] \(right_gripper\): must be in \[0, 1\]"),
    ],
)
def test_bad_numbers_are_named_and_change_nothing(index, value, message, make):
    env = make("BimanualOpenDrawer", obs="state").unwrapped
    env.reset(seed=0)
    before = env.get_state()
    action = home_command()
    action[index] = value
    with pytest.raises(ActionError, match=message):
        env.step(action)
    assert same(env.get_state(), before)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros(7, np.float32), r"shape must be \(14,\), got \(7,\)"),
        (np.zeros(14, int), "dtype"),
        (None, "dtype"),
    ],
)
def test_bad_arrays_are_refused(bad, message, make):
    env = make("BimanualOpenDrawer", obs="state").unwrapped
    env.reset(seed=0)
    with pytest.raises(ActionError, match=message):
        env.step(bad)


def test_joints_stay_inside_their_limits_and_near_the_command(make):
    env = make("BimanualLiftPot", obs="state").unwrapped
    env.reset(seed=0)
    arms = np.delete(np.arange(14), GRIPPERS)
    for action in (LOW, HIGH, LOW):
        for _ in range(8):
            env.step(action.astype(np.float32))
            assert np.all(env.sim.joints[arms] > LOW[arms] - 0.05)
            assert np.all(env.sim.joints[arms] < HIGH[arms] + 0.05)
    env.reset(seed=0)
    wave, errors = home_command(), []
    for step in range(30):
        wave[[0, 7]] = home_command()[[0, 7]] + 0.2 * np.sin(step / 5)
        env.step(wave)
        errors.append(np.abs(env.sim.joints - env.command)[arms].max())
    assert np.mean(errors) < 0.02


def test_the_other_arm_is_an_obstacle_and_its_own_is_not(make):
    env = make("BimanualOpenDrawer", obs="state").unwrapped
    env.reset(seed=0)
    driver = Driver(1.0)
    inward = {
        arm: Goal(np.array([0.32, -0.06 * (1 if arm == "left" else -1), 0.16]), 0.0) for arm in ARMS
    }  # past each other
    for _ in range(40):
        env.step(driver.action(env, inward))
    left, right = env.sim.tcp("left"), env.sim.tcp("right")
    assert left[1] > right[1]
    robots = {
        arm: [g for g in range(env.sim.model.ngeom) if env.sim.model.geom_contype[g] == bit]
        for arm, bit in (("left", 2), ("right", 4))
    }
    assert env.sim.touches(robots["left"], robots["right"])
    assert not any(env.sim.touches(geoms, geoms) for geoms in robots.values())


# --- starts, states, domains ---


def test_start_depends_on_task_index_and_seed_alone(make):
    env, other = (make("BimanualStackCubes", obs="state", instruction="paraphrase", image_size=16) for _ in range(2))
    forwards = [env.reset(seed=5, options={"index": index}) for index in range(4)]
    other.reset(seed=1)
    wait(other, 3)
    backwards = [other.reset(seed=5, options={"index": index}) for index in reversed(range(4))]
    for a, b in zip(forwards, reversed(backwards), strict=True):
        assert same(a[0], b[0])
        assert a[1]["instruction"] == b[1]["instruction"]
    assert not same(forwards[0][0], forwards[1][0])
    assert not same(forwards[0][0], env.reset(seed=6, options={"index": 0})[0])


@pytest.mark.parametrize("task", TASKS)
def test_fifty_stored_states(task, make):
    env = make(task, obs="state")
    obs, info = env.reset(options={"init_id": 49})
    assert info["init_id"] == 49
    assert same(env.reset(options={"init_id": 49})[0], obs)
    assert not same(env.reset(options={"init_id": 0})[0], obs)
    with pytest.raises(OptionError, match=r"0\.\.49, got 50"):
        env.reset(options={"init_id": 50})


@pytest.mark.parametrize("domain", ["clean", "randomised"])
def test_restored_state_continues_with_the_same_bits(domain, make):
    env, other = (make("BimanualPlaceCubeOnPlate", image_size=16, domain=domain).unwrapped for _ in range(2))
    explorer = make_explorer("BimanualPlaceCubeOnPlate", generator=np.random.default_rng(0))
    env.reset(seed=1)
    explorer.reset(env)
    for _ in range(10):
        env.step(explorer.act(env))
    state = env.get_state()
    actions = []
    expected = []
    for _ in range(6):
        actions.append(explorer.act(env))
        expected.append(env.step(actions[-1])[0])
    other.reset(seed=9)
    other.set_state(state)
    assert all(same(other.step(action)[0], obs) for action, obs in zip(actions, expected, strict=True))


@pytest.mark.parametrize("start", [{"index": 2}, {"init_id": 7}])
def test_randomised_differs_in_look_and_height_but_not_in_layout(start, make):
    clean, random = (make("BimanualPutCubesInBin", image_size=32, domain=d).unwrapped for d in ("clean", "randomised"))
    for seed in (3, 4):
        a, b = (env.reset(seed=seed, options=start) for env in (clean, random))
        drops = [a[1]["privileged"][name] - b[1]["privileged"][name] for name in ("red_cube", "blue_cube", "bin")]
        assert 0 < drops[0][2] < 0.03
        assert np.allclose(drops, [0, 0, drops[0][2], 0, 0, 0, 0], atol=1e-9)
        assert random.sim.height("red_cube") == pytest.approx(clean.sim.height("red_cube"), abs=1e-9)
        assert not same(a[0]["image"], b[0]["image"])
        assert same(b[0]["image"], random.reset(seed=seed, options=start)[0]["image"])
    # A lowered table stands still: cubes on it do not fall or jump.
    before = random.sim.pose("red_cube")
    wait(random, 5)
    np.testing.assert_allclose(random.sim.pose("red_cube"), before, atol=1e-4)


def test_a_randomised_domain_takes_no_style():
    with pytest.raises(ValueError, match="style: the randomised domain draws its own"):
        gymnasium.make("worldrl/BimanualLiftPot-v0", domain="randomised", style="dim")


def test_styles_change_the_image_and_not_the_physics(make):
    plain, dim = make("BimanualLiftPot", image_size=16), make("BimanualLiftPot", image_size=16, style="cluttered")
    a, b = plain.reset(seed=0)[0], dim.reset(seed=0)[0]
    assert not same(a["image"], b["image"])
    explorer = make_explorer("BimanualLiftPot", generator=np.random.default_rng(0))
    explorer.reset(plain)
    for _ in range(5):
        action = explorer.act(plain)
        assert same(plain.step(action)[0]["state"], dim.step(action)[0]["state"])


# --- success ---


def test_a_flying_block_is_in_nobodys_hand(make):
    env = make("BimanualHandoverBlock", obs="state")
    env.reset(seed=0)
    put(env, block=(0.34, 0.0, 0.3))
    assert env.unwrapped.sim.height("block") > predicates.LIFT_HEIGHT
    assert not any(predicates.lifted_by(arm, "block")(env.unwrapped.sim) for arm in ARMS)


def test_a_pot_in_the_air_without_hands_is_not_lifted(make):
    env = make("BimanualLiftPot", obs="state")
    env.reset(seed=0)
    put(env, pot=(0.34, 0.0, 0.3))
    assert not predicates.lifted_together("pot")(env.unwrapped.sim)


def test_a_cube_on_the_plate_that_no_arm_took_does_not_count(make):
    env = make("BimanualPlaceCubeOnPlate", obs="state")
    env.reset(seed=0)
    sim = env.unwrapped.sim
    put(env, red_cube=sim.position("plate") + np.array([0, 0, 0.035]))
    info = wait(env, 6)
    assert predicates.on_plate("red_cube")(sim)
    assert info["stage"] == 0
    put(env, red_cube=sim.position("plate") + np.array([0.06, 0, 0.035]))
    wait(env, 6)
    assert not predicates.on_plate("red_cube")(sim)


def test_the_stack_has_red_below_green_in_the_zone(make):
    env = make("BimanualStackCubes", obs="state")
    env.reset(seed=0)
    sim, solved = env.unwrapped.sim, predicates.stacked("red_cube", "green_cube")
    zone = sim.position("zone")
    low, high = zone + np.array([0, 0, 0.031]), zone + np.array([0, 0, 0.092])
    put(env, red_cube=low, green_cube=high)
    wait(env, 6)
    assert solved(sim)
    put(env, red_cube=high, green_cube=low)
    wait(env, 6)
    assert not solved(sim)
    put(env, red_cube=low + np.array([0.06, 0, 0]), green_cube=high + np.array([0.06, 0, 0]))
    wait(env, 6)
    assert not solved(sim)
    put(env, red_cube=low, green_cube=low + np.array([0, 0.062, 0]))
    wait(env, 6)
    assert not solved(sim)


def test_both_cubes_must_lie_in_the_bin_at_rest(make):
    env = make("BimanualPutCubesInBin", obs="state")
    env.reset(seed=0)
    sim, solved = env.unwrapped.sim, predicates.in_bin("red_cube", "blue_cube")
    spots = [sim.point("bin", np.array([x, 0, 0.04])) for x in (0.037, -0.037)]
    put(env, red_cube=spots[0])
    wait(env, 10)
    assert not solved(sim)
    put(env, red_cube=spots[0], blue_cube=spots[1] + np.array([0, 0, 0.1]))
    assert not solved(sim)
    seen = [(sim.speed("blue_cube"), wait(env, 1)["is_success"], sim.speed("blue_cube")) for _ in range(20)]
    assert not any(success for _, success, speed in seen if speed > predicates.REST_SPEED)
    assert solved(sim)
