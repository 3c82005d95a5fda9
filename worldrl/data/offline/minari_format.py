"""Minari datasets in and out, by id from the local store or by folder (https://minari.farama.org).

Layout: ``<store>/<namespace>/<env>/<name>-v<N>/data/`` with ``metadata.json`` and the episodes, one group each:
observations ``[T+1]``, so that every true next observation is there, actions, rewards, terminations and truncations
``[T]``, and the simulator's ``infos/qpos`` and ``infos/qvel`` before each step where they were recorded.

A dataset's environment specification names Python entry points. They are never imported (:mod:`env_spec`). Reference scores lie in the metadata as ``ref_min_score`` and ``ref_max_score``; what
worldrl knows of the making lies under ``worldrl``.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl.core.atomic import atomic_folder
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.extras import require
from worldrl.core.jsonfile import plain, read_json
from worldrl.data.offline.columns import column, fault
from worldrl.data.offline.env_spec import stored_environment
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, from_episodes

METADATA = "metadata.json"
OWN = "worldrl"
"""Key of the metadata under which provenance of our own lies."""
ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+")
FOREIGN_PROVENANCE = (
    "algorithm_name",
    "author",
    "code_permalink",
    "description",
    "minari_version",
    "combined_datasets",
)
READ_ERRORS = (OSError, KeyError, IndexError, ValueError, TypeError, AssertionError, RuntimeError)
"""What h5py, pyarrow and Minari raise on files that are cut short or not what the metadata says."""


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


def read_minari(folder: Path, *, env_id: str | None = None) -> Trajectories:
    """Read a Minari dataset.

    Args:
        folder: the dataset's folder, or the ``data`` folder in it.
        env_id: environment to evaluate in, instead of the stored one.

    Raises:
        ArtefactError: no dataset, a damaged or shortened file, spaces that are not vectors or do not match the
            arrays, a value that is not finite, missing next observations; the message names file, episode and field.
        MissingExtraError: Minari is not installed.
    """
    data = data_folder(folder)
    if data is None:
        raise ArtefactError(f"{folder}: no data/{METADATA}; give the folder of a Minari dataset")
    storage_class = require("minari.dataset.minari_storage", extra="offline").MinariStorage
    metadata = read_json(data / METADATA, error=ArtefactError)
    for name in ("observation_space", "action_space", "data_format", "total_episodes", "total_steps"):
        # Without its spaces Minari would make the environment, and so import what the file names.
        if name not in metadata:
            raise ArtefactError(
                f"{data / METADATA}: field {name!r} is missing; write the dataset with Minari 0.4 or newer"
            )
    try:
        storage = storage_class.read(data)
    except (*READ_ERRORS, ImportError) as reason:
        raise ArtefactError(f"{data}: cannot be opened as a Minari dataset ({reason}); copy it again") from reason
    info = _info(metadata, data, storage.action_space, env_id)
    episodes = list(_episodes(storage, int(metadata["total_episodes"]), data))
    steps = sum(map(len, episodes))
    if steps != metadata["total_steps"]:
        raise ArtefactError(f"{data}: holds {steps} steps, its metadata says {metadata['total_steps']}; copy it again")
    return from_episodes(info, episodes)


def _info(metadata: Mapping[str, Any], data: Path, action_space: spaces.Space[Any], env_id: str | None) -> DatasetInfo:
    if not isinstance(action_space, spaces.Box) or len(action_space.shape) != 1:
        raise fault(data, "all", "actions", f"are in {action_space}; only vectors of numbers are read")
    return DatasetInfo(
        source=str(data),
        action_low=tuple(float(x) for x in action_space.low),
        action_high=tuple(float(x) for x in action_space.high),
        dataset_id=metadata.get("dataset_id"),
        **stored_environment(metadata, data / METADATA, env_id),
        ref_min=metadata.get("ref_min_score"),
        ref_max=metadata.get("ref_max_score"),
        provenance=metadata.get(OWN) or {name: metadata[name] for name in FOREIGN_PROVENANCE if name in metadata},
    )


def _episodes(storage: Any, total: int, data: Path) -> Iterator[VectorEpisode]:
    seeds = _seeds(storage, total, data)
    stream = iter(storage.get_episodes(range(total)))
    for number in range(total):
        try:
            raw = next(stream)
        except StopIteration:
            raise fault(data, number, "observations", f"is missing; the metadata says {total} episodes") from None
        except READ_ERRORS as reason:
            missing = re.search(r"object '(\w+)' doesn't exist", str(reason))
            name = missing[1] if missing else "observations"
            raise fault(data, number, name, f"cannot be read ({reason}); the file is damaged or cut short") from reason
        yield _episode(raw, storage, number, data, seeds[number])


def _seeds(storage: Any, total: int, data: Path) -> list[int | None]:
    try:
        attributes = list(storage.get_episode_metadata(range(total)))
    except READ_ERRORS as reason:
        raise fault(data, "all", "seed", f"cannot be read ({reason}); the file is damaged or cut short") from reason
    return [None if entry.get("seed") is None else int(entry["seed"]) for entry in attributes]


def _episode(raw: Mapping[str, Any], storage: Any, number: int, data: Path, seed: int | None) -> VectorEpisode:
    steps = int(np.size(raw["rewards"]))
    where: dict[str, Any] = {"source": data, "episode": number}
    flags = {name: _flag(raw[name], steps, name=name, **where) for name in ("terminations", "truncations")}
    infos = raw.get("infos") or {}
    return VectorEpisode(
        obs=_vectors(storage.observation_space, raw["observations"], steps + 1, name="observations", **where),
        action=_vectors(storage.action_space, raw["actions"], steps, name="actions", **where),
        reward=column(raw["rewards"], rows=steps, width=None, name="rewards", **where),
        terminated=flags["terminations"],
        truncated=flags["truncations"],
        qpos=_state(infos, "qpos", steps, **where),
        qvel=_state(infos, "qvel", steps, **where),
        seed=seed,
    )


def _vectors(
    space: spaces.Space[Any], value: Any, rows: int, *, source: Path, episode: int, name: str
) -> NDArray[np.float32]:
    """Return ``[rows, S]``: a dictionary's or tuple's parts side by side, as ``gymnasium.spaces.flatten`` lays them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        try:
            pieces = [(part, value[key], f"{name}/{key}") for key, part in parts]
        except (KeyError, IndexError, TypeError) as reason:
            raise fault(source, episode, name, f"lacks {reason} of its space {space}") from reason
        return np.concatenate(
            [_vectors(part, x, rows, source=source, episode=episode, name=at) for part, x, at in pieces], axis=1
        )
    if not isinstance(space, spaces.Box) or len(space.shape) > 1:
        raise fault(source, episode, name, f"is in {space}; only vectors of numbers are read")
    array = np.asarray(value)
    if len(array) == rows - 1 and name.startswith("observations"):
        raise fault(
            source, episode, name, f"has {rows - 1} rows for {rows - 1} steps: the last next observation is missing"
        )
    return column(
        array.reshape(len(array), int(np.prod(array.shape[1:]))),
        rows=rows,
        width=int(np.prod(space.shape)),
        source=source,
        episode=episode,
        name=name,
    )


def _flag(value: Any, steps: int, *, source: Path, episode: int, name: str) -> bool:
    flags = column(value, rows=steps, width=None, source=source, episode=episode, name=name) > 0
    if flags[:-1].any():
        raise fault(
            source, episode, name, f"is true at step {int(np.argmax(flags))} of {steps}; split the episode there"
        )
    return bool(flags[-1:].any())


def _state(
    infos: Mapping[str, Any], name: str, steps: int, *, source: Path, episode: int
) -> NDArray[np.float64] | None:
    """Return the simulator states before each step; the one after the last, where it was stored, is left out."""
    if name not in infos:
        return None
    array = np.asarray(infos[name])
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

    Args:
        store: the root folder, such as :func:`minari_store`.
        data: what to write; ``info`` gives id, environment, reference scores and provenance.
        observation_space: bounds of the observations; None writes unbounded ones.
        algorithm: what chose the actions.
        author: who made it.
        description: one sentence.
        score_episodes: over how many episodes the reference scores were averaged.

    Returns:
        The dataset's folder.

    Raises:
        SettingError: the id is not one, or the environment cannot be written down.
        ArtefactError: an episode has a gap, or the disk refuses.
        MissingExtraError: Minari is not installed.
    """
    info = data.info
    if info.dataset_id is None or ID.fullmatch(info.dataset_id) is None:
        raise SettingError(f"dataset_id: {info.dataset_id!r} must read namespace/env/name-vN; rename it")
    require("h5py", extra="offline")
    storage_class = require("minari.dataset.minari_storage", extra="offline").MinariStorage
    buffer_class = require("minari.data_collector.episode_buffer", extra="offline").EpisodeBuffer
    low, high = np.array(info.action_low, np.float32), np.array(info.action_high, np.float32)
    box = observation_space or spaces.Box(-np.inf, np.inf, (data.obs.shape[1],), np.float32)
    metadata = _metadata(info, algorithm, author, description, score_episodes)
    with atomic_folder(store / info.dataset_id, needed=data.obs.nbytes * 2) as folder:
        storage = storage_class.new(
            (folder / "data").resolve(),  # Minari 0.5 looks for its files below a relative path twice
            observation_space=spaces.Box(box.low.astype(np.float32), box.high.astype(np.float32), dtype=np.float32),
            action_space=spaces.Box(low, high, dtype=np.float32),
            env_spec=_registered_spec(info),
            data_format="hdf5",
        )
        storage.update_metadata(metadata)
        storage.update_episodes(_buffer(buffer_class, episode) for episode in data.split())
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
    if info.ref_min is not None and info.ref_max is not None:
        result |= {"ref_min_score": info.ref_min, "ref_max_score": info.ref_max}
        result |= {} if score_episodes is None else {"num_episodes_average_score": score_episodes}
    return result


def _registered_spec(info: DatasetInfo) -> Any:
    if info.env_id is None:
        return None
    try:
        spec = copy.deepcopy(gymnasium.spec(info.env_id))
    except gymnasium.error.Error as reason:
        raise SettingError(
            f"env_id: {info.env_id!r} is not registered ({reason}); import what registers it"
        ) from reason
    spec.kwargs.update(info.env_kwargs)
    if info.max_episode_steps is not None:
        spec.max_episode_steps = info.max_episode_steps
    try:
        spec.to_json()
    except (TypeError, ValueError) as reason:
        raise SettingError(
            f"env_id: {info.env_id!r} cannot be written as JSON ({reason}); register it by name"
        ) from reason
    return spec


def _buffer(buffer_class: Any, episode: VectorEpisode) -> Any:
    ends = {name: np.zeros(len(episode), np.bool_) for name in ("terminations", "truncations")}
    ends["terminations"][-1], ends["truncations"][-1] = episode.terminated, episode.truncated
    states = {"qpos": episode.qpos, "qvel": episode.qvel}
    infos = {name: state for name, state in states.items() if state is not None}
    return buffer_class(
        seed=episode.seed,
        observations=episode.obs,
        actions=episode.action,
        rewards=episode.reward,
        infos=infos or None,
        **ends,
    )
