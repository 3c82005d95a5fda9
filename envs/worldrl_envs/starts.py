"""Episode starts: random streams that depend on (task, index, seed) alone, and stored states."""

import hashlib
from functools import cache

import numpy as np

from worldrl_envs.errors import OptionError
from worldrl_envs.paths import initial_states
from worldrl_envs.physics import Physics, Placement

N_STORED = 50  # initial states stored per task, as in LIBERO


def start_generator(task: str, index: int, seed: int) -> np.random.Generator:
    """Random stream of episode `index`: the same whatever ran before, in any worker."""
    digest = hashlib.sha256(f"{task}/{index}/{seed}".encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest, "little")))


@cache
def load_placements(task: str) -> dict[str, np.ndarray]:
    """Arrays qpos[50, nq], mocap_pos[50, m, 3], mocap_quat[50, m, 4]; FileNotFoundError names the script."""
    path = initial_states(task)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no stored initial states; run scripts/make_initial_states.py")
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def check_stored(task: str, init_id: int) -> None:
    """Raise OptionError unless this state of the task is stored."""
    count = len(load_placements(task)["qpos"])
    if not 0 <= init_id < count:
        raise OptionError(f"options['init_id']: must be in 0..{count - 1}, got {init_id}")


def load_placement(task: str, init_id: int, sim: Physics) -> Placement:
    """One stored initial state; OptionError where it is not in 0..49, or of another model."""
    check_stored(task, init_id)
    stored = load_placements(task)
    if stored["qpos"].shape[1] != sim.model.nq:
        raise OptionError(f"options['init_id']: the states stored for {task} do not fit its model; make them again")
    return Placement(*(stored[name][init_id] for name in ("qpos", "mocap_pos", "mocap_quat")))
