"""An offline dataset in memory: episodes back to back, checked, and what is known of where they come from.

Timeline of an episode of ``T`` steps, which was seen at ``T + 1`` moments::

    row         0    1    ...  T-1
    obs         o0   o1   ...  o[T-1]
    action      a0   a1   ...  a[T-1]      in the environment's own units
    reward      r0   r1   ...  r[T-1]      what arriving at next_obs earned
    next_obs    o1   o2   ...  o[T]        the true successor, also at the end and across a time limit
    qpos, qvel  the simulator's state before each step, where it was recorded

The last row of an episode, and no other, is ``terminated`` (the task ended: nothing follows) or ``truncated`` (a time
limit or the end of the recording: more would have followed).

Shapes legend: ``N`` rows, ``E`` episodes, ``T`` steps of one, ``S`` observation, ``A`` action.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.transitions import Transitions
from worldrl.data.offline.actions import check_actions
from worldrl.data.offline.columns import check_finite, fault
from worldrl.data.offline.layout import Layout

UNKNOWN_SEED = -1


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a dataset besides its rows."""

    source: str  # file or folder it was read from, or what made it; stands in every error message
    action_low: tuple[float, ...]  # lower bounds of the `A` action numbers, in the environment's units
    action_high: tuple[float, ...]  # upper bounds
    dataset_id: str | None = None  # Minari id, `namespace/env/name-vN`
    env_id: str | None = None  # registered Gymnasium id of the environment to evaluate in
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])  # its keyword arguments
    max_episode_steps: int | None = None  # its time limit; None takes the registered one
    env_wrappers: tuple[str, ...] = ()  # names of wrappers it had, which cannot be made again from their names
    ref_min: float | None = None  # return that scores 0, by the dataset's own account
    ref_max: float | None = None  # return that scores 100
    # JSON-ready: how it was made, as far as the file says, and what reading it found (remarks).
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # Keys and sizes of the parts of an observation, in the order of its columns; None where no key is known.
    obs_parts: Layout | None = None
    obs_keys: tuple[str, ...] = ()  # keys of the environment's parts in the order of the columns, by the user's account


@dataclass(frozen=True, eq=False)
class VectorEpisode:
    """One episode of vectors."""

    obs: NDArray[np.float32]  # float32 `[T+1, S]`
    action: NDArray[np.float32]  # float32 `[T, A]` in the environment's units
    reward: NDArray[np.float32]  # float32 `[T]`
    terminated: bool  # the task ended it
    truncated: bool  # a limit ended it
    qpos: NDArray[np.float64] | None = None  # float64 `[T, Q]`, the simulator's positions before each step, or None
    qvel: NDArray[np.float64] | None = None  # float64 `[T, V]`, its velocities, or None
    seed: int | None = None  # what the environment was reset with; None if unknown

    def __len__(self) -> int:
        """Return the number of steps ``T``."""
        return len(self.reward)


@dataclass(frozen=True, eq=False)
class Trajectories:
    """An offline dataset; making one checks it.

    ArtefactError names file, episode and field: a wrong shape or type, a value that is not finite, an action out of
    bounds, or an episode that ends in its middle or not at all.
    """

    obs: NDArray[np.float32]  # float32 `[N, S]`
    action: NDArray[np.float32]  # float32 `[N, A]` in the environment's units
    reward: NDArray[np.float32]  # float32 `[N]`
    next_obs: NDArray[np.float32]  # float32 `[N, S]`
    terminated: NDArray[np.bool_]  # bool `[N]`
    truncated: NDArray[np.bool_]  # bool `[N]`
    episode: NDArray[np.int64]  # int64 `[N]`, counting up from 0
    info: DatasetInfo  # what is known of it
    qpos: NDArray[np.float64] | None = None  # float64 `[N, Q]` simulator positions before each step, or None
    qvel: NDArray[np.float64] | None = None  # float64 `[N, V]` simulator velocities before each step, or None
    # Int64 `[E]`, what each episode's environment was reset with, -1 where unknown, or None.
    seed: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Check shapes, values and episode ends."""
        check(self)

    def __len__(self) -> int:
        """Return the number of rows ``N``."""
        return len(self.reward)

    @property
    def episodes(self) -> int:
        """How many episodes ``E`` there are."""
        return int(self.episode[-1]) + 1

    def bounds(self) -> NDArray[np.int64]:
        """Return the rows int64 ``[E+1]`` at which episodes begin, and the number of rows."""
        return np.searchsorted(self.episode, np.arange(self.episodes + 1)).astype(np.int64)

    def returns(self) -> NDArray[np.float64]:
        """Return the undiscounted return of each episode, float64 ``[E]``."""
        return np.add.reduceat(self.reward.astype(np.float64), self.bounds()[:-1])

    def transitions(self) -> Transitions:
        """Return the rows for an agent: actions scaled to [-1, 1], tensors on the CPU."""
        action = unit_action(self.action, self.info)
        columns = (self.obs, action, self.reward, self.next_obs, self.terminated, self.truncated)
        return Transitions(*(torch.from_numpy(np.ascontiguousarray(column)) for column in columns))

    def head(self, rows: int) -> "Trajectories":
        """Return the first rows (SettingError unless 1 to all); an episode that is cut in two ends truncated."""
        if not 1 <= rows <= len(self):
            raise SettingError(f"rows: {self.info.source} has {len(self)} rows, got {rows}; ask for 1 to {len(self)}")
        columns = {name: getattr(self, name)[:rows] for name in ROW_FIELDS if getattr(self, name) is not None}
        truncated = columns.pop("truncated").copy()
        truncated[-1] |= not self.terminated[rows - 1]
        seed = None if self.seed is None else self.seed[: int(self.episode[rows - 1]) + 1]
        return replace(self, **columns, truncated=truncated, seed=seed)

    def split(self) -> Iterator[VectorEpisode]:
        """Give the episodes one after the other; ArtefactError if a next observation is not the next row's."""
        bounds = self.bounds()
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            rows = slice(int(begin), int(end))
            obs, after = self.obs[rows], self.next_obs[rows]
            if not np.array_equal(obs[1:], after[:-1]):
                raise fault(self.info.source, number, "next_obs", "is not the next row's observation; it has a gap")
            yield VectorEpisode(
                np.concatenate([obs, after[-1:]]),
                self.action[rows],
                self.reward[rows],
                bool(self.terminated[end - 1]),
                bool(self.truncated[end - 1]),
                None if self.qpos is None else self.qpos[rows],
                None if self.qvel is None else self.qvel[rows],
                None if self.seed is None or self.seed[number] == UNKNOWN_SEED else int(self.seed[number]),
            )


ROW_FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "episode", "qpos", "qvel")
RANKS = {"obs": 2, "action": 2, "next_obs": 2, "qpos": 2, "qvel": 2}  # Number of axes of a column; 1 for the others
TYPES: dict[str, type[Any]] = {
    **dict.fromkeys(("obs", "action", "reward", "next_obs"), np.float32),
    **dict.fromkeys(("terminated", "truncated"), np.bool_),
    **dict.fromkeys(("qpos", "qvel"), np.float64),
    "episode": np.int64,
}


def from_episodes(info: DatasetInfo, episodes: Sequence[VectorEpisode]) -> Trajectories:
    """Lay one or more episodes back to back; simulator states are kept if all have them. ArtefactError as above."""
    if not episodes:
        raise ArtefactError(f"{info.source}: holds no episode; record or download it again")
    if empty := [number for number, episode in enumerate(episodes) if not len(episode)]:
        raise fault(info.source, empty[0], "rewards", "is empty; leave episodes without a step out")
    lengths = [len(episode) for episode in episodes]
    last = np.cumsum(lengths) - 1
    columns: dict[str, Any] = {
        "obs": np.concatenate([episode.obs[:-1] for episode in episodes]),
        "action": np.concatenate([episode.action for episode in episodes]),
        "reward": np.concatenate([episode.reward for episode in episodes]),
        "next_obs": np.concatenate([episode.obs[1:] for episode in episodes]),
        "episode": np.repeat(np.arange(len(episodes), dtype=np.int64), lengths),
        "qpos": _states([episode.qpos for episode in episodes]),
        "qvel": _states([episode.qvel for episode in episodes]),
    }
    for name in ("terminated", "truncated"):
        columns[name] = np.zeros(sum(lengths), np.bool_)
        columns[name][last] = [getattr(episode, name) for episode in episodes]
    # A recording that just stops was cut off: more would have followed.
    columns["truncated"][last] |= ~columns["terminated"][last]
    seeds = [UNKNOWN_SEED if episode.seed is None else episode.seed for episode in episodes]
    known = any(seed != UNKNOWN_SEED for seed in seeds)
    return Trajectories(**columns, info=info, seed=np.array(seeds, np.int64) if known else None)


def join(info: DatasetInfo, parts: Sequence[Trajectories]) -> Trajectories:
    """Lay datasets back to back, under a new description."""
    return from_episodes(info, [episode for part in parts for episode in part.split()])


def unit_action(action: NDArray[np.float32], info: DatasetInfo) -> NDArray[np.float32]:
    """Scale actions ``[..., A]`` from the environment's bounds to [-1, 1]."""
    centre, half = _centre_half(info)
    return np.asarray(np.clip((action - centre) / half, -1, 1), np.float32)


def env_action(action: NDArray[np.float32], info: DatasetInfo) -> NDArray[np.float32]:
    """Scale actions ``[..., A]`` from [-1, 1] to the environment's bounds; the inverse of :func:`unit_action`."""
    centre, half = _centre_half(info)
    return np.asarray(centre + half * action, np.float32)


def check(data: Trajectories) -> None:
    """Raise what :class:`Trajectories` says it raises."""
    source = data.info.source
    if data.reward.ndim != 1 or len(data.reward) == 0:
        raise ArtefactError(f"{source}: holds no transitions; record or download it again")
    _check_layout(data)
    _check_episodes(data)
    for name in ("obs", "action", "reward", "next_obs", "qpos", "qvel"):
        if (array := getattr(data, name)) is not None:
            check_finite(array, source, data.episode, name)
    info = data.info
    check_actions(data.action, info.action_low, info.action_high, source=source, episode=data.episode)


def _check_layout(data: Trajectories) -> None:
    source = data.info.source
    for name in ROW_FIELDS:
        array = getattr(data, name)
        if array is None:
            continue
        if array.ndim != RANKS.get(name, 1) or len(array) != len(data) or array.dtype != TYPES[name]:
            shape = [len(data), "..."] if RANKS.get(name, 1) == 2 else [len(data)]
            what = f"is {array.dtype} {list(array.shape)}, expected {np.dtype(TYPES[name])} {shape}"
            raise fault(source, "all", name, what)
    if data.next_obs.shape != data.obs.shape:
        raise fault(source, "all", "next_obs", f"has shape {list(data.next_obs.shape)}, obs {list(data.obs.shape)}")
    size = data.action.shape[1]
    if (len(data.info.action_low), len(data.info.action_high)) != (size, size):
        raise fault(source, "all", "action", f"has {size} numbers, its bounds {len(data.info.action_low)}")


def _check_episodes(data: Trajectories) -> None:
    source, step = data.info.source, np.diff(data.episode)
    if data.episode[0] != 0 or not np.isin(step, (0, 1)).all():
        raise fault(source, "all", "episode", "must count 0, 0, ..., 1, 1, ... without a gap")
    last = np.append(step == 1, True)
    ended = data.terminated | data.truncated
    if (wrong := np.flatnonzero(ended & ~last)).size:
        name = "terminated" if data.terminated[wrong[0]] else "truncated"
        raise fault(source, int(data.episode[wrong[0]]), name, "ends the episode before its last row; split it there")
    if (wrong := np.flatnonzero(last & ~ended)).size:
        what = "must be true in a last row that did not terminate"
        raise fault(source, int(data.episode[wrong[0]]), "truncated", what)
    if data.seed is not None and data.seed.shape != (data.episodes,):
        raise fault(source, "all", "seed", f"has shape {list(data.seed.shape)}, expected one per episode")


def _centre_half(info: DatasetInfo) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = np.array(info.action_low, np.float64), np.array(info.action_high, np.float64)
    return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def _states(states: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    known = [state for state in states if state is not None]
    return np.concatenate(known) if len(known) == len(states) else None
