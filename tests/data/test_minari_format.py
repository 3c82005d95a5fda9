"""Units under test: ``minari_format`` and ``loading``, against the real Minari package."""

import json
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from worldrl.core.errors import ArtefactError, MissingExtraError, SettingError
from worldrl.data.offline.loading import open_trajectories
from worldrl.data.offline.minari_format import local_datasets, minari_store, read_minari, write_minari
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, from_episodes

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")

ID = "worldrl/pendulum-v1/test-v3"
BY = {"algorithm": "none", "author": "a test", "description": "three episodes"}


def make(steps: tuple[int, ...] = (4, 1, 3)) -> Trajectories:
    draw = np.random.default_rng(0)
    info = DatasetInfo(
        "test",
        (-2.0,),
        (2.0,),
        dataset_id=ID,
        env_id="Pendulum-v1",
        env_kwargs={"g": 9.0},
        max_episode_steps=50,
        ref_min=-1000.0,
        ref_max=-100.0,
        provenance={"seed": 5, "nested": {"x": [1, 2]}},
    )
    episodes = [
        VectorEpisode(
            draw.normal(size=(count + 1, 3)).astype(np.float32),
            draw.uniform(-2, 2, (count, 1)).astype(np.float32),
            draw.normal(size=count).astype(np.float32),
            terminated=number == 1,
            truncated=number != 1,
            qpos=draw.normal(size=(count, 2)),
            qvel=draw.normal(size=(count, 1)),
            seed=None if number == 2 else 10 + number,
        )
        for number, count in enumerate(steps)
    ]
    return from_episodes(info, episodes)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write_minari(tmp_path, make(), **BY)


def test_arrow_files_hold_the_same(written: Path, tmp_path: Path) -> None:
    """Datasets of others come in either of Minari's two formats; ours are HDF5."""
    storage_class = minari.dataset.minari_storage.MinariStorage
    ours = storage_class.read(written / "data")
    metadata = json.loads((written / "data/metadata.json").read_text())
    (tmp_path / "arrow").mkdir()
    spaces_ = {"observation_space": ours.observation_space, "action_space": ours.action_space}
    theirs = storage_class.new(tmp_path / "arrow/data", **spaces_, data_format="arrow")
    theirs.update_metadata({"env_spec": metadata["env_spec"], "ref_min_score": metadata["ref_min_score"]})
    # Minari's own collector records infos of the reset too, which is what Arrow's columns need.
    theirs.update_episodes(buffers(ours, lambda rows: np.concatenate([rows, rows[-1:]])))
    found, expected = read_minari(tmp_path / "arrow"), make()
    assert list((tmp_path / "arrow").rglob("*.arrow"))
    for item in fields(Trajectories):
        if item.name != "info":
            np.testing.assert_array_equal(getattr(found, item.name), getattr(expected, item.name), item.name)
    assert (found.info.env_id, metadata["ref_min_score"]) == ("Pendulum-v1", -1000.0)


def test_the_file_is_what_minari_itself_writes(written: Path, tmp_path: Path) -> None:
    """Episodes that go through Minari once more give the same groups, attributes, shapes and numbers."""
    storage_class = minari.dataset.minari_storage.MinariStorage
    ours = storage_class.read(written / "data")
    spaces_ = {"observation_space": ours.observation_space, "action_space": ours.action_space}
    theirs = storage_class.new(tmp_path / "theirs", **spaces_, data_format="hdf5")
    theirs.update_episodes(buffers(ours, lambda rows: rows))
    assert contents(written / "data") == contents(tmp_path / "theirs")
    for name in ("total_steps", "total_episodes", "dataset_size"):
        assert ours.metadata[name] == pytest.approx(theirs.metadata[name])


def buffers(storage: Any, change: Callable[[Any], Any]) -> list[Any]:
    """The stored episodes as Minari takes them, with changed infos."""
    made = []
    for about, episode in zip(storage.get_episode_metadata(range(3)), storage.get_episodes(range(3)), strict=True):
        infos = {name: change(rows) for name, rows in episode.pop("infos").items()}
        made.append(minari.data_collector.EpisodeBuffer(**episode, infos=infos, seed=about.get("seed")))
    return made


def contents(folder: Path) -> dict[str, Any]:
    """Every object of a file with its attributes, type, shape, chunks and numbers."""
    found = {}

    def note(name: str, item: Any) -> None:
        kind = (
            (item.dtype, item.shape, item.maxshape, item.chunks, item[()].tobytes()) if hasattr(item, "dtype") else ()
        )
        found[name] = (dict(item.attrs), kind)

    with h5py.File(folder / "main_data.hdf5") as file:
        file.visititems(note)
    return found


def test_store_may_be_relative_as_the_commands_default_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_minari(Path("runs/datasets"), make(), **BY)
    assert folder == Path("runs/datasets") / ID
    assert len(read_minari(folder)) == 8


def test_round_trip_keeps_every_row_and_what_is_known(written: Path) -> None:
    data, back = make(), read_minari(written)
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "episode", "qpos", "qvel", "seed"):
        np.testing.assert_array_equal(getattr(back, name), getattr(data, name), err_msg=name)
    assert back.seed is not None
    assert back.seed.tolist() == [10, 11, -1]
    for name in ("dataset_id", "env_id", "env_kwargs", "max_episode_steps", "ref_min", "ref_max", "provenance"):
        assert getattr(back.info, name) == getattr(data.info, name), name
    assert (back.info.action_low, back.info.action_high) == ((-2.0,), (2.0,))


def test_minari_itself_reads_what_we_write(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert minari_store() == tmp_path
    assert list(minari.list_local_datasets()) == local_datasets(tmp_path) == [ID]
    dataset = minari.load_dataset(ID)
    assert (dataset.total_episodes, dataset.total_steps) == (3, 8)
    first = dataset[0]
    assert (first.observations.shape, first.actions.shape, first.infos["qpos"].shape) == ((5, 3), (4, 1), (4, 2))
    assert dataset[1].terminations.tolist() == [True]
    env = dataset.recover_environment()
    assert (env.spec.id, env.unwrapped.g) == ("Pendulum-v1", 9.0)
    score = minari.get_normalized_score(dataset, np.array([-550.0]))
    assert score.tolist() == [0.5]


def test_a_dataset_collected_with_minari_works_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 observations in a dictionary, T + 1 infos, no worldrl key: as published sets have them."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = spaces.Dict({"b": spaces.Box(-9, 9, (2,)), "a": spaces.Box(-9, 9, (1,))})
    draw = np.random.default_rng(1)
    obs = {"a": draw.normal(size=(4, 1)), "b": draw.normal(size=(4, 2))}
    infos = {"qpos": draw.normal(size=(4, 2)), "qvel": draw.normal(size=(4, 2)), "success": np.zeros(4, bool)}
    ends = np.array([False, False, True])
    buffer = {"observations": obs, "actions": np.zeros((3, 2), np.float32), "rewards": np.arange(3.0), "infos": infos}
    episode = minari.data_collector.EpisodeBuffer(**buffer, terminations=ends, truncations=~ends & False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the author and the like
        minari.create_dataset_from_buffers(
            "D4RL/point/umaze-v2", [episode], observation_space=space, action_space=spaces.Box(-1, 1, (2,))
        )
    data = open_trajectories("D4RL/point/umaze-v2")
    np.testing.assert_allclose(data.obs[1], [*obs["a"][1], *obs["b"][1]], rtol=1e-6)
    flat = spaces.flatten(space, {name: part[1].astype(np.float32) for name, part in obs.items()})
    np.testing.assert_array_equal(data.obs[1], flat)
    assert data.qpos is not None
    assert data.qpos.shape == (3, 2)
    assert (data.info.env_id, data.info.ref_min, data.seed) == (None, None, None)
    assert open_trajectories("D4RL/point/umaze-v2", env_id="Pendulum-v1").info.env_id == "Pendulum-v1"


def test_entry_points_in_a_dataset_are_never_imported(written: Path) -> None:
    file = written / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    spec = json.loads(metadata["env_spec"]) | {"entry_point": "no_such_module:Boom"}
    file.write_text(json.dumps(metadata | {"env_spec": json.dumps(spec)}))
    assert read_minari(written).info.env_id == "Pendulum-v1"
    del metadata["observation_space"]
    file.write_text(json.dumps(metadata))
    with pytest.raises(ArtefactError, match="observation_space: Field required"):
        read_minari(written)


def edit(folder: Path, path: str, change: Any) -> None:
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        value = file[path][()]
        del file[path]
        if (new := change(value)) is not None:
            file[path] = new


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("episode_2/observations", lambda x: x * np.nan, r"episode 2, field 'observations' is NaN"),
        (
            "episode_2/observations",
            lambda x: x[:-1],
            r"episode 2, field 'observations' has 3 rows for 3 steps: the last next",
        ),
        (
            "episode_2/observations",
            lambda x: x[:, :2],
            r"episode 2, field 'observations' has shape \[4, 2\], expected \[4, 3\]",
        ),
        (
            "episode_0/actions",
            lambda x: np.tile(x, 2),
            r"episode 0, field 'actions' has shape \[4, 2\], expected \[4, 1\]",
        ),
        ("episode_0/actions", lambda x: x + 10, r"episode 0, field 'action' is .* outside the action space"),
        ("episode_1/rewards", lambda x: None, r"episode 1, field 'rewards' cannot be read"),
        ("episode_1/terminations", lambda x: np.append(x, x), r"episode 1, field 'terminations' has shape \[2\]"),
        ("episode_0/truncations", lambda x: ~x, r"episode 0, field 'truncations' is true at step 0 of 4"),
        ("episode_0/infos/qpos", lambda x: x[:2], r"episode 0, field 'infos/qpos' has shape \[2, 2\]"),
        ("episode_0/rewards", lambda x: np.array([b"a"] * 4), r"episode 0, field 'rewards' holds"),
    ],
)
def test_damage_names_file_episode_and_field(written: Path, path: str, change: Any, message: str) -> None:
    edit(written, path, change)
    with pytest.raises(ArtefactError, match=r"test-v3/data: " + message):
        read_minari(written)


def test_missing_episode_and_shortened_file(written: Path) -> None:
    file = written / "data" / "main_data.hdf5"
    with h5py.File(file, "a") as content:
        del content["episode_2"]
    with pytest.raises(ArtefactError, match=r"field 'episode_2' cannot be read|field 'seed' cannot be read"):
        read_minari(written)
    file.write_bytes(file.read_bytes()[:-3000])
    with pytest.raises(
        ArtefactError, match=r"test-v3/data: episode all, field 'main_data.hdf5' cannot be read .*truncated"
    ):
        read_minari(written)


def test_an_episode_without_steps_is_named(written: Path) -> None:
    for name in ("actions", "rewards", "terminations", "truncations", "infos/qpos", "infos/qvel"):
        edit(written, f"episode_1/{name}", lambda x: x[:0])
    edit(written, "episode_1/observations", lambda x: x[:1])
    file = written / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"total_steps": 7}))
    with pytest.raises(ArtefactError, match="episode 1, field 'rewards' is empty"):
        read_minari(written)


def test_counts_of_the_metadata_are_checked(written: Path) -> None:
    file = written / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"total_steps": 9}))
    with pytest.raises(ArtefactError, match="holds 8 steps, its metadata says 9"):
        read_minari(written)


def test_unknown_name_lists_the_nearest(written: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"did you mean 'worldrl/pendulum-v1/test-v3'\?"):
        open_trajectories("worldrl/pendulum-v1/tets-v3", store=tmp_path)
    with pytest.raises(SettingError, match=r"nothing of that name here, and none in the store .*the store is empty"):
        open_trajectories("x/y/z-v0", store=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtefactError, match=r"empty: no data/metadata\.json; give the folder of a Minari dataset"):
        open_trajectories(str(tmp_path / "empty"), store=tmp_path)
    with pytest.raises(ArtefactError, match=r"ends in \.hdf5 or \.h5"):
        open_trajectories(str(written / "data" / "metadata.json"))
    assert len(open_trajectories(str(written))) == len(open_trajectories(ID, store=tmp_path)) == 8


def test_writing_is_refused_for_bad_ids_and_unknown_environments(tmp_path: Path) -> None:
    from dataclasses import replace

    data = make()
    for bad in (None, "no-version", "../up-v0", "a b/c-v0"):
        with pytest.raises(SettingError, match="namespace/env/name-vN"):
            write_minari(tmp_path, replace(data, info=replace(data.info, dataset_id=bad)), **BY)
    with pytest.raises(SettingError, match="is not registered"):
        write_minari(tmp_path, replace(data, info=replace(data.info, env_id="Nowhere-v0")), **BY)
    assert list(tmp_path.rglob("*.hdf5")) == []


def test_missing_package_names_the_extra(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "minari.dataset.minari_storage", None)
    with pytest.raises(MissingExtraError, match=r"offline.*pip install"):
        read_minari(written)


def test_observation_bounds_are_the_environments(tmp_path: Path) -> None:
    box = gymnasium.make("Pendulum-v1").observation_space
    assert isinstance(box, spaces.Box)
    folder = write_minari(tmp_path, make(), observation_space=box, **BY)
    stored = minari.MinariDataset(folder / "data").observation_space
    assert stored == box


def respecify(written: Path, **changes: Any) -> None:
    """Change the environment that a dataset names."""
    file = written / "data" / "metadata.json"
    body = json.loads(file.read_text())
    spec = json.loads(body["env_spec"]) | changes
    file.write_text(json.dumps(body | {"env_spec": json.dumps(spec)}))


def test_a_module_in_an_id_is_never_imported(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``gymnasium.make("module:Env-v0")`` imports the module."""
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    respecify(written, id="planted:Pendulum-v1")
    with pytest.raises(ArtefactError, match="'planted:Pendulum-v1' would import code"):
        open_trajectories(str(written))
    assert open_trajectories(str(written), env_id="Pendulum-v1").info.env_id == "Pendulum-v1"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("kwargs", "allowed"),
    [
        ({"g": 9.5}, True),
        ({"reward_type": "sparse", "maze_map": [[1, "r"], [0, 1]]}, True),
        ({"tasks_to_complete": ["slide cabinet", "kettle"]}, True),
        ({"xml_file": "/etc/passwd"}, False),
        ({"reward_type": "/etc/passwd"}, False),
        ({"render_mode": "human"}, False),
        ({"reward_type": {"a": 1}}, False),
        (["g"], False),
    ],
)
def test_arguments_from_data_are_of_an_allow_list(written: Path, kwargs: Any, allowed: bool) -> None:
    respecify(written, kwargs=kwargs)
    if allowed:
        assert open_trajectories(str(written)).info.env_kwargs == kwargs
        assert open_trajectories(str(written), env_id="Pendulum-v1").info.env_kwargs == kwargs
        return
    with pytest.raises(ArtefactError, match=r"is not allowed from data; give env=Pendulum-v1"):
        open_trajectories(str(written))
    assert open_trajectories(str(written), env_id="Pendulum-v1").info.env_kwargs == {}  # the advice works


@pytest.mark.parametrize("limit", [0, -1, 1.5, "50", True])
def test_a_stored_time_limit_is_a_positive_number(written: Path, limit: Any) -> None:
    respecify(written, max_episode_steps=limit)
    with pytest.raises(ArtefactError, match="max_episode_steps of its env_spec must be a positive number"):
        open_trajectories(str(written))


def test_naming_the_environment_replaces_its_wrappers(written: Path) -> None:
    """An environment that Stable-Baselines3's Monitor wrapped can be made as registered."""
    respecify(written, additional_wrappers=[{"name": "Monitor", "entry_point": "sb3:Monitor", "kwargs": {}}])
    assert open_trajectories(str(written)).info.env_wrappers == ("Monitor",)
    assert open_trajectories(str(written), env_id="Pendulum-v1").info.env_wrappers == ()


def test_parts_of_flat_rows_are_written_and_read(tmp_path: Path) -> None:
    data, parts = make(), ((("position",), 2), (("goal",), 1))
    folder = write_minari(tmp_path, replace(data, info=replace(data.info, obs_parts=parts)), **BY)
    assert read_minari(folder).info.obs_parts == parts
    with pytest.raises(SettingError, match=r"names its parts itself: position \(2\), goal \(1\); leave obs_keys out"):
        open_trajectories(str(folder), obs_keys=["goal", "position"])


def test_the_stored_limit_stays_where_arguments_are_left_out(written: Path) -> None:
    respecify(written, kwargs={"xml_file": "x"})
    info = open_trajectories(str(written), env_id="module:Pendulum-v1").info
    assert (info.env_kwargs, info.max_episode_steps) == ({}, 50)
    respecify(written, kwargs={}, additional_wrappers=5)
    with pytest.raises(ArtefactError, match="additional_wrappers of its env_spec must be a list"):
        open_trajectories(str(written))


def test_an_episode_beyond_the_limit_is_refused(written: Path) -> None:
    respecify(written, max_episode_steps=3)
    with pytest.raises(ArtefactError, match=r"episode 0 has 4 steps, more than the limit of 3.*max_episode_steps=4"):
        open_trajectories(str(written))
    assert open_trajectories(str(written), max_episode_steps=4).info.max_episode_steps == 4


def test_arguments_that_the_registry_has_anyway_are_allowed(written: Path) -> None:
    gymnasium.register("WorldrlTestKind-v0", entry_point="nowhere:X", kwargs={"kind": "/a/b"}, max_episode_steps=9)
    try:
        respecify(written, id="WorldrlTestKind-v0", kwargs={"kind": "/a/b"})
        assert open_trajectories(str(written)).info.env_kwargs == {"kind": "/a/b"}
        respecify(written, kwargs={"kind": "/a/c"})
        with pytest.raises(ArtefactError, match="is not allowed from data"):
            open_trajectories(str(written))
    finally:
        del gymnasium.registry["WorldrlTestKind-v0"]
