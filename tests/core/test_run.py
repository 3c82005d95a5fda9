import json
import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml

from worldrl.core.errors import RunDirectoryError, SettingError
from worldrl.core.storage import provenance
from worldrl.core.storage.run import RunDirectory, config_hash

CONFIG = {"seed": 0, "policy": {"width": 64, "lr": 1e-5}, "names": ["a", "1e-3", "2020-01-01", "on"], "none": None}

HOLDER = """
import sys, time
from pathlib import Path
from worldrl.core.storage.run import RunDirectory
run = RunDirectory.open(Path(sys.argv[1]), command="train-vla", config={"seed": 0}, resume_command="again")
print("open", flush=True)
sys.stdin.read()
"""


def open_run(path: Path, **given) -> RunDirectory:
    return RunDirectory.open(
        path, **({"command": "train-vla", "config": CONFIG, "resume_command": "worldrl train-vla"} | given)
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_first_open_writes_config_lock_and_clock(tmp_path):
    with open_run(tmp_path / "deep" / "run") as run:
        assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG
        owner = json.loads((run.path / "run.lock").read_text())
        assert owner["pid"] == os.getpid()
        assert owner.keys() == {"host", "pid", "started", "command"}
        assert run.config == CONFIG
        assert run.config_hash == config_hash(CONFIG)


def test_reopening_with_the_same_config_is_fine_in_any_key_order(tmp_path):
    open_run(tmp_path).close()
    open_run(tmp_path, config=dict(reversed(CONFIG.items()))).close()
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["config.yaml", "run.lock", "run_clock.json"]


def test_yaml_returns_every_float_exactly(tmp_path):
    floats = [5e-324, 1e-5, 0.1 + 0.2, 1e16, 1e22, 1.7976931348623157e308, -0.0, 1.0]
    for _ in range(2):
        open_run(tmp_path, config={"floats": floats, "tuple": (1, 2)}).close()


def test_another_config_is_refused_with_a_diff(tmp_path):
    open_run(tmp_path).close()
    other = {"seed": 0.0, "policy": {"width": 128, "lr": 1e-5}, "names": CONFIG["names"], "extra": {"x": 1}}
    with pytest.raises(RunDirectoryError) as error:
        open_run(tmp_path, config=other)
    text = str(error.value)
    assert "seed: 0 -> 0.0, policy.width: 64 -> 128, none: None -> (absent), extra.x: (absent) -> 1" in text
    assert "policy.lr" not in text
    assert "choose a new run_dir, or delete" in text
    open_run(tmp_path).close()  # the refusal let the lock go


def test_where_work_is_done_may_change_and_is_no_part_of_the_hash(tmp_path):
    """More processes for the same numbers: the run continues, and config.yaml says what it was begun with."""
    with open_run(tmp_path, config={**CONFIG, "workers": 2}, free=("workers",)) as run:
        begun = run.config_hash
    with open_run(tmp_path, config={**CONFIG, "workers": 4}, free=("workers",)) as run:
        assert run.config_hash == begun == config_hash(CONFIG)
        assert yaml.safe_load((tmp_path / "config.yaml").read_text())["workers"] == 2
    with pytest.raises(RunDirectoryError, match="seed: 0 -> 1; choose"):
        open_run(tmp_path, config={**CONFIG, "workers": 4, "seed": 1}, free=("workers",))


def refused(path: Path, made: str = "", **given) -> None:
    """Begin a run that is refused by one of its own checks, after it has written ``made`` into a stage."""
    with suppress(SettingError), open_run(path, **given) as run:
        (run.stage("01-collect").folder / "rows.jsonl").write_text(made)
        raise SettingError("tasks: unknown task 'nope'")


def test_a_setting_refused_before_anything_was_made_does_not_keep_the_directory(tmp_path):
    refused(tmp_path / "run")
    with open_run(tmp_path / "run", command="collect", config={"seed": 1}) as run:
        assert run.config == {"seed": 1}
        assert run.wall_s < 10


def test_a_refusal_later_on_leaves_the_run_to_its_settings(tmp_path):
    refused(tmp_path / "made", made="{}")
    open_run(tmp_path / "opened").close()
    refused(tmp_path / "opened")
    for name in ("made", "opened"):
        with pytest.raises(RunDirectoryError, match="seed: 0 -> 1"):
            open_run(tmp_path / name, config={**CONFIG, "seed": 1})


def test_a_place_that_cannot_be_a_directory_is_reported_plainly(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "else")
    for path in ("file", "file/run", "dangling"):
        with pytest.raises(
            RunDirectoryError, match=r"a file or a link to nothing is in the way; .*another folder"
        ) as found:
            open_run(tmp_path / path)
        assert "bytes" not in str(found.value)
    with pytest.raises(RunDirectoryError, match="No such file or directory; nothing was changed; choose a folder"):
        open_run(Path("/proc/run"))


def test_a_long_diff_is_cut(tmp_path):
    open_run(tmp_path, config={f"k{i}": i for i in range(20)}).close()
    with pytest.raises(RunDirectoryError, match="and 12 more"):
        open_run(tmp_path, config={f"k{i}": -i - 1 for i in range(20)})


def test_another_command_is_refused(tmp_path):
    open_run(tmp_path).close()
    with pytest.raises(RunDirectoryError, match="begun by 'train-vla', not 'evaluate'"):
        open_run(tmp_path, command="evaluate")


def test_config_must_be_json_ready(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"config.lr: inf is not a finite number"):
        open_run(tmp_path, config={"lr": math.inf})
    with pytest.raises(RunDirectoryError, match="key 1 is int"):
        open_run(tmp_path, config={1: 2})


def test_a_second_process_reports_the_owner_and_a_killed_owner_is_no_obstacle(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(RunDirectoryError, match=rf"in use by process {holder.pid} on .* \(train-vla, since 20"):
            open_run(tmp_path, config={"seed": 0})
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with open_run(tmp_path, config={"seed": 0}):
            assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()


def test_two_openings_in_one_process_conflict_until_closed(tmp_path):
    run = open_run(tmp_path)
    with pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()}"):
        open_run(tmp_path)
    run.close()
    run.close()
    open_run(tmp_path).close()


def test_unreadable_lock_content_is_no_obstacle(tmp_path):
    (tmp_path / "run.lock").write_bytes(b"\xff{" * 100)
    open_run(tmp_path).close()


def test_a_damaged_config_is_named(tmp_path):
    open_run(tmp_path).close()
    (tmp_path / "config.yaml").write_text("a: [1")
    with pytest.raises(RunDirectoryError, match=r"config.yaml: damaged"):
        open_run(tmp_path)


def test_stage_is_finished_only_by_its_file(tmp_path):
    with open_run(tmp_path) as run:
        stage = run.stage("01-collect")
        assert stage.folder == tmp_path / "stages" / "01-collect"
        assert stage.folder.is_dir()
        assert not stage.finished
        with pytest.raises(RunDirectoryError, match="not finished; run it first"):
            _ = stage.summary
        stage.finish({"rate": np.float32(0.5), "gap": math.nan, "n": np.int64(3)})
        with pytest.raises(RunDirectoryError, match="already finished"):
            stage.finish({})
    with open_run(tmp_path) as run:
        assert run.stage("01-collect").finished
        assert run.stage("01-collect").summary == {"rate": 0.5, "gap": None, "n": 3}
        assert not run.stage("02-train").finished
    assert json.loads((stage.folder / "stage.json").read_text())["config_hash"] == config_hash(CONFIG)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", ".hidden", "a b"])
def test_stage_names_are_plain(tmp_path, name):
    with open_run(tmp_path) as run, pytest.raises(RunDirectoryError, match="like '02-train-policy'"):
        run.stage(name)


def test_a_damaged_stage_file_is_named(tmp_path):
    with open_run(tmp_path) as run:
        stage = run.stage("01-collect")
        (stage.folder / "stage.json").write_text('{"summary": NaN}')
        with pytest.raises(RunDirectoryError, match=r"stage.json: not valid JSON \(NaN is not a JSON number\)"):
            _ = stage.summary


def test_result_follows_the_contract(tmp_path):
    with open_run(tmp_path) as run:
        result = run.write_result(
            {"success": {"k": 1, "n": 2}, "gap": math.nan}, seed=3, device="cpu", wall_s=1.5, protocol_hash="abc"
        )
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert list(result) == [
        "schema",
        "command",
        "config_hash",
        "protocol_hash",
        "code",
        "packages",
        "seed",
        "device",
        "hardware",
        "wall_s",
        "peak_rss_mb",
        "metrics",
    ]
    assert result["schema"] == 1
    assert result["code"].keys() == {"version", "commit"}
    assert result["packages"]["torch"]
    assert result["wall_s"] == 1.5
    assert result["peak_rss_mb"] > 10
    assert result["metrics"] == {"success": {"k": 1, "n": 2}, "gap": None}


def test_wall_time_adds_up_over_sessions_and_a_kill_counts_to_the_last_tick(tmp_path):
    clock = Clock()
    first = open_run(tmp_path, clock=clock)
    clock.now += 50
    first.tick()  # written: more than ten seconds since the last
    clock.now += 5
    first.tick()  # not written
    os.close(first._lock)  # the process is gone; close() never ran
    second = open_run(tmp_path, clock=clock)
    clock.now += 7
    assert second.wall_s == pytest.approx(57)
    second.close()
    with open_run(tmp_path, clock=clock) as third:
        assert third.write_result({}, seed=0, device="cpu")["wall_s"] == pytest.approx(57)


def test_peak_memory_counts_a_living_child(tmp_path):
    code = "import sys; block = bytearray(300 * 2**20); print('ready', flush=True); sys.stdin.read()"
    with open_run(tmp_path) as run:
        before = run.write_result({}, seed=0, device="cpu")["peak_rss_mb"]
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            run.tick(force=True)
        after = run.write_result({}, seed=0, device="cpu")["peak_rss_mb"]
    assert after > before + 290


def test_config_hash_ignores_order_and_sees_every_value():
    assert config_hash({"a": 1, "b": {"c": 2, "d": 3}}) == config_hash({"b": {"d": 3, "c": 2}, "a": 1})
    hashes = {config_hash({"a": value}) for value in (1, 1.5, "1", None, True, [1], {"1": 1}, "")}
    assert len(hashes) == 8


def test_commit_is_that_of_the_checkout_and_dirt_is_reported(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "worldrl" / "core" / "storage" / "provenance.py"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    monkeypatch.setattr(provenance, "__file__", str(file))
    assert provenance.code_version()["commit"] is None
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert provenance.code_version()["commit"] == git("rev-parse", "HEAD")
    file.write_text("2")
    assert provenance.code_version()["commit"] == git("rev-parse", "HEAD") + "+dirty"
