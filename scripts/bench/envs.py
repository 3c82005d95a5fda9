"""Measures control steps and resets per second of the environments under random actions.

python scripts/bench.py envs --steps 500
"""

from collections.abc import Sequence
from contextlib import ExitStack

import gymnasium

import worldrl_envs
from bench.turns import Part, options, pin, take_turns, tell
from worldrl_envs.tasks import BIMANUAL, get_task

CAMERAS = {False: ("scene", "wrist"), True: ("head", "left_wrist", "right_wrist")}  # by whether there are two arms
VARIANTS = {
    "state": {"obs": "state"},
    "pixels_64": {"image_size": 64},
    "pixels_64_all_cameras": {"image_size": 64, "cameras": "all"},
    "pixels_128": {"image_size": 128},
}


def parts_of(env: gymnasium.Env, name: str, steps: int) -> list[Part]:
    """Steps under a stored stream of random actions, and resets."""
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]

    def step() -> None:
        for action in actions:
            env.step(action)

    def reset() -> None:
        for _ in range(20):
            env.reset()

    return [
        Part(what=name, who="steps_per_s", call=step, units=steps),
        Part(what=name, who="resets_per_s", call=reset, units=20),
    ]


def main(argv: Sequence[str]) -> int:
    """Measure every variant on one task."""
    parser = options("envs", __doc__, rounds=1)
    parser.add_argument("--task", default="PickRedCube")
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args(argv)
    cameras = CAMERAS[get_task(given.task).kind == BIMANUAL]
    with ExitStack() as stack:
        parts = []
        for name, variant in VARIANTS.items():
            asked = variant | ({"cameras": cameras} if "cameras" in variant else {})
            rest = {"terminate_on_success": False, "max_episode_steps": -1, "disable_env_checker": True}
            env = gymnasium.make(worldrl_envs.env_id(given.task), **rest, **asked)
            stack.callback(env.close)
            parts += parts_of(env, name, given.steps)
        pin(given.threads)
        take_turns(parts, given.rounds)
    found: dict[str, dict[str, float]] = {}
    for part in parts:
        found.setdefault(part.what, {})[part.who] = part.units / min(part.wall)
    tell(given, {"task": given.task, "results": found})
    return 0
