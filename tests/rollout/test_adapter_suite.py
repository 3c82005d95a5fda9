"""A user's own environment as a suite: ``suite=FILE.py:Class`` in real worker processes.

Units under test: ``workers/adapter``, ``rollout/suites/adapter.py``, ``jobs/benchmark/check_suite.py``.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.cli import main
from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.image_fit import Fit
from worldrl.core.rng import initial_weights
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.vla.external_suite import fit_of_loop
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.suites import opening
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.suites import names
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import Workers
from worldrl.simulators.pool import SimulatorPool, Start

FILE = Path(__file__).parents[1] / "workers" / "reach_adapter.py"
SUITE = f"{FILE}:Reach"
USER_ERROR, GATE_FAILED = 2, 3


@pytest.fixture
def changed(tmp_path):
    """The adapter with one text replaced, as ``FILE.py:Class``."""

    def write(old, new):
        text = FILE.read_text()
        assert text.count(old) == 1
        (tmp_path / "lab.py").write_text(text.replace(old, new))
        return f"{tmp_path / 'lab.py'}:Reach"

    return write


def test_an_adapter_is_described_without_being_imported_here():
    suite = find_suite(SUITE)
    assert "reach_adapter" not in sys.modules
    assert (suite.name, suite.tasks(), suite.stored_states) == ("reach", ("reach-red", "reach-blue"), 10_000)
    assert [suite.horizon(task) for task in suite.tasks()] == [30, 40]
    assert suite.spec.actions.names == ("x", "y")
    assert suite.without_expert() == ()
    assert suite.trainable


def test_episodes_repeat_and_commands_follow_the_targets():
    config = find_suite(SUITE).worker_config(Workers(("scene",), 16, 1, 2, 0, None))
    with SimulatorPool(config.launch, timeout_s=60, **config.pool) as pool:
        rows = pool.reset(dict.fromkeys((0, 1), Start("reach-red", 3, 5)), render=True)
        assert rows[0]["image"].shape == (16, 16, 3)
        for name in rows[0]:
            np.testing.assert_array_equal(rows[0][name], rows[1][name])
        stepped = pool.steps({0: np.ones((1, 2), np.float32)})[0][0]
        expected = np.minimum(1, rows[0]["state"] + 0.2)  # two units a second at ten steps a second
        np.testing.assert_allclose(stepped["command"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def images(self)", "def pictures(self)", r"lab\.py:Reach has no method images\(\)"),
        ("horizon = 30", "horizon = 0", "tasks\\['reach-red'\\].horizon must be a whole number from 1, got 0"),
        ('"control_hz": 10', '"hz": 10', "robot must be the dict of an embodiment with control_hz"),
        ('"low": [0, 0]', '"low": [0]', "robot\\['low'\\] must be a list with one entry per joint"),
        ('"low": [0, 0]', '"low": [2, 0]', "robot: .*low must lie below"),
        ("import numpy as np", "import nompy as np", "cannot be loaded: ModuleNotFoundError: No module named 'nompy'"),
        ("horizon = 30", 'cameras = ("front",)', "cameras must be names, .* the main one first and called scene"),
        ("horizon = 30", 'packages = ("nompy",)', "packages names nompy, which is not installed"),
    ],
)
def test_what_an_adapter_describes_wrongly_is_named(changed, old, new, message):
    with pytest.raises((WorkerError, SettingError), match=message):
        find_suite(changed(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "return self.at\n",
            "return [*self.at, 0]\n",
            r"state\(\) of task reach-red must return 2 numbers, got shape \[3\]",
        ),
        ("return self.at\n", "return self.at * np.nan\n", "must return finite numbers"),
        ("255, np.uint8", "255, np.int64", r"images\(\) of task reach-red must return uint8 \[64, 64, 3\] of scene"),
        ('"scene": image', '"front": image', "of scene .* got cameras front"),
        (
            "draw = np.random.default_rng([index, seed])",
            "draw = 1 / 0",
            r"lab\.py:Reach:\d+: reset\(\) .* ZeroDivisionError",
        ),
        ("default_rng([index, seed])", "default_rng()", r"reset\(0, 0\) of reach-red gave two states .* check-suite"),
    ],
)
def test_what_an_adapter_returns_wrongly_is_one_line(changed, tmp_path, capsys, old, new, message):
    tokens = [f"suite={changed(old, new)}", "expert_episodes=1", "workers=1", f"run_dir={tmp_path / 'run'}"]
    assert main(["collect", *tokens]) == USER_ERROR
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(message, said)


def test_recordings_hold_the_adapters_robot_and_name(tmp_path):
    assert main(["collect", f"suite={SUITE}", "expert_episodes=2", "workers=1", f"run_dir={tmp_path / 'run'}"]) == 0
    dataset = EpisodeDataset.open(tmp_path / "run" / "dataset")
    assert (dataset.header.suite, dataset.embodiment.names) == ("reach", ("x", "y"))
    assert all(record.success for record in dataset.records)
    episode = dataset[0]
    np.testing.assert_allclose(episode.state[1:], episode.command[1:], atol=1e-6)


def test_the_whole_loop_runs_in_it_with_two_cameras_and_names_it(changed, tmp_path, capsys, monkeypatch):
    changed('return {"scene": image}', 'return {"scene": image, "wrist": image[::-1].copy()}')
    lab = tmp_path / "lab.py"
    lab.write_text(lab.read_text().replace("class Reach:", 'class Reach:\n    cameras = ("scene", "wrist")'))
    seen = ["cameras=[image,wrist_image]", "state=measured"]
    tokens = ["preset=tiny", f"suite={lab}:Reach", "tasks=[reach-red]", "start=scratch", f"run_dir={tmp_path / 'run'}"]
    assert main(["train-vla", *tokens, *seen]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["suite"] == "reach"
    assert "windows start at any frame" in capsys.readouterr().err
    policy = tmp_path / "run" / result["metrics"]["policy"]
    facts = policy_facts(policy)
    assert (list(facts.observation.cameras), facts.observation.state.names) == (["image", "wrist_image"], ("x", "y"))
    episode = EpisodeDataset.open(tmp_path / "run" / "stages" / "01-demonstrations" / "dataset")[0]
    assert (episode.frames[:, 1] == episode.frames[:, 0, ::-1]).all()  # this wrist camera stands on its head
    tokens = [
        f"policy={policy}",
        f"suite={lab}:Reach",
        "tasks=[reach-red]",
        "episodes=2",
        f"run_dir={tmp_path / 'bench'}",
    ]
    assert main(["benchmark", *tokens]) == 0
    found = json.loads((tmp_path / "bench" / "result.json").read_text())["metrics"]
    assert (found["suite"], found["conventions"]["differing"], found["warnings"]) == ("reach", {}, [])
    tokens = [
        f"policy={policy}",
        f"suite={lab}:Reach",
        "tasks=[reach-red]",
        "episodes=2",
        f"run_dir={tmp_path / 'eval'}",
    ]
    assert main(["evaluate", *tokens, "workers=1", "envs_per_worker=1"]) == 0
    again = json.loads((tmp_path / "eval" / "result.json").read_text())
    assert again["metrics"]["success"] == found["success"]
    assert again["protocol_hash"] == json.loads((tmp_path / "bench" / "result.json").read_text())["protocol_hash"]
    with monkeypatch.context() as patched:
        patched.setattr(opening, "SimulatorPool", None)  # no worker starts for a finished run
        assert main(["evaluate", *tokens, "workers=1", "envs_per_worker=1"]) == 0
    assert json.loads((tmp_path / "eval" / "result.json").read_text()) == again
    lab.write_text(lab.read_text() + "\n")
    assert main(["evaluate", *tokens, "workers=1", "envs_per_worker=1"]) == 2
    assert "begun with other content: suite.hash" in capsys.readouterr().err
    assert main(["evaluate", *tokens, "style=dim"]) == 2
    wrong = "worldrl: style: has an effect in the embedded suite only"
    assert capsys.readouterr().err.startswith(wrong)
    assert main(["evaluate", *tokens, "workers=0"]) == 2
    assert "give workers=1 or more" in capsys.readouterr().err


@pytest.fixture
def oblong(changed, tmp_path):
    """The adapter with two cameras whose own images are no squares: white, with a red column at the left edge."""

    def write(fit):
        changed(
            "class Reach:", f"class Reach:\n    cameras, fit = ('scene', 'wrist'), {fit!r}\n    camera_sizes = SIZES"
        )
        text = (tmp_path / "lab.py").read_text()
        images = """        scene, wrist = (np.full((*size, 3), 255, np.uint8) for size in SIZES.values())
        scene[:, :4] = wrist[:, :4] = [200, 0, 0]
        return {"scene": scene, "wrist": wrist}

    def expert"""
        before, after = text.split("    def images(self):\n")
        text = before + "    def images(self):\n" + images + after.split("    def expert")[1]
        (tmp_path / "lab.py").write_text(
            text.replace(
                "import numpy as np\n", "import numpy as np\n\nSIZES = {'scene': (24, 32), 'wrist': (32, 32)}\n"
            )
        )
        return f"{tmp_path / 'lab.py'}:Reach"

    return write


@pytest.mark.parametrize(("fit", "red"), [("crop", 0), ("letterbox", 2), ("stretch", 2)])
def test_images_of_a_cameras_own_size_become_the_asked_squares_at_the_edge(oblong, tmp_path, fit, red):
    suite, tokens = oblong(fit), ["expert_episodes=1", "workers=1", "tasks=[reach-red]", "image_size=16", "wrist=true"]
    assert main(["collect", f"suite={suite}", f"run_dir={tmp_path / 'run'}", *tokens]) == 0
    dataset = EpisodeDataset.open(tmp_path / "run" / "dataset")
    assert dataset.header.fit == fit
    scene, wrist = dataset[0].frames[0]
    assert scene.shape == wrist.shape == (16, 16, 3)
    assert (scene[8, :, 1] == 0).sum() == red  # cropped away, or half of four columns
    assert (wrist[8, :, 1] == 0).sum() == 2
    assert (scene[[0, -1]] == 0).all() == (fit == "letterbox")  # black bars above and below
    found = find_suite(suite)
    conventions = found.conventions(found.described, shadows=True, assets_note="")[1]
    assert conventions["own_images"] == f"scene 24x32, wrist 32x32, {fit}"


def test_a_policy_of_images_that_were_fitted_otherwise_is_refused_with_both_specs(
    oblong, tmp_path, capsys, monkeypatch
):
    """Its training says crop, the adapter letterboxes; images that nobody fitted go with either."""
    suite, zeros = oblong("letterbox"), torch.zeros(2)
    small = {
        "image_size": 16,
        "chunk_length": 4,
        "width": 8,
        "blocks": 1,
        "keypoints": 2,
        "text_width": 8,
        "hidden": 16,
    }
    statistics = PolicyStatistics(zeros - 1, zeros + 1, zeros, zeros + 1, find_suite(suite).spec.actions)
    with initial_weights(0, "policy"):
        policy = TokenPolicy(TokenPolicyConfig(**small), statistics)
    monkeypatch.setattr("worldrl.simulators.pool.SimulatorPool.__enter__", None)  # nothing may start
    for name, known in {"cut": {"fit": "crop"}, "bars": {"fit": "letterbox"}, "drawn": {}}.items():
        policy.trained_on = {"states": None, "conventions": {}, **known}
        policy.save(tmp_path / name)
    found = find_suite(suite)
    assert opening.fit_for(found, tmp_path / "bars") is opening.fit_for(found, tmp_path / "drawn") is Fit.letterbox
    for command in ("evaluate", "collect policy_episodes=1"):
        run = [*command.split(), f"suite={suite}", f"policy={tmp_path / 'cut'}", f"run_dir={tmp_path / 'run'}"]
        assert main([*run, "workers=1"]) == 2
        told = capsys.readouterr().err
        assert "image 16x16 crop" in told
        assert "| image 16x16 letterbox" in told
    with pytest.raises(SettingError, match="crop"):
        fit_of_loop(found, str(tmp_path / "cut"), None)
    assert fit_of_loop(found, str(tmp_path / "bars"), None) is Fit.letterbox


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "camera_sizes = SIZES",
            "camera_sizes = {'scene': (24, 32)}",
            "camera_sizes must be a dict with rows and columns of scene, wrist",
        ),
        (
            "camera_sizes = SIZES",
            "camera_sizes = {'scene': 24, 'wrist': (9, 9)}",
            r"camera_sizes\['scene'\] must be rows and columns",
        ),
        (
            "camera_sizes = SIZES",
            "camera_sizes = {'scene': (24, 0), 'wrist': (9, 9)}",
            "must be a whole number from 1, got 0",
        ),
        ("'crop'", "'squeeze'", "fit must be crop, letterbox or stretch, with camera_sizes, got 'squeeze'"),
        ("'crop'", "''", "fit must be crop, letterbox or stretch, with camera_sizes, got ''"),
    ],
)
def test_sizes_that_say_nothing_are_refused(oblong, tmp_path, old, new, message):
    suite, lab = oblong("crop"), tmp_path / "lab.py"
    assert lab.read_text().count(old) == 1
    lab.write_text(lab.read_text().replace(old, new))
    with pytest.raises(WorkerError, match=message):
        find_suite(suite)


def test_a_camera_that_it_lacks_is_refused(tmp_path, capsys):
    tokens = [
        "preset=tiny",
        f"suite={SUITE}",
        "tasks=[reach-red]",
        "start=scratch",
        "cameras=[image,wrist_image]",
        f"run_dir={tmp_path / 'run'}",
    ]
    assert main(["train-vla", *tokens]) == 2
    assert capsys.readouterr().err.strip() == "worldrl: cameras: reach has no wrist_image; give some of image"


def test_another_file_is_another_protocol(changed):
    suites = [find_suite(SUITE), find_suite(changed("horizon = 30", "horizon = 31"))]
    found = [suite.conventions(suite.described, shadows=True, assets_note="")[1]["adapter"] for suite in suites]
    assert len(set(found)) == 2


def test_check_suite_passes_and_names_what_fails(changed, tmp_path, capsys):
    tokens = ["episodes=1", f"run_dir={tmp_path / 'run'}"]
    assert main(["check-suite", SUITE, *tokens]) == 0
    speed = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["steps_per_s"]
    assert min(speed.values()) > 0
    capsys.readouterr()
    faults = {
        "return np.abs(self.at - self.goal).max() < 0.05": ("return True", "success begins false"),
        "np.random.default_rng([index, seed])": ("np.random.default_rng(7)", "initial states vary"),
        "self.at = np.clip(np.clip(action, 0, 1), self.at - 0.2, self.at + 0.2)": (
            "self.at = self.at + 0.0 * action",
            "actions move the robot",
        ),
        'return {"scene": image}': ('return {"scene": image * 0}', "images"),
        "image = np.full((self.side, self.side, 3), 255, np.uint8)": (
            "Reach.drawn = getattr(Reach, 'drawn', set()) | {self.colour}\n"
            "        image = np.full((self.side, self.side, 3), 250 + len(Reach.drawn), np.uint8)",
            "images beside others",
        ),
    }
    for number, (old, (new, name)) in enumerate(faults.items()):
        run = tmp_path / f"run-{number}"
        assert main(["check-suite", changed(old, new), "episodes=0", f"run_dir={run}"]) == GATE_FAILED
        checks = json.loads((run / "result.json").read_text())["metrics"]["checks"]
        assert name in {check["name"] for check in checks if check["passed"] is False}


def test_gymnasiums_renderers_of_one_process_draw_their_own_scenes(tmp_path):
    """Each drew with the textures of the environment that was made last."""
    suite, run = f"suite={Path(__file__).parents[1] / 'workers' / 'viewer_adapter.py'}:Viewer", tmp_path / "run"
    assert main(["check-suite", suite, "episodes=0", f"run_dir={run}"]) == 0
    checks = json.loads((run / "result.json").read_text())["metrics"]["checks"]
    assert [check["passed"] for check in checks if check["name"] == "images beside others"] == [True, True]


def test_a_success_that_is_no_flag_is_refused_and_one_that_never_ends_is_a_failed_check(tmp_path, capsys, changed):
    """Any text was a success, and episodes without a step ended in a traceback."""
    old, run = "return np.abs(self.at - self.goal).max() < 0.05", f"run_dir={tmp_path / 'run'}"
    for new in ("return 'no'", "return None", "return 2", "return np.array([True])"):
        assert main(["check-suite", changed(old, new), "episodes=1", run]) == USER_ERROR
        assert "success() of task reach-red must return True or False" in capsys.readouterr().err
    assert main(["check-suite", changed(old, "return 1"), "episodes=1", run]) == GATE_FAILED
    assert "first: let success() depend on what the robot has done" in capsys.readouterr().err


def test_an_import_that_never_ends_is_one_line_that_says_how_to_wait_longer(tmp_path, capsys, monkeypatch):
    (tmp_path / "slow.py").write_text("import time\nprint('compiling', flush=True)\ntime.sleep(900)\nclass Lab: ...\n")
    monkeypatch.setenv("WORLDRL_STARTUP_S", "2")
    assert main(["check-suite", f"suite={tmp_path / 'slow.py'}:Lab"]) == USER_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert "slow.py:Lab: its worker was silent for 2 s" in line
    assert "compiling" in line
    assert line.endswith("Allow a slower one more seconds with WORLDRL_STARTUP_S")
    for text in ("0", "nan", "soon"):
        monkeypatch.setenv("WORLDRL_STARTUP_S", text)
        assert main(["check-suite", f"suite={tmp_path / 'slow.py'}:Lab"]) == USER_ERROR
        assert f"WORLDRL_STARTUP_S must be a positive number of seconds, got '{text}'" in capsys.readouterr().err


def test_a_longer_start_is_allowed_to_the_workers_as_well(monkeypatch):
    monkeypatch.setenv("WORLDRL_STARTUP_S", "345")
    assert find_suite(SUITE).worker_config(Workers(("scene",), 16, 1, 1, 0, None)).launch.startup_s == 345
    monkeypatch.setenv("WORLDRL_STARTUP_S", "20")
    assert find_suite(SUITE).worker_config(Workers(("scene",), 16, 1, 1, 0, None)).launch.startup_s == 120


def test_names_that_select_nothing_are_refused(capsys, tmp_path):
    for value, message in (
        ("lab.py:Reach", "there is no file lab.py"),
        ("libero_goa", "did you mean 'libero_goal'"),
        ("reach_adapter", "an adapter of your own is FILE.py:Class"),
    ):
        assert main(["collect", f"suite={value}", f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
        assert message in capsys.readouterr().err
    with pytest.raises(SettingError, match="leave python out"):
        find_suite("maniskill", sys.executable)
    with pytest.raises(SettingError, match="/no/such does not exist"):
        find_suite(SUITE, "/no/such")


def test_the_guide_shows_this_adapter_and_it_is_short():
    guide = (FILE.parents[2] / "docs" / "guide" / "your-own-environment.md").read_text()
    shown = re.search(r"```python\n(.*?)```", guide, re.S).group(1)
    assert FILE.read_text() == shown
    assert len(shown.splitlines()) <= 35


def test_installed_packages_bring_suites(monkeypatch):
    entry = type("Entry", (), {"name": "lab", "value": f"{FILE}:Reach"})
    monkeypatch.setattr(names, "entry_points", lambda group: [entry] if group == names.GROUP else [])
    names.require_suite_name("lab")
    assert find_suite("lab").name == "reach"
