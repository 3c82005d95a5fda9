"""Measures control steps per second of the environments; prints JSON with the machine.

``python scripts/bench_envs.py --steps 500``
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version

import gymnasium

import worldrl_envs
from worldrl_envs.tasks import BIMANUAL, get_task

CAMERAS = {False: ("scene", "wrist"), True: ("head", "left_wrist", "right_wrist")}  # by whether there are two arms
VARIANTS = {
    "state": {"obs": "state"},
    "pixels_64": {"image_size": 64},
    "pixels_64_all_cameras": {"image_size": 64, "cameras": "all"},
    "pixels_128": {"image_size": 128},
}


def rate(work: Callable[[], object], count: int) -> float:
    """Calls per second, after one call to warm up."""
    work()
    start = time.perf_counter()
    for _ in range(count):
        work()
    return count / (time.perf_counter() - start)


def bench(task: str, steps: int, **kwargs: object) -> dict[str, float]:
    """Steps and resets per second of one environment under random actions."""
    if kwargs.get("cameras") == "all":
        kwargs["cameras"] = CAMERAS[get_task(task).kind == BIMANUAL]
    env = gymnasium.make(
        worldrl_envs.env_id(task), terminate_on_success=False, max_episode_steps=-1, disable_env_checker=True, **kwargs
    )
    env.reset(seed=0)
    env.action_space.seed(0)
    stream = iter([env.action_space.sample() for _ in range(steps + 1)])
    result = {"steps_per_s": rate(lambda: env.step(next(stream)), steps), "resets_per_s": rate(env.reset, 20)}
    env.close()
    return result


def main() -> None:
    """Bench every variant on one task and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="PickRedCube")
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    results = {name: bench(args.task, args.steps, **kwargs) for name, kwargs in VARIANTS.items()}
    machine = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "arch": platform.machine()}
    print(
        json.dumps({"task": args.task, "mujoco": version("mujoco"), "machine": machine, "results": results}, indent=1)
    )


if __name__ == "__main__":
    main()
