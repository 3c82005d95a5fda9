"""Neighbours of reported faults of offline datasets: each file is read, or refused in one line that names the field."""

import os

import h5py
import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.offline.loading import open_trajectories

ROWS = 40
DRAW = np.random.default_rng(0)
GOOD = {
    "observations": DRAW.normal(size=(ROWS, 3)),
    "actions": DRAW.uniform(-1, 1, (ROWS, 2)),
    "rewards": DRAW.normal(size=ROWS),
    "terminals": np.zeros(ROWS, bool),
    "timeouts": np.arange(ROWS) % 20 == 19,
}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rewards", GOOD["rewards"], ""),
        ("rewards", np.zeros(ROWS - 1), r"'terminals' has shape \[40\], expected \[39\]"),
        ("rewards", np.full(ROWS, np.nan), "'rewards' is NaN"),
        ("rewards", np.zeros(ROWS, "c8"), "'rewards' holds complex64"),
        ("rewards", np.array([b"x"] * ROWS), "'rewards' holds"),
        ("terminals", np.full(ROWS, 2), r"'terminals' is 2 at step 0, neither true \(1\) nor false \(0\)"),
        ("timeouts", np.linspace(0, 1, ROWS), r"'timeouts' is 0\.0\d+ at step 1, neither true"),
        ("timeouts", np.where(np.arange(ROWS) % 20 == 19, 1, -1), ""),
        ("observations", np.zeros((ROWS, 3, 5)), r"'observations' has shape \[40, 3, 5\]"),
        ("observations", np.zeros((ROWS, 3), "f2"), ""),
        ("actions", np.full((ROWS, 2), np.inf), "'actions' is NaN, infinite"),
        ("next_observations", np.zeros((ROWS, 2)), r"'next_observations' has shape \[40, 2\]"),
    ],
)
def test_a_d4rl_file(field, value, words, tmp_path):
    file = tmp_path / "walk.hdf5"
    with h5py.File(file, "w") as content:
        for name, array in (GOOD | {field: value}).items():
            content[name] = array
    if not words:
        assert open_trajectories(str(file)).episode[-1] == 1
        return
    with pytest.raises(ArtefactError, match=rf"walk\.hdf5: episode .*field {words}") as caught:
        open_trajectories(str(file))
    assert "\n" not in str(caught.value)


def test_a_pipe_is_named(tmp_path):
    os.mkfifo(tmp_path / "walk.hdf5")
    with pytest.raises(ArtefactError, match="is a pipe or a device, not a file"):
        open_trajectories(str(tmp_path / "walk.hdf5"))
