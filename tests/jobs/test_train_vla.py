"""``worldrl train-vla`` as a user runs it: a real process in a directory of its own, killed wherever it hurts."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import wilson
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.log import read_metrics
from worldrl.jobs.vla import checks, combining
from worldrl.jobs.vla.settings import CollectionSettings, Evaluation
from worldrl.jobs.vla.train_vla import TrainVlaSettings, main
from worldrl.methods.rl import filtered_cloning
from worldrl.methods.rl.improve import Improvement
from worldrl.methods.rl.starts import balanced
from worldrl.policies.exploration import ExplorationSettings
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.world_model.unseen_episodes import open_unseen
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.settings import compose
from worldrl.world_models.video.model import VideoWorldModel
from worldrl_envs.bimanual.control import NAMES

SCRIPT = Path(__file__).parent / "vla_script.py"
SMALL = (
    "rounds=2", "tasks=[PickRedCube]", "demonstrations=1", "cloning.steps=3", "cloning.checkpoint_every=1", "collection.policy_episodes=1",
    "scratch.expert_episodes=3", "scratch.training.codec_steps=2", "scratch.training.steps=2", "improvement.self_training.rollouts=4",
    "improvement.starts_per_task=1", "evaluation.episodes=1", "evaluation.verify=1", "improvement.trust.confidence_score=motion_agreement",
    "collection.expert_episodes=1", "planner=best_of_n", "planning.candidates=2", "planning.horizon=1", "collection.planner_episodes=1",
    "improvement.self_training.collected_share=0.3",
)  # fmt: skip
# Enough rollouts that some are imagined to succeed.
LARGER = (
    "seed=3", "rounds=2", "improvement.self_training.rollouts=12", "planner=cem", "planning.candidates=3", "planning.horizon=1",
    "collection.planner_episodes=1",
)  # fmt: skip
RATE = {"k", "n", "rate", "lo", "hi", "method"}


def check_run(run: Path) -> dict:
    """Check the contract of a finished run; return its metrics."""
    result = json.loads((run / "result.json").read_text())
    assert (result["schema"], result["command"], result["device"]) == (1, "train-vla", "cpu")
    for key in ("config_hash", "protocol_hash", "code", "packages", "seed", "wall_s", "peak_rss_mb"):
        assert result[key] is not None, key
    metrics = result["metrics"]
    assert metrics.keys() >= {"before", "after", "comparison", "verify", "rounds", "policy", "world_model"}
    for rate in (metrics["before"]["success"], metrics["after"]["success"], metrics["verify"]["imagined"]):
        assert rate.keys() == RATE
    assert metrics["comparison"]["paired"].keys() >= {"n", "both", "only_a", "only_b", "diff", "lo", "hi", "p"}
    assert list(metrics["stage_wall_s"])[:3] == ["01-demonstrations", "02-policy", "03-before"]
    assert metrics["stage_wall_s"].keys() == {folder.name for folder in (run / "stages").iterdir()}
    for part in metrics["rounds"]:
        names = {gate["name"] for gate in part["gates"]["gates"]}
        assert names == {"psnr", "action_swap_ratio", "static_psnr", "recall", "precision", "confirmed"}
        assert part["improve"]["imagined_before"].keys() == RATE
    TokenPolicy.load(run / metrics["policy"], "cpu")
    VideoWorldModel.load(run / metrics["world_model"])
    page = (run / "report.html").read_text()
    assert re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page) == []
    assert "url(http" not in page
    return metrics


def test_the_whole_loop_from_another_directory(run_python, tmp_path):
    """A gate stops it, as it must with an untrained model; with gates=warn the same run continues."""
    stopped = run_python("-m", "worldrl", "train-vla", "preset=tiny", "gates=stop", *SMALL, cwd=tmp_path)
    assert stopped.returncode == 3, stopped.stderr
    assert "continue with gates=warn" in stopped.stderr
    ended = run_python("-m", "worldrl", "train-vla", "preset=tiny", *SMALL, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [folder.name for folder in tmp_path.iterdir()] == ["runs"]
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("train-vla-tiny-")
    metrics = check_run(run)
    assert metrics["before"]["success"]["n"] == 1
    for number, part in enumerate(metrics["rounds"], start=1):
        assert part["idm"]["bound"] > 0
        assert [row["column"] for row in part["idm"]["errors"]][:3] == ["command.x", "command.y", "command.z"]
        InverseDynamics.load(run / "stages" / f"round-{number}-4-idm" / "idm")
    collected = [part["collection"]["success"].keys() for part in metrics["rounds"]]
    assert [sorted(sources) for sources in collected] == [
        ["blind_expert", "policy"],
        ["blind_expert", "imagined", "planner", "policy"],
    ]
    for part in metrics["planning"].values():
        assert (part["planner"], part["comparison"]["paired"]["n"]) == ("best_of_n", 1)
    assert "Real success with the planner best_of_n" in (run / "report.html").read_text()
    for folder in ("01-demonstrations", "round-1-1-practice", "round-2-1-practice"):
        with pytest.raises(SettingError, match="was trained on"):
            open_unseen([str(run / "stages" / folder / "dataset")], run / metrics["world_model"])
    assert "report.html" in ended.stderr.splitlines()[-1]
    before = {path: path.read_bytes() for path in (run / "stages").rglob("*") if path.is_file()}
    again = run_python("-m", "worldrl", "train-vla", "preset=tiny", *SMALL, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert {path: path.read_bytes() for path in (run / "stages").rglob("*") if path.is_file()} == before
    assert check_run(run) == metrics


def test_measured_hallucination_sets_the_share_of_rollouts_from_keyframes(monkeypatch, tmp_path):
    """The whole job twice, the same up to its gates, which find either the one or the other kind of imagined rollout confirmed."""
    given = {
        "preset": "tiny", "run_dir": str(tmp_path / "run"), "tasks": "[PickRedCube]", "demonstrations": "1", "cloning.steps": "3",
        "collection.policy_episodes": "2", "scratch.training.codec_steps": "1", "scratch.training.steps": "1",
        "scratch.training.outcome_steps": "1", "improvement.keyframe_schedule": "hallucination", "improvement.p_keyframe": "0.95",
        "improvement.self_training.rollouts": "32", "improvement.self_training.rows": "32", "improvement.self_training.group_size": "1",
        "improvement.starts_per_task": "2", "evaluation.episodes": "1", "evaluation.verify": "1",
    }  # fmt: skip
    execute, imagine_from_keyframes = checks.imagined_outcome, checks.keyframe_rollouts
    midway, confirmed_by_execution, drawn = [], {}, []

    def keyframe_rollouts(*args, **kwargs):
        midway.append(imagine_from_keyframes(*args, **kwargs))
        return midway[-1]

    def outcome(policy_rollouts, rule, simulator_backend):
        kind = "keyframe" if any(policy_rollouts is known for known in midway) else "initial"
        return execute(policy_rollouts, rule, simulator_backend) | {
            "precision": wilson(confirmed_by_execution[kind], 10)
        }

    def sample(records, count, generator):
        starts = balanced(records, count, generator)
        drawn.extend((records.p_keyframe, records.keyframe[number]) for number in starts.tolist())
        return starts

    monkeypatch.setattr(checks, "keyframe_rollouts", keyframe_rollouts)
    monkeypatch.setattr(checks, "imagined_outcome", outcome)
    monkeypatch.setattr(filtered_cloning, "balanced", sample)
    # h₀ / (h₀ + h₁) of h₀ = 0.9 and h₁ = 0.1, then of the contrary.
    for initial, keyframe, expected in ((1, 9, 0.9), (9, 1, 0.1)):
        confirmed_by_execution |= {"initial": initial, "keyframe": keyframe}
        drawn.clear()
        metrics = main(compose("train-vla", TrainVlaSettings, given))
        (part,) = metrics["rounds"]
        assert part["gates"]["keyframes"]["precision"]["k"] == keyframe
        assert part["improve"]["p_keyframe"] == pytest.approx(expected)
        assert {p for p, _ in drawn} == {part["improve"]["p_keyframe"]}
        assert len(drawn) == 32
        midway_share = sum(begun_midway for _, begun_midway in drawn) / len(drawn)
        assert midway_share == pytest.approx(expected, abs=0.2)  # the rollouts do as the probability says
        assert np.mean([begun for _, begun in drawn]) == pytest.approx(expected, abs=0.15)
        assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["rounds"] == metrics["rounds"]
        page = (tmp_path / "run" / "report.html").read_text()
        shown = page[page.index("Rollouts from keyframes, round 1") :][:600]
        assert f"{100 * expected:.0f}" in shown
        wrong = f"from initial states {100 - 10 * initial} %, from keyframes {100 - 10 * keyframe} %"
        assert wrong in shown
        for name in ("round-1-3-gates", "round-1-4-improve", "04-verify", "05-after"):
            shutil.rmtree(tmp_path / "run" / "stages" / name)
        (tmp_path / "run" / "result.json").unlink()


def test_a_round_that_loses_real_success_is_undone(monkeypatch, tmp_path):
    """The same run with a round that gains nothing, which is kept, and one that is said to lose."""
    given = {
        "preset": "tiny", "run_dir": str(tmp_path / "run"), "tasks": "[PickRedCube]", "demonstrations": "1", "cloning.steps": "3",
        "collection.policy_episodes": "2", "scratch.training.codec_steps": "1", "scratch.training.steps": "1",
        "scratch.training.outcome_steps": "1", "improvement.self_training.rollouts": "4", "improvement.starts_per_task": "1",
        "evaluation.episodes": "1", "evaluation.verify": "1",
    }  # fmt: skip
    kept = main(compose("train-vla", TrainVlaSettings, given))
    (part,) = kept["rounds"]
    assert (part["accept"]["kept"], part["accept"]["paired"]["n"]) == (True, 1)
    assert kept["policy"] == "stages/round-1-4-improve/policy"
    measured = tmp_path / "run" / "stages" / "round-1-5-accept"
    seeds = {
        read_json(folder / "evaluation.json")["protocol"]["seed"]
        for folder in (measured / "before", measured / "after")
    }
    assert len(seeds) == 1
    assert kept["before"]["protocol"]["seed"] not in seeds
    for name in ("round-1-5-accept", "04-verify", "05-after"):
        shutil.rmtree(tmp_path / "run" / "stages" / name)
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr(checks, "loses", lambda pair: True)
    undone = main(compose("train-vla", TrainVlaSettings, given))
    assert undone["policy"] == "stages/02-policy/policy"
    before, after = (tmp_path / "run" / "stages" / name / "evaluation" for name in ("03-before", "05-after"))
    for file in ("evaluation.json", "episodes.jsonl"):  # the same episodes with their times: none was run again
        assert (before / file).read_bytes() == (after / file).read_bytes()
    assert undone["comparison"]["a_hash"] == undone["comparison"]["b_hash"] != kept["comparison"]["b_hash"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Round 1 undone" in page
    assert "0 to 0 of 1 on training states" in page.replace("\xa0", " ")
    assert not (tmp_path / "run" / "stages" / "round-1-6-distil").exists()  # one policy is best in all tasks


def test_a_policy_that_is_better_in_each_task_is_distilled_from_two(monkeypatch, tmp_path):
    """The states of the accept stage decide; the distilled policy is the run's, unless it loses."""
    given = {
        "preset": "tiny", "run_dir": str(tmp_path / "run"), "tasks": "[PickRedCube,PickGreenCylinder]", "demonstrations": "1",
        "cloning.steps": "3", "collection.policy_episodes": "2", "scratch.training.codec_steps": "1",
        "scratch.training.steps": "1", "scratch.training.outcome_steps": "1", "improvement.self_training.rollouts": "4",
        "improvement.starts_per_task": "1", "evaluation.episodes": "1", "evaluation.verify": "1", "distillation.steps": "2",
    }  # fmt: skip
    better = {"PickRedCube": "before", "PickGreenCylinder": "after"}
    monkeypatch.setattr(combining, "better_by_task", lambda accept: {task: better[task] for task in accept["tasks"]})
    metrics = main(compose("train-vla", TrainVlaSettings, given))
    assert metrics["policy"] == "stages/round-1-6-distil/policy"
    (part,) = metrics["rounds"]
    assert (part["distil"]["better"], part["distil"]["kept"]) == (better, True)
    stage = tmp_path / "run" / "stages" / "round-1-6-distil"
    asked, measured = (
        read_json(folder / "evaluation.json")["protocol"]
        for folder in (tmp_path / "run" / "stages" / "round-1-5-accept" / "after", stage / "evaluation")
    )
    assert asked == measured
    parents = {entry["path"].split("/")[-2] for entry in read_json(stage / "policy" / "manifest.json")["parents"]}
    assert parents == {"02-policy", "round-1-4-improve"}
    assert "1 of 2 tasks distilled from the policy before it" in (tmp_path / "run" / "report.html").read_text()
    for name in ("round-1-6-distil", "04-verify", "05-after"):
        shutil.rmtree(tmp_path / "run" / "stages" / name)
    (tmp_path / "run" / "result.json").unlink()
    answers = iter([True])
    monkeypatch.setattr(checks, "loses", lambda pair: next(answers))  # the accept stage is finished
    left_out = main(compose("train-vla", TrainVlaSettings, given))
    assert left_out["policy"] == "stages/round-1-4-improve/policy"
    assert left_out["rounds"][0]["distil"]["kept"] is False


def timeless(value):
    """Drop every wall time."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if not key.endswith(("wall_s", "seconds_per_chunk"))}
    return [timeless(item) for item in value] if isinstance(value, list) else value


MOMENTS = (
    "episode:3",  # of the demonstrations
    "step:behaviour-cloning:7",  # two steps after a checkpoint
    "finish:02-policy",
    "finished:03-before",
    "episode:5",  # of the practice
    "step:codec:3",
    "step:dynamics-1:1",  # before the first checkpoint
    "finish:round-1-2-world-model",  # both trainings are finished, their stage is not
    "finish:round-1-3-gates",
    "batch:1",
    "step:improve-1-cloning-0:3",
    "finish:round-1-4-improve",
    "finish:round-2-1-practice",
    "finished:04-verify",
    "finished:06-planner-before",
    "result",
)


@pytest.mark.slow
def test_killed_everywhere_the_loop_ends_with_the_same_bits(run_python, tmp_path):
    """One run is left alone; the other dies sixteen times, at the boundaries of stages and within them."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ended = run_python(SCRIPT, whole, "none", *LARGER, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for moment in MOMENTS:
        ended = run_python(SCRIPT, cut, moment, *LARGER, cwd=tmp_path)
        assert ended.returncode == -9, f"{moment}: {ended.stderr}"
        assert not (cut / "result.json").exists()
    ended = run_python(SCRIPT, cut, "none", *LARGER, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    metrics = [check_run(run) for run in (whole, cut)]
    assert timeless(metrics[0]) == timeless(metrics[1])
    stages = sorted(folder.name for folder in (whole / "stages").iterdir())
    assert sorted(folder.name for folder in (cut / "stages").iterdir()) == stages
    for stage in stages:
        a, b = (json.loads((run / "stages" / stage / "stage.json").read_text())["summary"] for run in (whole, cut))
        assert timeless(a) == timeless(b), stage
    for name in ("policy", "world_model"):
        a, b = ((run / metrics[0][name] / "model.safetensors").read_bytes() for run in (whole, cut))
        assert a == b, name
    lines = [[(x["series"], x["step"], x["values"]) for x in read_metrics(run)] for run in (whole, cut)]
    assert lines[0] == lines[1]
    assert any(values.get("self_training/samples", 0) > 0 for _, _, values in lines[0])  # the policy really changed


@pytest.mark.parametrize("over", [{"gates": "maybe"}, {"held_out": 1.5}, {"rounds": 0}, {"workers": 0}])
def test_impossible_settings_are_refused(over):
    with pytest.raises(SettingError, match=next(iter(over))):
        TrainVlaSettings(**over)
    with pytest.raises(SettingError, match=r"collection\.noise"):
        CollectionSettings(noise=-1)
    with pytest.raises(SettingError, match=r"evaluation\.verify"):
        Evaluation(verify=0)


def test_displaced_waypoints_are_refused_where_nothing_can_learn_from_them():
    displaced = ExplorationSettings(waypoint_noise=0.2)
    assert TrainVlaSettings(improvement=Improvement(exploration=displaced)).improvement.exploration is displaced
    with pytest.raises(SettingError, match="waypoint_noise"):
        Improvement("grpo", exploration=displaced)
    with pytest.raises(SettingError, match="waypoint_noise"):
        TrainVlaSettings(policy=TokenPolicyConfig(waypoint=False), improvement=Improvement(exploration=displaced))


def test_a_codec_that_nothing_trains_is_refused():
    """Policies would learn from images that nobody can decode."""
    given = {"start": "scratch", "scratch.training.codec_steps": "0"}
    with pytest.raises(SettingError, match=r"codec would stay untrained.* give scratch\.training\.codec_steps above 0"):
        compose("train-vla", TrainVlaSettings, given)
    pixels = {"world_model.dynamics.kind": "edm_unet"}  # no codec stands between it and the image
    assert compose("train-vla", TrainVlaSettings, given | pixels).scratch.training.codec_steps == 0
    for other in ({"start": "bundled"}, {"backbone": "wan"}):  # where nothing trains it, it needs no steps
        with pytest.raises(SettingError, match=r"^scratch\.training\.codec_steps has no effect with"):
            compose("train-vla", TrainVlaSettings, given | other)


def test_a_cloning_out_of_range_is_reported_by_the_settings_own_name():
    with pytest.raises(SettingError, match=r"^cloning\.warmup_steps: must be below steps=3, got 50$"):
        compose("train-vla", TrainVlaSettings, {"cloning.steps": "3", "cloning.warmup_steps": "50"})
    with pytest.raises(SettingError, match=r"^improvement\.self_training\.cloning\.batch_size must be at least 1"):
        compose("train-vla", TrainVlaSettings, {"improvement.self_training.cloning.batch_size": "0"})


def test_a_practice_of_which_nothing_is_held_out_is_refused_before_anything_is_recorded(tmp_path):
    settings = TrainVlaSettings(run_dir=str(tmp_path / "run"), collection=CollectionSettings(1, 1, 0), held_out=0.2)
    with pytest.raises(SettingError, match=r"held_out: 0\.2 of 6 collected episodes is not one each"):
        main(settings)
    assert not (tmp_path / "run").exists()


def test_weights_of_another_robot_are_refused_before_anything_is_recorded(tmp_path):
    settings = TrainVlaSettings(run_dir=str(tmp_path / "run"), kind="bimanual")  # the bundled weights are of one arm
    with pytest.raises(SettingError, match="was made for another robot; use start=scratch"):
        main(settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"world_model.dynamics.chunk_length": 16, "start": "scratch"},
            "chunk_length is 8, the world model's .* is 16",
        ),
        ({"policy.chunk_length": 4}, r"chunk_length is 4, the world model's .* is 8 \(start=bundled\)"),
        ({"policy.image_size": 128}, "image_size is 128, the world model's .* is 64"),
        (
            {"backbone": "wan", "start": "scratch", "policy.image_size": 64},
            "image_size is 64, the world model's .* is 256",
        ),
    ],
)
def test_a_policy_that_does_not_fit_the_world_model_is_refused_before_anything_is_recorded(tmp_path, given, message):
    tokens = {name: str(value) for name, value in given.items()} | {"run_dir": str(tmp_path / "run")}
    with pytest.raises(SettingError, match=message):
        main(compose("train-vla", TrainVlaSettings, tokens))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # every stage of two rounds in a process of its own
def test_the_whole_loop_with_two_arms(run_python, tmp_path):
    """Fourteen joint targets and their own inverse dynamics, through every stage; resumed, nothing changes."""
    small = [part for part in SMALL if not part.startswith("tasks=")] + ["tasks=[BimanualOpenDrawer]"]
    ended = run_python("-m", "worldrl", "train-vla", "preset=tiny", "run_dir=run", *small, cwd=tmp_path, timeout=1200)
    assert ended.returncode == 0, ended.stderr
    metrics = check_run(tmp_path / "run")
    assert [row["column"] for row in metrics["rounds"][0]["idm"]["errors"]] == [f"command.{name}" for name in NAMES]
    assert TokenPolicy.load(tmp_path / "run" / metrics["policy"], "cpu").actions.names == NAMES
    assert len(VideoWorldModel.load(tmp_path / "run" / metrics["world_model"]).embodiment.actions.grippers) == 2
    again = run_python("-m", "worldrl", "train-vla", "preset=tiny", "run_dir=run", *small, cwd=tmp_path, timeout=1200)
    assert again.returncode == 0, again.stderr
    assert check_run(tmp_path / "run") == metrics
