"""Unit under test: ``worldrl/runs/listing.py`` and the command's table: filter, differing settings, texts of strangers."""

import sys

import pytest

from worldrl import cli
from worldrl.core.storage.log import console
from worldrl.runs.listing import chosen, differing
from worldrl.runs.reading import find_runs

RATE = {"k": 3, "n": 4, "rate": 0.75, "lo": 0.30, "hi": 0.95, "method": "wilson"}


@pytest.fixture
def three(make_run):
    make_run("a", command="train-vla", improvement={"rounds": 3}, seed=0, tasks=["x", "y"], metrics={"success": RATE})
    make_run("b", command="train-vla", improvement={"rounds": 2}, seed=0, tasks=["x", "y"], own=1)
    make_run("c", command="collect", seed=5, typed="worldrl collect seed=5 run_dir=c")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", "abc"), ("rounds=3", "a"), ("improvement.rounds=3", "a"), ("ounds=3", ""), ("rounds=3 seed=1", ""),
        ("seed=0", "ab"), ("tasks=[x,y]", "ab"), ("state=finished", "a"), ("command=collect", "c"), ("COLLECT", "c"),
        ("train seed=0", "ab"), ("name=b", "b"),
    ],
)  # fmt: skip
def test_filters(three, folder, words, names):
    assert "".join(sorted(run.name for run in chosen(find_runs(folder), words))) == names


def test_settings_in_which_runs_of_a_command_differ_or_those_typed(three, folder):
    found = differing(find_runs(folder))
    assert found == {"a": {"improvement.rounds": "3"}, "b": {"improvement.rounds": "2"}, "c": {"seed": "5"}}


@pytest.fixture
def table(capsys, monkeypatch):
    monkeypatch.setattr(console(), "_width", 200)

    def print_table(*words):
        assert cli.main(["runs", *words]) == 0
        return capsys.readouterr().err.replace("\xa0", " ")

    return print_table


@pytest.mark.parametrize("spelling", [("--table",), ("table=true",)])
def test_the_table_on_the_terminal(three, folder, table, spelling):
    said = table(str(folder), *spelling, "filter=train-vla")
    assert "2 of 3 runs in" in said
    assert "75 % [30, 95] (3/4)" in said
    assert "rounds=2" in said
    assert table(*spelling, f"folder={folder}").count("finished") == 1


def test_texts_of_strangers_steer_no_terminal(make_run, folder, table):
    make_run("[red]one", typed="worldrl \x1b[2J x=[bold]1", a="\x1b]0;title\x07")
    (folder / "[red]one" / "config.yaml").write_text("a: [")
    said = table(str(folder), "--table")
    assert "[red]one" in said
    assert "\x1b" not in said
    assert "config.yaml: damaged" in said


def test_no_folder_and_a_run_itself_are_one_line(make_run, folder, capsys):
    make_run("one")
    for path, why in ((folder / "none", "is no folder"), (folder / "one", "is itself a run directory")):
        assert cli.main(["runs", str(path), "--table"]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1


def test_the_page_of_no_folder_is_refused_before_it_is_served(folder, capsys):
    pytest.importorskip("uvicorn", reason="the extra play brings it")
    assert cli.main(["runs", str(folder)]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_without_the_web_packages_the_table_is_printed_and_the_page_names_the_extra(
    make_run, folder, table, monkeypatch, capsys
):
    make_run("one")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "one" in table(str(folder), "--table")
    assert cli.main(["runs", str(folder)]) == 2
    assert "pip install -c constraints.txt -e '.[play]'" in capsys.readouterr().err
