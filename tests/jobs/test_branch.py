"""``branch.*`` of ``worldrl train-vla``: a run that takes stages of another one is the run that made them itself."""

import json
import shutil
from dataclasses import replace

import pytest

from worldrl.core.errors import RunDirectoryError, SettingError
from worldrl.jobs.vla import branch as branch_module
from worldrl.jobs.vla.branch import FIRST, LAST, READ_ONCE, Branch, position, precedes
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.jobs.vla.train_vla import main
from worldrl.settings import as_plain, compose

GIVEN = {
    "preset": "tiny", "rounds": "2", "tasks": "[PickRedCube]", "demonstrations": "1", "cloning.steps": "3",
    "collection.policy_episodes": "1", "collection.expert_episodes": "1", "scratch.expert_episodes": "3",
    "scratch.training.codec_steps": "2", "scratch.training.steps": "2", "scratch.training.outcome_steps": "1",
    "improvement.self_training.rollouts": "4", "improvement.starts_per_task": "1", "evaluation.episodes": "1",
    "evaluation.verify": "1", "workers": "1",
}  # fmt: skip
ROUND_2 = "round-2-1-practice"


def settings(run, **given):
    return compose("train-vla", TrainVlaSettings, {**GIVEN, "run_dir": str(run), **given})


def branched(run, of, stage, **given):
    return settings(run, **{"branch.run": str(of), "branch.stage": stage, **given})


def without_times(value):
    """Metrics but for what a branch and the clock add."""
    if isinstance(value, dict):
        own = {name: part for name, part in value.items() if name not in ("branch", "stage_wall_s", "run_wall_s")}
        return {name: without_times(part) for name, part in own.items() if not name.endswith("wall_s")}
    return [without_times(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two rounds."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, main(settings(run))


def test_a_round_more_is_the_run_of_as_many_rounds(whole, tmp_path):
    """One round of a run of two, then the second one again: the same numbers and the same policy, bit for bit."""
    run, expected = whole
    one = main(branched(tmp_path / "one", run, ROUND_2, rounds="1"))
    assert len(one["rounds"]) == 1
    assert not (tmp_path / "one" / "stages" / ROUND_2).exists()
    two = main(branched(tmp_path / "two", tmp_path / "one", ROUND_2))
    assert without_times(two) == without_times(expected)
    for part in (expected["policy"], expected["world_model"]):
        files = {file.name: file.read_bytes() for file in (run / part).iterdir() if file.suffix == ".safetensors"}
        assert files
        assert {
            file.name: file.read_bytes() for file in (tmp_path / "two" / part).iterdir() if file.name in files
        } == files
    assert two["branch"]["changed"] == {"rounds": ["1", "2"]}
    assert "round-1-4-improve" in two["branch"]["taken"]
    assert "05-after" not in two["branch"]["taken"]
    assert "copies from" in (tmp_path / "two" / "report.html").read_text()
    times = two["stage_wall_s"]
    assert all(seconds >= 0 for seconds in times.values())
    assert times["02-policy"] == expected["stage_wall_s"]["02-policy"]


def test_an_interrupted_copy_resumes(whole, tmp_path, monkeypatch):
    run, expected = whole
    folder_of, copied = branch_module.atomic_folder, []

    def interrupted(path, **given):
        copied.append(path.name)
        if len(copied) == 3:
            raise KeyboardInterrupt
        return folder_of(path, **given)

    monkeypatch.setattr(branch_module, "atomic_folder", interrupted)
    asked = branched(tmp_path / "run", run, "04-verify")
    with pytest.raises(KeyboardInterrupt):
        main(asked)
    assert sorted(folder.name for folder in (tmp_path / "run" / "stages").iterdir()) == ["00-branch", *copied[:2]]
    assert without_times(main(asked)) == without_times(expected)
    before = len(copied)
    main(asked)
    assert len(copied) == before


@pytest.mark.parametrize(
    ("given", "stage", "words"),
    [
        (
            {"cloning.steps": "4"},
            "03-before",
            r"have read settings that differ: cloning\.steps: 3 -> 4 \(02-policy\); give",
        ),
        (
            {"seed": "1", "policy.width": "40"},
            "round-2-4-improve",
            r"differ: seed: 0 -> 1 \(01-demonstrations\), policy\.width: 16 -> 40 \(02-policy\); give",
        ),
        ({"held_out": "0.6"}, "round-1-2-world-model", r"held_out: 0\.5 -> 0\.6 \(round-1-1-practice\)"),
        ({"rounds": "3"}, "01-demonstrations", r"has no finished stage before 01-demonstrations"),
    ],
)
def test_what_a_copied_stage_has_read_cannot_change(whole, tmp_path, given, stage, words):
    with pytest.raises((SettingError, RunDirectoryError), match=words):
        main(branched(tmp_path / "run", whole[0], stage, **given))
    assert not (tmp_path / "run" / "config.yaml").exists()  # free for the corrected settings


def test_settings_that_are_read_later_may_change(whole, tmp_path):
    given = {"improvement.self_training.rollouts": "8", "target_precision": "0.7"}
    metrics = main(branched(tmp_path / "run", whole[0], "round-2-2-world-model", **given))
    assert metrics["branch"]["changed"] == {
        "target_precision": ["None", "0.7"],
        "improvement.self_training.rollouts": ["4", "8"],
    }
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["branch"]["run"] == whole[0].name


def test_a_confidence_score_of_later_rounds_alone(whole, tmp_path):
    given = {"improvement.trust.confidence_score": "motion_agreement"}
    metrics = main(branched(tmp_path / "run", whole[0], "round-2-4-improve", **given))
    assert ["idm" in part for part in metrics["rounds"]] == [False, True]
    assert not (tmp_path / "run" / "stages" / "round-1-4-idm").exists()


def test_only_a_whole_run_of_train_vla_is_taken_from(whole, tmp_path):
    with pytest.raises(RunDirectoryError, match="is no run directory of train-vla"):
        main(branched(tmp_path / "run", tmp_path, ROUND_2))
    damaged = tmp_path / "damaged"
    shutil.copytree(whole[0], damaged)
    file = damaged / "stages" / "02-policy" / "stage.json"
    file.write_text(file.read_text().replace('"run_wall_s": ', '"run_wall_s": 1'))
    with pytest.raises(RunDirectoryError, match=r"02-policy.stage\.json"):
        main(branched(tmp_path / "run", damaged, ROUND_2))


def test_the_order_of_stages():
    assert precedes("round-2-4-improve", "round-10-1-practice", recorded=False)
    assert precedes("round-1-4-grasp", "round-1-4-improve", recorded=False)
    assert precedes("01-looks", "02-policy", recorded=False)
    assert not precedes("03-before", "round-1-3-gates", recorded=True)
    assert precedes("03-before", "round-1-4-improve", recorded=True)
    assert not precedes("notes", "05-after", recorded=False)
    names = [*FIRST, "round-1-1-practice", "round-9-4-improve", *LAST]
    assert sorted(names, key=position) == names


def test_settings_read_once_exist():
    """A renamed setting would silently be free to change."""
    plain = as_plain(TrainVlaSettings())
    for key in READ_ONCE:
        value = plain
        for part in key.split("."):
            value = value[part]
    assert all(position(stage) is not None for stage in READ_ONCE.values())


def test_half_a_request_and_unknown_stages_are_refused():
    for given in ({"run": "runs/a"}, {"stage": ROUND_2}):
        with pytest.raises(SettingError, match=r"branch\.run and branch\.stage: give both"):
            Branch(**given)
    with pytest.raises(SettingError, match=r"unknown stage .round-1-4-improv.; .*round-1-4-improve"):
        Branch("runs/a", "round-1-4-improv")
    with pytest.raises(SettingError, match="unknown stage"):
        replace(Branch("runs/a", ROUND_2), stage="round-0-1-practice")
