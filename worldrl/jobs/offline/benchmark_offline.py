"""``worldrl benchmark-offline``: algorithms x datasets x seeds of ``train-offline``, and one table of them all.

Each run is ``worldrl train-offline`` in a process of its own with one thread, in a stage of the run directory; a killed
command continues with the runs that are missing, each from its own last checkpoint. ``runs=`` sums up trainings that have
finished already. The mathematics of the table is :mod:`worldrl.evaluation.offline.table`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from worldrl.core.errors import SettingError, WorkerError, WorldrlError, nearest
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RunDirectory, Stage
from worldrl.evaluation.offline.table import (
    OfflineRun,
    best_of,
    compare,
    finished_runs,
    over_datasets,
    read_run,
    rows_of,
    short_name,
    summarise,
)
from worldrl.evaluation.report.store import publish
from worldrl.jobs.offline.benchmark_offline_report import report_page, show, write_tables
from worldrl.methods.offline.latent import video_latents
from worldrl.recipes.offline import settings as offline_settings
from worldrl.recipes.offline import training as offline_training
from worldrl.recipes.offline.recurrent import unread_by_neubay
from worldrl.recipes.offline.settings import TrainOfflineSettings, offline_agent
from worldrl.recipes.run import ENGINE, WITH_RAY, RayOptions, check_engine, crew_of, open_run
from worldrl.recipes.side_by_side import run_tasks
from worldrl.settings import COMMAND_LINE, compose, keys_of, non_negative, parse_overrides, positive, setting

SEED = "{seed}"
RUN = "run"
"""Of each stage: the run directory of its training."""
WORLDS = "worlds"
"""Setting of a run, and folder of the run directory: ensembles that runs of one dataset and seed share."""
OURS = ("data", "algorithm", "seed", "run_dir")
"""Settings of a run that this command gives itself."""


@dataclass
class BenchmarkOfflineSettings:
    """Which algorithms on which datasets, how often, and who is held against whom."""

    data: list[str] = setting([], "Minari ids or folders, D4RL files; {seed} in a name stands for the seed of the run")
    algorithms: list[str] = setting(["bc", "td3_bc", "iql", "mopo", "ravl", "neubay"], "registered names")
    run_dir: str = setting("runs/benchmark-offline", "where everything is written, each run under stages/")
    seed: int = setting(0, "the first seed of the trainings; the others follow it")
    seeds: int = setting(3, "trainings of each algorithm on each dataset")
    common: str = setting(
        "", "settings of every run that has them, as train-offline takes them: 'training.steps=20000 episodes=10'"
    )
    own: dict[str, str] = setting(
        {}, "settings of one algorithm's runs: own.ravl='agent.critics=5'; they take precedence"
    )
    runs: list[str] = setting([], "finished train-offline runs, or folders of them, to add to the table")
    clone: str = setting("bc", "algorithm that every other is compared with")
    candidates: list[str] = setting(["ravl", "neubay"], "algorithms that are also compared with the best of the rivals")
    rivals: list[str] = setting(["td3_bc", "iql", "mopo"], "algorithms whose best is taken on each dataset")
    workers: int = setting(1, "runs at once, one thread each; 0 computes in this process")
    engine: str = setting("local", ENGINE)
    ray: RayOptions = field(default_factory=RayOptions, metadata={"only_with": WITH_RAY})

    def __post_init__(self) -> None:
        """Check names and ranges."""
        positive("seeds", self.seeds)
        non_negative("workers", self.workers)
        check_engine(self)
        for name in (*self.algorithms, *self.candidates, *self.rivals, self.clone):
            offline_agent(name)
        if lost := sorted(set(self.own) - set(self.algorithms)):
            raise SettingError(
                f"own.{lost[0]}: not among algorithms={self.algorithms}{nearest(lost[0], self.algorithms)}"
            )
        for name in ("data", "algorithms"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise SettingError(f"{name}: each may be named once, got {getattr(self, name)}")


@dataclass(frozen=True)
class Training:
    """One run, in plain values."""

    data: str  # short name of the dataset.
    given: Mapping[str, str]  # the words of its command line, by dotted key, without ``run_dir``.

    @property
    def label(self) -> str:
        """Algorithm, dataset and seed."""
        return f"{self.given['algorithm']} on {self.data}, seed {self.given['seed']}"

    @property
    def stage(self) -> str:
        """Name of its stage."""
        words = f"{self.data}-{self.given['algorithm']}-{self.given['seed']}"
        return re.sub(r"[^a-z0-9._]+", "-", words.lower()).lstrip("._-")

    def settings(self, where: Mapping[str, str]) -> TrainOfflineSettings:
        """Compose its settings.

        Raises SettingError (a word of another form, or a value that the algorithm does not take).
        """
        given = {**where, **self.given}
        return compose("train-offline", offline_settings.settings_for(given), given)

    def where(self, folder: Path) -> dict[str, str]:
        """Say where its stage's run lies, and the ensembles that the grid's runs share, where it has one."""
        own = {"run_dir": str(folder / RUN)}
        shares = self.settings(own).world == "ensemble"
        return own | ({WORLDS: str(folder.parents[1] / WORLDS)} if shares else {})

    def compute(self, folder: Path) -> dict[str, Any]:
        """Train, or continue; a deliberate error is the result, so that the other runs continue."""
        where = self.where(folder)
        COMMAND_LINE.set(("train-offline", *(f"{k}={v}" for k, v in (where | dict(self.given)).items())))
        try:
            offline_training.run_offline_training(self.settings(where))
        except WorldrlError as error:
            return {"error": str(error)}
        return {"error": ""}


def main(settings: BenchmarkOfflineSettings) -> dict[str, Any]:
    """Train what is missing, sum up, write JSON, CSV, Markdown and a page, and print the table.

    Returns the metrics: ``rows`` (algorithm on dataset), ``overall``, ``comparisons``, ``errors``. Raises
    SettingError (settings that an algorithm does not take, or runs that cannot stand in one table). Raises
    WorkerError (runs stopped with an error; the table of the others is written).
    """
    if not settings.data and not settings.runs:
        raise SettingError("data: name at least one dataset to train on, or give runs= to sum up")
    earlier = [read_run(folder) for name in settings.runs for folder in finished_runs(Path(name))]
    trainings = grid(settings)
    with open_run("benchmark-offline", settings) as run:
        errors: dict[str, str] = {}
        metrics: dict[str, Any] = {}
        runs = [*earlier, *train(run, settings, trainings, errors)]
        if runs:
            metrics = sum_up(settings, runs) | {"errors": errors}
            write_tables(run.path, metrics, runs)
            run.write_result(metrics, seed=settings.seed, device="cpu")
            publish(run, report_page(metrics))
            show(metrics)
            console().print(f"report: {run.path / 'report.html'}", markup=False)
    if errors:
        first, *others = errors.items()
        raise WorkerError(
            f"{first[0]}: {first[1]}{f' (and {len(others)} more)' if others else ''}; the same command repeats what "
            "stopped and skips what has finished"
        )
    return metrics


# --- the grid -------------------------------------------------------------------------------------------------------


def grid(settings: BenchmarkOfflineSettings) -> list[Training]:
    """List the runs: all of the first seed, then all of the next. Their settings are composed before anything is trained.

    Raises SettingError: a setting that no algorithm has, that this command gives itself, or of a wrong value; two
    datasets of one short name.
    """
    words = {name: own_words(settings, name) for name in settings.algorithms if settings.data}
    names = [short_name(data) for data in settings.data]
    if len(set(names)) < len(names):
        raise SettingError(
            f"data: {settings.data} end in the same two parts, so a table could not distinguish them; move one"
        )
    seeds = range(settings.seed, settings.seed + settings.seeds)
    cells = [
        Training(
            name, {"data": data.replace(SEED, str(seed)), "algorithm": algorithm, "seed": str(seed), **words[algorithm]}
        )
        for seed in seeds
        for data, name in zip(settings.data, names, strict=True)
        for algorithm in settings.algorithms
    ]
    for cell in cells[: len(settings.data) * len(settings.algorithms)]:
        cell.settings({"run_dir": "unused"})
    return cells


def own_words(settings: BenchmarkOfflineSettings, algorithm: str) -> dict[str, str]:
    """Return what one algorithm's runs are given: of the common words those that it has, then its own."""
    common, own = (parse_overrides(shlex.split(text)) for text in (settings.common, settings.own.get(algorithm, "")))
    for name in OURS:
        if name in common or name in own:
            raise SettingError(f"{name}: benchmark-offline gives it to each run itself; take it out of common and own")
    known = {name: words_known(name, common | own) for name in settings.algorithms}
    if lost := [key for key in common if not any(key in keys for keys in known.values())]:
        raise SettingError(f"common: none of {settings.algorithms} has a setting {lost[0]!r}")
    return {key: text for key, text in common.items() if key in known[algorithm]} | own


def words_known(algorithm: str, given: Mapping[str, str]) -> set[str]:
    """Return the settings that an algorithm's command line takes."""
    choosing = {key: given[key] for key in ("world", "preset", "planner.use", "tuned") if key in given}
    kind = offline_settings.settings_for({"algorithm": algorithm, **choosing})
    keys, world = {*keys_of(kind), "preset"}, kind(data="unused").world
    if world != "ensemble":
        keys.discard(WORLDS)  # nothing to share
    if world != "diffusion":
        keys = {key for key in keys if not key.startswith("diffusion.")}
    if algorithm != "neubay" and given.get("tuned") != video_latents.NAME:
        keys.discard("tuned")  # of a paper's dataset, which no other has
    return {key for key in keys if algorithm != "neubay" or not unread_by_neubay(key)}


def train(
    run: RunDirectory, settings: BenchmarkOfflineSettings, trainings: Sequence[Training], errors: dict[str, str]
) -> list[OfflineRun]:
    """Finish the runs that are missing, and read all; ``errors`` receives what stopped with one, by label."""
    stages = {str(stage.folder): stage for stage in (run.stage(training.stage) for training in trainings)}
    by_folder = dict(zip(stages, trainings, strict=True))

    def note(folder: str, result: dict[str, Any]) -> None:
        training, stage = by_folder[folder], stages[folder]
        if result["error"]:
            errors[training.label] = result["error"]
            return
        stage.finish(asdict(read_run(stage.folder / RUN, training.data)))
        runs = finished(stages.values())
        write_tables(run.path, sum_up(settings, runs), runs)  # for whoever looks before the end

    missing = {folder: training for folder, training in by_folder.items() if not stages[folder].finished}
    if missing:
        run_tasks("benchmark-offline", missing, settings.workers, on_result=note, crew=crew_of(settings, run.path))
    return finished(stages.values())


def finished(stages: Iterable[Stage]) -> list[OfflineRun]:
    """Read the runs that have finished."""
    return [OfflineRun(**stage.summary) for stage in stages if stage.finished]


def sum_up(settings: BenchmarkOfflineSettings, runs: Sequence[OfflineRun]) -> dict[str, Any]:
    """Return the metrics of some runs: rows, algorithms over all datasets, comparisons."""
    rows = rows_of(runs)
    found = [compare(row, rows[data, settings.clone])
             for (data, name), row in rows.items() if name != settings.clone and (data, settings.clone) in rows]  # fmt: skip
    for (data, name), row in rows.items():
        best = best_of(rows, data, [rival for rival in settings.rivals if rival != name])
        if name in settings.candidates and best is not None:
            found.append(compare(row, rows[data, best]))
    return {
        "rows": [summarise(row, seed=settings.seed) for row in rows.values()],
        "overall": over_datasets(rows, seed=settings.seed),
        "comparisons": [one for one in found if one is not None],
        "clone": settings.clone,
    }
