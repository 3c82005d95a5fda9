"""Unit under test: ``worldrl/runs/curves.py`` and ``worldrl curves``: groups, common steps, intervals, refusals."""

import csv

import numpy as np
import pytest
from scipy import stats

from worldrl import cli
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.runs.curves import grouped, on_common_steps, whole_name
from worldrl.runs.reading import find_runs


@pytest.fixture
def four(make_run, write_metrics):
    """Two algorithms, three seeds and one; value = step + seed, the second algorithm's ten more."""
    for name, algorithm, seed, more in (("a0", "x", 0, 0), ("a1", "x", 1, 0), ("a2", "x", 2, 0), ("b0", "y", 0, 10)):
        run = make_run(name, command="train-offline", algorithm=algorithm, seed=seed, threads=seed, agent={"tau": 0.1})
        write_metrics(run, [{"eval/return": k + seed + more, "loss": 1 / (k + 1)} for k in range(5)])


def test_runs_that_differ_in_seed_alone_are_one_line_with_students_interval(four, folder):
    name, (x, y) = grouped(folder, find_runs(folder), "return")
    assert name == "cloning/eval/return"
    assert (x.name, y.name) == ("algorithm=x", "algorithm=y")
    assert x.seeds == ["0", "1", "2"]
    np.testing.assert_allclose(x.mean, np.arange(5) + 1.0)
    half = stats.t.ppf(0.975, 2) * 1.0 / np.sqrt(3)  # values k, k+1, k+2 have deviation 1
    np.testing.assert_allclose(x.bands(), [(k, k + 1 - half, k + 1 + half) for k in range(5)])
    assert y.bands() == []


def test_by_groups_by_these_settings_alone(four, folder):
    runs = find_runs(folder)
    assert [group.name for group in grouped(folder, runs, "loss", ["seed"])[1]] == ["seed=0", "seed=1", "seed=2"]
    assert len(grouped(folder, runs, "loss", ["agent.tau"])[1][0].runs) == 4
    with pytest.raises(SettingError, match=r"no run has a setting 'algorithms'.*algorithm"):
        grouped(folder, runs, "loss", ["algorithms"])


def test_a_run_without_a_setting_is_a_line_of_its_own(four, folder, make_run, write_metrics):
    write_metrics(make_run("old", command="train-offline", seed=7), [{"loss": 1.0}] * 3)
    lines = grouped(folder, find_runs(folder), "loss")[1]
    assert [line.name for line in lines] == ["algorithm=unset", "algorithm=x", "algorithm=y"]


def test_lines_are_named_by_the_fewest_settings_that_tell_them_apart(make_run, write_metrics, folder):
    for name, lr, steps in (("a", 1, 10), ("b", 2, 20)):
        write_metrics(make_run(name, command="train-policy", learning_rate=lr, steps=steps), [{"loss": 1.0}] * 2)
    assert [group.name for group in grouped(folder, find_runs(folder), "loss")[1]] == ["steps=10", "steps=20"]


def test_common_steps_are_the_fewest_inside_the_range_of_all():
    dense, sparse = [(k, 2.0 * k) for k in range(21)], [(4, 1.0), (8, 5.0), (30, float("nan")), (40, 9.0)]
    steps, values = on_common_steps([dense, sparse], "x")
    np.testing.assert_allclose(steps, [4, 8])
    np.testing.assert_allclose(values, [[8, 16], [1, 5]])


def test_values_between_own_steps_are_interpolated():
    _, values = on_common_steps([[(0, 0.0), (10, 10.0)], [(0, 1.0), (5, 2.0), (10, 3.0)]], "x")
    np.testing.assert_allclose(values, [[0, 10], [1, 3]])


@pytest.mark.parametrize("other", [[(30, 1.0), (40, 1.0)], [(1, float("nan"))], []])
def test_runs_without_common_steps_are_refused(other):
    with pytest.raises(ArtefactError, match="x: "):
        on_common_steps([[(0, 1.0), (20, 1.0)], other], "x")


def test_a_metric_is_found_by_its_end_and_no_part_of_a_word():
    held = {"a": {"s/eval/return": [], "s/loss": []}, "b": {"t/loss": [], "loss": []}}
    assert whole_name(held, "return") == "s/eval/return"
    assert whole_name(held, "loss") == "loss"
    for metric, why in (
        ("returns", "did you mean 'return'"),
        ("turn", "no run has a curve 'turn'"),
        ("", "give one of loss, s/eval/return"),
        ("zzz", "there are loss"),
    ):
        with pytest.raises(SettingError, match=why):
            whole_name(held, metric)
    with pytest.raises(SettingError, match=r"fits several curves; give one of s/x, t/x"):
        whole_name({"a": {"s/x": [], "t/x": []}}, "x")
    with pytest.raises(SettingError, match="no run that it keeps has a curve"):
        whole_name({}, "x")


def test_the_command_writes_page_and_table_and_names_repeated_seeds(four, folder, make_run, write_metrics, capsys):
    write_metrics(make_run("a2-again", command="train-offline", algorithm="x", seed=2, threads=9, agent={"tau": 0.1}), [{"eval/return": 3.0}] * 5)  # fmt: skip
    assert cli.main(["curves", "eval/return", f"folder={folder}"]) == 0
    captured = capsys.readouterr()
    assert "algorithm=x" in captured.err
    assert "algorithm=x: a seed occurs in several runs" in " ".join(captured.err.split())
    page = (folder / "curves.html").read_text()
    assert "<polygon" in page
    assert "algorithm=y" in page
    with (folder / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 5
    assert {row["value"] for row in rows if row["run"] == "b0"} == {"10.0", "11.0", "12.0", "13.0", "14.0"}


@pytest.mark.parametrize("words", [["eval/returns"], [], ["loss", "by=[no]"], ["loss", "filter=algorithm=z"]])
def test_a_users_mistake_is_one_line_and_writes_nothing(four, folder, capsys, words):
    assert cli.main(["curves", *words, f"folder={folder}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (folder / "curves.html").exists()
