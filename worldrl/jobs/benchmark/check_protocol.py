"""``worldrl check-protocol``: do demonstrations mean what a suite means, and if not, which convention is off?

The question behind most reports of a policy with a fine loss and no success. Demonstrations are replayed in the suite;
where they fail, other meanings of their gripper, rotations, axes, delay and scale are tried, and their first images
and states are held against the suite's own. Demonstrations that others made (LeRobotDataset v3) do not say where they began:
they are replayed from stored initial states of their tasks, and compared by the hand's motion alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from worldrl.core.actions import ActionSpec
from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import SettingError, nearest
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.intervals import wilson
from worldrl.core.storage.log import console
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed, open_recorded
from worldrl.data.lerobot.format import OURS
from worldrl.evaluation.conventions.conventions import image_alternatives
from worldrl.evaluation.conventions.fit import Conventions, Fit, Match, Search, fits, match, search, verdict
from worldrl.evaluation.conventions.joint import JointConventions
from worldrl.evaluation.conventions.tool import ToolConventions
from worldrl.evaluation.report.store import publish
from worldrl.jobs.benchmark.check_protocol_report import first_images, report_page
from worldrl.recipes.run import open_run
from worldrl.recipes.suites.opening import open_suite
from worldrl.rollout.real.embedded import embedded_embodiment
from worldrl.rollout.real.slots import EmbeddedSlots, Opening, Slots, openings, replays
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec, has_spec, spec_of
from worldrl.rollout.suites.episodes import SuiteSlots
from worldrl.rollout.suites.libero import libero_instructions, libero_tasks
from worldrl.rollout.suites.libero_files import IMAGES, START, SUFFIX, find_demonstrations, read_demonstration
from worldrl.rollout.suites.names import CLIP_ACTIONS, FAMILIES
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import Workers
from worldrl.settings import one_of, positive, required, setting
from worldrl.workers.libero import facts as libero_facts
from worldrl.workers.maniskill import facts as maniskill_facts

EMBEDDED = "embedded"
LIBERO, MANISKILL = FAMILIES["libero"], FAMILIES["maniskill"]
SUITES = (EMBEDDED, *LIBERO, *MANISKILL)
SHOWN_SUITES = [name for name in SUITES if not name.endswith("@held")]
OTHERS = (*FAMILIES["robotwin"], *FAMILIES["isaac"])
SHOWN = 12
"""Rows of the closing table."""
AnyConventions = Conventions[Any]
F = TypeVar("F", bound=Fit)


@dataclass
class CheckProtocolSettings:
    """Which demonstrations, in which suite."""

    data: str = required(
        "dataset folder, also of others, or one of LIBERO's own HDF5 files; successful episodes are replayed",
        made_by="worldrl collect",
    )
    suite: str = setting(EMBEDDED, f"one of {', '.join(SHOWN_SUITES)}; LIBERO's also as NAME@held")
    run_dir: str = setting("runs/check-protocol", "where the result is written")
    seed: int = setting(0, "of the random actions that are played for comparison")
    episodes: int = setting(4, "demonstrations, taken evenly from the dataset; each is replayed about twenty times")
    workers: int = setting(1, "external suites: simulator processes")
    shadows: bool = setting(True, "LIBERO: the vendor's shadows, as the images were recorded")
    assets: str = setting("", "LIBERO: folder of its assets; empty takes the folder given to setup")
    clip_actions: bool = setting(False, CLIP_ACTIONS)
    timeout_s: float = setting(300.0, "longest silence of a worker before it is replaced (s)")

    def __post_init__(self) -> None:
        """Check the names and the ranges."""
        if self.suite in OTHERS:
            raise SettingError(
                f"suite: {self.suite} is not covered: demonstrations are replayed in the embedded suite (one arm and two), in LIBERO's "
                f"and in ManiSkill's. Those of RoboTwin's kind, 14 joint targets, can be held against suite={EMBEDDED}"
            )
        one_of("suite", self.suite, SUITES)
        for name in ("episodes", "workers", "timeout_s"):
            positive(name, getattr(self, name))


def main(settings: CheckProtocolSettings) -> dict[str, Any]:
    """Replay, try alternatives where needed, write ``result.json`` and a page, and print the verdict.

    Returns the metrics: whether all fits (None: success decides nothing), what is off, everything that was tried.
    """
    demonstrations = read(settings)
    specs, known = starts(demonstrations, settings.seed)
    with open_run("check-protocol", settings) as run:
        with open_slots(settings, demonstrations, specs) as (slots, robot):
            first = openings(slots, specs)
            matches = first_frames(robot, demonstrations, first)
            play = player(slots, robot, demonstrations, specs, known)
            idle = {
                name: play(actions) for name, actions in idle_actions(demonstrations, robot.spec, settings.seed).items()
            }
            most = max(fit.successes for fit in idle.values())
            commands = [episode.action for episode in demonstrations]
            found = search(commands, lambda actions: replace(play(actions), idle=most), robot)
        text = "\n".join([verdict(found, matches), *idle_words(idle)])
        metrics = {
            "suite": settings.suite,
            "fits": fits(found, matches),  # null: not decided
            "as_recorded": wilson(found.as_recorded.successes, found.as_recorded.episodes) if known else None,
            **{name: wilson(fit.successes, fit.episodes) for name, fit in idle.items()},
            "initial_states": "the demonstrations' own" if known else "others of the suite: success says nothing",
            "assumed": list(assumed(demonstrations)),
            "unexercised": robot.unexercised(commands),
            **findings(found, matches),
            "verdict": text,
        }
        run.write_result(metrics, seed=settings.seed, device="cpu")
        strips = first_images(demonstrations, first)
        page = publish(run, report_page(settings.data, metrics, found, matches, strips))
    show(found, metrics)
    console().print(f"report: {page}", markup=False)
    return metrics


def read(settings: CheckProtocolSettings) -> list[Episode]:
    """Take successful episodes evenly from a dataset, or demonstrations from LIBERO's own files.

    Raises ArtefactError (a file is damaged, or of another suite). Raises SettingError (none succeeded).
    """
    data = Path(settings.data)
    if settings.suite in LIBERO and (data.suffix == SUFFIX or any(data.glob(f"*{SUFFIX}"))):
        found = find_demonstrations(data, settings.suite, libero_tasks(settings.suite))
        chosen = [found[place] for place in evenly(len(found), settings.episodes)]
        asked = {"cameras": tuple(IMAGES), "seed": settings.seed, "clip_actions": settings.clip_actions}
        episodes = [read_demonstration(item, **asked) for item in chosen]
        good = [episode for episode in episodes if episode.success]
    elif settings.clip_actions:
        raise SettingError(f"clip_actions: is for LIBERO's own files; for a LeRobotDataset write it in {data / OURS}")
    else:
        dataset = open_recorded(data)
        names = suite_names(dataset, settings.suite)
        numbers = [n for n, record in enumerate(dataset.records) if record.success and names[n] is not None]
        chosen = [numbers[place] for place in evenly(len(numbers), settings.episodes)]
        good = [replace(dataset[number], task=str(names[number])) for number in chosen]
    if not good:
        raise SettingError("data: no recorded episode succeeded, so replaying them says nothing; give demonstrations")
    return good


def suite_names(dataset: EpisodeDataset, suite: str) -> list[str | None]:
    """Name each episode's task as the suite does: of recordings that others made by its instruction, None for other suites' tasks.

    Raises SettingError (none is of this suite).
    """
    if all(has_spec(record.meta) for record in dataset.records):
        return [record.task for record in dataset.records]
    sentences = suite_instructions(suite)
    known = set(sentences.values())
    names = [r.task if r.task in known else sentences.get(r.instruction) for r in dataset.records]
    if not any(names):
        given = dataset.records[0].instruction
        raise SettingError(
            f"data: no episode is about a task of {suite}; the first has the instruction {given!r}{nearest(given, sentences)}"
        )
    return names


def suite_instructions(suite: str) -> dict[str, str]:
    """Task names of a suite by their instructions."""
    if suite in MANISKILL:
        return {maniskill_facts.TASKS[name].instruction: name for name in maniskill_facts.SUITES[suite]}
    if suite in LIBERO:
        return {instruction: name for name, instruction in libero_instructions(suite).items()}
    from worldrl_envs.tasks import BIMANUAL, get_task, task_names

    return {get_task(name).instruction: name for name in (*task_names(), *task_names(BIMANUAL))}


def starts(demonstrations: Sequence[Episode], seed: int) -> tuple[list[EpisodeSpec], bool]:
    """Where to begin, and whether the demonstrations began there; else it is at stored initial states of their tasks."""
    if all(has_spec(episode.meta) for episode in demonstrations):
        return [spec_of(episode.meta) for episode in demonstrations], True
    stored = libero_facts.STORED_STATES  # as many as the embedded suite has
    return [EpisodeSpec(e.task, n, seed, init_id=n % stored) for n, e in enumerate(demonstrations)], False


def evenly(there: int, count: int) -> list[int]:
    """Places of ``count`` of ``there`` things, the first and the last among them."""
    return [int(place) for place in np.unique(np.linspace(0, there - 1, min(count, there)).round())]


@contextmanager
def open_slots(
    settings: CheckProtocolSettings, demonstrations: Sequence[Episode], specs: Sequence[EpisodeSpec]
) -> Generator[tuple[Slots, AnyConventions]]:
    """Open the suite with the recordings' cameras and image size, to begin where they began."""
    cameras, (height, width) = demonstrations[0].cameras, demonstrations[0].frames.shape[2:4]
    if height != width:
        raise SettingError(f"data: its images are {width} by {height}; suites draw square ones")
    if settings.suite == EMBEDDED:
        robot = embedded_embodiment({spec.task for spec in specs})
        if demonstrations[0].actions.names != robot.actions.names:
            raise SettingError(
                f"data: actions are {', '.join(demonstrations[0].actions.names)}; {specs[0].task} takes "
                f"{', '.join(robot.actions.names)}, so they are of another robot"
            )
        options = EnvOptions(
            image_size=height, cameras=cameras, domain=domain_of(demonstrations), actions=robot.actions
        )
        with closing(EmbeddedSlots(options)) as slots:
            if isinstance(robot, Embodiment):
                yield slots, ToolConventions(robot.rotation_scale)
            else:
                yield slots, JointConventions(robot.actions, [episode.state for episode in demonstrations])
        return
    suite = find_suite(settings.suite)
    slots, own = min(settings.episodes, 2 * settings.workers), {"shadows": settings.shadows, "assets": settings.assets}
    asked = Workers(cameras, height, settings.workers, slots, recycle_after=None, **own)
    with open_suite(suite, asked, timeout_s=settings.timeout_s) as opened:
        given = {spec.key: e.meta[START] for spec, e in zip(specs, demonstrations, strict=True) if START in e.meta}
        scale = float(suite.meaning(float(opened.pool.suite["control_hz"]))["rotation_scale"])
        yield SuiteSlots(opened.pool, cameras, horizon={}, given=given), ToolConventions(scale)


def domain_of(demonstrations: Sequence[Episode]) -> str:
    """The domain in which all demonstrations were recorded.

    Raises SettingError (some in one, some in another).
    """
    domains = {str(episode.meta.get("domain", "clean")) for episode in demonstrations}
    if len(domains) > 1:
        raise SettingError(f"data: recorded in the domains {', '.join(sorted(domains))}; check one domain at a time")
    return domains.pop()


# --- measuring --------------------------------------------------------------------------------------------------------


def player(
    slots: Slots,
    robot: Conventions[F],
    demonstrations: Sequence[Episode],
    specs: Sequence[EpisodeSpec],
    known: bool,
) -> Callable[[Sequence[NDArray[np.float32]]], F]:
    """Return what replays changed actions of the demonstrations, taken to the robot's range, and measures how well they fit."""
    within = robot.spec.within  # the suite's range, whatever that of the data is

    def play(actions: Sequence[NDArray[np.float32]]) -> F:
        return robot.measure(replays(slots, specs, [within(action) for action in actions]), demonstrations, known)

    return play


def idle_actions(
    demonstrations: Sequence[Episode], spec: ActionSpec, seed: int
) -> dict[str, list[NDArray[np.float32]]]:
    """Of each demonstration's length: the null action that holds its first command, and random ones in the robot's range."""
    still, anything = [], []
    for number, episode in enumerate(demonstrations):
        shape, draw = episode.action.shape, numpy_stream(seed, "check-protocol", "random", number)
        still.append(np.broadcast_to(spec.hold(episode.command[0]), shape).astype(np.float32))
        anything.append(draw.uniform(*spec.bounds, shape).astype(np.float32))
    return {"no_op": still, "random": anything}


def idle_words(idle: Mapping[str, Fit]) -> list[str]:
    """What it means that a task is fulfilled without the demonstrations' actions."""
    openings = {"no_op": "Doing nothing fulfils", "random": "Random actions fulfil"}
    return [
        f"{openings[name]} {fit.successes} of {fit.episodes}: there a success says nothing about actions, so check initial states and goals."
        for name, fit in idle.items()
        if fit.successes
    ]


def first_frames(robot: AnyConventions, demonstrations: Sequence[Episode], openings: Sequence[Opening]) -> list[Match]:
    """Compare the first frames: the state's parts, and each camera's images."""
    recorded = np.stack([episode.state[0] for episode in demonstrations])
    found = list(robot.states(recorded, np.stack([opening.state for opening in openings])))
    for place, camera in enumerate(demonstrations[0].cameras):
        theirs = np.stack([episode.frames[0, place] for episode in demonstrations])
        mine = np.stack([opening.frames[place] for opening in openings])
        found.append(match(f"image of {camera}", theirs, mine, image_alternatives()))
    return found


# --- telling ----------------------------------------------------------------------------------------------------------


def findings(found: Search, matches: Sequence[Match]) -> dict[str, Any]:
    """What ``result.json`` holds of the search."""
    off = [{"family": a.family, "name": a.name, "line": a.line} for a in found.chosen]
    off += [{"family": m.what, "name": m.chosen.name, "line": m.chosen.line} for m in matches if m.chosen]
    return {
        "off": off,
        "best": asdict(found.best),
        "tried": [{"names": list(trial.names), **asdict(trial.fit)} for trial in found.trials],
        "first_frames": [
            {"what": m.what, "error": m.error, "best": m.best, "chosen": m.chosen.name if m.chosen else None}
            for m in matches
        ],
    }


def show(found: Search, metrics: Mapping[str, Any]) -> None:
    """Print the ranking and the verdict."""
    table = Table(title=f"demonstrations replayed in {metrics['suite']}, best first")
    for heading in ("meaning of the actions", "success", *found.best.cells):
        table.add_column(heading, justify="left" if heading.startswith("meaning") else "right")
    for trial in found.trials[:SHOWN]:
        fit = trial.fit
        successes = f"{fit.successes}/{fit.episodes}"
        table.add_row(" + ".join(trial.names) or "as recorded", successes, *fit.cells.values())
    console().print(table)
    if metrics["unexercised"]:
        console().print(f"not exercised by these demonstrations: {', '.join(metrics['unexercised'])}", markup=False)
    console().print(metrics["verdict"], markup=False, highlight=False, soft_wrap=True)  # lines of code stay whole
