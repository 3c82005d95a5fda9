"""``worldrl reproduce NAME``: a paper's central effect at small scale, with a table, a figure and a verdict.

Every pair of seed and method is a stage, computed in its own process with one thread; a killed run resumes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worldrl.core.errors import RunDirectoryError, SettingError
from worldrl.core.storage.log import console
from worldrl.core.storage.run import RunDirectory, Stage
from worldrl.evaluation.report.model import Filmstrip, Number, ReportData, Table
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.report.tables import print_table
from worldrl.evaluation.report.words import rounded
from worldrl.recipes.run import ENGINE, WITH_RAY, RayOptions, check_engine, crew_of, open_run
from worldrl.recipes.side_by_side import run_tasks
from worldrl.reproductions.catalogue import (
    CATALOGUE,
    SCALES,
    Cell,
    Task,
    changed,
    find,
    methods_of,
    numbers_read,
    require_room,
)
from worldrl.reproductions.eva.film_strips import stored_strips
from worldrl.reproductions.findings import VERDICTS, Findings, claims_table
from worldrl.settings import non_negative, one_of, positive, setting

MOST_TILES = 8  # more claims than these are in the table alone.
PAGE = ("measurements", "curves", "filmstrips", "notes", "configuration")


@dataclass
class ReproduceSettings:
    """Which effect, and at what size."""

    name: str = setting("", "which effect; worldrl reproduce without a name lists them")
    run_dir: str = setting("runs/reproduce", "where everything is written")
    seed: int = setting(0, "the first seed; the others follow it")
    scale: str = setting(
        "quick", "tiny (does it run), quick (minutes), full (hours of two cores) or paper (the paper's, where known)"
    )
    seeds: int | None = setting(None, "how many seeds; null takes the scale's own number")
    workers: int = setting(2, "processes at once, one thread each; 0 computes in this process")
    engine: str = setting("local", ENGINE)
    ray: RayOptions = field(default_factory=RayOptions, metadata={"only_with": WITH_RAY})
    change: dict[str, int | float | str] = setting(
        {},
        "other numbers or names of the effect, as change.NAME=value (docs/guide/reproductions.md, docs/reference/eva.md)",
    )

    policies: list[str] = setting(
        [], "of name=methods: start policies, folders of train-policy or bundled; empty takes the bundled one"
    )

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)
        non_negative("workers", self.workers)
        check_engine(self)
        if self.seeds is not None:
            positive("seeds", self.seeds)
        if self.name:
            sizes = find(self.name).load().SETTINGS[self.scale]
            if self.policies and not hasattr(sizes, "policies"):
                raise SettingError(f"policies: {self.name} starts from none; leave it out, or give name=methods")
            changed(sizes, self.changes)

    @property
    def changes(self) -> dict[str, int | float | str]:
        """What differs from the scale's settings."""
        return {**self.change, **({"policies": "\n".join(self.policies)} if self.policies else {})}


def main(settings: ReproduceSettings) -> dict[str, Any]:
    """Compute missing stages, write and print the verdict; return the metrics. Without a name it prints the list."""
    if not settings.name:
        rows = [(entry.name, entry.summary, entry.cost) for entry in CATALOGUE.values()]
        print_table(Table("worldrl reproduce NAME", ("name", "effect", "cost on two cores"), rows), console())
        return {}
    effect = find(settings.name).load()
    sizes = changed(effect.SETTINGS[settings.scale], settings.changes)
    require_room(settings.name, sizes)
    methods = methods_of(effect, sizes)
    # Neighbours have different seeds: stages of one seed share a dataset and a model, and would wait for each other.
    cells = [Cell(m, settings.seed + k) for m in methods for k in range(settings.seeds or sizes.seeds)]
    with open_run("reproduce", settings) as run:
        for cell in cells:
            refuse_earlier(run.stage(stage_name(cell)), numbers_read(effect, sizes, cell.method))
        results = compute(run, settings, cells)
        findings = effect.conclude(sizes, results)
        findings = replace(findings, filmstrips=[*findings.filmstrips, *pictures(run, settings.seed, methods)])
        metrics = {
            "name": settings.name,
            "verdict": findings.verdict,
            "claims": [claim.metrics() for claim in findings.claims],
            "methods": results,
        }
        run.write_result(metrics, seed=settings.seed, device="cpu")
        publish(run, report_page(settings, findings))
    show(settings.name, findings, f"{settings.run_dir}/report.html")
    return metrics


def compute(run: RunDirectory, settings: ReproduceSettings, cells: Sequence[Cell]) -> dict[str, list[dict[str, Any]]]:
    """Finish every stage; return each method's results in the order of seeds."""
    stages = {cell: run.stage(stage_name(cell)) for cell in cells}
    missing = {
        str(stage.folder): Task(settings.name, settings.scale, dict(settings.changes), cell)
        for cell, stage in stages.items()
        if not stage.finished
    }
    by_folder = {str(stage.folder): stage for stage in stages.values()}
    if missing:
        run_tasks(
            "reproduce",
            missing,
            settings.workers,
            on_result=lambda folder, result: by_folder[folder].finish(result),
            crew=crew_of(settings, run.path),
        )
    results: dict[str, list[dict[str, Any]]] = {}
    for cell, stage in stages.items():
        results.setdefault(cell.method, []).append(stage.summary)
    return results


def refuse_earlier(stage: Stage, read: Sequence[str]) -> None:
    """RunDirectoryError where an earlier version finished a stage without numbers that will be read."""
    if not stage.finished:
        return
    held = flat_names(stage.summary)
    if lacking := [name for name in read if name not in held]:
        raise RunDirectoryError(
            f"{stage.folder}: an earlier version finished this stage, and kept no {', '.join(lacking)}; choose a new run_dir"
        )


def flat_names(summary: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Names of all numbers and groups, dotted where nested."""
    inner = [flat_names(value, f"{prefix}{name}.") for name, value in summary.items() if isinstance(value, Mapping)]
    return {f"{prefix}{name}" for name in summary}.union(*inner)


def stage_name(cell: Cell) -> str:
    """Folder name of a cell's stage."""
    return f"seed-{cell.seed}-{cell.method}"


def pictures(run: RunDirectory, seed: int, methods: Sequence[str]) -> list[Filmstrip]:
    """Return the filmstrips of the first seed's stages, in the order of the methods."""
    return stored_strips(
        {f"{method}, seed {seed}": run.stage(stage_name(Cell(method, seed))).folder for method in methods}
    )


# --- what is shown --------------------------------------------------------------------------------------------------


def sentence(name: str, findings: Findings) -> str:
    """Write the verdict in one statement."""
    seeds = max(len(claim.values) for claim in findings.claims)
    count = "one seed" if seeds == 1 else f"{seeds} seeds"
    known = any(claim.interval for claim in findings.claims)
    basis = f"{count}, 95 % intervals" if known else f"{count}, so without intervals"
    if findings.summary:
        return f"{name}: {findings.summary} ({basis})."
    counts = {v: sum(c.verdict == v for c in findings.claims) for v in VERDICTS}
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n)
    return f"{name}: {findings.verdict} ({verdicts} of {len(findings.claims)} claims; {basis})."


def report_page(settings: ReproduceSettings, findings: Findings) -> ReportData:
    """Gather what the page shows."""
    tiles = [Number(c.verdict, rounded(c.mean), note=f"{c.quantity}: {c.sentence}") for c in findings.claims]
    return ReportData(
        title=f"reproduce {settings.name}, scale {settings.scale}",
        sentence=sentence(settings.name, findings),
        sections=[key for key in PAGE if key != "filmstrips" or findings.filmstrips],
        headline=tiles if len(tiles) <= MOST_TILES else (),
        tables=[claims_table(findings.claims), *findings.tables],
        curves=findings.curves,
        filmstrips=findings.filmstrips,
        seeds=[settings.seed + k for k in range(max(len(c.values) for c in findings.claims))],
        notes=[f"The effect: {find(settings.name).summary}.", *findings.notes],
    )


def show(name: str, findings: Findings, page: str) -> None:
    """Print the claims and the verdict."""
    print_table(replace(claims_table(findings.claims), title=name), console(), (0, 1, 2, 3, 5))
    console().print(f"{sentence(name, findings)}\nreport: {page}")
