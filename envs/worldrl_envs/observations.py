"""Observation spaces and the vectors in them."""

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl_envs.base import BOUND
from worldrl_envs.control import GRIPPER_DOWN, PANDA, quat_multiply
from worldrl_envs.simulation import Simulation

PROPRIO_SIZE = 8


def command_space() -> spaces.Box:
    """The commanded pose, float32[7] (see `control.py`)."""
    turn = [PANDA.max_rotation] * 3
    low = np.array([*PANDA.workspace_low, *(-t for t in turn), -1], np.float32)
    high = np.array([*PANDA.workspace_high, *turn, 1], np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def state_space(sim: Simulation) -> spaces.Box:
    """Flat vector for state-based learners: see `state_vector`."""
    return spaces.Box(-BOUND, BOUND, state_vector(sim, np.zeros(7, np.float32)).shape, np.float32)


def proprioception(sim: Simulation) -> NDArray[np.float32]:
    """LIBERO's eight numbers, float32[8]: tool position (m), axis-angle (rad; x > 0), fingers (m; right negative)."""
    quat = quat_multiply(sim.tcp_rotation, GRIPPER_DOWN)
    sine = np.linalg.norm(quat[1:])
    axis_angle = 2 * np.arctan2(sine, quat[0]) * quat[1:] / sine
    left, right = sim.fingers
    return np.array([*sim.tcp, *axis_angle, left, -right], np.float32)


def state_vector(sim: Simulation, command: NDArray[np.float32]) -> NDArray[np.float32]:
    """Proprioception (8), command (7), pose of each object and fixture (7 each), drawer opening (1)."""
    poses = [sim.pose(name) for name in (*sim.objects, *sim.fixtures)]
    vector = np.concatenate([proprioception(sim), command, *poses, [sim.opening]])
    return np.clip(vector, -BOUND, BOUND).astype(np.float32)  # an object thrown off the table falls for ever
