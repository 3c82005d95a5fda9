"""Observation spaces of two arms and the vectors in them."""

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl_envs.base import BOUND
from worldrl_envs.bimanual.control import ARMS, SIXAXIS_PAIR, home_command
from worldrl_envs.bimanual.simulation import BimanualSimulation


def joint_space() -> spaces.Box:
    """The joint limits, float32[14]."""
    return spaces.Box(np.array(SIXAXIS_PAIR.low, np.float32), np.array(SIXAXIS_PAIR.high, np.float32), dtype=np.float32)


def state_space(sim: BimanualSimulation) -> spaces.Box:
    """Flat vector for state-based learners: see `state_vector`."""
    return spaces.Box(-BOUND, BOUND, state_vector(sim, home_command()).shape, np.float32)


def state_vector(sim: BimanualSimulation, command: NDArray[np.float32]) -> NDArray[np.float32]:
    """Measured joints (14), command (14), both tools' positions (3 each), poses (7 each), drawer opening (1)."""
    poses = [sim.pose(name) for name in (*sim.objects, *sim.fixtures)]
    tools = [sim.tcp(arm) for arm in ARMS]
    vector = np.concatenate([sim.joints, command, *tools, *poses, [sim.opening]])
    return np.clip(vector, -BOUND, BOUND).astype(np.float32)  # an object thrown off the table falls for ever
