"""Which actions of which chunk are executed while decisions take time: asynchronous execution with aligned timesteps.

A chunk decided from the observation at step ``t`` holds the actions of steps ``t, t + 1, …``. Where the decision takes ``d``
control steps the robot does not wait: it goes on with the chunk before, and when the new one arrives at ``t + d`` its first
``d`` actions belong to the past and are left out (Xiaomi-Robotics-0, arXiv:2602.12684, "align the timesteps of consecutive
predicted action chunks"; replan every ``r`` steps)::

    step                 t ........ t+d ........ t+r ........ t+r+d ...
    chunk of t-r         [r : r+d]
    chunk of t                      [d : r]      [r : r+d]
    chunk of t+r                                              [d : r]

Every action is executed at the step that it was decided for. Only the first chunk of an episode is waited for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError


def check_timing(replan: int | None, latency: int, chunk_length: int) -> int:
    """Return how many steps lie between decisions.

    Args:
        replan: as given; None takes all that the chunk allows.
        latency: steps ``d`` that a decision takes.
        chunk_length: actions of a chunk.

    Raises:
        SettingError: the chunk is too short for both, or a decision takes longer than the time between two.
    """
    steps = chunk_length - latency if replan is None else replan
    if not latency <= steps or steps < 1 or steps + latency > chunk_length:
        raise SettingError(
            f"replan: must be at least latency {latency} and 1, and at most the policy's chunk length {chunk_length} less "
            f"latency, {chunk_length - latency}; got {steps}"
        )
    return steps


def splice(
    previous: NDArray[np.float32] | None, fresh: NDArray[np.float32], *, replan: int, latency: int
) -> NDArray[np.float32]:
    """Return the actions executed until the next decision, ``[replan, A]``.

    Args:
        previous: the chunk before ``[L, A]``; None at the beginning of an episode.
        fresh: the chunk just decided ``[L, A]``.
        replan: steps between decisions.
        latency: steps that a decision takes.
    """
    if previous is None or latency == 0:
        return fresh[:replan]
    return np.concatenate([previous[replan : replan + latency], fresh[latency:replan]])
