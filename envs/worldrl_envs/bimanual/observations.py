"""Observation spaces of two arms and the vectors in them."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl_envs.bimanual.control import ACTION_SIZE, ARMS, SIXAXIS_PAIR, home_command
from worldrl_envs.bimanual.simulation import BimanualSimulation
from worldrl_envs.instruction_space import InstructionSpace
from worldrl_envs.observations import BOUND


def pixels_space(image_size: int, pictures: tuple[str, ...]) -> spaces.Dict:
    """Pictures (by their keys), measured joints, joint targets and instruction."""
    picture: dict[str, spaces.Space[Any]] = {
        key: spaces.Box(0, 255, (image_size, image_size, 3), np.uint8) for key in pictures
    }
    low, high = np.array(SIXAXIS_PAIR.low, np.float32), np.array(SIXAXIS_PAIR.high, np.float32)
    return spaces.Dict(
        picture
        | {
            "state": spaces.Box(-BOUND, BOUND, (ACTION_SIZE,), np.float32),
            "command": spaces.Box(low, high, dtype=np.float32),
            "instruction": InstructionSpace(),
        }
    )


def state_space(sim: BimanualSimulation) -> spaces.Box:
    """Flat vector for state-based learners: see `state_vector`."""
    return spaces.Box(-BOUND, BOUND, state_vector(sim, home_command()).shape, np.float32)


def state_vector(sim: BimanualSimulation, command: NDArray[np.float32]) -> NDArray[np.float32]:
    """Measured joints (14), command (14), both tools' positions (3 each), poses (7 each), drawer opening (1)."""
    poses = [sim.pose(name) for name in (*sim.objects, *sim.fixtures)]
    tools = [sim.tcp(arm) for arm in ARMS]
    vector = np.concatenate([sim.joints, command, *tools, *poses, [sim.opening]])
    return np.clip(vector, -BOUND, BOUND).astype(np.float32)  # an object thrown off the table falls for ever
