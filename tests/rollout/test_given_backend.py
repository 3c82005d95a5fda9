"""Which ``MUJOCO_GL`` an external suite's worker gets: the user's, else what its own environment's probe found; never the embedded suite's default.

Units under test: ``rollout/drawing.py::given_backend``, ``rollout/libero.py::libero_launch``, ``rollout/simulator.py``; in a Python
process of its own, from the import of ``worldrl_envs`` to a worker's variables, with a shell script as LIBERO's interpreter.
"""

import os
import stat
import subprocess
import sys

import pytest

from worldrl.core.storage.jsonfile import write_json
from worldrl.simulators.environments import CHECKED, RECORD, SCHEMA, built_folder, used_lock

PROBED = """#!/bin/sh
echo "$MUJOCO_GL" >> {tried}
[ "$MUJOCO_GL" = osmesa ] || {{ echo "RuntimeError: no device" >&2; exit 1; }}
"""
REPORTER = """
import os
class Suite:
    def describe(self):
        return {"drawn_with": os.environ.get("MUJOCO_GL"), "tasks": []}
"""
PROGRAM = """
import os
import sys
from dataclasses import replace
import worldrl_envs  # as every command that reads the embedded suite's tasks does
os.environ.update({"MUJOCO_GL": os.environ["LATER"]} if "LATER" in os.environ else {})
from worldrl.rollout.suites.libero import libero_launch
from worldrl.simulators.pool import SimulatorPool
launch = libero_launch("libero_goal", cameras=[name for name in sys.argv[2:]])
launch = replace(launch, python=sys.executable, target=sys.argv[1] + ":Suite", options={})
with SimulatorPool(launch) as pool:
    print("drawn with", pool.suite["drawn_with"])
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a worker in a machine's Python whose EGL is broken; returns what was said, and the back ends that were tried."""
    monkeypatch.setenv("WORLDRL_CACHE", str(tmp_path))
    tried, python, reporter = tmp_path / "tried", tmp_path / "python", tmp_path / "reporter.py"
    python.write_text(PROBED.format(tried=tried))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    reporter.write_text(REPORTER)
    folder = built_folder(used_lock("libero"))
    folder.mkdir(parents=True)
    write_json(folder / RECORD, {"schema": SCHEMA, "python": str(python), CHECKED: True})

    def run(*cameras, given=None, later=None):
        hidden = {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"}  # with a display nothing is chosen
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        variables |= {"MUJOCO_GL": given} if given else {}
        variables |= {"LATER": later} if later else {}
        command = [sys.executable, "-c", PROGRAM, str(reporter), *cameras]
        child = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, check=False)
        return child.stdout + child.stderr, tried.read_text().split() if tried.exists() else []

    return run


def test_the_environment_s_own_probe_decides_where_the_user_said_nothing(start):
    said, tried = start("scene")
    assert tried == ["egl", "osmesa"], said
    assert "drawn with osmesa" in said


def test_what_the_user_said_is_tried_alone(start):
    said, tried = start("scene", given="egl")
    assert tried == ["egl"]
    assert "nothing renders in its environment (egl: RuntimeError: no device)" in said


def test_what_the_user_said_in_python_after_the_import_is_heard(start):
    said, tried = start("scene", later="osmesa")
    assert tried == ["osmesa"], said
    assert "drawn with osmesa" in said


@pytest.mark.parametrize("given", [None, "osmesa"])
def test_a_worker_that_draws_nothing_gets_the_users_instruction_or_none(given, start):
    said, tried = start(given=given)
    assert tried == []
    assert f"drawn with {given}" in said
