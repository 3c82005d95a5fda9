"""Minari datasets in and out, by id from the local store or by folder (https://minari.farama.org).

Layout: ``<store>/<namespace>/<env>/<name>-v<N>/data/`` with ``metadata.json`` and the episodes, one group each:
observations ``[T+1]``, so that every true next observation is there, actions, rewards, terminations and truncations
``[T]``, and the simulator's ``infos/qpos`` and ``infos/qvel`` before each step where they were recorded.

A dataset's environment specification names Python entry points. They are never imported (:mod:`env_spec`). Reference scores lie in the metadata as ``ref_min_score`` and ``ref_max_score``; what
worldrl knows of the making lies under ``worldrl``.
"""

import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.extras import require
from worldrl.core.storage.atomic import atomic_folder, write_file
from worldrl.core.storage.jsonfile import plain
from worldrl.data.offline.actions import ActionRange
from worldrl.data.offline.columns import column, fault, truth
from worldrl.data.offline.env_spec import registered_spec, stored_environment
from worldrl.data.offline.jumps import jumps_of
from worldrl.data.offline.layout import layout_of, to_json, words
from worldrl.data.offline.minari_files import MAIN, episodes
from worldrl.data.offline.minari_metadata import METADATA, OWN, PARTS, read_metadata, stored_parts
from worldrl.data.offline.resets import check_limit, time_limit
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, from_episodes

ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+")
EXTERNAL_PROVENANCE = (
    "algorithm_name",
    "author",
    "code_permalink",
    "description",
    "minari_version",
    "combined_datasets",
)


def minari_store() -> Path:
    """Return the folder of the local Minari store, as Minari itself finds it."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return Path(given) if given else Path.home() / ".minari" / "datasets"


def local_datasets(store: Path) -> list[str]:
    """Return the ids of all datasets in a store, sorted."""
    return sorted(str(path.parent.parent.relative_to(store)) for path in store.rglob(f"data/{METADATA}"))


def data_folder(folder: Path) -> Path | None:
    """Return where the metadata of a dataset folder lies: in ``data`` or in the folder itself; None if in neither."""
    return next((place for place in (folder / "data", folder) if (place / METADATA).is_file()), None)


# --- reading -------------------------------------------------------------------------------------------------------


def read_minari(
    folder: Path,
    *,
    env_id: str | None = None,
    max_episode_steps: int | None = None,
    actions: ActionRange | None = None,
    obs_keys: tuple[str, ...] = (),
) -> Trajectories:
    """Read a Minari dataset from its folder, or the ``data`` folder in it.

    ``env_id`` and ``max_episode_steps`` replace the stored ones; ``actions`` None takes the bounds of the stored space;
    ``obs_keys`` order the environment's parts where the dataset names none (SettingError where it does). ArtefactError
    names file, episode and field that are missing, damaged, not finite or too long; MissingExtraError without Minari.
    """
    data = data_folder(folder)
    if data is None:
        raise ArtefactError(f"{folder}: no data/{METADATA}; give the folder of a Minari dataset")
    metadata, known = read_metadata(data)
    given = actions or ActionRange()
    info = _info(metadata, data, known, env_id, given)
    if max_episode_steps is not None:
        info = replace(info, max_episode_steps=max_episode_steps)
    if obs_keys and info.obs_parts is not None:
        raise SettingError(f"obs_keys: {data} names its parts itself: {words(info.obs_parts)}; leave obs_keys out")
    info, notes = replace(info, obs_keys=obs_keys, provenance=dict(info.provenance)), dict[str, Any]()
    found: list[VectorEpisode] = []
    for number, raw in enumerate(episodes(data, metadata, known)):
        episode = _episode(raw, known, number, data)
        action, clipped = given.applied(episode.action, info.action_low, info.action_high)
        notes["actions_clipped"] = notes.get("actions_clipped", 0) + clipped
        found.append(replace(episode, action=action) if clipped else episode)
    steps = sum(map(len, found))
    if steps != metadata["total_steps"]:
        raise ArtefactError(f"{data}: holds {steps} steps, its metadata says {metadata['total_steps']}; copy it again")
    check_limit(np.array([len(one) for one in found], np.int64), time_limit(info), str(data))
    result = from_episodes(info, found)
    notes["jumps"] = jumps_of(result)
    info.provenance.update({name: note for name, note in notes.items() if note})  # pyright: ignore[reportAttributeAccessIssue]
    return result


def _info(
    metadata: Mapping[str, Any],
    data: Path,
    known: Mapping[str, spaces.Space[Any]],
    env_id: str | None,
    given: ActionRange,
) -> DatasetInfo:
    box, obs = known["actions"], known["observations"]
    size = spaces.flatdim(box)
    low, high = given.bounds(size, box.low.tolist(), box.high.tolist())  # pyright: ignore[reportAttributeAccessIssue]
    return DatasetInfo(
        source=str(data),
        action_low=low,
        action_high=high,
        dataset_id=metadata.get("dataset_id"),
        **stored_environment(metadata, data / METADATA, env_id),
        ref_min=metadata.get("ref_min_score"),
        ref_max=metadata.get("ref_max_score"),
        provenance=metadata.get(OWN) or {name: metadata[name] for name in EXTERNAL_PROVENANCE if name in metadata},
        obs_parts=layout_of(obs) or stored_parts(metadata, data / METADATA, spaces.flatdim(obs)),
    )


def _episode(raw: Mapping[str, Any], known: Mapping[str, Any], number: int, data: Path) -> VectorEpisode:
    steps = int(np.size(raw["rewards"]))
    where: dict[str, Any] = {"source": data, "episode": number}
    flags = {name: _flag(raw[name], steps, name=name, **where) for name in ("terminations", "truncations")}
    return VectorEpisode(
        obs=_vectors(known["observations"], raw["observations"], steps + 1, name="observations", **where),
        action=_vectors(known["actions"], raw["actions"], steps, name="actions", **where),
        reward=column(raw["rewards"], rows=steps, width=None, name="rewards", **where),
        terminated=flags["terminations"],
        truncated=flags["truncations"],
        qpos=_state(raw, "qpos", steps, **where),
        qvel=_state(raw, "qvel", steps, **where),
        seed=raw["seed"],
    )


def _vectors(
    space: spaces.Space[Any], value: Any, rows: int, *, source: Path, episode: int, name: str
) -> NDArray[np.float32]:
    """Return ``[rows, S]``: a dictionary's or tuple's parts side by side, in the order of ``layout_of``."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        at: dict[str, Any] = {"source": source, "episode": episode}
        return np.concatenate([_vectors(p, value[key], rows, name=f"{name}/{key}", **at) for key, p in parts], axis=1)
    array = np.asarray(value)
    if array.ndim == 0 or array.ndim > 2:
        raise fault(source, episode, name, f"has shape {list(array.shape)}, expected rows of vectors; write it again")
    if len(array) == rows - 1 and name.startswith("observations"):
        what = f"has {rows - 1} rows for {rows - 1} steps: the last next observation is missing"
        raise fault(source, episode, name, what)
    flat, width = array.reshape(len(array), int(np.prod(array.shape[1:]))), int(np.prod(space.shape or ()))
    return column(flat, rows=rows, width=width, source=source, episode=episode, name=name)


def _flag(value: Any, steps: int, *, source: Path, episode: int, name: str) -> bool:
    flags = truth(value, rows=steps, source=source, episode=episode, name=name)
    if flags[:-1].any():
        what = f"is true at step {int(np.argmax(flags))} of {steps}; split the episode there"
        raise fault(source, episode, name, what)
    return bool(flags[-1:].any())


def _state(raw: Mapping[str, Any], name: str, steps: int, *, source: Path, episode: int) -> NDArray[np.float64] | None:
    """Return the simulator states before each step; the one after the last, where it was stored, is left out."""
    if name not in raw:
        return None
    array = np.asarray(raw[name])
    at: dict[str, Any] = {"source": source, "episode": episode, "name": f"infos/{name}"}
    column(array, rows=steps + (len(array) == steps + 1), width=0, **at)
    return array[:steps].astype(np.float64)


# --- writing -------------------------------------------------------------------------------------------------------


def write_minari(
    store: Path,
    data: Trajectories,
    *,
    observation_space: spaces.Box | None = None,
    algorithm: str,
    author: str,
    description: str,
    score_episodes: int | None = None,
) -> Path:
    """Write a dataset into a store, in the place its ``info.dataset_id`` names; a kill leaves it whole or absent.

    ``observation_space`` None writes unbounded observations; ``algorithm`` chose the actions; the reference scores are
    means over ``score_episodes``. SettingError where the id is not one, or the environment cannot be written down;
    ArtefactError where an episode has a gap, or the disk refuses; MissingExtraError without Minari.
    """
    info = data.info
    if info.dataset_id is None or ID.fullmatch(info.dataset_id) is None:
        raise SettingError(f"dataset_id: {info.dataset_id!r} must read namespace/env/name-vN; rename it")
    content = _hdf5(data.split())
    storage_class = require("minari.dataset.minari_storage", extra="offline").MinariStorage
    low, high = np.array(info.action_low, np.float32), np.array(info.action_high, np.float32)
    box = observation_space or spaces.Box(-np.inf, np.inf, (data.obs.shape[1],), np.float32)
    metadata = _metadata(info, algorithm, author, description, score_episodes)
    with atomic_folder(store / info.dataset_id, needed=len(content)) as folder:
        storage = storage_class.new(
            (folder / "data").resolve(),  # Minari 0.5 looks for its files below a relative path twice
            observation_space=spaces.Box(box.low.astype(np.float32), box.high.astype(np.float32), dtype=np.float32),
            action_space=spaces.Box(low, high, dtype=np.float32),
            env_spec=registered_spec(info),
            data_format="hdf5",
        )
        write_file(folder / "data" / MAIN, content, error=ArtefactError)
        counts = {"total_steps": len(data), "total_episodes": data.episodes, "dataset_size": storage.get_size()}
        storage.update_metadata({**metadata, **counts})
    return store / info.dataset_id


def _metadata(
    info: DatasetInfo, algorithm: str, author: str, description: str, score_episodes: int | None
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "dataset_id": info.dataset_id,
        "minari_version": require("minari", extra="offline").__version__,
        "algorithm_name": algorithm,
        "author": {author},
        "description": description,
        OWN: plain(info.provenance, where="provenance", nonfinite="null", error=ArtefactError),
    }
    if info.obs_parts is not None:
        result[PARTS] = to_json(info.obs_parts)
    if info.ref_min is not None and info.ref_max is not None:
        result |= {"ref_min_score": info.ref_min, "ref_max_score": info.ref_max}
        result |= {} if score_episodes is None else {"num_episodes_average_score": score_episodes}
    return result


def _hdf5(episodes: Iterable[VectorEpisode]) -> bytes:
    """Lay episodes out as Minari does, in memory: the HDF5 library ends the whole process where a disk refuses a write."""
    file = io.BytesIO()
    with require("h5py", extra="offline").File(file, "w", track_order=True) as content:
        for number, episode in enumerate(episodes):
            group = content.create_group(f"episode_{number}")
            seed = {} if episode.seed is None else {"seed": episode.seed}
            group.attrs.update({"id": number, **seed, "total_steps": len(episode)})
            for name, array in _arrays(episode).items():
                group.create_dataset(name, data=array, chunks=True, maxshape=(None, *array.shape[1:]))
    return file.getvalue()


def _arrays(episode: VectorEpisode) -> dict[str, NDArray[Any]]:
    ends = {name: np.zeros(len(episode), np.bool_) for name in ("terminations", "truncations")}
    ends["terminations"][-1], ends["truncations"][-1] = episode.terminated, episode.truncated
    states = {"infos/qpos": episode.qpos, "infos/qvel": episode.qvel}
    return {
        "observations": episode.obs,
        "actions": episode.action,
        "rewards": episode.reward,
        **ends,
        **{name: state for name, state in states.items() if state is not None},
    }
