"""Time limits of episodes, held against the episodes that are there."""

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.data.offline.trajectories import DatasetInfo


def time_limit(info: DatasetInfo) -> int | None:
    """Return the steps after which a dataset's episodes are cut: its own limit, else the environment's registered one, else None."""
    if info.max_episode_steps is not None or info.env_id is None:
        return info.max_episode_steps
    spec = gymnasium.registry.get(info.env_id.rpartition(":")[2])
    return None if spec is None else spec.max_episode_steps


def check_limit(lengths: NDArray[np.int64], limit: int | None, source: str) -> None:
    """Require that no episode of ``lengths [E]`` is longer than the time limit; None checks nothing."""
    if limit is None or not (lengths > limit).any():
        return
    first, longest = int(np.argmax(lengths > limit)), int(lengths.max())
    raise ArtefactError(
        f"{source}: episode {first} has {int(lengths[first])} steps, more than the limit of {limit} (max_episode_steps): "
        f"an end is not marked, or the limit is another. Give max_episode_steps={longest} if the ends are right; in a "
        "D4RL file without the field 'timeouts', max_episode_steps marks them"
    )
