"""What the report page of ``worldrl benchmark`` shows: rates, states that fail, how a failure looks, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.types import Episode
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import UNMEASURED, EvalResult
from worldrl.evaluation.report.model import DataUse, Filmstrip, Number, ReportData, Stage, SuccessRow, Table, Video
from worldrl.evaluation.report.words import count, duration, interval, percent
from worldrl.jobs.benchmark.tables import protocol_rows
from worldrl.recipes.evaluation_output import clipping, video_name
from worldrl.rollout.real.episodes import EpisodeTiming

EMBEDDED, EXPERT = "embedded", "expert"
PAGE = ("rates", "measurements", "filmstrips", "videos", "cost", "notes", "configuration")
RECORDINGS = "recordings"
"""Folder of the filmed episodes, each under its task, initial state and outcome."""
FRAMES = 10
"""Images of each failure's strip."""
LIMITS = (
    "The initial states are fixed. A greedy policy in a deterministic simulator does the same again, so the intervals "
    "are about other initial states of the same kind, not about another run.",
)


@dataclass(frozen=True)
class Films:
    """Failed episodes with their images."""

    episodes: Sequence[Episode]  # those that could be filmed.
    note: str = ""  # how many are missing, and why; empty where none is.


@dataclass(frozen=True)
class Measured:
    """Everything that a page is made of."""

    suite: str  # its name.
    result: EvalResult  # of the policy.
    others: Sequence[EvalResult]  # finished results under the same protocol, for example of other training seeds.
    score: Mapping[str, Any]  # mean over tasks with its interval over seeds and episodes.
    films: Films  # failed episodes, run again with images.
    spent: EpisodeTiming  # where the time of playing went.
    extra: Mapping[str, Any]  # what else the result says: assets, physics, comparison.


def report_page(found: Measured, folder: Path, *, wall_s: float, seed: int, device: str, workers: int) -> ReportData:
    """Gather what the page of a run in ``folder`` shows."""
    result = found.result
    note = str(found.extra.get("assets_note") or "")
    limits = [f"Assets: {note}. This is not a {found.suite} result."] if note else []
    return ReportData(
        title=f"benchmark of {result.policy} on {found.suite}",
        sentence=sentence(found),
        sections=PAGE,
        tasks=[*(SuccessRow(task, after=result.rate(task)) for task in result.protocol.tasks), total(result)],
        headline=headline(found, wall_s, workers),
        tables=[states_table(result), *always_table(found), protocol_table(result.protocol)],
        filmstrips=[strip(episode) for episode in found.films.episodes],
        videos=recorded(result, folder / RECORDINGS),
        stages=stages(found.spent, wall_s),
        data_budget=[DataUse("measurement", len(result.outcomes), "these rates; nothing was trained on them here")],
        seeds=[seed],
        versions={f"{found.suite}: {name}": version for name, version in result.protocol.packages.items()},
        provenance={
            "protocol": result.protocol.hash,
            "policy": f"{result.policy} ({result.policy_hash[:16]})",
            "device": device,
            **result.provenance,
        },
        notes=[
            *limits,
            *(f"Warning: {text}." for text in found.extra.get("warnings", ())),
            *LIMITS,
            *_copies(found, workers),
            lasting(result),
            *_clipped(result),
            *_validity(result),
            *([found.films.note] if found.films.note else []),
        ],
    )


# --- the first screen -----------------------------------------------------------------------------------------------


def sentence(found: Measured) -> str:
    """What was measured, in one statement made of numbers alone."""
    rate = found.result.rate()
    note = f" ({found.extra['assets_note']})" if found.extra.get("assets_note") else ""
    return (
        f"{found.result.policy} solves {percent(rate['rate'])} of {count(rate['n'], 'episode')} of {found.suite}{note} "
        f"(95 % interval {interval(rate)})."
    )


def total(result: EvalResult) -> SuccessRow:
    """The last row: every episode."""
    return SuccessRow("all tasks", after=result.rate())


def headline(found: Measured, wall_s: float, workers: int) -> list[Number]:
    """The numbers of the first screen: score, time and what an episode costs."""
    episodes = len(found.result.outcomes)
    score, low, high = (100 * found.score[key] for key in ("value", "lo", "hi"))
    seeds = f", {len(found.others) + 1} seeds" if found.others else ""
    return [
        Number("Mean over tasks", round(score, 1), "%", note=f"95 % bootstrap {low:.1f} to {high:.1f}\u00a0%{seeds}"),
        Number("Episodes", episodes, note=f"{found.result.restarts} played again after a worker was lost"),
        Number("Steps per episode", round(sum(o.steps for o in found.result.outcomes) / episodes)),
        Number("Wall time", duration(wall_s), note=f"{wall_s / episodes:.1f} s per episode"),
        Number("Cost", float(f"{wall_s * workers / 3600:.2g}"), "worker-hours", note=count(workers, "worker")),
    ]


def stages(spent: EpisodeTiming, wall_s: float) -> list[Stage]:
    """Where the time went; a run that was continued knows only its last part."""
    deciding = [Stage("policy: decisions", spent.decide_s)] if spent.decide_s else []
    rest = max(0.0, wall_s - spent.decide_s - spent.simulate_s)
    simulating = Stage("simulators: resets, steps, images", spent.simulate_s)
    return [*deciding, simulating, Stage("starting, probing, images of failures", rest)]


def lasting(result: EvalResult) -> str:
    """Which success is counted, and what is known of its end."""
    once = "Success is counted where the task is fulfilled at some step"
    if not result.end_measured:
        return f"{once}; episodes end there, so whether it lasts was {UNMEASURED} (hold_steps=0)."
    end = result.rate(at_end=True)
    return (
        f"{once}. {result.protocol.hold_steps} steps later, or at the time limit, {end['k']} of {end['n']} episodes are still "
        "fulfilled; the table of states says which were undone."
    )


# --- states ---------------------------------------------------------------------------------------------------------


def failed_states(result: EvalResult, task: str) -> list[int]:
    """Numbers of the initial states from which a task was not solved."""
    return [outcome.spec.index for outcome in result.of_task(task) if not outcome.success_once]


def always_failing(results: Sequence[EvalResult], task: str) -> list[int]:
    """Numbers of the initial states that no result solves."""
    return sorted(set.intersection(*(set(failed_states(result, task)) for result in results)))


def states_table(result: EvalResult) -> Table:
    """Which initial states failed, and which were solved and undone again."""
    rows = []
    for task in result.protocol.tasks:
        undone = [o.spec.index for o in result.of_task(task) if o.success_once and not o.success_at_end]
        undone_text = _numbers(undone) if result.end_measured else UNMEASURED
        rows.append((task, _numbers(failed_states(result, task)), undone_text))
    return Table("Initial states that fail", ("Task", "Never fulfilled", "Fulfilled, then undone"), rows)


def always_table(found: Measured) -> list[Table]:
    """Initial states that fail in every result; nothing where there is only one."""
    if not found.others:
        return []
    results = [found.result, *found.others]
    rows = [(task, _numbers(always_failing(results, task))) for task in found.result.protocol.tasks]
    note = f"Checked {len(results)} results under the same protocol: {', '.join(r.policy for r in results)}."
    return [Table("Initial states that always fail", ("Task", "States"), rows, note)]


def protocol_table(protocol: EvalProtocol) -> Table:
    """Everything that decides what the rates mean."""
    note = "Results can be compared where all of it is equal; evaluation.json holds it whole."
    return Table(f"Protocol {protocol.hash}", ("Field", "Value"), protocol_rows(protocol), note)


def _numbers(states: Sequence[int]) -> str:
    return ", ".join(map(str, states)) or "none"


def _copies(found: Measured, workers: int) -> list[str]:
    """Only external suites have one policy for all workers; the embedded suite's decide where they simulate."""
    if found.suite != EMBEDDED or found.result.policy == EXPERT or workers < 2:
        return []
    return [f"Each of the {workers} workers held a copy of the policy, and decided for its own environments alone."]


def _clipped(result: EvalResult) -> list[str]:
    share = result.clipped_share
    if share is None:
        return ["Actions outside the robot's range were not counted."]
    return [f"{clipping(share)}."] if share else []


def _validity(result: EvalResult) -> list[str]:
    return [] if result.valid else ["Not valid: too many episodes lost their worker and were played again."]


# --- failures -------------------------------------------------------------------------------------------------------


def strip(episode: Episode) -> Filmstrip:
    """A failed episode in a row of images, each camera its own row."""
    at = np.unique(np.linspace(0, len(episode), FRAMES).round().astype(int))
    rows = {camera: np.ascontiguousarray(episode.frames[at, v]) for v, camera in enumerate(episode.cameras)}
    again = " Run again for these images it was solved: the policy or the simulator does not repeat itself."
    caption = f"“{episode.instruction}”, {len(episode)} steps.{again if episode.success else ''}"
    state = f"{episode.task}, initial state {episode.meta['index']}"
    return Filmstrip(state, caption, rows, [f"step {step}" for step in at.tolist()])


def recorded(result: EvalResult, folder: Path) -> list[Video]:
    """The films in ``folder`` of measured episodes, also those of an earlier part of a run that continued."""
    films = []
    for outcome in result.outcomes:
        spec, ended = outcome.spec, "Fulfilled" if outcome.success_once else "Not fulfilled"
        path = folder / video_name(spec.task, spec.index, success=outcome.success_once)
        if path.is_file():
            title = f"{spec.task}, initial state {spec.index}"
            films.append(Video(title, f"{ended}; {outcome.steps} steps.", path.read_bytes()))
    return films


def choose_failures(result: EvalResult, most: int) -> list[int]:
    """Positions in ``result.outcomes`` of failures to be shown: the tasks in turn, each from its first state on."""
    failed = [
        [at for at, o in enumerate(result.outcomes) if o.spec.task == task and not o.success_once]
        for task in result.protocol.tasks
    ]
    in_turn = [row[place] for place in range(max(map(len, failed), default=0)) for row in failed if place < len(row)]
    return in_turn[:most]
