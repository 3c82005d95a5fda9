"""SnapshotRL with S3RL (2023): episodes that begin at a teacher's states, spread evenly over its observations.

A teacher's simulator states (snapshots: qpos and qvel of an offline dataset) are clustered by observation. For the first
``snapshot_steps`` steps of an online training, an episode begins at a snapshot (cluster drawn uniformly, then a member)
and is truncated after ``truncate_after`` steps. After that, episodes are the environment's own.

Shapes legend: ``N`` snapshots, ``S`` observation, ``C`` clusters.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.data.offline.trajectories import Trajectories
from worldrl.methods.offline.agent import require_rules

ITERATIONS = 100  # most rounds of Lloyd's algorithm; it ends earlier when no point changes its cluster


@dataclass(frozen=True)
class SnapshotConfig:
    """Settings of :class:`SnapshotResets`; defaults are the paper's."""

    clusters: int = 6  # C.
    truncate_after: int = 100  # steps of an episode that began at a snapshot.
    snapshot_steps: int = 100_000  # environment steps after which episodes begin as usual.

    def __post_init__(self) -> None:
        require_rules(self, "snapshots", {"at least 1": "clusters truncate_after", "zero or more": "snapshot_steps"})


def k_means(points: NDArray[np.floating[Any]], clusters: int, *, generator: np.random.Generator) -> NDArray[np.int64]:
    """Cluster points ``[N, S]`` by Lloyd's algorithm after k-means++: int64 ``[N]``; SettingError: too few."""
    if not 1 <= clusters <= len(points):
        raise SettingError(f"clusters: {len(points)} points cannot make {clusters} clusters; ask for fewer")
    centres = _first_centres(points, clusters, generator)
    label = np.full(len(points), -1)
    for _ in range(ITERATIONS):
        nearest = square_distances(points, centres).argmin(axis=1)
        if np.array_equal(nearest, label):
            break
        label = nearest
        for cluster in np.unique(label):
            centres[cluster] = points[label == cluster].mean(axis=0)
    return label.astype(np.int64)


def square_distances(points: NDArray[Any], centres: NDArray[Any]) -> NDArray[np.float64]:
    """Squared distances ``[N, C]``."""
    return np.stack([np.square(points - centre).sum(axis=1) for centre in centres], axis=1)


def _first_centres(points: NDArray[Any], clusters: int, generator: np.random.Generator) -> NDArray[np.float64]:
    chosen = [int(generator.integers(len(points)))]
    while len(chosen) < clusters:
        distance = square_distances(points, points[chosen]).min(axis=1)
        total = distance.sum()
        weight = distance / total if total > 0 else np.full(len(points), 1 / len(points))
        chosen.append(int(generator.choice(len(points), p=weight)))
    return points[chosen].astype(np.float64)


class SnapshotResets(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A MuJoCo environment of Gymnasium whose episodes begin at snapshots, each drawn from its own stream.

    Raises SettingError: the teacher's dataset has no simulator states, or the environment's state cannot be set.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], teacher: Trajectories, config: SnapshotConfig, *, seed: int
    ) -> None:
        super().__init__(env)
        if teacher.qpos is None or teacher.qvel is None:
            raise SettingError(f"snapshots: {teacher.info.source} holds no simulator states (qpos, qvel); record them")
        if not hasattr(env.unwrapped, "set_state"):
            raise SettingError(
                f"snapshots: the state of {env} cannot be set; use one of Gymnasium's MuJoCo environments"
            )
        if len(getattr(env.unwrapped.observation_space, "shape", None) or ()) != 1:
            raise SettingError(
                f"snapshots: observations of {env} have parts; give online.resets=own, or an environment of one vector"
            )
        self.config, self.seed = config, seed
        self.qpos, self.qvel = teacher.qpos, teacher.qvel
        scaled = (teacher.obs - teacher.obs.mean(axis=0)) / (teacher.obs.std(axis=0) + 1e-6)
        label = k_means(scaled, config.clusters, generator=numpy_stream(seed, "snapshots", "clusters"))
        self.members = [np.flatnonzero(label == cluster) for cluster in np.unique(label)]
        self.steps = self.episodes = 0
        self._left: int | None = None

    def draw(self, generator: np.random.Generator) -> int:
        """Draw a snapshot's row: a cluster uniformly, then one of its members."""
        members = self.members[int(generator.integers(len(self.members)))]
        return int(generator.choice(members))

    def state_dict(self) -> dict[str, int]:
        """Return the counters, which a reset does not set."""
        return {"steps": self.steps, "episodes": self.episodes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.steps, self.episodes = state["steps"], state["episodes"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin at a snapshot, or as usual after the snapshot steps."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.episodes += 1
        self._left = None
        if self.steps >= self.config.snapshot_steps:
            return obs, info
        row = self.draw(numpy_stream(self.seed, "snapshots", self.episodes))
        inner: Any = self.env.unwrapped
        inner.set_state(self.qpos[row], self.qvel[row])
        self._left = self.config.truncate_after
        return inner._get_obs(), {**info, "snapshot": row}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; an episode from a snapshot is truncated after its steps."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self._left is not None:
            self._left -= 1
            truncated = truncated or self._left <= 0
        return obs, reward, terminated, truncated, info
