"""Fixtures of the tests with the real lerobot package."""

import os
import subprocess
from pathlib import Path

import pytest

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.policies.lerobot.worker import OFFLINE, lerobot_python


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """One folder per kind, each beside what lerobot's own pipeline answers to one observation."""
    try:
        python = lerobot_python()
    except WorkerEnvironmentError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("published")
    command = [python, str(Path(__file__).parent / "make_policies.py"), str(folder)]
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(folder / "hub")}
    environment.pop("PYTHONPATH", None)
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder
