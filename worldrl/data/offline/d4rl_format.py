"""D4RL's HDF5 files: one long run of rows, cut into episodes where ``terminals`` or ``timeouts`` say so.

``next_observations`` are used where the file has them. Where it has not, rows are paired inside episodes only,
never across a reset as D4RL's own loader does. The successor of a row that timed out was not recorded, so that row is
left out. Nothing bootstraps from a terminated row; its successor is written as the row's own observation. How many of either kind there were stands in the provenance.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.data.offline.actions import ActionRange
from worldrl.data.offline.columns import column, fault, truth
from worldrl.data.offline.hdf5 import Hdf5
from worldrl.data.offline.jumps import find_jumps
from worldrl.data.offline.reference_scores import d4rl_reference
from worldrl.data.offline.resets import check_limit, time_limit
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories

SUFFIXES = (".hdf5", ".h5")
BOUND = 1.0  # Actions lie in [-1, 1] in all of D4RL's tasks
NAMES = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "infos/qpos", "infos/qvel")


def read_d4rl(
    file: Path,
    *,
    env_id: str | None = None,
    max_episode_steps: int | None = None,
    actions: ActionRange | None = None,
    obs_keys: tuple[str, ...] = (),
) -> Trajectories:
    """Read a D4RL file, whose whole name (``hopper-medium-v2.hdf5``) says which of D4RL's reference scores hold.

    ``env_id`` is a registered Gymnasium id, as the file names none that still exists. ``max_episode_steps`` is the
    episodes' length in files without ``timeouts``; in others these are checked against it. ``actions`` None takes [-1,
    1], as in all of D4RL's tasks. ArtefactError for damage, a wrong shape, a value that is not finite, an episode
    beyond the limit; MissingExtraError without h5py.
    """
    raw = _read(file)
    ends, terminated, early = _ends(raw, file, max_episode_steps)
    episode = np.concatenate([[0], np.cumsum(ends[:-1])]).astype(np.int64)
    columns = _columns(raw, file, episode)
    reference = d4rl_reference(file.stem)
    kept, dropped, repeated = _kept(ends, terminated, stored="next_observations" in raw)
    low, high, columns["action"], clipped = _ranged(columns["action"], actions or ActionRange())
    provenance: dict[str, Any] = {
        "format": "d4rl",
        "rows_without_successor": dropped,
        "terminal_successors_repeated": repeated,
        "early_timeouts": early,
        "actions_clipped": clipped,
    }
    info = DatasetInfo(
        source=str(file),
        action_low=low,
        action_high=high,
        dataset_id=file.stem,
        env_id=env_id,
        max_episode_steps=max_episode_steps,
        ref_min=reference.min if reference else None,
        ref_max=reference.max if reference else None,
        provenance=provenance,
        obs_keys=obs_keys,
    )
    check_limit(np.bincount(episode), time_limit(info), str(file))
    provenance["jumps"] = find_jumps(
        columns["obs"], columns["next_obs"], learned=kept, terminated=terminated, ends=ends, episode=episode
    )
    return _cut(columns, terminated, episode, kept, info)


def _read(file: Path) -> dict[str, NDArray[Any]]:
    with Hdf5(file, field=NAMES[0]) as content:
        found = {name: content.numbers(content.content, name, "all") for name in NAMES}
    raw = {name: array for name, array in found.items() if array is not None}
    if missing := [name for name in NAMES[:4] if name not in raw]:
        raise fault(file, "all", missing[0], f"is missing; a D4RL file has {', '.join(NAMES[:4])}")
    return raw


def _ranged(
    action: NDArray[np.float32], given: ActionRange
) -> tuple[tuple[float, ...], tuple[float, ...], NDArray[np.float32], int]:
    """Return the bounds, and the actions within them with the number of rows that were clipped."""
    size = action.shape[1]
    low, high = given.bounds(size, (-BOUND,) * size, (BOUND,) * size)
    return low, high, *given.applied(action, low, high)


def _ends(
    raw: dict[str, NDArray[Any]], file: Path, max_episode_steps: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], dict[str, int] | None]:
    """Return which rows end an episode and which of them terminated, both ``[N]``, and time-outs before the limit."""
    rows = raw["rewards"].size
    flags = {}
    for name in ("terminals", "timeouts"):
        if name in raw:
            flags[name] = truth(raw[name].reshape(-1), rows=rows, source=file, episode=0, name=name)
    if rows == 0:
        raise ArtefactError(f"{file}: holds no transitions; copy it again")
    terminated, early = flags["terminals"], None
    if "timeouts" in flags:
        ends = terminated | flags["timeouts"]
        early = _early(ends, flags["timeouts"] & ~terminated, max_episode_steps)
    elif max_episode_steps is not None:
        ends = _count_out(terminated, max_episode_steps)
    else:
        raise fault(file, "all", "timeouts", "is missing, so resets are unknown; give max_episode_steps")
    ends[-1] = True
    return ends, terminated, early


def _early(ends: NDArray[np.bool_], timed_out: NDArray[np.bool_], limit: int | None) -> dict[str, int] | None:
    """Count the time-outs that come before the limit that the user gives; the file's last row may be cut anywhere."""
    last = np.flatnonzero(ends)
    lengths = np.diff(last, prepend=-1)[timed_out[last] & (last < len(ends) - 1)]
    if limit is None or not (lengths < limit).any():
        return None
    rows = int((lengths < limit).sum())
    return {"rows": rows, "of": len(lengths), "limit": limit, "shortest": int(lengths.min())}


def _count_out(terminated: NDArray[np.bool_], limit: int) -> NDArray[np.bool_]:
    """End an episode where it terminated, and after ``limit`` steps."""
    ends, steps = terminated.copy(), 0
    for row in range(len(ends)):
        steps += 1
        ends[row] |= steps == limit
        steps = 0 if ends[row] else steps
    return ends


def _columns(raw: dict[str, NDArray[Any]], file: Path, episode: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    rows = len(episode)

    def read(name: str, width: int | None) -> NDArray[np.float32]:
        return column(raw[name], rows=rows, width=width, source=file, episode=episode, name=name)

    obs = read("observations", 0)
    after = (
        read("next_observations", obs.shape[1]) if "next_observations" in raw else np.append(obs[1:], obs[-1:], axis=0)
    )
    result: dict[str, NDArray[Any]] = {
        "obs": obs,
        "next_obs": after,
        "action": read("actions", 0),
        "reward": column(
            raw["rewards"].reshape(-1), rows=rows, width=None, source=file, episode=episode, name="rewards"
        ),
    }
    for name in ("qpos", "qvel"):
        if (key := f"infos/{name}") in raw:
            read(key, 0)  # its shape and values; float32 would move the simulator
            result[name] = raw[key].astype(np.float64)
    return result


def _kept(
    ends: NDArray[np.bool_], terminated: NDArray[np.bool_], *, stored: bool
) -> tuple[NDArray[np.bool_], int, int]:
    """Return which rows stay, how many go, and how many terminated ones lack a successor."""
    if stored:
        return np.ones_like(ends), 0, 0
    lost = ends & ~terminated
    return ~lost, int(lost.sum()), int(terminated.sum())


def _cut(
    columns: dict[str, NDArray[Any]],
    terminated: NDArray[np.bool_],
    episode: NDArray[np.int64],
    kept: NDArray[np.bool_],
    info: DatasetInfo,
) -> Trajectories:
    """Leave the rows without successor out, close each episode and number those that still have rows."""
    if not kept.any():
        raise fault(
            info.source, "all", "next_observations", "is missing, and no row has a successor in its own episode"
        )
    if not kept.all():
        columns = {name: array[kept] for name, array in columns.items()}
        terminated, episode = terminated[kept], episode[kept]
    if info.provenance["terminal_successors_repeated"]:
        columns["next_obs"][terminated] = columns["obs"][terminated]
    number = np.unique(episode, return_inverse=True)[1].astype(np.int64)
    last = np.append(np.diff(number) == 1, True)
    return Trajectories(**columns, terminated=terminated, truncated=last & ~terminated, episode=number, info=info)
