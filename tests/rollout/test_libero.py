"""The real LIBERO behind its worker: needs ``worldrl setup libero`` and assets; run with ``-m libero``.

Units under test: ``workers/libero.py``, ``workers/libero_expert.py``, ``workers/libero_skills.py``, ``rollout/libero.py``.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.cli import main
from worldrl.core.embodiment import integrate_commands
from worldrl.core.errors import WorkerEnvironmentError, WorkerError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.conventions.conventions import shifted
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.rollout.suites.libero import libero_launch
from worldrl.rollout.suites.registry import find_suite
from worldrl.simulators.environments import find_environment
from worldrl.simulators.pool import SimulatorPool, Start
from worldrl.workers.libero import facts
from worldrl.workers.libero.several import known_goal

pytestmark = pytest.mark.libero
NO_OP = np.array(facts.NO_OP, np.float32)


@pytest.fixture(scope="module", autouse=True)
def environment():
    try:
        return find_environment("libero")
    except WorkerEnvironmentError as error:
        pytest.skip(str(error))


def pool(suite="libero_spatial", *, cameras=(), **settings):
    launch = libero_launch(suite, cameras=cameras, image_size=64, shadows=False)
    return SimulatorPool(launch, timeout_s=600.0, **settings)


def test_the_settle_probe_holds_here():
    with pool() as workers:
        assert workers.probe()["distance_mm"] == pytest.approx(14.5, abs=1)
        assert workers.suite["packages"] == facts.PHYSICS[facts.VERSION]
        assert len(workers.suite["tasks"]) == 10


def test_drawn_states_are_new_and_each_is_the_same_again():
    """Numbers after the stored ones: the same scene whatever was played before, and solved by the expert."""
    name, first = "put_the_bowl_on_the_stove", facts.STORED_STATES
    with pool("libero_goal", cameras=("scene",)) as simulators:
        images = {n: simulators.reset({0: Start(name, n, 0)})[0]["image"] for n in (0, first, first + 1)}
        assert len({image.tobytes() for image in images.values()}) == 3
        np.testing.assert_array_equal(simulators.reset({0: Start(name, first, 5)})[0]["image"], images[first])
        np.testing.assert_array_equal(simulators.reset({0: Start(name, 0, 5)})[0]["image"], images[0])
        specs = [EpisodeSpec(name, 0, 0, init_id=first)]
        (outcome,) = play_episodes(simulators, specs, ExpertActor(), Rules({name: facts.horizon("libero_goal")}))
        assert outcome.success_once
        with pytest.raises(WorkerError, match="initial state 1050: there are 50 and 1000 drawn ones"):
            simulators.reset({0: Start(name, first + facts.DRAWN_STATES, 0)})


def test_the_held_variant_knows_its_command_and_its_expert_succeeds():
    """A start's actions, summed by the robot's constants, are the recorded commands; LIBERO's own drift by centimetres."""
    drift, success = {}, {}
    for suite in ("libero_goal", "libero_goal@held"):
        robot = find_suite(suite).embodiment
        with pool(suite, cameras=("scene",), workers=1, slots=1) as workers:
            rules = Rules({"put_the_bowl_on_the_plate": 300}, ("scene",), 0, (0,))
            (found,) = play_episodes(
                workers, [EpisodeSpec("put_the_bowl_on_the_plate", 0, 0, init_id=0)], ExpertActor(), rules
            )
        command, action = (torch.from_numpy(getattr(found, name)) for name in ("command", "action"))
        path = integrate_commands(robot, command[:1], action[None])[0]
        drift[suite], success[suite] = (
            float((path - command[1:])[:, :3].norm(dim=-1).max()),
            found.first_success is not None,
        )
    assert success == dict.fromkeys(success, True)
    assert drift["libero_goal@held"] < 1e-4
    assert drift["libero_goal"] > 0.02


def test_the_tasks_without_an_expert_are_those_whose_goals_it_does_not_know(environment):
    """The table that is read before any worker starts, against the goals in hf-libero's own files."""
    (folder,) = Path(environment.python).parents[1].glob("lib/python3*/site-packages/libero/libero/bddl_files")
    for suite in facts.SUITES:
        without = set()
        for file in (folder / suite).glob("*.bddl"):
            goals, movable = read_problem(file.read_text())
            without |= set() if known_goal(goals, movable) else {file.stem}
        assert without == set(facts.UNSCRIPTED.get(suite, ())), suite


def test_the_suites_with_initial_properties_are_those_of_the_package(environment):
    (folder,) = Path(environment.python).parents[1].glob("lib/python3*/site-packages/libero/libero/bddl_files")
    for suite, known in facts.SUITES.items():
        starts = [
            file.read_text().partition("(:init")[2].partition("(:goal")[0] for file in (folder / suite).glob("*.bddl")
        ]
        named = any(re.search(r"\((open|close|turnon|turnoff) ", start, re.IGNORECASE) for start in starts)
        assert named == known.properties, suite


def read_problem(text):
    """Predicates of a BDDL file's goal, and names of its movable objects."""
    goals = [goal.split() for goal in re.findall(r"\((\w+ [\w ]+)\)", text[text.index("(:goal") :])]
    objects = text[text.index("(:objects") :].partition(")")[0].splitlines()[1:]
    return goals, [name for line in objects for name in line.split(" - ")[0].split()]


def test_traces_do_not_depend_on_workers_or_on_what_was_played_before():
    """Same stored state, same actions, same states to the bit; and a fixture's place is that of every reset."""
    draw = np.random.default_rng(0)
    actions = draw.uniform(-1, 1, (6, 7)).astype(np.float32)
    traces = []
    for workers, before in ((1, ()), (2, (3,))):
        with pool("libero_goal", workers=workers, slots=2) as simulators:
            task = simulators.suite["tasks"][8]["name"]
            for init_id in before:
                simulators.reset({slot: Start(task, init_id, 0) for slot in (0, 1)})
                simulators.step({0: NO_OP, 1: NO_OP})
            rows = simulators.reset({slot: Start(task, slot, 0) for slot in (0, 1)})
            trace = [rows[0]["state"], rows[1]["state"]]
            for action in actions:
                rows = simulators.step({0: action, 1: action})
                trace += [rows[0]["state"], rows[1]["state"]]
            traces.append(np.stack(trace))
    np.testing.assert_array_equal(*traces)


def test_a_start_is_the_same_however_often_the_task_was_reset():
    """hf-libero draws a task's initial properties (here: the drawer open) once more after each reset, and the cabinet after them."""
    traces = []
    with pool("libero_spatial", workers=1, slots=1) as simulators:
        (task,) = (task["name"] for task in simulators.suite["tasks"] if "drawer" in task["name"])
        for _ in range(3):
            simulators.reset({0: Start(task, 7, 0)})
            rows = [simulators.step(simulators.expert([0]))[0] for _ in range(12)]
            traces.append(np.stack([row["state"] for row in rows]))
    np.testing.assert_array_equal(traces[1], traces[0])
    np.testing.assert_array_equal(traces[2], traces[0])


@pytest.mark.parametrize("asked", [[], ["--chunk", "3", "--cameras", "scene"]])
def test_what_the_worker_does_not_compute_changes_nothing(asked):
    """The bare package, all its observables on, and one and two workers end in the same state to the bit, or it fails."""
    script = Path(__file__).parents[2] / "scripts" / "bench.py"
    program = subprocess.run(
        [sys.executable, script, "workers", "--steps", "6", "--blocks", "2", *asked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    assert set(json.loads(program.stdout)["ms_per_step"]) == {"bare", "two_bare", "one", "two"}


def test_images_are_the_right_way_up_and_the_state_is_the_robots():
    with pool(cameras=("scene", "wrist")) as simulators:
        task = simulators.suite["tasks"][0]["name"]
        row = simulators.reset({0: Start(task, 0, 0)})[0]
    image, state = row["image"].astype(float), row["state"]
    assert image.shape == row["wrist_image"].shape == (64, 64, 3)
    assert image[-16:].mean() != pytest.approx(image[:16].mean(), abs=5)
    assert state[2] > 1.0  # above the table, whose top is at 0.9 m
    assert abs(abs(state[3]) - np.pi) < 0.1  # pointing down
    np.testing.assert_allclose(row["command"][:3], state[:3])
    assert row["command"][6] == -1
    assert state[6] > 0.03 > 0 > -0.03 > state[7]  # open


@pytest.mark.parametrize("task", [0, 2])
def test_the_expert_puts_the_bowl_on_the_plate(task):
    with pool() as simulators:
        name = simulators.suite["tasks"][task]["name"]
        specs = [EpisodeSpec(name, 0, 0, init_id=0)]
        (outcome,) = play_episodes(simulators, specs, ExpertActor(), Rules({name: 220}))
    assert outcome.success_once


def test_the_expert_takes_a_bowl_out_of_an_open_drawer():
    """At a stored state that nobody read while writing this skill."""
    with pool() as simulators:
        (name,) = (task["name"] for task in simulators.suite["tasks"] if "drawer" in task["name"])
        specs = [EpisodeSpec(name, 20, 0, init_id=20)]
        (outcome,) = play_episodes(simulators, specs, ExpertActor(), Rules({name: facts.horizon("libero_spatial")}))
    assert outcome.success_once


@pytest.mark.parametrize(
    ("suite", "words", "init_id"),
    [("libero_spatial", "on_the_wooden_cabinet", 22), ("libero_goal", "push_the_plate", 23)],
)
def test_the_expert_keeps_clear_of_a_cabinet(suite, words, init_id):
    """Stored states in which it once came down on the cabinet, or stretched its arm in vain over it."""
    with pool(suite) as simulators:
        (name,) = (task["name"] for task in simulators.suite["tasks"] if words in task["name"])
        specs = [EpisodeSpec(name, init_id, 0, init_id=init_id)]
        (outcome,) = play_episodes(simulators, specs, ExpertActor(), Rules({name: facts.horizon(suite)}))
    assert outcome.success_once


@pytest.mark.parametrize(
    "name", ["open_the_middle_drawer_of_the_cabinet", "turn_on_the_stove", "put_the_wine_bottle_on_the_rack"]
)
def test_the_expert_reaches_goals_of_other_kinds(name):
    """Pulled, turned, stood up; at a stored state that nobody read while writing these skills."""
    with pool("libero_goal") as simulators:
        specs = [EpisodeSpec(name, 20, 0, init_id=20)]
        (outcome,) = play_episodes(simulators, specs, ExpertActor(), Rules({name: facts.horizon("libero_goal")}))
    assert outcome.success_once


@pytest.mark.parametrize("suite", ["libero_pro_goal_object", "libero_pro_goal_swap"])
def test_a_suite_of_libero_pro_is_played_by_the_same_worker(suite):
    """Another stove, or the cabinet where the rack stands; other stored states."""
    name = "turn_on_the_stove"
    with pool(suite) as simulators:
        assert simulators.suite["stored_states"] == facts.STORED_STATES
        specs = [EpisodeSpec(name, 0, 0, init_id=0)]
        (outcome,) = play_episodes(simulators, specs, ExpertActor(), Rules({name: facts.horizon(suite)}))
    assert outcome.success_once


def test_two_objects_are_put_into_the_basket():
    name = "LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato_sauce_in_the_basket"
    with pool("libero_10") as simulators:
        specs = [EpisodeSpec(name, 20, 0, init_id=20)]
        (outcome,) = play_episodes(simulators, specs, ExpertActor(), Rules({name: facts.horizon("libero_10")}))
    assert outcome.success_once


@pytest.mark.parametrize("suite", ["libero_spatial", "libero_goal"])
@pytest.mark.slow
def test_every_task_resets_settles_steps_and_draws(suite):
    """All that the shared assets hold: ten tasks of each suite, their first and last stored state."""
    with pool(suite, cameras=("scene",)) as simulators:
        for task in simulators.suite["tasks"]:
            for init_id in (0, facts.STORED_STATES - 1):
                row = simulators.reset({0: Start(task["name"], init_id, 0)})[0]
                after = simulators.step({0: NO_OP})[0]
                assert row["image"].std() > 10, task["name"]
                assert not row["success"], task["name"]
                assert np.abs(after["state"] - row["state"]).max() < 5e-3, task["name"]  # it has settled


def test_what_is_recorded_is_cloned_measured_and_means_what_the_suite_means(tmp_path):
    """The whole way on the real suite at its smallest; a policy of ten steps is not expected to succeed."""
    common = ["suite=libero_spatial", "shadows=false", "workers=1", "timeout_s=900"]
    with pool() as simulators:
        task = simulators.suite["tasks"][0]["name"]
    collect = [
        "expert_episodes=1",
        "envs_per_worker=1",
        "image_size=64",
        f"tasks=[{task}]",
        f"run_dir={tmp_path / 'data'}",
    ]
    assert main(["collect", *common, *collect]) == 0
    data = tmp_path / "data" / "dataset"
    assert main(["train-policy", "preset=tiny", f"data=[{data}]", f"run_dir={tmp_path / 'policy'}"]) == 0
    given = [f"policy={tmp_path / 'policy' / 'policy'}", "first_index=49", "episodes=1", "envs=1", f"tasks=[{task}]"]
    assert main(["benchmark", *common, *given, f"run_dir={tmp_path / 'run'}"]) == 0
    measured = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert measured["success"]["n"] == 1
    assert measured["protocol"]["packages"] == facts.PHYSICS[facts.VERSION]
    check = ["check-protocol", *common, f"data={data}", "episodes=1", f"run_dir={tmp_path / 'check'}"]
    assert main(check) == 0
    checked = json.loads((tmp_path / "check" / "result.json").read_text())["metrics"]
    assert checked["fits"], checked["verdict"]
    assert checked["best"]["position_m"] == 0.0  # the simulator repeats itself to the bit


def turned(action):
    action[:, 3:6] *= -1
    return action


def opened(action):
    action[:, 6] *= -1
    return action


DAMAGES = {
    "gripper": (opened, "reversed: +1 opens"),
    "rotation": (turned, "the other way round"),
    "delay": (lambda action: shifted(action, -2), "recorded 2 steps late"),
}


@pytest.mark.slow
def test_damaged_demonstrations_are_named(tmp_path):
    """A drawer is opened by a hand that turns; each damage is of one of its numbers, and the check says of which."""
    common = ["suite=libero_goal", "shadows=false", "workers=1", "timeout_s=900"]
    collect = ["expert_episodes=1", "envs_per_worker=1", "image_size=64", f"run_dir={tmp_path / 'data'}"]
    task = "open_the_middle_drawer_of_the_cabinet"
    assert main(["collect", *common, *collect, f"tasks=[{task}]"]) == 0
    dataset = EpisodeDataset.open(tmp_path / "data" / "dataset")
    for family, (damage, name) in DAMAGES.items():
        with LeRobotWriter(tmp_path / family, **vars(dataset.header)) as writer:
            writer.add_episode(replace(dataset[0], action=damage(dataset[0].action.copy()).astype(np.float32)))
        check = [f"data={tmp_path / family}", "episodes=1", f"run_dir={tmp_path / f'check-{family}'}"]
        assert main(["check-protocol", *common, *check]) == 0
        found = json.loads((tmp_path / f"check-{family}" / "result.json").read_text())["metrics"]
        assert [(item["family"], item["name"]) for item in found["off"]] == [(family, name)], found["verdict"]
        assert found["no_op"]["k"] == found["random"]["k"] == 0


@pytest.mark.slow
def test_one_round_of_the_main_job_runs_on_libero_goal(tmp_path, environment):
    """At this size nothing is learned: the whole way through the real worker, and what its numbers are called."""
    tokens = (
        "preset=tiny", "suite=libero_goal", "tasks=[put_the_bowl_on_the_plate]", "shadows=false", "timeout_s=900", "envs_per_worker=2",
        "demonstrations=1", "collection.policy_episodes=1", "scratch.expert_episodes=3", "collection.noise=0.05",
        "evaluation.episodes=1", "evaluation.videos=0", "evaluation.verify=1", "improvement.starts_per_task=2",
        "improvement.self_training.rollouts=4", "scratch.training.outcome_steps=10",
    )  # fmt: skip
    assert main(["train-vla", *tokens, f"run_dir={tmp_path}"]) == 0
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    protocol, note = metrics["before"]["protocol"], environment.record.get("assets_note", "")
    assert (protocol["suite"], protocol["first_index"]) == ("libero_goal", facts.STORED_STATES - 1)
    assert protocol["packages"] == facts.PHYSICS[facts.VERSION]
    assert metrics["before"]["success"]["n"] == metrics["after"]["success"]["n"] == 1
    assert metrics["rounds"][0]["collection"]["success"]["policy"]["n"] == 1
    assert metrics["verify"]["same_actions_real"]["n"] == 1
    shown = json.loads((tmp_path / "stages" / "01-demonstrations" / "stage.json").read_text())["summary"]
    assert shown["success"]["expert"]["k"] == 1
    assert metrics.get("assets_note", "") == note
    assert (
        f"Assets: {note}. No number on this page is a libero_goal result." in (tmp_path / "report.html").read_text()
    ) == bool(note)
