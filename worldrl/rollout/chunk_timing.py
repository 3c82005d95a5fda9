"""Which actions of which chunk are executed while decisions take time: asynchronous execution.

A chunk decided from the observation at step ``t`` holds the actions of steps ``t, t + 1, …``. A decision takes ``d``
control steps, in which the robot continues the chunk before. The new chunk arrives at ``t + d``; its first ``d``
actions are past and left out (Xiaomi-Robotics-0, arXiv:2602.12684, "align the timesteps of consecutive predicted action
chunks"). The policy decides every ``r`` steps::

    step                 t ........ t+d ........ t+r ........ t+r+d ...
    chunk of t-r         [r : r+d]
    chunk of t                      [d : r]      [r : r+d]
    chunk of t+r                                              [d : r]

Every action is executed at the step that it was decided for. The robot waits for an episode's first chunk only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import SettingError


def check_timing(replan: int | None, latency: int, chunk_length: int) -> int:
    """Return the steps between decisions; ``replan=None`` takes all that the chunk allows.

    Raises SettingError (the chunk is too short for both, or a decision takes longer than the time between two).
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

    ``previous`` and ``fresh`` are chunks ``[L, A]``; there is no previous one at the beginning of an episode.
    """
    if previous is None or latency == 0:
        return fresh[:replan]
    return np.concatenate([previous[replan : replan + latency], fresh[latency:replan]])
