"""What the page of ``worldrl check-protocol`` shows: what replaying brought, and the first images side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worldrl.core.types import Episode
from worldrl.evaluation.conventions.fit import Match, Search
from worldrl.evaluation.report.model import Filmstrip, ReportData, Table
from worldrl.evaluation.report.words import interval
from worldrl.rollout.real.slots import Opening

PAGE = ("measurements", "filmstrips", "notes", "configuration")
ARMS = {
    "as_recorded": "the demonstrations as they are recorded",
    "no_op": "nothing: the first command is held",
    "random": "random actions in the robot's range",
}
"""Key in ``result.json`` → what was played from each initial state."""


def report_page(
    data: str, metrics: Mapping[str, Any], found: Search, matches: Sequence[Match], strips: Sequence[Filmstrip]
) -> ReportData:
    """Gather what the page shows of the demonstrations in ``data``."""
    first, *rest = metrics["verdict"].splitlines()
    if metrics["fits"] is None:  # the page's first line is all that many read
        first, *rest = f"{first} {rest[0]}", *rest[1:]
    return ReportData(
        title=f"check-protocol of {data} in {metrics['suite']}",
        sentence=first,
        sections=PAGE,
        tables=[arms_table(metrics), tried_table(found), matches_table(matches)],
        filmstrips=strips,
        notes=[*rest, *(f"Assumed: {text}" for text in metrics["assumed"])],
    )


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """Successes of the demonstrations beside those of doing nothing and of doing anything."""
    rows = [
        (words, f"{rate['k']} of {rate['n']}", interval(rate))
        if (rate := metrics[key])
        else (words, "says nothing", "")
        for key, words in ARMS.items()
    ]
    note = "From the same initial states, for as many steps. What succeeds without the demonstrations' actions says nothing of them."
    return Table("Replayed", ("Played", "Success", "95 % interval"), rows, note)


def tried_table(found: Search) -> Table:
    """Every meaning of the actions that was tried, best first."""
    rows = [
        (
            " + ".join(trial.names) or "as recorded",
            f"{trial.fit.successes} of {trial.fit.episodes}",
            *trial.fit.cells.values(),
        )
        for trial in found.trials
    ]
    headers = ("Meaning", "Success", *(name.capitalize() for name in found.best.cells))
    return Table("Meanings of the actions", headers, rows, "Distances between the replayed and the recorded states.")


def matches_table(matches: Sequence[Match]) -> Table:
    """The first frames' parts: how far off, and their images."""
    rows = [
        (m.what, f"{m.error:.3g}", f"{m.best:.3g}", m.chosen.name if m.chosen else "as the suite's") for m in matches
    ]
    headers = ("Part", "Difference as recorded", "Of the best alternative", "Looks")
    return Table("First frames", headers, rows, "Mean absolute differences, in each part's own unit.")


def first_images(demonstrations: Sequence[Episode], openings: Sequence[Opening]) -> list[Filmstrip]:
    """Each camera's first images: recorded above, the suite's own after its reset to the same initial states below."""
    labels = [f"demonstration {number}" for number in range(1, len(openings) + 1)]
    return [
        Filmstrip(
            f"First images of {camera}",
            "Upside down, mirrored or of other colours is seen at a glance.",
            {
                "recorded": np.stack([episode.frames[0, place] for episode in demonstrations]),
                "the suite's": np.stack([opening.frames[place] for opening in openings]),
            },
            labels,
        )
        for place, camera in enumerate(demonstrations[0].cameras)
    ]
