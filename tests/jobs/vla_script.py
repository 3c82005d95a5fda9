"""Runs ``worldrl train-vla preset=tiny`` and kills itself at a given moment of this session.

python vla_script.py RUN_DIR MOMENT [key=value ...]    MOMENT: one of the names below, with its arguments after colons

    none                        run to the end
    episode:N                   before the N-th recorded episode is written
    step:TRAINING:N             before step N of a training
    finish:STAGE / finished:STAGE   just before, or just after, a stage is marked as finished
    batch:N                     before batch N of the improvement is imagined
    result                      before result.json is written

An untrained success head says about the same of every frame. Here its later digits decide, so that groups are mixed,
the improvement has something to learn from, and a single different bit anywhere becomes a different outcome.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import worldrl.core.training.fit
import worldrl.methods.rl.imagination
from worldrl.cli import main
from worldrl.core.storage.run import RunDirectory, Stage
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.rollout.imagined import env as imagine


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, strikes: Callable[..., bool]) -> None:
    """Die before the call for which ``strikes(call number, *arguments)`` holds."""
    function, calls = getattr(owner, name), 0

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if strikes(calls, *args):
            die()
        return function(*args, **kwargs)

    setattr(owner, name, wrapper)


def decide_by_later_digits() -> None:
    function = imagine.first_success

    def wrapper(probability: Any, rule: Any, streak: Any) -> Any:
        return function(((1000 * probability) % 1) ** 4, rule, streak)

    imagine.first_success = wrapper


def after_finish(stage: str) -> None:
    finish = Stage.finish

    def wrapper(self: Stage, summary: Any) -> None:
        finish(self, summary)
        if self.name == stage:
            die()

    Stage.finish = wrapper


def arm(moment: str) -> None:
    match moment.split(":"):
        case ["none"]:
            pass
        case ["episode", number]:
            before(LeRobotWriter, "add_episode", lambda call, *_: call == int(number))
        case ["step", name, number]:
            before(
                worldrl.core.training.fit._Stepper,
                "step",
                lambda _, stepper, step: (stepper.name, step) == (name, int(number)),
            )
        case ["finish", stage]:
            before(Stage, "finish", lambda _, self, *rest: self.name == stage)
        case ["finished", stage]:
            after_finish(stage)
        case ["batch", number]:
            # The first call measures imagined success before the improvement, only in a session that gets that far.
            before(worldrl.methods.rl.imagination, "imagine_rollouts", lambda call, *_: call == int(number) + 2)
        case ["result"]:
            before(RunDirectory, "write_result", lambda *_: True)
        case _:
            raise ValueError(moment)


if __name__ == "__main__":
    decide_by_later_digits()
    arm(sys.argv[2])
    sys.exit(main(["train-vla", "preset=tiny", f"run_dir={sys.argv[1]}", *sys.argv[3:]]))
