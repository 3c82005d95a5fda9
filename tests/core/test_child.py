"""Unit under test: ``core.training.child``, in processes of their own."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("child_script.py")


def run(folder, number):
    command = [sys.executable, str(SCRIPT), str(folder), str(int(number))]
    return subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=300)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_is_the_parents_even_while_a_child_starts(tmp_path):
    ended = run(tmp_path, signal.SIGINT)
    assert ended.stdout.splitlines() == ["interrupted", "child's exit code 0"], ended.stderr
    assert (tmp_path / "ended").exists()


def test_a_child_ends_with_its_parent(tmp_path):
    assert run(tmp_path, signal.SIGKILL).returncode == -signal.SIGKILL
    for _ in range(3000):  # a child that does not end is asked to
        if not alive(int((tmp_path / "pid").read_text())):
            break
        time.sleep(0.02)
    else:
        (tmp_path / "go").touch()
        pytest.fail("the child outlived its parent")
    assert not (tmp_path / "ended").exists()
