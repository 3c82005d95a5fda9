"""Measures the scripted expert of every task: k successes of n with a Wilson interval, by domain.

Sampled states of all tasks, and the 50 stored states of the bimanual ones in both domains:

``python scripts/check_experts.py --episodes 100 --out experts.json``
``python scripts/check_experts.py --kind bimanual --states stored --episodes 50 --domains clean randomised --out experts-two-arms.json``

A task that is cut short begins anew; give ``--tasks`` to measure some.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import worldrl_envs
from worldrl.core.statistics.intervals import wilson
from worldrl_envs.behaviours import make_expert
from worldrl_envs.starts import N_STORED
from worldrl_envs.tasks import BIMANUAL, KINDS

SAMPLED, STORED = "sampled", "stored"
CLEAN, RANDOMISED = "clean", "randomised"


def start(states: str, number: int, seed: int) -> dict[str, Any]:
    """Arguments of ``reset``; a stored state gets its own seed, or all fifty would share looks and table height."""
    if states == STORED:
        return {"seed": seed + number, "options": {"init_id": number}}
    return {"seed": seed, "options": {"index": number}}


def run_episode(env: Any, expert: Any, begin: Mapping[str, Any]) -> tuple[bool, int]:
    """Success and length of one episode."""
    _, info = env.reset(**begin)
    expert.reset(env)
    terminated = truncated = False
    while not (terminated or truncated):
        _, _, terminated, truncated, info = env.step(expert.act(env))
    return info["is_success"], info["step"]


def check_task(task: str, domain: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run the expert on one task."""
    chosen: dict[str, Any] = {} if domain == CLEAN else {"domain": domain}
    env: Any = gymnasium.make(worldrl_envs.env_id(task), obs="state", disable_env_checker=True, **chosen)
    generator = np.random.default_rng(args.seed)
    expert = make_expert(task, generator=generator, noise=args.noise, goal_offset=args.goal_offset)
    began = time.perf_counter()
    runs = [run_episode(env, expert, start(args.states, number, args.seed)) for number in range(args.episodes)]
    wall = time.perf_counter() - began
    solved = [length for success, length in runs if success]
    return {
        "success": wilson(len(solved), len(runs)),
        "mean_steps": sum(solved) / max(len(solved), 1),
        "max_steps": max(solved, default=0),
        "horizon": env.spec.max_episode_steps,
        "failed": [number for number, (success, _) in enumerate(runs) if not success],
        "seconds_per_episode": wall / len(runs),
    }


def line(task: str, domain: str, row: Mapping[str, Any]) -> str:
    """One line of the table."""
    rate = row["success"]
    return (
        f"{task:26s} {domain:10s} {rate['k']:3d}/{rate['n']:<3d} [{rate['lo']:.3f}, {rate['hi']:.3f}]"
        f"  {row['mean_steps']:5.1f} steps (max {row['max_steps']}, horizon {row['horizon']})"
        f"  {row['seconds_per_episode']:.2f} s/episode  failed {row['failed'][:8]}"
    )


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line, and refuse what no simulator has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=(*KINDS, BIMANUAL), help="tasks of one kind; without it, all tasks")
    parser.add_argument("--tasks", nargs="*", help="names, in place of a kind")
    parser.add_argument(
        "--states", choices=(SAMPLED, STORED), default=SAMPLED, help="initial states of the seed, or stored ones"
    )
    parser.add_argument(
        "--domains", nargs="+", choices=(CLEAN, RANDOMISED), default=[CLEAN], help="randomised is of bimanual tasks"
    )
    parser.add_argument("--episodes", type=int, default=100, help=f"of each task; {N_STORED} states are stored")
    parser.add_argument(
        "--seed", type=int, default=0, help="of sampled states, and of randomised looks and table heights"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="of the expert's actions")
    parser.add_argument("--goal-offset", type=float, default=0.0, help="metres that its goals are off")
    parser.add_argument("--out", type=Path, help="JSON, written after each task")
    args = parser.parse_args(given)
    every = (*worldrl_envs.task_names(), *worldrl_envs.task_names(BIMANUAL))
    args.tasks = args.tasks or (every if args.kind is None else worldrl_envs.task_names(args.kind))
    two_armed = worldrl_envs.task_names(BIMANUAL)
    if RANDOMISED in args.domains and (one := [task for task in args.tasks if task not in two_armed]):
        parser.error(f"--domains randomised is of bimanual tasks, and {one[0]} is of one arm; give --kind bimanual")
    if args.states == STORED and args.episodes > N_STORED:
        parser.error(f"--episodes {args.episodes}: {N_STORED} states are stored of each task")
    if args.episodes < 1:
        parser.error("--episodes must be at least 1")
    return args


def main(given: Sequence[str] | None = None) -> None:
    """Check every task, print a table, write JSON."""
    args = parse(given)
    settings = {name: getattr(args, name) for name in ("states", "episodes", "seed", "noise", "goal_offset")}
    rows: dict[str, dict[str, Any]] = {domain: {} for domain in args.domains}
    for domain in args.domains:
        for task in args.tasks:
            rows[domain][task] = row = check_task(task, domain, args)
            print(line(task, domain, row), flush=True)
            if args.out:
                args.out.write_text(json.dumps({**settings, "tasks": rows}, indent=1) + "\n")
        together = [row["success"] for row in rows[domain].values()]
        whole = wilson(sum(rate["k"] for rate in together), sum(rate["n"] for rate in together))
        print(f"{'all':26s} {domain:10s} {whole['k']}/{whole['n']} [{whole['lo']:.3f}, {whole['hi']:.3f}]", flush=True)


if __name__ == "__main__":
    main()
