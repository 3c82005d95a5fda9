import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.jsonfile import digest
from worldrl.evaluation.report.model import Curve, Filmstrip, Gate, ReportData, Table
from worldrl.evaluation.report.page import render
from worldrl.evaluation.report.store import from_run_dir, load_report_data, publish, save_report_data
from worldrl.recipes.run import open_run


def edit(folder, change):
    """Change the file as a program would, which makes the digest right again."""
    path = folder / "report.json"
    raw = json.loads(path.read_text())
    change(raw)
    raw["digest"] = digest(raw.get("data"))
    path.write_text(json.dumps(raw))


def test_a_changed_number_is_named(data, tmp_path):
    save_report_data(data, tmp_path)
    path = tmp_path / "report.json"
    raw = json.loads(path.read_text())
    raw["data"]["gates"][0]["threshold"] = "0.5"
    path.write_text(json.dumps(raw))
    with pytest.raises(ArtefactError, match=r"report.json: data is not what was written .* run the job again"):
        load_report_data(tmp_path)


def test_the_page_of_the_saved_data_is_the_same_page(data, tmp_path):
    save_report_data(data, tmp_path)
    loaded = load_report_data(tmp_path)
    assert render(loaded) == render(data)
    for strip, again in zip(data.filmstrips, loaded.filmstrips, strict=True):
        assert list(strip.rows) == list(again.rows)
        for name in strip.rows:
            assert np.array_equal(strip.rows[name], again.rows[name])
    assert loaded.videos[0].mp4 == data.videos[0].mp4


def test_tables_sections_and_the_statement_round_trip(data, tmp_path):
    given = dataclasses.replace(
        data,
        sentence="Measured.",
        sections=("measurements", "curves"),
        tables=[Table("t", ("a", "b"), [("1", "2"), ("3", "4")], "note")],
    )
    save_report_data(given, tmp_path)
    assert render(load_report_data(tmp_path)) == render(given)
    edit(tmp_path, lambda raw: raw["data"]["tables"][0]["rows"][1].pop())
    with pytest.raises(ArtefactError, match="one per header"):
        load_report_data(tmp_path)


@dataclasses.dataclass
class Settings:
    run_dir: str
    seed: int = 0


def test_a_published_page_says_which_run_it_is_of_and_keeps_its_own_facts(data, tmp_path):
    with open_run("report", Settings(str(tmp_path))) as run:
        given = dataclasses.replace(data, configuration={}, provenance={"device": "cpu"}, versions={"suite: x": "1"})
        page = publish(run, given).read_text(encoding="utf-8")
        saved = load_report_data(tmp_path)
        assert list(saved.provenance.items()) == [
            ("command", run.resume_command), ("config hash", run.config_hash[:16]), ("device", "cpu")
        ]  # fmt: skip
        assert saved.configuration == run.config
    assert list(saved.versions)[-1] == "suite: x"
    assert {"mujoco", "torch"} <= set(saved.versions)
    assert page == render(saved)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_nothing_at_all_round_trips(tmp_path):
    empty = ReportData(title="nothing")
    save_report_data(empty, tmp_path)
    assert render(load_report_data(tmp_path)) == render(empty)


def test_what_is_not_finite_round_trips_as_not_measured(tmp_path):
    odd = ReportData(
        "odd",
        curves=[Curve("c", "x", "y", {"a": [(0, 1.0), (1, math.nan), (2, 3.0)]})],
        gates=[Gate("g", math.nan, 1.0, False)],
        filmstrips=[
            Filmstrip(
                "s",
                "",
                {"real": np.zeros((2, 4, 4, 3), np.uint8), "imagined": np.zeros((0, 4, 4, 3), np.uint8)},
                ["a", "b"],
            )
        ],
        configuration={"scale": np.float32(0.5), "nested": {"empty": {}}},
    )
    save_report_data(odd, tmp_path)
    assert "NaN" not in (tmp_path / "report.json").read_text()
    loaded = load_report_data(tmp_path)
    assert render(loaded) == render(odd)
    assert loaded.filmstrips[0].rows["imagined"].shape == (0, 4, 4, 3)


def test_a_gain_in_a_saved_file_cannot_be_forged_past_the_checks(data, tmp_path):
    save_report_data(data, tmp_path)
    edit(tmp_path, lambda raw: raw["data"]["overall"]["paired"].update(diff=0.5, lo=0.4, hi=0.6))
    with pytest.raises(ArtefactError, match="only_b - only_a"):
        load_report_data(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(schema=2), "schema 1"),
        (lambda raw: raw.update(kind="policy"), "kind 'report'"),
        (lambda raw: raw.pop("data"), "holds no data"),
        (lambda raw: raw["data"].update(curvs=[]), "did you mean 'curves'"),
        (lambda raw: raw["data"]["gates"][0].pop("threshold"), "threshold"),
        (lambda raw: raw["data"]["gates"][0].update(colour="red"), "colour"),
        (lambda raw: raw["data"]["filmstrips"][0]["rows"][0].update(frames=7), "schema 1"),
        (lambda raw: raw["data"].pop("title"), "title"),
        (lambda raw: raw["data"].update(tasks=3), "schema 1"),
    ],
)
def test_an_external_or_damaged_file_is_named(data, tmp_path, change, message):
    save_report_data(data, tmp_path)
    edit(tmp_path, change)
    with pytest.raises(ArtefactError, match=message):
        load_report_data(tmp_path)


@pytest.mark.parametrize("name", ["report.json", "filmstrips/01-row-1.png", "videos/01.mp4"])
@pytest.mark.parametrize("harm", ["delete", "truncate", "replace"])
def test_a_missing_truncated_or_external_file_is_named(data, tmp_path, name, harm):
    save_report_data(data, tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if harm != "delete":
        path.write_bytes(content[: len(content) // 2] if harm == "truncate" else b"something else")
    with pytest.raises(ArtefactError, match=path.name):
        load_report_data(tmp_path)


def test_no_path_is_read_from_the_file(data, tmp_path):
    """A row may be called anything; its image is found by position."""
    strip = dataclasses.replace(data.filmstrips[0], rows={"../../etc/passwd": data.filmstrips[0].rows["real"]})
    save_report_data(dataclasses.replace(data, filmstrips=[strip]), tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert list(load_report_data(tmp_path / "run").filmstrips[0].rows) == ["../../etc/passwd"]


def test_run_directories_without_a_report_say_what_to_do(tmp_path):
    with pytest.raises(ArtefactError, match="not a directory"):
        from_run_dir(tmp_path / "nowhere")
    with pytest.raises(ArtefactError, match="the same command line resumes the run"):
        from_run_dir(tmp_path)


def test_an_unwritable_place_is_a_clear_error(data, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtefactError, match="cannot be written"):
        save_report_data(data, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"


SAVER = """
import dataclasses, importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location('example', sys.argv[1])
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
from worldrl.evaluation.report.store import save_report_data
data = module.example()
print('ready', flush=True)
for turn in range(10**6):
    strips = [dataclasses.replace(s, rows={k: v ^ (turn % 251) for k, v in s.rows.items()}) for s in data.filmstrips]
    save_report_data(dataclasses.replace(data, title=f'turn {turn}', filmstrips=strips), pathlib.Path(sys.argv[2]))
"""


def load_or_none(folder):
    """The report, or None where the error says that two writes were mixed or none was finished."""
    with contextlib.suppress(ArtefactError):
        return load_report_data(folder)
    with pytest.raises(ArtefactError, match=r"run the job again|cannot be read"):
        load_report_data(folder)
    return None


def test_a_kill_leaves_the_old_report_the_new_one_or_an_error_but_never_a_mixture(data, tmp_path):
    conftest = os.path.join(os.path.dirname(__file__), "conftest.py")
    for attempt in range(3):
        child = subprocess.Popen([sys.executable, "-c", SAVER, conftest, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.3 + 0.07 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        found = load_or_none(tmp_path)
        if found is not None:
            turn = int(found.title.removeprefix("turn ")) % 251
            for strip, again in zip(data.filmstrips, found.filmstrips, strict=True):
                assert all(np.array_equal(strip.rows[name] ^ turn, again.rows[name]) for name in strip.rows)
    save_report_data(data, tmp_path)
    assert render(load_report_data(tmp_path)) == render(data)
    assert not list(tmp_path.rglob("*.tmp-*"))
