"""Writes `assets/initial_states/<Task>.npz`: 50 settled start states per task.

Each holds qpos[50, nq], mocap_pos[50, m, 3] and mocap_quat[50, m, 4] (float64, no pickle).
The states are those of `reset(seed=SEED, options={"index": i})`, so the files are a cache
that fixes them against later changes of the sampling code.

``python scripts/make_initial_states.py``
"""

import argparse
from typing import Any

import gymnasium
import numpy as np

import worldrl_envs
from worldrl_envs.paths import initial_states
from worldrl_envs.physics import Placement
from worldrl_envs.starts import N_STORED

SEED = 20261121
SETTLED = 0.005  # m/s; objects slower than this after a second of waiting rest


def collect(task: str) -> list[Placement]:
    """Start states of one task; RuntimeError where one moves by itself or is solved already."""
    env = gymnasium.make(worldrl_envs.env_id(task), obs="state", terminate_on_success=False).unwrapped
    placements = []
    for index in range(N_STORED):
        env.reset(seed=SEED, options={"index": index})
        placements.append(env.sim.placement())
        check(env, f"{task} index {index}")
    return placements


def check(env: Any, label: str) -> None:
    """Wait for a second at home; nothing may move and nothing may be solved."""
    for _ in range(20):
        _, _, _, _, info = env.step(env.hold_action())
        if info["is_success"] or info["stage"]:
            raise RuntimeError(f"{label}: solved before anything was done")
    speeds = {name: env.sim.speed(name) for name in env.sim.objects}
    if any(speed > SETTLED for speed in speeds.values()):
        raise RuntimeError(f"{label}: not settled, speeds {speeds} m/s")


def main() -> None:
    """Write the files of the named tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tasks", nargs="*", default=(*worldrl_envs.task_names(), *worldrl_envs.task_names("bimanual"))
    )
    for task in parser.parse_args().tasks:
        placements = collect(task)
        path = initial_states(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = ("qpos", "mocap_pos", "mocap_quat")
        np.savez_compressed(path, **{name: np.stack([getattr(p, name) for p in placements]) for name in fields})
        print(f"{path}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
