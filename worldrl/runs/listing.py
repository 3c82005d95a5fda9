"""Which runs are listed, what differs among them, and the table on the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.table import Table
from rich.text import Text

from worldrl.evaluation.report.words import duration, gain_interval, points, with_rate
from worldrl.runs.reading import Run, State

STYLES = {
    State.running: "bold",
    State.finished: "",
    State.failed: "bold red",
    State.damaged: "bold red",
    State.stopped: "dim",
}
SHOWN = 8
"""Differing settings of a row of the table."""
OWN = ("state", "command", "name")
"""Words that a filter takes besides the settings."""


def chosen(runs: Sequence[Run], words: str) -> list[Run]:
    """Keep the runs that all words of a filter fit: ``rounds=3`` a setting by the end of its name, others any text."""
    return [run for run in runs if all(_fits(run, word) for word in words.split())]


def _fits(run: Run, word: str) -> bool:
    key, equals, text = word.partition("=")
    if not equals:
        return word.lower() in f"{run.name} {run.command} {run.state} {run.typed}".lower()
    wanted = _bare(text)
    if key in OWN:
        return wanted == _bare(getattr(run, key))
    return any(wanted == _bare(held) for name, held in run.settings.items() if f".{name}".endswith(f".{key}"))


def _bare(text: str) -> str:
    return text.replace(" ", "").lower()


def differing(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Settings of each run, by its name, in which runs of its command differ; of a command's only run those typed."""
    found: dict[str, dict[str, str]] = {}
    for command in {run.command for run in runs}:
        same = [run for run in runs if run.command == command]
        if len(same) == 1:
            found[same[0].name] = _typed(same[0])
            continue
        held = dict.fromkeys(key for run in same for key in run.settings)
        keys = [key for key in held if len({run.settings[key] for run in same if key in run.settings}) > 1]
        for run in same:
            found[run.name] = {key: run.settings[key] for key in keys if key in run.settings}
    return found


def _typed(run: Run) -> dict[str, str]:
    words: list[str] = []
    with suppress(ValueError):  # quotes of somebody else's file
        words = shlex.split(run.typed)
    pairs = (word.partition("=") for word in words)
    return {key: text for key, equals, text in pairs if equals and key != "run_dir"}


def success_text(run: Run) -> str:
    """Write what was measured in the simulator, one rate a line, and the gain with its interval."""
    lines = [f"{'' if key == 'success' else f'{key} '}{with_rate(rate)}" for key, rate in run.success.items()]
    if run.gain:
        lines.append(f"{points(run.gain['diff'])} points [{gain_interval(run.gain)}]".replace(" to ", ", "))
    return "\n".join(lines)


def progress_text(run: Run) -> str:
    """Write what a running run does now, or why one failed."""
    now = run.clock.progress
    if run.state is State.running and now:
        return f"{now.description}: {now.count}/{now.total} {now.unit}"
    return run.clock.error if run.state is State.failed else ""


def as_plain(run: Run, differs: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows of a run."""
    plain = {key: getattr(run, key) for key in ("name", "command", "state", "typed", "settings", "success", "gain", "numbers", "stages", "faults")}  # fmt: skip
    plain |= {"hasReport": run.has_report, "hasMetrics": run.has_metrics}
    plain |= {"films": [{"path": film.path, "title": film.title} for film in run.films]}
    plain |= {"differs": differs, "said": success_text(run), "progress": progress_text(run)}
    plain |= {"share": _share(run), "took": _took(run), "changed": run.changed_s}  # fmt: skip
    return plain


def _took(run: Run) -> str:
    return duration(run.clock.wall_s) if run.clock.wall_s > 0 else ""


def _share(run: Run) -> float | None:
    now = run.clock.progress
    if run.state is not State.running or now is None or now.total <= 0:
        return None
    return min(1.0, max(0.0, now.count / now.total))


def table(runs: Sequence[Run], title: str) -> Table:
    """Lay runs out for the terminal."""
    made = Table(title=title, title_justify="left")
    for heading in ("run", "command", "state", "success in the simulator", "differing settings"):
        made.add_column(heading, overflow="fold")
    made.add_column("time", justify="right", no_wrap=True)
    differs = differing(runs)
    for run in runs:
        pairs = [f"{key}={text}" for key, text in differs[run.name].items()]
        more = [f"and {len(pairs) - SHOWN} more"] if len(pairs) > SHOWN else []
        state = "\n".join(filter(None, (run.state, progress_text(run), *run.faults)))
        # Text, not markup: what stands in a stranger's file is shown, never obeyed.
        cells = [
            run.name,
            run.command,
            Text(state, STYLES[run.state]),
            success_text(run),
            "\n".join(pairs[:SHOWN] + more),
        ]
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in (*cells, _took(run))))
    return made
