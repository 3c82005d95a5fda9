"""What SECURITY.md promises: a test stands behind each row of its table, and those that no other file tests are here."""

import ast
import io
import re
from pathlib import Path

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, RunDirectoryError
from worldrl.core.storage.run import RunDirectory
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts

TESTS = Path(__file__).parent
ROOT = TESTS.parent
TEXT = (ROOT / "SECURITY.md").read_text()
ROW = re.compile(r"^\| (?!file from|---)(?P<file>[^|]+) \| (?P<promise>[^|]+) \| `(?P<test>[^|`]+)` \|$", re.MULTILINE)
TABLE = [match.groupdict() for match in ROW.finditer(TEXT)]
KINDS = {
    "policy", "lerobot policy", "language model", "weights", "Minari", "HDF5", "LeRobotDataset", "films", "own dataset", ".npz",
    "settings", "run directory", "message of a worker", "message of a client", "message of a server", "report page", "hub",
}  # fmt: skip
NETWORK = {
    "socket",
    "urllib",
    "http",
    "requests",
    "httpx",
    "aiohttp",
    "ftplib",
    "smtplib",
    "huggingface_hub",
    "websockets",
    "uvicorn",
}
LOCAL = {
    "recipes/listening.py", "rollout/serving/server.py",  # listen where the user says
    "policies/remote/link.py",  # connects where the user says: policy=ws://HOST:PORT
    "recipes/local_server.py",  # listens on this machine only
    "simulators/process.py", "workers/link/channel.py", "workers/link/server.py",  # socket pairs with child processes
    "simulators/arrivals.py", "workers/link/node.py",  # engine=ray: workers connect back to the driver, with a token
    "core/storage/hub.py",  # only for an hf:// name, from_pretrained of OWNER/NAME, and an upload that is asked for
    "core/storage/lock.py",  # the name of this machine
}  # fmt: skip


def test_every_row_of_the_table_is_read_and_every_kind_of_file_has_one():
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    assert len(TABLE) == len(rows) - 1 > 30  # all but the heading
    files = " ".join(row["file"] for row in TABLE)
    assert {kind for kind in KINDS if kind not in files} == set()
    assert TABLE[0]["file"] != "the same"


@pytest.mark.parametrize("test", sorted({row["test"] for row in TABLE}))
def test_the_test_behind_a_promise_exists(test):
    file, _, name = test.partition("::")
    functions = {
        node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert name in functions if name else any(function.startswith("test_") for function in functions)


@pytest.mark.parametrize("file", re.findall(r"`tests/([\w/]+\.py)`", TEXT))
def test_the_files_that_the_text_names_exist(file):
    assert (TESTS / file).is_file()


class Ran:
    """Unpickling it writes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_pickle_in_an_archive_of_arrays_does_not_run(tmp_path):
    content = io.BytesIO()
    planted = np.array([Ran(tmp_path / "ran")], dtype=object)
    np.savez(content, task=planted, index=planted, seed=planted, action=planted)
    (tmp_path / "rollouts.npz").write_bytes(content.getvalue())
    with pytest.raises(ArtefactError, match="cannot be read as imagined rollouts"):
        PolicyRollouts.load(tmp_path / "rollouts.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir", "!!python/name:os.mkdir", "!!python/module:os"])
def test_a_configuration_that_names_an_object_is_refused(tag, tmp_path):
    folder = tmp_path / "run"
    with RunDirectory.open(folder, command="collect", config={"a": 1}, resume_command="x"):
        pass
    (folder / "config.yaml").write_text(f"command: collect\nconfig:\n  a: {tag} [{tmp_path}/ran]\n")
    with pytest.raises(RunDirectoryError, match=r"config\.yaml"):
        RunDirectory.open(folder, command="collect", config={"a": 1}, resume_command="x").__enter__()
    assert not (tmp_path / "ran").exists()


def test_no_other_module_can_open_a_network_connection():
    found = set()
    for path in (ROOT / "worldrl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [
                str(argument.value)
                for argument in (node.args[:1] if isinstance(node, ast.Call) and ast.unparse(node.func) in ("require", "importlib.import_module") else ())
                if isinstance(argument, ast.Constant)
            ]  # fmt: skip
            if any(name.partition(".")[0] in NETWORK for name in names):
                found.add(path.relative_to(ROOT / "worldrl").as_posix())
    assert found == LOCAL
