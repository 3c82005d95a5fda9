"""Unit under test: ``envs/lerobot_env_worldrl``, alone with Gymnasium's checker, and in lerobot's own evaluation."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lerobot_env_worldrl import environments
from lerobot_env_worldrl.environments import embedded_tasks, imagined_tasks, make_embedded, make_imagined
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.policies.lerobot.worker import OFFLINE, lerobot_python
from worldrl_envs.errors import UnknownNameError
from worldrl_envs.experts import ScriptedExpert

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "envs" / "lerobot_env_worldrl"
TIMEOUT_S = 600
TASK = "PickRedCube"


@pytest.fixture
def embedded():
    env = make_embedded(TASK, cameras=("scene", "wrist"), image_size=32)
    yield env
    env.close()


@pytest.fixture(scope="session")
def saved(tmp_path_factory, world_model, push_episodes, robot):
    """A tiny world model and start states of two tasks."""
    folder = tmp_path_factory.mktemp("imagined")
    world_model.save(folder / "model")
    with LeRobotWriter(folder / "data", fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
        for episode in push_episodes:
            writer.add_episode(episode)
    return {"world_model": str(folder / "model"), "data": str(folder / "data"), "device": "cpu"}


# --- without lerobot ------------------------------------------------------------------------------------------------


def test_tabletop_tasks_pass_gymnasiums_checker_under_lerobots_names(embedded):
    check_env(embedded, skip_render_check=True)
    assert set(embedded.observation_space.spaces) == {"pixels", "agent_pos", "command"}
    assert set(embedded.observation_space["pixels"].spaces) == {"scene", "wrist"}
    assert (embedded.task, embedded.task_description) == (TASK, "pick up the red cube")
    assert embedded._max_episode_steps == gymnasium.spec("worldrl/PickRedCube-v0").max_episode_steps
    assert embedded.render().shape == (384, 384, 3)
    assert embedded.metadata["render_fps"] == 20


@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space")
def test_two_arms_pass_gymnasiums_checker_with_their_main_camera():
    env = make_embedded("BimanualLiftPot", cameras=(), image_size=32)
    check_env(env, skip_render_check=True)
    assert set(env.observation_space["pixels"].spaces) == {"head"}
    assert env.action_space.shape == env.observation_space["agent_pos"].shape == (14,)
    env.close()


def test_an_episode_depends_on_its_seed_and_ends_with_success(embedded):
    first, info = embedded.reset(seed=3, options={environments.NEW_ROLLOUT: True})
    assert info == {"is_success": False}
    again, _ = embedded.reset(seed=3)
    other, _ = embedded.reset(seed=4)
    np.testing.assert_array_equal(first["pixels"]["scene"], again["pixels"]["scene"])
    assert (first["pixels"]["scene"] != other["pixels"]["scene"]).any()
    expert = ScriptedExpert(TASK, generator=np.random.default_rng(0))
    terminated = truncated = False
    while not (terminated or truncated):
        obs, reward, terminated, truncated, info = embedded.step(expert.act(embedded.inner))
        assert info["is_success"] == terminated == (reward == 1)
    assert terminated
    assert obs in embedded.observation_space


def test_actions_are_clipped_and_unknown_options_refused(embedded):
    embedded.reset(seed=0)
    wide = embedded.step(np.full(7, 5, np.float32))[0]
    embedded.reset(seed=0)
    unit = embedded.step(np.ones(7, np.float32))[0]
    np.testing.assert_array_equal(wide["command"], unit["command"])
    with pytest.raises(UnknownNameError, match="speed"):
        embedded.reset(seed=0, options={"speed": 2})


def test_tasks_are_chosen_by_name_or_group():
    assert len(embedded_tasks(None)) == len(embedded_tasks("one_arm")) == 12
    assert all(name.startswith("Bimanual") for name in embedded_tasks("bimanual"))
    assert embedded_tasks("OpenDrawer, PickRedCube,OpenDrawer") == ("OpenDrawer", "PickRedCube")
    with pytest.raises(ValueError, match="tasks of one arm and of two"):
        embedded_tasks("PickRedCube,bimanual")
    with pytest.raises(UnknownNameError, match="PickRedCube"):
        embedded_tasks("PickRedCub")


def test_world_models_pass_gymnasiums_checker_and_share_the_model(saved, push_episodes):
    assert imagined_tasks(None, **saved) == tuple(sorted({episode.task for episode in push_episodes}))
    env, other = (make_imagined(TASK, **saved) for _ in range(2))
    assert env.inner.rows.world_model is other.inner.rows.world_model
    check_env(env, skip_render_check=True)
    assert set(env.observation_space.spaces) == {"pixels", "command"}  # this model predicts no state
    begun = {episode.frames[0, 0].tobytes() for episode in push_episodes if episode.task == TASK}
    for seed in range(6):
        assert env.reset(seed=seed)[0]["pixels"]["scene"].tobytes() in begun
    assert env.task_description == next(episode.instruction for episode in push_episodes if episode.task == TASK)
    steps, over = 0, False
    while not over:
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert info == {"is_success": terminated}
        steps, over = steps + 1, terminated or truncated
    assert steps <= env._max_episode_steps
    longest = max(len(episode) for episode in push_episodes if episode.task == TASK)
    assert longest <= env._max_episode_steps < longest + env.inner.rows.world_model.chunk_length


def test_what_world_models_lack_is_named(saved):
    with pytest.raises(ValueError, match="no episode of 'Fly'; it has Pick"):
        imagined_tasks("Fly", **saved)
    with pytest.raises(ValueError, match=r"--env\.data: give its folder"):
        imagined_tasks(None, **{**saved, "data": ""})


def test_importing_it_loads_neither_worldrl_nor_lerobot():
    program = "import sys, lerobot_env_worldrl.environments; print({'worldrl', 'lerobot', 'mujoco'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "envs")}
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert out.stdout.strip() == "set()"


def test_the_distribution_has_the_name_that_lerobot_looks_for_and_every_file():
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    assert project["project"]["name"] == PACKAGE.name == "lerobot_env_worldrl"
    taken = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert set(taken) == {path.name for path in PACKAGE.iterdir() if path.suffix in (".py", ".typed")}


# --- in lerobot -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Run Python in lerobot's interpreter, with this checkout and the distribution's metadata on the path."""
    try:
        python = lerobot_python()
    except WorkerEnvironmentError as error:
        pytest.skip(str(error))
    site = tmp_path_factory.mktemp("site")
    metadata = site / "lerobot_env_worldrl-0.3.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.4\nName: lerobot_env_worldrl\nVersion: 0.3.0\n")
    path = os.pathsep.join(map(str, (site, ROOT, ROOT / "envs", Path(__file__).parent)))
    hidden = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    environment = {**hidden, **OFFLINE, "PYTHONPATH": path, "HF_HOME": str(site / "hub")}
    release = "import lerobot, mujoco; print(lerobot.__version__)"

    def start(*arguments):
        command = [python, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)

    found = start("-c", release).stdout.strip()
    if not found.startswith("0.6."):
        pytest.skip(f"needs lerobot 0.6 with mujoco (worldrl setup lerobot python=python3.12), found {found or 'none'}")
    return start


@pytest.fixture
def evaluate(run, tmp_path):
    """`lerobot-eval` of a tiny ACT that lerobot saved, to its end; returns what it wrote."""

    def command(image_size, state_size, *arguments):
        made = run(Path(__file__).parent / "make_act.py", tmp_path / "act", image_size, state_size)
        assert made.returncode == 0, made.stderr
        program = "from lerobot.scripts.lerobot_eval import main; main()"
        own = [f"--policy.path={tmp_path / 'act'}", "--policy.device=cpu", f"--output_dir={tmp_path / 'out'}"]
        done = run("-c", program, *own, "--eval.n_episodes=2", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "out" / "eval_info.json").read_text())

    return command


@pytest.mark.lerobot
@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_lerobot_eval_plays_the_embedded_suite(evaluate, asynchronous):
    chosen = ["--env.type=worldrl", f"--env.task={TASK},OpenDrawer", "--env.image_size=32"]
    found = evaluate(32, 8, *chosen, "--eval.batch_size=2", f"--eval.use_async_envs={asynchronous}")
    assert {name: group["n_episodes"] for name, group in found["per_group"].items()} == {TASK: 2, "OpenDrawer": 2}
    assert all(Path(path).stat().st_size for path in found["overall"]["video_paths"])


@pytest.mark.lerobot
def test_lerobot_eval_plays_a_saved_world_model_and_says_that_it_is_imagined(evaluate, saved):
    chosen = [f"--env.{name}={value}" for name, value in saved.items()]
    names = '--rename_map={"observation.command": "observation.state"}'
    found = evaluate(16, 7, "--env.type=worldrl_imagined", *chosen, "--eval.batch_size=2", names)
    assert {group["n_episodes"] for group in found["per_group"].values()} == {2}
    assert all(name.startswith("imagined_Pick") for name in found["per_group"])


@pytest.mark.lerobot
def test_lerobots_rollout_sees_the_experts_success_in_each_environment(run):
    played = run(Path(__file__).parent / "play_expert.py", TASK, 2)
    assert played.returncode == 0, played.stderr
    found = json.loads(played.stdout.splitlines()[-1])
    assert found["success"] == [True, True]
    assert found["reward"] == [1, 1]
    assert found["steps"][0] > found["steps"][1]
