"""Unit under test: ``worldrl train-vla suite=recordings``: a dataset of a robot's recordings, and no simulator."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import worldrl.core.training.fit as fit
from worldrl.cli import main as cli
from worldrl.commands import COMMANDS
from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import GateError, SettingError
from worldrl.core.statistics.intervals import paired, wilson
from worldrl.core.statistics.sequential import discordant_share, paired_episodes, sequential_plan
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.run import Stage
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.world_model.gates import ADVICE
from worldrl.jobs.vla import recordings
from worldrl.jobs.vla import stages as vla_stages
from worldrl.jobs.vla.plan import planned
from worldrl.jobs.vla.recorded_suite import RecordedSuite
from worldrl.jobs.vla.recordings import real_trials
from worldrl.jobs.vla.train_vla import TrainVlaSettings, main
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy
from worldrl.rollout.agents import robot_side
from worldrl.rollout.real.specs import scene_digest
from worldrl.settings import compose, parse_overrides
from worldrl.world_models.video.model import VideoWorldModel

STATISTICS = PolicyStatistics(-torch.ones(7), torch.ones(7), torch.zeros(7), torch.ones(7))
TASKS = {"push_left": "PickRedCube", "push_right": "PickGreenCylinder"}
SMALL = (
    "preset=tiny", "suite=recordings", "tasks=[]", "policy.image_size=16", "world_model.codec.image_size=16",
    "evaluation.episodes=20", "improvement.self_training.rollouts=12",
)  # fmt: skip
STAGES = (
    "01-recordings", "02-policy", "round-1-2-world-model", "round-1-3-gates", "03-before", "round-1-4-improve", "05-after",
)  # fmt: skip


@pytest.fixture(scope="module")
def write(tmp_path_factory, push_episode, robot):
    """Write pushed squares; ``success`` keeps those that succeeded or failed, None every episode."""

    def make(name, count, *, success=None, tasks=tuple(TASKS)):
        folder, number, written = tmp_path_factory.mktemp(name) / "robot", 0, 0
        with LeRobotWriter(folder, fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
            while written < count:
                task, number = tasks[number % len(tasks)], number + 1
                episode = push_episode(number, 34 + number % 3, task=TASKS[task])
                if success in (None, episode.success):
                    writer.add_episode(replace(episode, task=task, instruction=task.replace("_", " ")))
                    written += 1
        return folder

    return make


@pytest.fixture(scope="module")
def data(write):
    """Forty recordings, of which at least three of each outcome are on every side of the split."""
    return write("recordings", 40)


@pytest.fixture
def ask(data, tmp_path):
    def settings(*tokens, name="run", folder=data):
        given = parse_overrides([*SMALL, f"data={folder}", f"run_dir={tmp_path / name}"]) | parse_overrides(tokens)
        return compose("train-vla", TrainVlaSettings, given)

    return settings


def unlabelled(value, path=()):
    """Rates, comparisons and keys of success below no key that says *imagined*."""
    found = []
    if isinstance(value, dict):
        number = {"k", "n"} <= value.keys() or {"only_a", "only_b"} <= value.keys()
        if number and not any("imagined" in key for key in path):
            found.append(path)
        for key, item in value.items():
            if "success" in key and not any("imagined" in name for name in (*path, key)):
                found.append((*path, key))
            found += unlabelled(item, (*path, key))
    return found


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    run = tmp_path_factory.mktemp("finished") / "run"
    given = parse_overrides([*SMALL, f"data={data}", f"run_dir={run}"])
    main(compose("train-vla", TrainVlaSettings, given))
    return run


def test_the_loop_runs_to_its_end_and_calls_everything_imagined(finished, ask, capsys):
    result = json.loads((finished / "result.json").read_text())
    metrics = result["metrics"]
    assert (metrics["suite"], result["protocol_hash"]) == ("recordings", None)
    assert unlabelled(metrics) == []
    assert unlabelled({"before": {"success": wilson(1, 2)}}) == [("before", "success"), ("before", "success")]
    recorded = metrics["recordings"]
    assert recorded["episodes"] == recorded["succeeded"] + recorded["failed"] == 40
    assert metrics["imagined_before"]["imagined_success"]["n"] == recorded["held_out"]
    assert set(metrics["imagined_after"]["tasks"]) == set(TASKS)
    assert [stage.name for stage in sorted((finished / "stages").iterdir())] == sorted(STAGES)
    TokenPolicy.load(finished / metrics["policy_for_robot"], "cpu")
    VideoWorldModel.load(finished / metrics["world_model"])
    main(ask(f"run_dir={finished}"))
    page, said = (finished / "report.html").read_text(), " ".join(capsys.readouterr().err.split())
    for text in (page, said):
        assert "Imagined success is" in text
        assert "Nothing was measured on a robot." in text
        assert "Do not trust imagined success here: gate psnr failed." in text
        assert not re.search(r"success rate|Real success", text)
    assert f"policy for the robot: {finished / metrics['policy_for_robot']}" in said
    assert "run it: the loop that `python -m pydoc worldrl.rollout.agents.robot_side` prints" in said
    assert "side.targets(" in robot_side.__doc__
    assert (Path(__file__).parents[2] / "docs" / "guide" / "recordings.md").is_file()


def test_what_is_held_out_is_never_learned_and_is_where_imagination_begins(data, finished, ask):
    dataset, suite = EpisodeDataset.open(data), planned(ask(), torch.device("cpu")).suite
    parts = suite.parts
    assert sorted([*parts.training, *parts.held_out]) == list(range(40))
    learned = Learned.read(finished / "stages" / "round-1-2-world-model" / "world_model").episodes
    known = {row for row, record in enumerate(dataset.records) if scene_digest(record) in learned}
    assert known == {*parts.training, *parts.calibration}
    for part in (parts.calibration, parts.gates):
        assert {dataset.records[row].success for row in part} == {True, False}
    assert suite.horizons == {task: max(r.length for r in dataset.records if r.task == task) for task in TASKS}
    first = {dataset[row].frames[0, 0].tobytes() for row in parts.training}
    layout = {"memory_frames": 2, "image_size": 16, "more": ()}
    starts = suite.starts([dataset[row] for row in parts.training], 500, seed=0, **layout)
    assert len(starts) == len(parts.training)
    assert {record.reference.tobytes() for record in starts} == first


def test_before_and_after_begin_at_the_same_frames_that_nothing_learned_from(ask, monkeypatch):
    """And with the same noise; what trains is read where it is given its episodes."""
    asked, learned, suite = [], set(), planned(ask(), torch.device("cpu")).suite

    def outcomes(model, folder, starts, saved, *, seed, **_):
        asked.append(([(s.episode.task, s.episode.frames.tobytes(), s.steps) for s in starts], seed))
        return np.zeros(len(starts), bool)

    def noted(module, name, place):
        function = getattr(module, name)

        def wrapper(*args, **given):
            learned.update(episode.frames.tobytes() for episode in args[place])
            return function(*args, **given)

        monkeypatch.setattr(module, name, wrapper)

    noted(vla_stages, "learn_policy", 1)
    noted(recordings, "trained_world_model", 2)
    noted(vla_stages, "make_samples", 0)
    noted(vla_stages, "keyframe_records", 0)
    noted(RecordedSuite, "starts", 1)
    monkeypatch.setattr("worldrl.recipes.imagined_success.imagined_outcomes", outcomes)
    main(ask())
    (first, seed), second = asked
    assert (first, seed) == second
    held_out = {suite.data[row].frames.tobytes() for row in suite.parts.held_out}
    assert {frames for _, frames, _ in first} == held_out
    assert learned == {suite.data[row].frames.tobytes() for row in suite.parts.training}
    assert not learned & held_out


def test_stopped_in_every_stage_it_ends_with_the_same_result(finished, ask, tmp_path, monkeypatch):
    finish, step, stopped = Stage.finish, fit._Stepper.step, set()

    def stop_once(name):
        if name not in stopped:
            stopped.add(name)
            raise KeyboardInterrupt

    def finishes(self, summary):
        stop_once(self.name)
        finish(self, summary)

    def steps(self, number, *rest):
        if number == 3:
            stop_once(self.name)
        return step(self, number, *rest)

    monkeypatch.setattr(Stage, "finish", finishes)
    monkeypatch.setattr(fit._Stepper, "step", steps)
    settings, sessions = ask(), 0
    while not (tmp_path / "run" / "result.json").exists():
        sessions += 1
        assert sessions < 30
        try:
            main(settings)
        except KeyboardInterrupt:
            continue
    assert {*STAGES, "behaviour-cloning", "dynamics-1", "codec"} <= stopped
    for name in ("02-policy/policy", "round-1-2-world-model/world_model", "round-1-4-improve/policy"):
        whole, cut = (run / "stages" / name / "model.safetensors" for run in (finished, tmp_path / "run"))
        assert whole.read_bytes() == cut.read_bytes(), name
    whole, cut = (json.loads((run / "result.json").read_text())["metrics"] for run in (finished, tmp_path / "run"))
    assert whole == cut


@pytest.mark.slow
def test_killed_in_three_places_it_ends_with_the_same_bits(data, run_python, tmp_path):
    script, given = Path(__file__).parent / "vla_script.py", [*SMALL[1:], f"data={data}"]
    ends = [("whole", "none"), ("cut", "step:dynamics-1:3"), ("cut", "finished:03-before"), ("cut", "batch:1")]
    for run, moment in [*ends, ("cut", "none")]:
        ended = run_python(script, tmp_path / run, moment, *given, cwd=tmp_path)
        assert ended.returncode == (0 if moment == "none" else -9), ended.stderr
    for name in ("round-1-2-world-model/world_model", "round-1-4-improve/policy"):
        whole, cut = (tmp_path / run / "stages" / name / "model.safetensors" for run in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes(), name
    whole, cut = (json.loads((tmp_path / run / "result.json").read_text())["metrics"] for run in ("whole", "cut"))
    assert whole == cut


def test_a_failed_gate_stops_it_and_the_same_command_continues_with_a_label(ask, tmp_path):
    with pytest.raises(GateError, match="not good enough to improve a policy in:\n  psnr is") as error:
        main(ask("gates=stop"))
    assert "collection." not in str(error.value)  # recordings have none
    assert not [name for name, text in ADVICE.items() if "collection." in text and name != "confirmed"]
    assert not (tmp_path / "run" / "stages" / "03-before" / "stage.json").exists()
    assert "gate psnr failed" in main(ask())["not_trusted"]


@pytest.mark.slow
def test_no_simulator_is_imported(data, tmp_path, run_python):
    tokens = [*SMALL, f"data={data}", f"run_dir={tmp_path / 'run'}"]
    code = (
        "import sys; from worldrl.cli import main; code = main(sys.argv[1:]); "
        "print('found', {'mujoco', 'robosuite', 'worldrl_envs.simulation', 'worldrl_envs.physics'} & set(sys.modules)); sys.exit(code)"
    )
    ended = run_python("-c", code, "train-vla", *tokens, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    # The package of the embedded suite is there for its space of instructions; its environments and physics are not.
    assert "found set()" in ended.stdout


# --- refusals, before any training ---


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["data=null"], r"^suite=recordings: there is nothing to learn from; give data=FOLDER of a LeRobotDataset$"),
        (["engine=ray"], r"^engine=ray: suite=recordings has nothing for other nodes to do"),
        (["rounds=2"], r"^rounds=2: suite=recordings has no simulator to collect in; give rounds=1$"),
        (["collection.policy_episodes=3"], r"^collection\.policy_episodes has no effect with suite=recordings"),
        (
            ["improvement.keyframe_schedule=hallucination"],
            r"^improvement\.keyframe_schedule=hallucination: no simulator",
        ),
        (["styles=1"], r"^styles=1: visual styles are the embedded suite's"),
        (["suite=recording"], r"^suite: unknown value 'recording'; did you mean 'recordings'"),
    ],
)
def test_settings_that_need_a_simulator_are_refused(tokens, message, ask):
    with pytest.raises(SettingError, match=message) as error:
        ask(*tokens)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["tasks=[push_lefd]"], r"^tasks: unknown task 'push_lefd'; did you mean 'push_left'"),
        (["policy.image_size=32", "world_model.codec.image_size=32"], r"are 16 by 16 pixels, policy.image_size is 32"),
        (
            ["cameras=[image,wrist_image]"],
            r"has no wrist_image\n  the model takes image, wrist_image \| the data has image",
        ),
        (["held_out=0.05"], r"^held_out: 0\.05 of 40 recordings \(\d+ succeed, \d+ fail\) is not one each"),
        (
            ["held_out=0.96"],
            r"^data: of task push_\w+ 0 successes are left to learn from and \d+ recordings are held out",
        ),
    ],
)
def test_recordings_that_do_not_fit_are_refused(tokens, message, ask, tmp_path):
    with pytest.raises(SettingError, match=message):
        main(ask(*tokens))
    assert not (tmp_path / "run").exists()


def test_recordings_without_failures_test_no_success_head(write, ask, tmp_path, capsys):
    folder = write("wins", 20, success=True)
    message = "none of the 20 recordings fails, so no success head can be calibrated"
    with pytest.raises(GateError, match=f"^data: imagined success cannot be trusted: {message}") as error:
        main(ask("gates=stop", folder=folder))
    assert "\n" not in str(error.value)
    assert "gates=warn" in str(error.value)
    assert not (tmp_path / "run").exists()
    assert message in planned(ask(folder=folder), torch.device("cpu")).suite.reasons
    with pytest.raises(GateError, match="recordings held out for calibration only 1 succeed and 1 fail"):
        main(ask("gates=stop", "held_out=0.15"))


def test_weights_that_know_the_held_out_recordings_test_nothing(finished, ask, data, make_world_model, tmp_path):
    records = EpisodeDataset.open(data).records
    known = Learned(episodes=frozenset(scene_digest(record) for record in records))
    folder = tmp_path / "world_model"
    make_world_model(chunk_length=8).save(folder, learned=known)
    with pytest.raises(GateError, match=r"has learned from (\d+) of the \1 held-out recordings"):
        main(ask("gates=stop", f"start={folder}"))


def test_a_policy_of_other_cameras_or_another_robot_is_refused(ask, tiny_policy, tmp_path):
    tiny_policy(chunk_length=8, cameras=["image", "wrist_image"]).save(tmp_path / "wrist")
    with pytest.raises(SettingError) as error:
        main(ask(f"supervised={tmp_path / 'wrist'}"))
    assert re.search(r"wrist takes +\| the world model of cameras=\[image\]", str(error.value))
    assert re.search(r"wrist_image 16x16 +\| -", str(error.value))
    narrow = replace(TOOL_ACTIONS, low=(-0.5,) * 7)
    policy = tiny_policy(chunk_length=8)
    TokenPolicy(policy.config, replace(STATISTICS, actions=narrow)).save(tmp_path / "narrow")
    with pytest.raises(SettingError, match="narrow has other actions than the robot of"):
        main(ask(f"supervised={tmp_path / 'narrow'}"))
    assert not (tmp_path / "run").exists()


def test_recordings_of_which_nobody_says_what_succeeded_are_refused(publish_lerobot, tmp_path, ask):
    rows = np.arange(20)
    columns = {
        "sentence": "close the lid",
        "observation.state": np.column_stack([rows, rows % 2]).astype(np.float32),
        "action": np.column_stack([rows, rows % 2]).astype(np.float32),
        "observation.images.front": np.zeros((20, 16, 16, 3), np.uint8),
    }
    folder = publish_lerobot(tmp_path / "theirs", [columns] * 2, success=None)
    assert cli(["train-vla", *SMALL, f"data={folder}", f"run_dir={tmp_path / 'run'}"]) == 2
    with pytest.raises(SettingError, match="nothing says which episodes succeeded"):
        main(ask(folder=folder))


# --- real trials ---


def test_the_real_trials_follow_the_imagined_difference():
    before, after = np.arange(100) < 40, np.arange(100) < 60
    plan = real_trials(wilson(40, 100), paired(before, after))
    share = discordant_share(0.4, 0.2)
    expected = sequential_plan(share, 0.2, alpha=0.05, power=0.8)
    assert plan["discordant_share"] == share == pytest.approx(0.52)
    assert (plan["most_pairs"], plan["mean_pairs"]) == (expected["n_max"], expected["episodes"])
    assert plan["imagined_difference"] == pytest.approx(0.2)
    assert plan["pairs_at_once"] == paired_episodes(share, 0.2, alpha=0.05, power=0.8) < plan["most_pairs"]
    assert expected["power"] >= 0.8
    assert real_trials(wilson(60, 100), paired(after, before)) is None
    many = np.arange(1000)
    large = real_trials(wilson(400, 1000), paired(many < 400, many < 440))
    assert large["pairs_at_once"] > 2000
    assert "most_pairs" not in large
    assert real_trials(wilson(400, 1000), paired(many < 400, many < 401)) is None  # more than anyone will run


def test_comparisons_are_by_start_frame():
    before, after = np.array([True, False, False, True]), np.array([True, True, False, False])
    found = recordings.compared(before, after, ["b", "a", "a", "b"])
    assert found["imagined_comparison"]["imagined_paired"] == paired(before, after)
    assert found["imagined_after"]["tasks"]["a"]["imagined_success"] == wilson(1, 2)
    assert found["imagined_comparison"]["tasks"]["b"]["imagined_paired"] == paired(before[[0, 3]], after[[0, 3]])


def test_the_guides_commands_compose():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "recordings.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in "".join(blocks).replace("\\\n", "").splitlines()]
    commands = [line[1:] for line in lines if line[:1] == ["worldrl"]]
    assert "train-vla" in [name for name, *_ in commands]
    for name, *tokens in commands:
        compose(name, COMMANDS[name].load()[1], parse_overrides(tokens))
