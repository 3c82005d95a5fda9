"""Open an offline dataset by whatever names it: a Minari id, a Minari folder or a D4RL file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.data.offline.actions import ActionRange
from worldrl.data.offline.d4rl_format import SUFFIXES, read_d4rl
from worldrl.data.offline.minari_format import data_folder, local_datasets, minari_store, read_minari
from worldrl.data.offline.trajectories import Trajectories


def open_trajectories(
    name: str,
    *,
    env_id: str | None = None,
    max_episode_steps: int | None = None,
    action_low: Sequence[float] = (),
    action_high: Sequence[float] = (),
    clip_actions: bool = False,
    obs_keys: Sequence[str] = (),
    store: Path | None = None,
) -> Trajectories:
    """Read a dataset: path of a D4RL ``.hdf5`` file, folder of a Minari dataset, or a Minari id in the store.

    ``env_id``, ``max_episode_steps`` (also the length of episodes in D4RL files without ``timeouts``) and the bounds
    (one or one each) replace the dataset's; ``clip_actions`` counts the clipped rows in the provenance. ``obs_keys``
    order the environment's parts where the dataset names none. ``store`` None is the user's own. ArtefactError names
    damaged file, episode and field; SettingError, for no such dataset, the nearest.
    """
    path, root = Path(name), store or minari_store()
    given: dict[str, Any] = {
        "env_id": env_id,
        "max_episode_steps": max_episode_steps,
        "actions": ActionRange(tuple(action_low), tuple(action_high), clip_actions),
        "obs_keys": tuple(obs_keys),
    }
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise ArtefactError(
                f"{path}: a dataset file ends in {' or '.join(SUFFIXES)}; give a Minari dataset by its folder"
            )
        return read_d4rl(path, **given)
    if path.exists() and not path.is_dir():
        raise ArtefactError(f"{path}: is a pipe or a device, not a file; give the dataset's own file or folder")
    folder = next((place for place in (path, root / name) if data_folder(place) is not None), path)
    if not folder.is_dir():
        raise SettingError(
            f"dataset {name!r}: nothing of that name here, and none in the store {root}{_hint(name, root)}"
        )
    return read_minari(folder, **given)


def _hint(name: str, root: Path) -> str:
    known = local_datasets(root) if root.is_dir() else []
    return nearest(name, known) if known else "; the store is empty: make one with worldrl make-dataset"
