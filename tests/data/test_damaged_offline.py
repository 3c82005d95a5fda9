"""Files of strangers: damage ends in one line, and nothing outside the file is read. Units under test: ``hdf5``, ``minari_*``."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from worldrl.core.errors import ArtefactError, WorldrlError
from worldrl.data.offline.loading import open_trajectories
from worldrl.data.offline.minari_format import read_minari, write_minari
from worldrl.data.offline.trajectories import DatasetInfo, VectorEpisode, from_episodes

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")
JUNK: list[Any] = [None, 5, -1, 1.5, True, "x", [], {}, [1], {"a": 1}, 10**30, "9" * 50]


def columns() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "observations": draw.normal(size=(60, 3)),
        "actions": draw.uniform(-1, 1, (60, 2)),
        "rewards": draw.normal(size=60),
        "terminals": np.zeros(60, bool),
        "timeouts": np.arange(60) % 20 == 19,
    }


def d4rl(path: Path, **over: Any) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in (columns() | over).items():
            if value is not None:
                file[key] = value
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root, draw = tmp_path_factory.mktemp("sources"), np.random.default_rng(1)
    episodes = [
        VectorEpisode(
            draw.normal(size=(9, 3)).astype(np.float32),
            draw.uniform(-1, 1, (8, 2)).astype(np.float32),
            draw.normal(size=8).astype(np.float32),
            False,
            True,
            seed=seed,
        )
        for seed in range(3)
    ]
    info = DatasetInfo(
        "x", (-1.0,) * 2, (1.0,) * 2, dataset_id="a/b-v0", env_id="Pendulum-v1", ref_min=0.0, ref_max=1.0
    )
    return d4rl(root / "d.hdf5"), write_minari(
        root, from_episodes(info, episodes), algorithm="x", author="x", description="x"
    )


@pytest.mark.parametrize("seed", range(100))
def test_damage_ends_in_one_line(sources: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    """Bytes of HDF5, and values of the metadata and of the texts in them; what passes was not changed in structure."""
    draw, file = np.random.default_rng(seed), tmp_path / "d.hdf5"
    if seed % 4 == 0:
        shutil.copy(sources[0], file)
        target = file
    else:
        target = tmp_path / "set"
        shutil.copytree(sources[1], target)
        file = target / "data" / ("main_data.hdf5" if seed % 4 == 1 else "metadata.json")
    if seed % 4 < 2:
        content = bytearray(file.read_bytes())
        for place in draw.integers(0, len(content) // (8 if seed % 3 else 1), draw.integers(1, 20)):
            content[place] = int(draw.integers(0, 256))
        file.write_bytes(content[: draw.integers(len(content))] if seed % 7 == 0 else content)
    else:
        body = json.loads(file.read_text())
        key = str(draw.choice(sorted(body) if seed % 4 == 2 else ["observation_space", "action_space", "env_spec"]))
        value = JUNK[draw.integers(len(JUNK))]
        if seed % 4 == 3:
            inner = json.loads(body[key])
            inner[str(draw.choice(sorted(inner)))] = value
            value = json.dumps(inner)
        file.write_text(json.dumps(body | {key: value}))
    said = ""
    try:
        open_trajectories(str(target))
    except WorldrlError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 800


def test_links_and_other_storage_are_not_followed(tmp_path: Path) -> None:
    secret = d4rl(tmp_path / "secret.h5", observations=np.full((60, 3), 42.0))
    (tmp_path / "raw.bin").write_bytes(np.full(60, 42.0).tobytes())
    cases: dict[str, Any] = {
        "external": h5py.ExternalLink(str(secret), "observations"),
        "soft": h5py.SoftLink("/actions"),
    }
    for name, link in cases.items():
        with pytest.raises(ArtefactError, match="field 'observations' is a link, which is not followed; copy the data"):
            open_trajectories(str(d4rl(tmp_path / f"{name}.hdf5", observations=link)))
    layout = h5py.VirtualLayout(shape=(60, 3), dtype="f8")
    layout[:] = h5py.VirtualSource(str(secret), "observations", shape=(60, 3))
    with h5py.File(d4rl(tmp_path / "virtual.hdf5", observations=None), "a") as file:
        file.create_virtual_dataset("observations", layout)
    with h5py.File(d4rl(tmp_path / "stored.hdf5", rewards=None), "a") as file:
        file.create_dataset("rewards", (60,), "f8", external=[(str(tmp_path / "raw.bin"), 0, 480)])
    with h5py.File(d4rl(tmp_path / "group.hdf5"), "a") as file:
        file["infos"] = h5py.ExternalLink(str(secret), "/")
    for name in ("virtual", "stored"):
        with pytest.raises(ArtefactError, match="names other files, which are not opened"):
            open_trajectories(str(tmp_path / f"{name}.hdf5"))
    with pytest.raises(ArtefactError, match="field 'infos' is a link"):
        open_trajectories(str(tmp_path / "group.hdf5"))


def test_sizes_are_held_against_the_file(tmp_path: Path) -> None:
    for name, plan in {
        "whole": {"shape": (10**12, 3), "chunks": (100, 3)},
        "chunks": {"shape": (2 * 10**6, 3), "chunks": (3, 3)},
        "one chunk, which is read whole": {
            "shape": (5, 3),
            "maxshape": (None, 3),
            "chunks": (10**8, 3),
            "compression": 1,
        },
    }.items():
        with h5py.File(d4rl(tmp_path / f"{name}.hdf5", observations=None), "a") as file:
            file.create_dataset("observations", dtype="f4", **plan)
        with pytest.raises(ArtefactError, match=r"field 'observations' claims \d+ bytes"):
            open_trajectories(str(tmp_path / f"{name}.hdf5"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("total_episodes", 10**13, r"field 'episode_3' cannot be read"),
        ("total_steps", "8", r"total_steps: Input should be a valid integer, got '8'; copy the dataset again"),
        ("ref_min_score", True, "ref_min_score: Input should be a valid number, got True"),
        ("worldrl", [], "worldrl: Input should be an object"),
        ("data_format", "pickle", "only hdf5, arrow, parquet are read"),
        (
            "action_space",
            json.dumps({"type": "Box", "dtype": "int64", "shape": [2], "low": [-3, -3], "high": [3, 3]}),
            "field 'actions' are whole numbers",
        ),
        (
            "observation_space",
            json.dumps({"type": "Box", "dtype": "float32", "shape": [10**11], "low": 0, "high": 1}),
            "'observation_space' is no space of Minari .* is no shape of vectors",
        ),
        ("worldrl_observation_parts", [[["a"], 2]], "does not name the 3 numbers"),
    ],
)
def test_metadata_of_other_types_are_named(
    sources: tuple[Path, Path], tmp_path: Path, field: str, value: Any, message: str
) -> None:
    shutil.copytree(sources[1], tmp_path / "set")
    file = tmp_path / "set" / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(ArtefactError, match=message):
        read_minari(tmp_path / "set")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_long_episodes_of_arrow_files_are_read_whole(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minari reads a record batch as an episode; one of 140,000 steps has several."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = spaces.Dict({"b": spaces.Box(-9, 9, (1,), np.float32), "a": spaces.Box(-9, 9, (1,), np.float32)})
    buffers, draw = [], np.random.default_rng(0)
    for steps in (140_000, 3):
        obs = {name: draw.uniform(-9, 9, (steps + 1, 1)).astype(np.float32) for name in ("b", "a")}
        never = np.zeros(steps, bool)
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                seed=steps,
                observations=obs,
                actions=draw.uniform(-1, 1, (steps, 1)).astype(np.float32),
                rewards=np.arange(steps, dtype=np.float64),
                terminations=never,
                truncations=never,
                infos={"qpos": draw.normal(size=(steps + 1, 2)), "qvel": draw.normal(size=(steps + 1, 1))},
            )
        )
    minari.create_dataset_from_buffers(
        "long/set-v0",
        buffers,
        observation_space=space,
        action_space=spaces.Box(-1, 1, (1,), np.float32),
        data_format=form,
        algorithm_name="x",
        author="x",
        author_email="x",
        code_permalink="x",
        description="x",
    )
    data = open_trajectories("long/set-v0")
    assert (len(data), data.episodes) == (140_003, 2)
    np.testing.assert_array_equal(data.obs[:, 0], np.concatenate([b.observations["a"][:-1, 0] for b in buffers]))
    np.testing.assert_array_equal(data.reward, np.concatenate([b.rewards for b in buffers]).astype(np.float32))
    assert data.qpos is not None
    np.testing.assert_array_equal(data.qpos, np.concatenate([b.infos["qpos"][:-1] for b in buffers]))
    assert data.seed is not None
    assert data.seed.tolist() == [140_000, 3]
