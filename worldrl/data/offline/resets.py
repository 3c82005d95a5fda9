"""Where episodes end, held against the rows: limits that are exceeded, and steps that lead across an unmarked reset.

A row that bootstraps must not lead into another episode. Whether one does shows in the size of its step: within an
episode a number moves little from row to row, across a reset it jumps. A jump is no proof, so it is counted and said.

Shapes legend: ``N`` rows, ``S`` observation, ``E`` episodes.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import numpy_stream
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories

SAMPLED, LEAST = 4096, 8
"""Rows whose steps give a number's usual size, and how many of them must move it."""
OVER_MEDIAN, OVER_NINTH, FAR_OVER_MEDIAN = 20.0, 15.0, 200.0
"""A jump is this many times the median and the ninth decile, or far over the median, of the steps that move a number.

Steps of random actions in Gymnasium's MuJoCo tasks reach 70 times the median and 8 times the decile (contacts of HumanoidStandup and
Pusher); resets lie at 20 times the decile and above. Where episodes last under ten steps, resets are the decile itself.
"""
CHUNK = 65_536
WHERE = {
    "late": "most of them lie one row before a marked end, so the time-outs lie one row late",
    "early": "most of them lie one row after a marked end, so the time-outs lie one row early",
    "following": "most of them lie on time-outs, so next_observations are the following rows, across resets",
}


def time_limit(info: DatasetInfo) -> int | None:
    """Return the steps after which a dataset's episodes are cut: its own limit, else the environment's registered one, else None."""
    if info.max_episode_steps is not None or info.env_id is None:
        return info.max_episode_steps
    spec = gymnasium.registry.get(info.env_id.rpartition(":")[2])
    return None if spec is None else spec.max_episode_steps


def check_limit(lengths: NDArray[np.int64], limit: int | None, source: str) -> None:
    """Require that no episode is longer than the time limit.

    Args:
        lengths: ``[E]`` steps as recorded.
        limit: of the user, the dataset or the registered environment; None checks nothing.
        source: file or folder, for the message.

    Raises:
        ArtefactError: with episode, length and limit.
    """
    if limit is None or not (lengths > limit).any():
        return
    first, longest = int(np.argmax(lengths > limit)), int(lengths.max())
    raise ArtefactError(
        f"{source}: episode {first} has {int(lengths[first])} steps, more than the limit of {limit} (max_episode_steps): "
        f"an end is not marked, or the limit is another. Give max_episode_steps={longest} if the ends are right; in a "
        "D4RL file without the field 'timeouts', max_episode_steps marks them"
    )


def check_lengths(data: Trajectories, limit: int | None) -> None:
    """Hold a dataset's episodes against a limit, as :func:`check_limit` does."""
    check_limit(np.diff(data.bounds()), limit, data.info.source)


def find_jumps(
    obs: NDArray[np.float32],
    next_obs: NDArray[np.float32],
    *,
    bootstraps: NDArray[np.bool_],
    ends: NDArray[np.bool_],
    episode: NDArray[np.int64],
) -> dict[str, Any] | None:
    """Count the rows whose step is far larger than steps within episodes are.

    Args:
        obs: ``[N, S]``.
        next_obs: ``[N, S]``, as learning takes it.
        bootstraps: ``[N]``, rows that are learned from and did not terminate.
        ends: ``[N]``, rows that are marked as the last of their episode.
        episode: ``[N]``, the episode of each row.

    Returns:
        JSON-ready: ``rows``, the ``largest`` step with the ``median`` of its number, where it lies, and ``where`` most lie;
        ``unmarked``, the rows without a marked end after which the next row begins elsewhere. None where there is neither.
    """
    if len(obs) < 2 or not obs.shape[1]:
        return None
    median, bound = _usual(obs, next_obs, bootstraps)
    jumps = _beyond(next_obs, obs, bound) & bootstraps
    gaps = np.zeros_like(ends)
    gaps[:-1] = _beyond(obs[1:], next_obs[:-1], bound) & ~ends[:-1]
    if not jumps.any() and not gaps.any():
        return None
    result: dict[str, Any] = {"rows": int(jumps.sum()), "unmarked": int(gaps.sum())}
    return result | (_largest(obs, next_obs, jumps, ends, episode, median) if jumps.any() else {})


def jumps_of(data: Trajectories) -> dict[str, Any] | None:
    """Count the jumps of a whole dataset, as :func:`find_jumps` does."""
    return find_jumps(
        data.obs,
        data.next_obs,
        bootstraps=~data.terminated,
        ends=data.terminated | data.truncated,
        episode=data.episode,
    )


def _usual(
    obs: NDArray[np.float32], next_obs: NDArray[np.float32], bootstraps: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median of each number's steps that move it, and the size from which a step is a jump; both ``[S]``."""
    rows = np.sort(numpy_stream(0, "offline", "jumps").integers(0, len(obs), min(SAMPLED, 4 * len(obs))))
    rows = rows[bootstraps[rows]]
    steps = np.abs(next_obs[rows].astype(np.float64) - obs[rows])
    median, bound = np.zeros(obs.shape[1]), np.full(obs.shape[1], np.inf)
    for number, column in enumerate(steps.T):
        moving = column[column > 0]
        if len(moving) >= LEAST:
            median[number], ninth = np.quantile(moving, (0.5, 0.9))
            bound[number] = min(max(OVER_MEDIAN * median[number], OVER_NINTH * ninth), FAR_OVER_MEDIAN * median[number])
    return median, bound


def _beyond(after: NDArray[np.float32], before: NDArray[np.float32], bound: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which rows ``[N]`` differ by more than ``bound`` in any number."""
    limit, result = bound.astype(np.float32), np.zeros(len(after), np.bool_)
    for begin in range(0, len(after), CHUNK):
        part = slice(begin, begin + CHUNK)
        step = after[part] - before[part]
        np.abs(step, out=step)
        if (step.max(axis=0) > limit).any():
            result[part] = (step > limit).any(axis=1)
    return result


def _largest(
    obs: NDArray[np.float32],
    next_obs: NDArray[np.float32],
    jumps: NDArray[np.bool_],
    ends: NDArray[np.bool_],
    episode: NDArray[np.int64],
    median: NDArray[np.float64],
) -> dict[str, Any]:
    """Describe the jump that is largest against its number's median, and where jumps lie beside marked ends."""
    rows = np.flatnonzero(jumps)
    steps = np.abs(next_obs[rows].astype(np.float64) - obs[rows])
    ratio = np.divide(steps, median, out=np.zeros_like(steps), where=median > 0)
    at, number = (int(x) for x in np.unravel_index(np.argmax(ratio), ratio.shape))
    row = int(rows[at])
    shifted = {"late": np.append(ends[1:], False), "early": np.append(False, ends[:-1]), "following": ends}
    counts = {name: int((jumps & mask).sum()) for name, mask in shifted.items()}
    most = max(counts, key=lambda name: counts[name])
    return {
        "largest": float(steps[at, number]),
        "median": float(median[number]),
        "number": number,
        "episode": int(episode[row]),
        "step": row - int(np.searchsorted(episode, episode[row])),
        "where": most if 2 * counts[most] > len(rows) else None,
    }
