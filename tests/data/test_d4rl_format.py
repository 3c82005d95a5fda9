"""Unit under test: ``worldrl.data.offline.d4rl_format``, on real HDF5 files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.offline.d4rl_format import read_d4rl
from worldrl.data.offline.loading import open_trajectories

h5py = pytest.importorskip("h5py")

# Three episodes: rows 0-2 time out, rows 3-4 terminate, rows 5-6 are cut off by the end of the file.
TERMINALS = np.array([0, 0, 0, 0, 1, 0, 0], bool)
TIMEOUTS = np.array([0, 0, 1, 0, 0, 0, 0], bool)


def columns(**over: Any) -> dict[str, Any]:
    obs = np.arange(14, dtype=np.float64).reshape(7, 2)
    base = {
        "observations": obs,
        "actions": np.linspace(-1, 1, 7)[:, None],
        "rewards": np.arange(7.0),
        "terminals": TERMINALS,
        "timeouts": TIMEOUTS,
        "next_observations": obs + 100,
        "infos/qpos": obs + 0.1,
        "infos/qvel": obs[:, :1] + 0.2,
    }
    return {name: value for name, value in (base | over).items() if value is not None}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def make(name: str = "hopper-medium-v2.hdf5", **over: Any) -> Path:
        with h5py.File(tmp_path / name, "w") as file:
            for key, value in columns(**over).items():
                file[key] = value
        return tmp_path / name

    return make


def test_stored_next_observations_are_used_and_timeouts_kept_apart(write: Any) -> None:
    data = read_d4rl(write(), env_id="Hopper-v5")
    assert len(data) == 7
    np.testing.assert_array_equal(data.next_obs, data.obs + 100)
    assert data.episode.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert data.terminated.tolist() == TERMINALS.tolist()
    assert data.truncated.tolist() == [False, False, True, False, False, False, True]
    assert data.qpos is not None
    assert data.qpos[3].tolist() == [6.1, 7.1]
    assert (data.info.ref_min, data.info.ref_max, data.info.env_id) == (-20.272305, 3234.3, "Hopper-v5")


def test_pairs_are_made_inside_episodes_only(write: Any) -> None:
    file = write(next_observations=None)
    data = open_trajectories(str(file))
    # Rows 2 (timed out) and 6 (end of the file) have no successor; row 4 terminated and keeps its own observation.
    assert data.reward.tolist() == [0, 1, 3, 4, 5]
    assert data.episode.tolist() == [0, 0, 1, 1, 2]
    assert data.terminated.tolist() == [False, False, False, True, False]
    assert data.truncated.tolist() == [False, True, False, False, True]
    assert data.next_obs.tolist() == [[2, 3], [4, 5], [8, 9], [8, 9], [12, 13]]
    assert data.info.provenance["rows_without_successor"] == 2
    assert data.info.provenance["terminal_successors_repeated"] == 1


def test_an_episode_of_a_single_timed_out_row_disappears(write: Any) -> None:
    timeouts = TIMEOUTS.copy()
    timeouts[[5, 6]] = True
    data = read_d4rl(write(next_observations=None, timeouts=timeouts))
    assert data.episode.tolist() == [0, 0, 1, 1]


def test_old_files_without_timeouts_need_the_time_limit(write: Any) -> None:
    file = write(timeouts=None)
    with pytest.raises(ArtefactError, match=r"hopper-medium-v2.hdf5: .*field 'timeouts' is missing.*max_episode_steps"):
        read_d4rl(file)
    data = read_d4rl(file, max_episode_steps=3)
    assert data.episode.tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_a_file_of_an_unknown_task_has_no_reference(write: Any) -> None:
    assert read_d4rl(write("maze2d-umaze-v1.hdf5")).info.ref_min is None


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"observations": np.full((7, 2), np.nan)}, r"episode 0, field 'observations' is NaN"),
        ({"rewards": np.array([0, 0, 0, 0, np.inf, 0, 0])}, r"episode 1, field 'rewards' is NaN.* at step 1"),
        ({"infos/qvel": np.full((7, 1), np.nan)}, r"episode 0, field 'infos/qvel'"),
        ({"actions": np.zeros((6, 1))}, r"field 'actions' has shape \[6, 1\], expected \[7, 1\]"),
        ({"actions": np.full((7, 1), 3.0)}, r"field 'action' is 3 .* outside the action space"),
        ({"next_observations": np.zeros((7, 3))}, r"field 'next_observations' has shape \[7, 3\], expected \[7, 2\]"),
        ({"timeouts": np.zeros(5, bool)}, r"field 'timeouts' has shape \[5\], expected \[7\]"),
        ({"terminals": None}, r"field 'terminals' is missing"),
        ({"observations": np.array([b"x"] * 7)}, r"field 'observations' holds"),
    ],
)
def test_bad_data_names_file_episode_and_field(write: Any, over: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtefactError, match=r"hopper-medium-v2.hdf5: .*" + message):
        read_d4rl(write(**over))


def test_a_file_without_rows(write: Any) -> None:
    with pytest.raises(ArtefactError, match="holds no transitions"):
        read_d4rl(write(**{name: value[:0] for name, value in columns().items()}))


def test_a_file_that_is_cut_short_or_no_hdf5(write: Any) -> None:
    file = write()
    content = file.read_bytes()
    for part in (content[:-2000], b"not hdf5"):
        file.write_bytes(part)
        with pytest.raises(ArtefactError, match=r"hopper-medium-v2.hdf5: .*field 'observations' cannot be read"):
            read_d4rl(file)
