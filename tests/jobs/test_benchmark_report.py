"""Units under test: ``jobs/benchmark_report.py``, ``jobs/benchmark_plan.py``, ``evaluation/report/store.py``."""

import csv
import json
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from worldrl.cli import USER_ERROR, main
from worldrl.core.types import Episode
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalResult, mean_score
from worldrl.evaluation.report.page import render
from worldrl.evaluation.report.store import load_report_data, publish
from worldrl.jobs.benchmark.report import Films, Measured, always_failing, choose_failures, failed_states, report_page
from worldrl.jobs.benchmark.tables import protocol_line, protocol_rows
from worldrl.recipes.run import open_run
from worldrl.rollout.real.episodes import EpisodeTiming
from worldrl.rollout.real.specs import EpisodeOutcome

TASKS = ("put_it_here", "put_it_there")
PROTOCOL = EvalProtocol(
    suite="libero_goal",
    suite_version="v0",
    tasks=TASKS,
    episodes_per_task=6,
    seed=0,
    horizon=dict.fromkeys(TASKS, 30),
    chunk_length=1,
    replan=1,
    control_hz=20.0,
    packages={"mujoco": "3.3.7"},
    initial_states="stored",
)


@dataclass
class Settings:
    run_dir: str


def result(failing, name):
    outcomes = []
    for spec in PROTOCOL.specs():
        solved = spec.index not in failing[spec.task]
        outcomes.append(EpisodeOutcome(spec, solved, solved and spec.index != 5, 12, 12 if solved else None))
    return EvalResult(PROTOCOL, name, name, tuple(outcomes))


def episode(spec):
    steps = 12
    return Episode(
        frames=np.random.default_rng(0).integers(0, 255, (steps + 1, 1, 16, 16, 3)).astype(np.uint8),
        state=np.zeros((steps + 1, 8), np.float32),
        command=np.zeros((steps + 1, 7), np.float32),
        action=np.zeros((steps, 7), np.float32),
        reward=np.zeros(steps, np.float32),
        contact=np.zeros(steps + 1, bool),
        terminated=False,
        truncated=True,
        instruction="put it there",
        task=spec.task,
        meta=spec.to_json(),
    )


@pytest.fixture
def measured():
    first = result({"put_it_here": {1}, "put_it_there": {0, 2, 3}}, "expert")
    second = result({"put_it_here": set(), "put_it_there": {2, 3}}, "other")
    chosen = choose_failures(first, 3)
    score = mean_score([first, second], generator=np.random.default_rng(0))
    failures = [episode(first.outcomes[at].spec) for at in chosen]
    extra = {"assets_note": "stand-in bowl"}
    return Measured("libero_goal", first, [second], score, Films(failures), EpisodeTiming(3.0, 40.0, 144), extra)


def published(measured, folder):
    with open_run("benchmark", Settings(str(folder))) as run:
        return publish(run, report_page(measured, folder, wall_s=run.wall_s, seed=0, device="cpu", workers=2))


def test_failures_are_taken_from_the_tasks_in_turn(measured):
    specs = [measured.result.outcomes[at].spec for at in choose_failures(measured.result, 3)]
    assert [(spec.task, spec.index) for spec in specs] == [(TASKS[0], 1), (TASKS[1], 0), (TASKS[1], 2)]
    assert choose_failures(measured.result, 0) == []
    assert failed_states(measured.result, TASKS[1]) == [0, 2, 3]
    assert always_failing([measured.result, *measured.others], TASKS[1]) == [2, 3]


def test_the_page_says_rates_states_failures_cost_and_whose_assets(measured, tmp_path):
    page = published(measured, tmp_path).read_text()
    for text in (
        "expert solves 66.7",
        "8 of 12",
        "stand-in bowl",
        "This is not a libero_goal result",
        "5 of 6",  # task 1
        "0, 2, 3",
        "Initial states that always fail",
        "Checked 2 results",
        "worker-hours",
        "policy: decisions",
        "95\u00a0% Wilson",
        "mujoco",
    ):
        assert text in page, text
    assert page.count("data:image/png;base64") == 3
    assert "not compared" not in page
    assert "Not recorded: how many" not in page
    assert render(load_report_data(tmp_path)) == page


def test_the_whole_protocol_is_on_the_page_and_its_numbers_on_the_console(measured, tmp_path):
    published(measured, tmp_path)
    (table,) = (table for table in load_report_data(tmp_path).tables if table.title.startswith("Protocol"))
    assert table.title == f"Protocol {PROTOCOL.hash}"
    shown = dict(table.rows)
    assert shown["tasks"] == "put_it_here, put_it_there"
    assert shown["horizon"] == "30 (every task)"
    assert (shown["packages: mujoco"], shown["temperature"], shown["episodes_per_task"]) == ("3.3.7", "none", "6")
    other = replace(PROTOCOL, conventions={"settle_steps": 10}, horizon={TASKS[0]: 30, TASKS[1]: 40})
    shown = dict(protocol_rows(other))
    assert shown["conventions: settle_steps"] == "10"
    assert (shown["horizon: put_it_here"], shown["horizon: put_it_there"]) == ("30", "40")
    assert {name.split(":")[0] for name in shown} == {field.name for field in fields(EvalProtocol)}
    line = protocol_line(PROTOCOL, tmp_path)
    assert line.startswith(f"protocol {PROTOCOL.hash}: ")
    assert "chunk_length 1" in line
    assert line.endswith(str(tmp_path / "evaluation.json"))


def test_advice_is_a_table_in_three_forms_and_needs_no_policy(tmp_path, capsys):
    run = ["benchmark", f"run_dir={tmp_path / 'plan'}"]
    assert main([*run, "plan.diff=0.1"]) == 0
    rows = json.loads((tmp_path / "plan" / "result.json").read_text())["metrics"]["rows"]
    assert [row["rate"] for row in rows] == [0.5, 0.7, 0.8, 0.9]
    assert rows[0]["unpaired"] == 388
    for row in rows:
        assert row["paired"] < row["sequential_max"]
    # Where every discordant pair falls to one side (90 against 100 %), one test at the end needs fewest episodes.
    assert [row["sequential_episodes"] < row["paired"] for row in rows] == [True, True, True, False]
    table = list(csv.DictReader((tmp_path / "plan" / "plan.csv").read_text().splitlines()))
    assert [int(row["paired"]) for row in table] == [row["paired"] for row in rows]
    assert f"| {rows[0]['paired']} | 388 |" in (tmp_path / "plan" / "plan.md").read_text()
    assert "difference of 10 points" in capsys.readouterr().err.replace("\n", " ")


def test_a_plan_may_be_asked_for_by_a_flag(tmp_path, capsys):
    assert main(["benchmark", "--plan", "diff=0.1", f"run_dir={tmp_path / 'flag'}"]) == 0
    assert main(["benchmark", "plan.diff=0.1", f"run_dir={tmp_path / 'dotted'}"]) == 0
    for diff, code in ((0.6, 0), (1.0, USER_ERROR)):  # larger than the rates that are usually shown leave room for
        assert main(["benchmark", f"plan.diff={diff}", f"run_dir={tmp_path / str(diff)}"]) == code
    flag, dotted = (json.loads((tmp_path / name / "result.json").read_text())["metrics"] for name in ("flag", "dotted"))
    assert flag == dotted
    for bad, said in ((["--plan"], "--plan diff=0.05"), (["--plans", "diff=0.1"], "'--plans'")):
        assert main(["benchmark", *bad]) == 2
        assert said in capsys.readouterr().err


def test_neither_a_policy_nor_a_plan_is_exit_code_2(tmp_path, capsys):
    assert main(["benchmark", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "give policy=FOLDER" in capsys.readouterr().err
    assert main(["benchmark", "plan.diff=0.6", "plan.rate=0.7", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "rate + diff <= 1" in capsys.readouterr().err
