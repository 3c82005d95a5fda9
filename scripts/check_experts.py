"""Measures the scripted expert on every task of one or both suites: k successes of n, with a Wilson interval.

``python scripts/check_experts.py --episodes 100 --out experts.json``
"""

import argparse
import json
import math
import time
from typing import Any

import gymnasium
import numpy as np

import worldrl_envs
from worldrl_envs.behaviours import make_expert

Z = 1.959964  # 95 %


def wilson(k: int, n: int) -> tuple[float, float]:
    """Wilson score interval of a success rate at 95 %."""
    centre, spread = k + Z**2 / 2, Z * math.sqrt(k * (n - k) / n + Z**2 / 4)
    return (centre - spread) / (n + Z**2), (centre + spread) / (n + Z**2)


def run_episode(env: gymnasium.Env, expert: Any, index: int, seed: int) -> tuple[bool, int]:
    """Success and length of one episode."""
    _, info = env.reset(seed=seed, options={"index": index})
    expert.reset(env)
    terminated = truncated = False
    while not (terminated or truncated):
        _, _, terminated, truncated, info = env.step(expert.act(env))
    return info["is_success"], info["step"]


def check_task(task: str, args: argparse.Namespace) -> dict[str, object]:
    """Run the expert on one task."""
    env = gymnasium.make(worldrl_envs.env_id(task), obs="state", disable_env_checker=True)
    generator = np.random.default_rng(args.seed)
    expert = make_expert(task, generator=generator, noise=args.noise, goal_offset=args.goal_offset)
    start = time.perf_counter()
    runs = [run_episode(env, expert, index, args.seed) for index in range(args.episodes)]
    wall = time.perf_counter() - start
    solved = [length for success, length in runs if success]
    k, n = len(solved), len(runs)
    low, high = wilson(k, n)
    return {
        "success": {"k": k, "n": n, "rate": k / n, "lo": low, "hi": high, "method": "wilson"},
        "mean_steps": sum(solved) / max(k, 1),
        "max_steps": max(solved, default=0),
        "horizon": env.spec.max_episode_steps,
        "failed_index": [index for index, (success, _) in enumerate(runs) if not success],
        "steps_per_s": sum(length for _, length in runs) / wall,
    }


def main() -> None:
    """Check every task, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--goal-offset", type=float, default=0.0)
    both = (*worldrl_envs.task_names(), *worldrl_envs.task_names("bimanual"))
    parser.add_argument("--tasks", nargs="*", default=both)
    parser.add_argument("--out")
    args = parser.parse_args()
    results = {}
    for task in args.tasks:
        results[task] = check_task(task, args)
        rate, row = results[task]["success"], results[task]
        print(
            f"{task:26s} {rate['k']:3d}/{rate['n']:<3d} [{rate['lo']:.3f}, {rate['hi']:.3f}]"
            f"  {row['mean_steps']:5.1f} steps (max {row['max_steps']}, horizon {row['horizon']})"
            f"  {row['steps_per_s']:.0f} steps/s  failed {row['failed_index'][:8]}",
            flush=True,
        )
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"seed": args.seed, "noise": args.noise, "tasks": results}, file, indent=1)


if __name__ == "__main__":
    main()
