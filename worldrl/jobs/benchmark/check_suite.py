"""``worldrl check-suite``: tries an external suite, or an adapter of your own, before anything is trained in it.

Two processes play the same episodes. Each check says what was found, and what to change where it fails.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from worldrl.core.actions import suite_actions
from worldrl.core.embodiment import Embodiment, integrate_commands
from worldrl.core.errors import GateError
from worldrl.core.rng import numpy_stream
from worldrl.core.storage.log import console
from worldrl.recipes.run import open_run
from worldrl.recipes.suites.opening import open_suite
from worldrl.rollout.suites.names import SUITE_PYTHON, choose_suite_tasks
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import Suite, Workers
from worldrl.settings import non_negative, positive, required, setting
from worldrl.simulators.pool import Row, SimulatorPool, Start
from worldrl.workers.link.server import is_image

SLOPES = (0.5, 1.5)
"""Range of measured over commanded motion in which a robot's stated scale is right."""
HELD = 5
"""Steps for which a random action is held, so that a slow robot can follow it."""
IMAGE_STRIDE = 10
"""Steps of the expert from one image to the next."""
TWINS = (0, 1)
"""Slots in two processes."""
NEIGHBOUR = 2
"""A slot in the process of the first twin."""


@dataclass
class CheckSuiteSettings:
    """Which suite, and how long it is tried."""

    suite: str = required("name of a suite, or FILE.py:Class", made_by="docs/guide/your-own-environment.md")
    python: str = setting("", SUITE_PYTHON)
    run_dir: str = setting("runs/check-suite", "folder that receives result.json")
    seed: int = setting(0, "of the initial states and of the random actions")
    tasks: list[str] = setting([], "names of tasks; empty takes all of the suite")
    episodes: int = setting(3, "episodes of each task that the expert plays")
    steps: int = setting(40, "random steps of each task")
    image_size: int = setting(64, "pixels per side")
    shadows: bool = setting(False, "LIBERO: the vendor's shadows")
    timeout_s: float = setting(300.0, "longest silence of a worker (s)")

    def __post_init__(self) -> None:
        """Check the ranges."""
        non_negative("episodes", self.episodes)
        for name in ("steps", "image_size", "timeout_s"):
            positive(name, getattr(self, name))


@dataclass(frozen=True)
class Check:
    """One row: ``passed`` is None where it could not be tried."""

    task: str
    name: str
    passed: bool | None
    found: str
    mend: str


@dataclass(frozen=True)
class Trial:
    """Rows of one episode, first observation included, and the actions between them ``[T, A]``."""

    rows: Sequence[Row]
    actions: NDArray[np.float32]

    def column(self, name: str) -> NDArray[Any]:
        """One array over time, ``[T+1, ...]``."""
        return np.stack([row[name] for row in self.rows])


def main(settings: CheckSuiteSettings) -> dict[str, Any]:
    """Try every task, write ``result.json`` and print one row per check.

    Returns ``checks`` and ``steps_per_s``. Raises GateError (a check failed). Raises WorkerError (the suite cannot be
    played at all).
    """
    suite = find_suite(settings.suite, settings.python)
    with open_run("check-suite", settings) as run:
        asked = Workers(suite.spec.cameras, settings.image_size, workers=2, slots=3, shadows=settings.shadows)
        with open_suite(suite, asked, timeout_s=settings.timeout_s) as opened:
            names = [task["name"] for task in opened.pool.suite["tasks"]]
            tasks = choose_suite_tasks(settings.tasks, names)
            checks = [check for task in tasks for check in check_task(suite, opened.pool, task, settings, names)]
            speed = steps_per_second(opened.pool, tasks[0], settings)
        metrics = {"suite": suite.name, "checks": [asdict(check) for check in checks], "steps_per_s": speed}
        run.write_result(metrics, seed=settings.seed, device="cpu")
    show(suite.name, checks, speed)
    failed = [check for check in checks if check.passed is False]
    if failed:
        raise GateError(f"check-suite: {len(failed)} of {len(checks)} checks failed; first: {failed[0].mend}")
    return metrics


def check_task(
    suite: Suite, pool: SimulatorPool, task: str, settings: CheckSuiteSettings, names: Sequence[str]
) -> list[Check]:
    """Every check of one task, in the order of a reader's questions; ``names`` are all tasks of the suite."""
    start = Start(task, 0, settings.seed)
    other = pool.reset({0: Start(task, 1, settings.seed)}, render=True)[0]
    again = pool.reset({0: start}, render=True)[0]
    twins = play_twins(pool, start, settings)
    actor = [expert_trial(suite, pool, Start(task, index, settings.seed)) for index in range(settings.episodes)]
    known = [trial for trial in actor if trial is not None]
    return [
        check_resets(task, [again, twins[0].rows[0], twins[1].rows[0]]),
        check_variety(task, twins[0].rows[0], other),
        check_steps(task, *twins),
        check_beginning(task, [trial.rows[0] for trial in (*twins, *known)]),
        check_expert(task, known, suite),
        check_images(task, [*twins, *known]),
        check_neighbour(task, twins[1], beside_another(pool, start, twins[1], names)),
        check_motion(task, [*twins, *known], suite),
    ]


# --- playing ----------------------------------------------------------------------------------------------------------


def play_twins(pool: SimulatorPool, start: Start, settings: CheckSuiteSettings) -> tuple[Trial, Trial]:
    """The same random actions in two processes, up to the first success."""
    rows = {slot: [row] for slot, row in pool.reset(dict.fromkeys(TWINS, start), render=True).items()}
    actions = random_actions(
        pool, rows[0][0]["command"], settings.steps, numpy_stream(settings.seed, "check", start.task)
    )
    taken = 0
    while taken < len(actions) and not any(rows[slot][-1]["success"] for slot in TWINS):
        stepped = pool.steps({slot: actions[taken : taken + 1] for slot in TWINS}, render=set(TWINS))
        for slot in TWINS:
            rows[slot] += stepped[slot]
        taken += 1
    return Trial(rows[0], actions[:taken]), Trial(rows[1], actions[:taken])


def beside_another(pool: SimulatorPool, start: Start, alone: Trial, names: Sequence[str]) -> Row | None:
    """The first step of ``alone`` again, in the other process, after another environment there was drawn; None without."""
    if not len(alone.actions):
        return None
    pool.reset({0: start}, render=True)
    pool.reset({NEIGHBOUR: Start(next((name for name in names if name != start.task), start.task), 1, start.seed)})
    return pool.steps({0: alone.actions[:1]}, render={0})[0][-1]


def random_actions(
    pool: SimulatorPool, command: NDArray[np.float32], steps: int, generator: np.random.Generator
) -> NDArray[np.float32]:
    """Actions ``[T, A]`` inside the robot's range, each held for some steps: targets stay near the first command."""
    spec = suite_actions(pool.suite)
    low, high = spec.bounds
    drawn = generator.uniform(low, high, (-(-steps // HELD), spec.size)).astype(np.float32)
    near = spec.within((command + 0.2 * (drawn - command)).astype(np.float32))
    return np.repeat(np.where(spec.targets, near, drawn), HELD, axis=0)[:steps]


def expert_trial(suite: Suite, pool: SimulatorPool, start: Start) -> Trial | None:
    """An episode of the expert, with some images; None for a task without one."""
    without = suite.without_expert()
    if without is None or start.task in without:
        return None
    rows, actions = [pool.reset({0: start}, render=True)[0]], list[NDArray[np.float32]]()
    while len(actions) < suite.horizon(start.task) and not rows[-1]["success"]:
        actions.append(pool.expert((0,))[0])
        rows += pool.steps({0: actions[-1][None]}, render={0} if len(actions) % IMAGE_STRIDE == 0 else set())[0]
    return Trial(rows, np.reshape(np.array(actions, np.float32), (len(actions), suite.spec.actions.size)))


def steps_per_second(pool: SimulatorPool, task: str, settings: CheckSuiteSettings) -> dict[str, float]:
    """Steps a second of one process, without and with images, on this machine at this time."""
    speeds: dict[str, float] = {}
    for name, render in (("without_images", False), ("with_images", True)):
        first = pool.reset({0: Start(task, 0, settings.seed)}, render=render)[0]
        actions = random_actions(pool, first["command"], settings.steps, numpy_stream(settings.seed, "speed", task))
        began_s, taken = time.monotonic(), 0
        for action in actions:
            row = pool.steps({0: action[None]}, render={0} if render else set())[0][-1]
            taken += 1
            if row["success"]:
                break
        speeds[name] = taken / max(time.monotonic() - began_s, 1e-9)
    return speeds


# --- checking ---------------------------------------------------------------------------------------------------------


def check_resets(task: str, rows: Sequence[Row]) -> Check:
    """The same index and seed give the same first observation, in one process and in another."""
    differing = [name for name in rows[0] if any(not _same(rows[0], row, name) for row in rows[1:])]
    found = f"{', '.join(differing)} differ" if differing else "equal in two processes"
    mend = "draw everything in reset() from a generator seeded with index and seed"
    return Check(task, "resets repeat", not differing, found, mend)


def check_variety(task: str, first: Row, other: Row) -> Check:
    """Another index gives another initial state."""
    differs = any(not _same(first, other, name) for name in first)
    found = "index 0 and 1 differ" if differs else "index 0 and 1 are equal"
    return Check(task, "initial states vary", differs, found, "use index in the seed of reset()'s draws")


def check_steps(task: str, a: Trial, b: Trial) -> Check:
    """The same actions give the same states; the first step that differs is named."""
    step = next((n for n, pair in enumerate(zip(a.rows, b.rows, strict=True)) if not _same(*pair, "state")), None)
    found = f"{len(a.actions)} steps equal" if step is None else f"states differ from step {step} on"
    return Check(task, "steps repeat", step is None, found, "remove what step() draws, or seed it in reset()")


def check_beginning(task: str, rows: Sequence[Row]) -> Check:
    """No episode begins fulfilled."""
    begun = sum(bool(row["success"]) for row in rows)
    found = f"{begun} of {len(rows)} episodes begin fulfilled"
    return Check(task, "success begins false", begun == 0, found, "let success() depend on what the robot has done")


def check_expert(task: str, trials: Sequence[Trial], suite: Suite) -> Check:
    """The expert reaches success, within the robot's range."""
    name, spec = "success is reached", suite.spec.actions
    if not trials:
        return Check(task, name, None, "no expert: nothing shows that the task can be solved", "")
    solved = sum(bool(trial.rows[-1]["success"]) for trial in trials)
    beyond = sum(int((spec.within(trial.actions) != trial.actions).sum()) for trial in trials)
    found = f"expert {solved} of {len(trials)}" + (
        f", {beyond} numbers of its actions outside the range" if beyond else ""
    )
    mend = "clip the expert's actions to the robot's range" if beyond else "mend success(), expert() or the horizon"
    return Check(task, name, solved > 0 and not beyond, found, mend)


def check_images(task: str, trials: Sequence[Trial]) -> Check:
    """Each camera shows something, and shows motion."""
    faults: list[str] = []
    for name in filter(is_image, trials[0].rows[0]):
        if all(np.ptp(trial.rows[0][name]) == 0 for trial in trials):
            faults.append(f"{name} has one colour")
        elif all(_same(trial.rows[0], row, name) for trial in trials for row in trial.rows if name in row):
            faults.append(f"{name} never changes")
    found = "; ".join(faults) or "they show motion"
    return Check(task, "images", not faults, found, "draw the present scene in images(), at each call")


def check_neighbour(task: str, alone: Trial, beside: Row | None) -> Check:
    """What a camera shows does not depend on other environments of the process."""
    name = "images beside others"
    if beside is None:
        return Check(task, name, None, "no step was taken", "")
    differing = [view for view in beside if is_image(view) and not _same(alone.rows[1], beside, view)]
    found = f"{', '.join(differing)} differ beside another environment" if differing else "equal beside another one"
    mend = "make the environment's own GL context current before images() draws, or give envs_per_worker=1"
    return Check(task, name, not differing, found, mend)


def check_motion(task: str, trials: Sequence[Trial], suite: Suite) -> Check:
    """The measured numbers move as far as the actions command: slope of one on the other."""
    name, robot = "actions move the robot", suite.embodiment
    if robot is None or not any(len(trial.actions) for trial in trials):
        return Check(task, name, None, "the suite states no robot", "")
    size = 3 if isinstance(robot, Embodiment) else len(robot.command_names)
    commanded, measured = [], []
    for trial in (trial for trial in trials if len(trial.actions)):
        command = torch.from_numpy(trial.column("command")[:1].astype(np.float32))
        path = integrate_commands(robot, command, torch.from_numpy(trial.actions)[None])[0].numpy()
        commanded.append((path - command.numpy())[:, :size])
        measured.append((trial.column("state")[1:] - trial.rows[0]["state"])[:, :size])
    slope = motion_slope(np.concatenate(commanded), np.concatenate(measured))
    scale = "position_scale or response" if isinstance(robot, Embodiment) else "max_speed, or the units of the joints"
    mend = f"correct {scale} in robot, or state()"
    return Check(task, name, SLOPES[0] <= slope <= SLOPES[1], f"measured / commanded = {slope:.2f}", mend)


def motion_slope(commanded: NDArray[np.floating[Any]], measured: NDArray[np.floating[Any]]) -> float:
    """Least-squares slope through zero of measured on commanded motion ``[N, D]``; 0 where nothing was commanded."""
    power = float((commanded**2).sum())
    return float((commanded * measured).sum()) / power if power > 0 else 0.0


def _same(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]], name: str) -> bool:
    return np.array_equal(a[name], b[name])


def show(suite: str, checks: Sequence[Check], speed: Mapping[str, float]) -> None:
    """Print one row per check that all tasks pass, one per task else, and the speed."""
    table = Table(title=f"check-suite: {suite}", title_justify="left")
    for title in ("check", "task", "result", "found", "to change"):
        table.add_column(title, overflow="fold")
    for name in dict.fromkeys(check.name for check in checks):
        rows = [check for check in checks if check.name == name]
        if all(check.passed for check in rows):
            table.add_row(name, f"all {len(rows)}" if len(rows) > 1 else rows[0].task, "pass", rows[0].found, "")
            continue
        for check in rows:
            result = {True: "pass", False: "FAIL", None: "-"}[check.passed]
            table.add_row(name, check.task, result, check.found, check.mend if check.passed is False else "")
    console().print(table)
    console().print(
        f"one process: {speed['without_images']:.0f} steps a second, {speed['with_images']:.0f} with images",
        markup=False,
    )
