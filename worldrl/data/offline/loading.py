"""Open an offline dataset by whatever names it: a Minari id, a Minari folder or a D4RL file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.data.offline.d4rl_format import SUFFIXES, read_d4rl
from worldrl.data.offline.minari_format import data_folder, local_datasets, minari_store, read_minari
from worldrl.data.offline.trajectories import Trajectories


def open_trajectories(
    name: str, *, env_id: str | None = None, max_episode_steps: int | None = None, store: Path | None = None
) -> Trajectories:
    """Read a dataset.

    Args:
        name: path of a D4RL ``.hdf5`` file, folder of a Minari dataset, or a Minari id in the store.
        env_id: registered environment to evaluate in, where the dataset names none or another is wanted.
        max_episode_steps: its time limit, likewise; also the length of episodes in D4RL files without ``timeouts``.
        store: root of the Minari store; None takes the user's own.

    Raises:
        ArtefactError: damaged data; the message names file, episode and field.
        SettingError: no such dataset; the message names the nearest.
    """
    path, root = Path(name), store or minari_store()
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise ArtefactError(
                f"{path}: a dataset file ends in {' or '.join(SUFFIXES)}; give a Minari dataset by its folder"
            )
        return read_d4rl(path, env_id=env_id, max_episode_steps=max_episode_steps)
    folder = next((place for place in (path, root / name) if data_folder(place) is not None), path)
    if not folder.is_dir():
        raise SettingError(
            f"dataset {name!r}: nothing of that name here, and none in the store {root}{_hint(name, root)}"
        )
    data = read_minari(folder, env_id=env_id)
    limit = max_episode_steps or data.info.max_episode_steps
    return replace(data, info=replace(data.info, max_episode_steps=limit))


def _hint(name: str, root: Path) -> str:
    known = local_datasets(root) if root.is_dir() else []
    return nearest(name, known) if known else "; the store is empty: make one with worldrl make-dataset"
