"""Files and folders that cannot be opened, and names that no file system takes: one line, exit code 2.

Permissions are withdrawn from the process where it is root, since bits do not stop root; the cases run in one process of their own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worldrl.cli import USER_ERROR, main
from worldrl.core.embodiment import Embodiment
from worldrl.core.storage.artefact import write_artefact
from worldrl.core.storage.run import RunDirectory
from worldrl.data.lerobot.writer import LeRobotWriter

DATASET = "restyle by=image data=d"
MODEL = "evaluate preset=tiny policy=m"
RUN = "compare run_dir=run a=x b=x"
CASES = (
    ("d", DATASET),
    ("d/meta", DATASET),
    ("d/meta/info.json", DATASET),
    ("d/meta/worldrl.jsonl", DATASET),
    ("m", MODEL),
    ("m/manifest.json", MODEL),
    ("m/config.json", MODEL),
    ("run", "report run_dir=run"),
    ("run/report.json", "report run_dir=run"),
    ("run/result.json", "benchmark-offline runs=[run] run_dir=new"),
)
EACH = """
import json, os, sys
from worldrl.cli import main
for name, command in json.loads(sys.argv[1]):
    kept = os.stat(name).st_mode
    os.chmod(name, 0)
    words = command.split() + ([] if "run_dir=" in command else ["run_dir=rd"])
    print("code", main(words), file=sys.stderr)
    os.chmod(name, kept)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A dataset, an artefact and a run directory, in the working directory."""
    monkeypatch.chdir(tmp_path)
    robot = Embodiment(0.02, 0.1, (0.2, -0.4, 0.0), (0.8, 0.4, 0.6), 1.0, 20.0)
    LeRobotWriter("d", fps=20, image_size=(16, 16), embodiment=robot).close()
    write_artefact(Path("m"), kind="policy", config={"sizes": {}})
    with RunDirectory.open(Path("run"), command="train-offline", config={"seed": 0}, resume_command="again") as run:
        run.write_result({}, seed=0, device="cpu")
    (tmp_path / "run/report.json").write_text("{}")
    return tmp_path


def spoken(command, capfd):
    """The one line that a refused command says."""
    code = main(command if "run_dir=" in " ".join(command) else [*command, "run_dir=rd"])
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert code == USER_ERROR
    return line


@pytest.mark.parametrize(("name", "command"), CASES)
def test_a_file_where_a_folder_belongs_and_the_other_way_round(place, capfd, name, command):
    path = place / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()
    assert name.split("/", maxsplit=1)[0] in spoken(command.split(), capfd)


def test_files_without_permission(place):
    """One process for all: its right to read everything is withdrawn where it is root."""
    drop = "-dac_override,-dac_read_search"
    root = [shutil.which("setpriv") or "", f"--bounding-set={drop}", f"--inh-caps={drop}"] if os.getuid() == 0 else []
    if root and (not root[0] or subprocess.run([*root, "true"], capture_output=True, check=False).returncode):
        pytest.skip("permissions cannot be withdrawn from root here")
    arguments = [*root, sys.executable, "-c", EACH, json.dumps(CASES)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=False).stderr.strip().splitlines()
    for (name, _), line, code in zip(CASES, said[::2], said[1::2], strict=True):
        assert code == "code 2", said
        assert "Permission denied" in line, name
        assert name.split("/", maxsplit=1)[0] in line


LONG, BYTES = "y" * 300, os.fsdecode(b"a\xe9")


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (f"restyle data={LONG}", ""),
        (f"extend data={'y/' * 3000}", ""),
        (f"evaluate preset=tiny policy={LONG}", ""),
        (f"imagine preset=tiny world_model={LONG}", ""),
        (f"collect preset=tiny run_dir={LONG}", ""),
        (f"compare b=x a={LONG}", ""),
        (f"train-offline data={LONG}", ""),
        (f"check-protocol data={BYTES}", "data: 'a\\udce9' is not UTF-8"),
        (f"collect preset=tiny run_dir={BYTES}", "run_dir: 'a\\udce9' is not UTF-8"),
    ],
    ids=["restyle", "deep", "evaluate", "imagine", "collect", "compare", "train-offline", "bytes", "bytes-run_dir"],
)
def test_names_that_no_file_has(place, capfd, command, rule):
    assert spoken(command.split(), capfd).startswith(f"worldrl: {rule}")
