"""Steps that lead across a reset which no end marks, found by their size.

A row that bootstraps must not lead into another episode. Within an episode a number moves little from row to row, across
a reset it jumps. Two tests see it: a step far larger than steps are; and rows of one kind (beside marked time-outs, or where a goal
changes that else stays) whose usual step is larger than almost all others. A jump is no proof, so it is counted and said.

Shapes legend: ``N`` rows, ``S`` observation.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.data.offline.trajectories import Trajectories

SAMPLED, LEAST = 4096, 8  # Rows whose steps give a number's usual size, and how many of them must move it
OVER_MEDIAN, OVER_NINTH, FAR_OVER_MEDIAN = 20.0, 15.0, 200.0
"""A jump is this many times the median and the ninth decile, or far over the median, of the steps that move a number.

Steps of random actions in Gymnasium's MuJoCo tasks reach 70 times the median and 8 times the decile (contacts of HumanoidStandup and
Pusher); resets lie at 20 times the decile and above. Where episodes last under ten steps, resets are the decile itself.
"""
OVER_OTHERS, FEWEST = 2.0, 3
"""Rows of one kind jump where their median step is so many times the 99th percentile of all others; how many there must be."""
SELDOM = 0.2  # A number that moves in a smaller share of rows is like a goal
CHUNK = 4096  # rows whose steps stay in the cache
WHERE = {
    "late": "they lie one row before a marked end, so the time-outs lie one row late",
    "early": "they lie one row after a marked end, so the time-outs lie one row early",
    "following": "they lie on time-outs, so next_observations are the following rows, across resets",
    "goal": "they lie where numbers change that else stay, as goals do at a reset",
}


def jumps_of(data: Trajectories) -> dict[str, Any] | None:
    """Count the jumps of a whole dataset, as :func:`find_jumps` does."""
    ends, learned = data.terminated | data.truncated, np.ones(len(data), np.bool_)
    return find_jumps(
        data.obs, data.next_obs, learned=learned, terminated=data.terminated, ends=ends, episode=data.episode
    )


def find_jumps(
    obs: NDArray[np.float32],
    next_obs: NDArray[np.float32],
    *,
    learned: NDArray[np.bool_],
    terminated: NDArray[np.bool_],
    ends: NDArray[np.bool_],
    episode: NDArray[np.int64],
) -> dict[str, Any] | None:
    """Count the rows that bootstrap and whose step is far larger than steps within episodes are.

    ``obs`` and ``next_obs`` ``[N, S]`` as learning takes them; ``learned`` (rows kept), ``terminated``, ``ends``
    (marked last rows) and ``episode`` ``[N]``. JSON-ready: ``rows``, the ``largest`` step with the ``median`` of its
    number and where it lies, ``where`` most lie, and ``unmarked``, rows without a marked end after which the next row
    begins elsewhere. None where there is neither.
    """
    if len(obs) < 2 or not obs.shape[1]:
        return None
    bootstraps = learned & ~terminated
    steps = _sampled(obs, next_obs, bootstraps)
    median, bound = _usual(steps)
    jumps = _beyond(next_obs, obs, bound) & bootstraps
    groups = _groups(obs, next_obs, bootstraps, ends & ~terminated, steps)
    for rows, seldom in groups.values():
        jumps[_standing_out(obs, next_obs, bootstraps, rows, seldom)] = True
    gaps = np.zeros_like(ends)
    gaps[:-1] = _beyond(obs[1:], next_obs[:-1], bound) & ~ends[:-1]
    if not jumps.any() and not gaps.any():
        return None
    counts = {name: int(jumps[rows].sum()) for name, (rows, _) in groups.items()}
    most = max(counts, key=lambda name: counts[name]) if counts else None
    where = most if most is not None and 2 * counts[most] > int(jumps.sum()) else None
    result: dict[str, Any] = {"rows": int(jumps.sum()), "unmarked": int(gaps.sum()), "where": where}
    return result | (_largest(obs, next_obs, jumps, episode, median) if jumps.any() else {})


def _sampled(obs: NDArray[np.float32], next_obs: NDArray[np.float32], among: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the sizes of the steps of some rows, ``[n, S]``."""
    rows = np.sort(numpy_stream(0, "offline", "jumps").integers(0, len(obs), min(SAMPLED, 4 * len(obs))))
    rows = rows[among[rows]]
    return np.abs(next_obs[rows].astype(np.float64) - obs[rows])


def _usual(steps: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median of each number's steps that move it, and the size from which a step is a jump; both ``[S]``."""
    median, bound = np.zeros(steps.shape[1]), np.full(steps.shape[1], np.inf)
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
        beyond = np.abs(after[part] - before[part]) > limit
        if beyond.any():  # one flat look first: few chunks hold a jump
            result[part] = beyond.any(axis=1)
    return result


def _groups(
    obs: NDArray[np.float32],
    next_obs: NDArray[np.float32],
    bootstraps: NDArray[np.bool_],
    timed_out: NDArray[np.bool_],
    steps: NDArray[np.float64],
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Return rows at which resets lie if marks or next observations are wrong, with the numbers that say nothing there."""
    at, none = np.flatnonzero(timed_out), np.zeros(obs.shape[1], np.bool_)
    found = {"late": (at - 1, none), "early": (at + 1, none), "following": (at, none)}
    moves = (steps > 0).mean(axis=0) if len(steps) else np.zeros(obs.shape[1])
    seldom = (moves > 0) & (moves < SELDOM)
    if seldom.any():
        found["goal"] = (np.flatnonzero((next_obs[:, seldom] != obs[:, seldom]).any(axis=1)), seldom)
    groups = {}
    for name, (rows, ignored) in found.items():
        inside = rows[(rows >= 0) & (rows < len(obs))]
        groups[name] = (inside[bootstraps[inside]], ignored)
    return groups


def _standing_out(
    obs: NDArray[np.float32],
    next_obs: NDArray[np.float32],
    bootstraps: NDArray[np.bool_],
    rows: NDArray[np.int64],
    ignored: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return the rows of a group that jump, if the group as a whole does; else none."""
    others = bootstraps.copy()
    others[rows] = False
    if len(rows) < FEWEST or others.sum() < FEWEST:
        return rows[:0]
    steps = np.abs(next_obs[rows].astype(np.float64) - obs[rows])
    large = np.quantile(_sampled(obs, next_obs, others), 0.99, axis=0)
    group = (np.median(steps, axis=0) > OVER_OTHERS * large) & ~ignored
    return rows[(steps[:, group] > OVER_OTHERS * large[group]).any(axis=1)]


def _largest(
    obs: NDArray[np.float32],
    next_obs: NDArray[np.float32],
    jumps: NDArray[np.bool_],
    episode: NDArray[np.int64],
    median: NDArray[np.float64],
) -> dict[str, Any]:
    rows = np.flatnonzero(jumps)
    steps = np.abs(next_obs[rows].astype(np.float64) - obs[rows])
    ratio = np.divide(steps, median, out=np.zeros_like(steps), where=median > 0)
    at, number = (int(x) for x in np.unravel_index(np.argmax(ratio), ratio.shape))
    row = int(rows[at])
    return {
        "largest": float(steps[at, number]),
        "median": float(median[number]),
        "number": number,
        "episode": int(episode[row]),
        "step": row - int(np.searchsorted(episode, episode[row])),
    }
