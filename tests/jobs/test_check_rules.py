import csv
import json

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, RunDirectoryError, SettingError
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.jobs.data import check_rules
from worldrl.jobs.data.check_rules import CheckRulesSettings

STEPS = 6
STORED = {"init_id": None, "instruction": None, "style": "default"}
RULES = """
rules:
  above_the_table: always(z >= 0.02)
  slow: always(abs(rate(x)) <= 0.5)
  lifts: always(implies(contact, eventually(z >= 0.1, 0, 0.2)))
  opens: eventually(opening >= 0.03)
"""


def episode_of(make, number, *, heights, contact_at=None):
    """An episode whose tool is at these heights (m), and does not move sideways."""
    state = np.zeros((STEPS + 1, 8), np.float32)
    state[:, 2] = heights
    state[:, 6], state[:, 7] = 0.02, -0.02
    contact = np.zeros(STEPS + 1, bool)
    if contact_at is not None:
        contact[contact_at] = True
    meta = {"seed": 0, "index": number, "source": "test", "task": "PickRedCube", **STORED}
    return make(number, STEPS, state=state, contact=contact, meta=meta)


@pytest.fixture
def record(tmp_path, push_episode, robot, monkeypatch):
    """Write episodes of the given heights and moments of contact, and return the folder."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)

    def write(name, *cases):
        folder = tmp_path / name / "dataset"
        with LeRobotWriter(folder, fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
            for number, (heights, contact_at) in enumerate(cases):
                writer.add_episode(episode_of(push_episode, number, heights=heights, contact_at=contact_at))
        return str(folder)

    return write


@pytest.fixture
def rules(tmp_path):
    (tmp_path / "rules.yaml").write_text(RULES)
    return str(tmp_path / "rules.yaml")


def test_counts_the_episodes_that_break_each_rule(record, rules, tmp_path, capsys):
    data = record("data", ([0.2] * 7, None), ([0.2, 0.2, 0.01, 0.2, 0.2, 0.2, 0.2], 2), ([0.05] * 7, 3))
    metrics = check_rules.main(CheckRulesSettings(rules=rules, data=[data], run_dir=str(tmp_path / "run")))
    counts = {name: (found["data"]["broken"]["k"], found["data"]["broken"]["n"]) for name, found in metrics.items()}
    assert counts == {"above_the_table": (1, 3), "slow": (0, 3), "lifts": (1, 3), "opens": (0, 3)}
    lowest = metrics["above_the_table"]["data"]["lowest"]
    assert (lowest["episode"], lowest["task"]) == (1, "PickRedCube")
    assert lowest["robustness"] == pytest.approx(-0.01)
    assert metrics["lifts"]["data"]["lowest"]["robustness"] == pytest.approx(-0.05)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["rules"] == metrics
    rows = list(csv.DictReader((tmp_path / "run" / "robustness.csv").read_text().splitlines()))
    assert len(rows) == 12
    assert [row["broken"] for row in rows if row["rule"] == "above_the_table"] == ["0", "1", "0"]
    page = (tmp_path / "run" / "report.html").read_text().replace("\xa0", " ")
    assert "The rule broken most often is above_the_table, by 1 of 3 episodes." in page
    assert "33 % [6, 79] (1/3)" in capsys.readouterr().err.replace("\xa0", " ")


def test_two_recordings_of_the_same_scenes_are_compared_pair_by_pair(record, rules, tmp_path, capsys):
    low, high = [0.01] * 7, [0.2] * 7
    before, after = record("before", *[(low, None)] * 4), record("after", *[(high, None)] * 3, (low, None))
    settings = {"rules": rules, "data": [after], "against": [before]}
    metrics = check_rules.main(CheckRulesSettings(**settings, run_dir=str(tmp_path / "run")))
    change = metrics["above_the_table"]["difference"]
    assert (change["n"], change["only_a"], change["only_b"], change["diff"]) == (4, 3, 0, -0.75)
    assert "-75.0" in capsys.readouterr().err.replace("\N{MINUS SIGN}", "-")
    settings["against"] = [record("fewer", (low, None))]
    metrics = check_rules.main(CheckRulesSettings(**settings, run_dir=str(tmp_path / "other")))
    assert "difference" not in metrics["above_the_table"]
    assert metrics["above_the_table"]["against"]["broken"]["k"] == 1


def test_a_page_says_that_no_episode_breaks_a_rule(record, rules, tmp_path):
    settings = CheckRulesSettings(rules=rules, data=[record("data", ([0.2] * 7, 2))], run_dir=str(tmp_path / "run"))
    check_rules.main(settings)
    assert "No rule is broken in 1 episode." in (tmp_path / "run" / "report.html").read_text().replace("\xa0", " ")


def test_wrong_inputs_are_refused_before_an_episode_is_read(record, rules, tmp_path, monkeypatch):
    monkeypatch.setattr(check_rules, "robustness_of", lambda *_: pytest.fail("episodes were read"))
    data, run_dir = record("data", ([0.2] * 7, None)), str(tmp_path / "run")
    (tmp_path / "other.yaml").write_text("rules: {a: always(zed >= 1), b: always(contact >= 1)}")
    with pytest.raises(SettingError, match=r"rules\.a: no signal 'zed'"):
        check_rules.main(CheckRulesSettings(rules=str(tmp_path / "other.yaml"), data=[data], run_dir=run_dir))
    with pytest.raises(ArtefactError):
        check_rules.main(CheckRulesSettings(rules=rules, data=[str(tmp_path / "absent")], run_dir=run_dir))
    with pytest.raises(SettingError, match="data: name at least one"):
        check_rules.main(CheckRulesSettings(rules=rules, data=[], run_dir=run_dir))
    assert not (tmp_path / "run").exists()


def test_a_window_may_be_as_short_as_the_recordings_frames(record, rules, tmp_path):
    (tmp_path / "rules.yaml").write_text("rules: {soon: 'eventually(z >= 0.1, 0.1, 0.15)'}")
    settings = CheckRulesSettings(rules=rules, data=[record("data", ([0.2] * 7, None))], run_dir=str(tmp_path / "run"))
    assert check_rules.main(settings)["soon"]["data"]["broken"]["k"] == 0


def test_a_rule_that_decides_nothing_is_refused_with_its_episode(record, rules, tmp_path):
    (tmp_path / "rules.yaml").write_text("rules: {ratio: always(x / y >= 1)}")
    settings = CheckRulesSettings(rules=rules, data=[record("data", ([0.2] * 7, None))], run_dir=str(tmp_path / "run"))
    with pytest.raises(SettingError, match=r"rules\.ratio: is undecided in episode 0"):
        check_rules.main(settings)


def test_a_changed_rule_needs_another_run_directory(record, rules, tmp_path):
    settings = CheckRulesSettings(rules=rules, data=[record("data", ([0.2] * 7, None))], run_dir=str(tmp_path / "run"))
    check_rules.main(settings)
    check_rules.main(settings)
    (tmp_path / "rules.yaml").write_text(RULES.replace("0.02", "0.03"))
    with pytest.raises(RunDirectoryError, match="choose a new run_dir"):
        check_rules.main(settings)


def test_two_arms_have_signals_by_the_names_of_their_joints(two_armed_data, tmp_path):
    (tmp_path / "rules.yaml").write_text("rules: {still: always(norm(rate(left_joint1)) <= 0.0001)}")
    settings = CheckRulesSettings(
        rules=str(tmp_path / "rules.yaml"), data=[two_armed_data], run_dir=str(tmp_path / "run")
    )
    found = check_rules.main(settings)
    assert found["still"]["data"]["broken"]["n"] == 2
