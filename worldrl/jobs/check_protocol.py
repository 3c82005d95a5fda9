"""``worldrl check-protocol``: do demonstrations mean what a suite means, and if not, which convention is off?

The question behind most reports of a policy with a fine loss and no success. Demonstrations are replayed in the suite;
where they fail, other meanings of their gripper, rotations, axes, delay and scale are tried, and their first pictures
and states are held against the suite's own. Demonstrations that others made (LeRobotDataset v3) do not say where they began:
they are replayed from stored initial states of their tasks, and judged by the hand's motion alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from scipy.spatial.transform import Rotation

from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import SettingError, nearest
from worldrl.core.log import console
from worldrl.core.rng import numpy_stream
from worldrl.core.stats import wilson
from worldrl.core.types import Episode
from worldrl.data.dataset import EpisodeDataset, assumed
from worldrl.data.libero_robot import libero_embodiment
from worldrl.evaluation.convention_fit import (
    Fit,
    Match,
    Search,
    fits,
    match,
    search,
    state_matches,
    unexercised,
    verdict,
)
from worldrl.evaluation.conventions import picture_alternatives
from worldrl.jobs.check_protocol_report import first_pictures, write_report
from worldrl.jobs.opening import open_run
from worldrl.jobs.suite_opening import open_suite
from worldrl.rollout.collect import embedded_embodiment
from worldrl.rollout.libero import libero_tasks
from worldrl.rollout.libero_files import PICTURES, START, SUFFIX, find_demonstrations, read_demonstration
from worldrl.rollout.replays import EmbeddedReplayer, Opening, Replay, Replayer, SuiteReplayer
from worldrl.rollout.specs import EnvOptions, EpisodeSpec, has_spec, spec_of
from worldrl.settings import one_of, positive, required, setting
from worldrl.workers import libero_facts
from worldrl.workers.libero_package import task_sentence

EMBEDDED = "embedded"
SUITES = (EMBEDDED, *libero_facts.suite_names())
SHOWN = 12
"""Rows of the closing table."""
rotation: Any = Rotation
"""SciPy publishes no types."""


@dataclass
class CheckProtocolSettings:
    """Which demonstrations, in which suite."""

    data: str = required(
        "dataset folder, also of others, or one of LIBERO's own HDF5 files; successful episodes are replayed"
    )
    suite: str = setting(EMBEDDED, f"one of {', '.join(SUITES)}")
    run_dir: str = setting("runs/check-protocol", "where the result is written")
    seed: int = setting(0, "of the random actions that are played beside")
    episodes: int = setting(4, "demonstrations, taken evenly from the dataset; each is replayed about twenty times")
    workers: int = setting(1, "LIBERO: simulator processes")
    shadows: bool = setting(True, "LIBERO: the vendor's shadows, as the pictures were recorded")
    assets: str = setting("", "LIBERO: folder of its assets; empty takes what setup was told")
    timeout_s: float = setting(300.0, "longest silence of a worker before it is replaced (s)")

    def __post_init__(self) -> None:
        """Check the names and the ranges."""
        one_of("suite", self.suite, SUITES)
        for name in ("episodes", "workers", "timeout_s"):
            positive(name, getattr(self, name))


def main(settings: CheckProtocolSettings) -> dict[str, Any]:
    """Replay, try alternatives where needed, write ``result.json`` and a page, and print the verdict.

    Args:
        settings: which demonstrations, in which suite.

    Returns:
        The metrics: whether all fits (None: success decides nothing), what is off, everything that was tried.
    """
    demonstrations = read(settings)
    specs, known = starts(demonstrations, settings.seed)
    with open_run("check-protocol", settings) as run:
        with open_replayer(settings, demonstrations, specs) as (replayer, embodiment):
            openings = replayer.open(specs)
            matches = first_frames(demonstrations, openings)
            play = player(replayer, demonstrations, specs, known)
            idle = {name: play(actions) for name, actions in idle_actions(demonstrations, settings.seed).items()}
            most = max(fit.successes for fit in idle.values())
            told = [episode.action for episode in demonstrations]
            found = search(told, lambda actions: replace(play(actions), idle=most), embodiment)
        text = "\n".join([verdict(found, matches), *idle_words(idle)])
        metrics = {
            "suite": settings.suite,
            "fits": fits(found, matches),  # null: not decided
            "as_recorded": wilson(found.as_recorded.successes, found.as_recorded.episodes) if known else None,
            **{name: wilson(fit.successes, fit.episodes) for name, fit in idle.items()},
            "initial_states": "the demonstrations' own" if known else "others of the suite: success says nothing",
            "assumed": list(assumed(demonstrations)),
            "unexercised": unexercised([episode.action for episode in demonstrations]),
            **findings(found, matches),
            "verdict": text,
        }
        run.write_result(metrics, seed=settings.seed, device="cpu")
        page = write_report(run, metrics, found, matches, first_pictures(demonstrations, openings))
    show(found, metrics)
    console().print(f"report: {page}", markup=False)
    return metrics


def read(settings: CheckProtocolSettings) -> list[Episode]:
    """Take successful episodes evenly from a dataset, or demonstrations from LIBERO's own files.

    Raises:
        ArtefactError: a file is damaged, or of another suite.
        SettingError: none succeeded.
    """
    data = Path(settings.data)
    if settings.suite != EMBEDDED and (data.suffix == SUFFIX or any(data.glob(f"*{SUFFIX}"))):
        found = find_demonstrations(data, settings.suite, libero_tasks(settings.suite))
        chosen = [found[place] for place in evenly(len(found), settings.episodes)]
        episodes = [read_demonstration(item, cameras=tuple(PICTURES), seed=settings.seed) for item in chosen]
        good = [episode for episode in episodes if episode.success]
    else:
        dataset = EpisodeDataset.open(data)
        names = suite_names(dataset, settings.suite)
        numbers = [n for n, record in enumerate(dataset.records) if record.success and names[n] is not None]
        chosen = [numbers[place] for place in evenly(len(numbers), settings.episodes)]
        good = [replace(dataset[number], task=str(names[number])) for number in chosen]
    if not good:
        raise SettingError("data: no recorded episode succeeded, so replaying them says nothing; give demonstrations")
    return good


def suite_names(dataset: EpisodeDataset, suite: str) -> list[str | None]:
    """Name each episode's task as the suite does: of recordings that others made by its sentence, None for other suites' tasks.

    Raises:
        SettingError: none is of this suite.
    """
    if all(has_spec(record.meta) for record in dataset.records):
        return [record.task for record in dataset.records]
    sentences = suite_sentences(suite)
    known = set(sentences.values())
    names = [r.task if r.task in known else sentences.get(r.instruction) for r in dataset.records]
    if not any(names):
        told = dataset.records[0].instruction
        raise SettingError(
            f"data: no episode is about a task of {suite}; the first is told {told!r}{nearest(told, sentences)}"
        )
    return names


def suite_sentences(suite: str) -> dict[str, str]:
    """Task names of a suite by their sentences."""
    if suite != EMBEDDED:
        return {task_sentence(name): name for name in libero_tasks(suite)}
    from worldrl_envs.tasks import get_task, task_names

    return {get_task(name).instruction: name for name in task_names()}


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
def open_replayer(
    settings: CheckProtocolSettings, demonstrations: Sequence[Episode], specs: Sequence[EpisodeSpec]
) -> Generator[tuple[Replayer, Embodiment]]:
    """Open the suite with the recordings' cameras and picture size, to begin where they began."""
    cameras, (height, width) = demonstrations[0].cameras, demonstrations[0].frames.shape[2:4]
    if height != width:
        raise SettingError(f"data: its pictures are {width} by {height}; suites draw square ones")
    if settings.suite == EMBEDDED:
        embodiment = embedded_embodiment({spec.task for spec in specs})
        if not isinstance(embodiment, Embodiment):
            raise SettingError("data: two-armed demonstrations have joint targets; the check knows one arm's 7 numbers")
        with closing(EmbeddedReplayer(EnvOptions(image_size=height, cameras=cameras))) as replayer:
            yield replayer, embodiment
        return
    with open_suite(
        settings.suite,
        cameras=cameras,
        image_size=height,
        shadows=settings.shadows,
        assets=settings.assets,
        workers=settings.workers,
        slots=min(settings.episodes, 2 * settings.workers),
        timeout_s=settings.timeout_s,
        restarts=2,
        recycle_after=None,
    ) as suite:
        given = {spec.key: e.meta[START] for spec, e in zip(specs, demonstrations, strict=True) if START in e.meta}
        yield SuiteReplayer(suite.pool, cameras, given), libero_embodiment()


# --- measuring --------------------------------------------------------------------------------------------------------


def player(
    replayer: Replayer, demonstrations: Sequence[Episode], specs: Sequence[EpisodeSpec], known: bool
) -> Callable[[Sequence[NDArray[np.float32]]], Fit]:
    """Return what replays changed actions of the demonstrations and measures how well they fit."""
    return lambda actions: measure(replayer.play(specs, actions), demonstrations, known)


def idle_actions(demonstrations: Sequence[Episode], seed: int) -> dict[str, list[NDArray[np.float32]]]:
    """Of each demonstration's length: the null action that holds its first command, and random ones in the robot's range."""
    still, anything = [], []
    for number, episode in enumerate(demonstrations):
        shape, draw = episode.action.shape, numpy_stream(seed, "check-protocol", "random", number)
        still.append(np.broadcast_to(episode.actions.hold(episode.command[0]), shape).astype(np.float32))
        anything.append(draw.uniform(*episode.actions.bounds, shape).astype(np.float32))
    return {"no_op": still, "random": anything}


def idle_words(idle: Mapping[str, Fit]) -> list[str]:
    """What it means that a task is fulfilled without the demonstrations' actions."""
    told = {"no_op": "Doing nothing fulfils", "random": "Random actions fulfil"}
    return [
        f"{told[name]} {fit.successes} of {fit.episodes}: there a success says nothing about actions, so look at initial states and goals."
        for name, fit in idle.items()
        if fit.successes
    ]


def measure(replays: Sequence[Replay], demonstrations: Sequence[Episode], known: bool) -> Fit:
    """Hold replays against their recordings: where these began elsewhere, how both moved from their starts."""
    shown = (lambda state: state) if known else from_start
    mine = np.concatenate([shown(replay.state) for replay in replays]).astype(np.float64)
    theirs = np.concatenate([shown(episode.state) for episode in demonstrations]).astype(np.float64)
    turned = rotation.from_rotvec(mine[:, 3:6]).inv() * rotation.from_rotvec(theirs[:, 3:6])
    return Fit(
        successes=sum(replay.success for replay in replays),
        episodes=len(replays),
        position_m=_rms(np.linalg.norm(mine[:, :3] - theirs[:, :3], axis=1)),
        rotation_rad=_rms(turned.magnitude()),
        opening_m=_rms((mine[:, 6] - mine[:, 7]) - (theirs[:, 6] - theirs[:, 7])),
        travel=_ratio(path_length([e.state for e in demonstrations]), path_length([r.state for r in replays])),
        turning=_ratio(turning([e.state for e in demonstrations]), turning([r.state for r in replays])),
        judged=known,
    )


def from_start(state: NDArray[np.float32]) -> NDArray[np.float64]:
    """Positions and rotations of a tool ``[T+1, 8]`` as seen from its first pose; the fingers as they are."""
    exact = state.astype(np.float64)
    turns = rotation.from_rotvec(exact[:, 3:6])
    return np.concatenate([exact[:, :3] - exact[:1, :3], (turns * turns[0].inv()).as_rotvec(), exact[:, 6:]], axis=1)


def path_length(states: Sequence[NDArray[Any]]) -> float:
    """How far the tool travelled in all episodes (m)."""
    return float(sum(np.linalg.norm(np.diff(state[:, :3], axis=0), axis=1).sum() for state in states))


def turning(states: Sequence[NDArray[Any]]) -> float:
    """Through which angles the tool turned in all episodes (rad)."""
    steps = [rotation.from_rotvec(state[:, 3:6].astype(np.float64)) for state in states]
    return float(sum((step[:-1].inv() * step[1:]).magnitude().sum() for step in steps))


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _ratio(recorded: float, replayed: float) -> float:
    return recorded / replayed if replayed > 1e-3 else float("nan")


def first_frames(demonstrations: Sequence[Episode], openings: Sequence[Opening]) -> list[Match]:
    """Compare the first frames: the state's parts, and each camera's pictures."""
    recorded = np.stack([episode.state[0] for episode in demonstrations])
    found = list(state_matches(recorded, np.stack([opening.state for opening in openings])))
    for place, camera in enumerate(demonstrations[0].cameras):
        theirs = np.stack([episode.frames[0, place] for episode in demonstrations])
        mine = np.stack([opening.frames[place] for opening in openings])
        found.append(match(f"picture of {camera}", theirs, mine, picture_alternatives()))
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
    for heading in ("meaning of the actions", "success", "position (cm)", "rotation (rad)", "opening (cm)"):
        table.add_column(heading, justify="left" if heading.startswith("meaning") else "right")
    for trial in found.trials[:SHOWN]:
        fit = trial.fit
        numbers = (f"{100 * fit.position_m:.2f}", f"{fit.rotation_rad:.3f}", f"{100 * fit.opening_m:.2f}")
        table.add_row(" + ".join(trial.names) or "as recorded", f"{fit.successes}/{fit.episodes}", *numbers)
    console().print(table)
    if metrics["unexercised"]:
        console().print(f"not exercised by these demonstrations: {', '.join(metrics['unexercised'])}", markup=False)
    console().print(metrics["verdict"], markup=False, highlight=False, soft_wrap=True)  # lines of code stay whole
