"""The page: one self-contained HTML file without scripts, written by the templates in ``templates/``.

:func:`render` is pure: the same data give the same bytes. The template engine escapes every text, and a content security
policy in the page forbids every request, so that "self-contained" is enforced by the browser too.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from worldrl.core.errors import ArtefactError, nearest
from worldrl.evaluation.report import charts, words
from worldrl.evaluation.report.checks import is_number
from worldrl.evaluation.report.filmstrip import encode_png, row_image
from worldrl.evaluation.report.model import Curve, Frames, Gate, Number, ReportData, Stage, Video

SECTIONS = {
    "success": ("Success per task", ("tasks", "overall"), "Not measured: real success was not evaluated."),
    "rates": ("Success per task", ("tasks",), "Not measured: real success was not evaluated."),
    "measurements": ("Measurements", ("tables",), "Not measured: nothing was tabulated."),
    "curves": ("Curves", ("curves",), "Not recorded: the curves of training."),
    "gates": ("Validation gates", ("gates",), "Not measured: no validation gates were run, so the quality of the world model is unknown."),
    "imagined": ("Imagined beside real", ("imagined_real",), "Not measured: imagined success was not put beside real success."),
    "filmstrips": ("Filmstrips", ("filmstrips",), "Not recorded: filmstrips."),
    "videos": ("Videos", ("videos",), "Not recorded: videos."),
    "cost": ("Data and time", (), ""),
    "notes": ("Limits and notes", ("notes",), "Not recorded: limits and notes of this run."),
    "configuration": ("Configuration and versions", (), ""),
}  # fmt: skip
"""Key of each section, and of the macro that writes it: heading, fields it shows, statement where all of them are empty."""
POLICY_PAGE = tuple(key for key in SECTIONS if key not in ("measurements", "rates"))
"""Sections of a page about a policy, each there even where nothing was measured, so that nobody overlooks that."""
MARKS = {"gain": "▲", "loss": "▼", "none": "○", "unmeasured": "?", "measured": "•", "imagined": "•"}
MAX_VIDEO = 2_000_000
"""Largest embedded mp4 in bytes."""
MAX_VIDEOS = 20_000_000
"""Largest sum of embedded mp4s in bytes; a page beyond that opens slowly and cannot be mailed."""


def render(data: ReportData) -> str:
    """Render the whole page.

    ``data``: what was measured; missing parts become a statement that says so. Returns HTML text, complete without any
    other file, except that videos too large to embed are linked at ``videos/NN.mp4`` beside the page. Raises
    ArtefactError: ``data.sections`` names a section that does not exist.
    """
    for key in data.sections:
        if key not in SECTIONS:
            raise ArtefactError(f"report: unknown section {key!r}{nearest(key, SECTIONS)}")
    contents = {key: SECTIONS[key][0] for key in data.sections or POLICY_PAGE}
    missing = {
        key: sentence
        for key, (_, fields, sentence) in SECTIONS.items()
        if fields and not any(getattr(data, name) for name in fields)
    }
    template = _environment().get_template("page.html")
    page = template.render(data=data, contents=contents, missing=missing, found=words.statement(data))
    return re.sub(r">\s*\n\s*<", "><", page) + "\n"  # a text holds no bare < or >


def video_path(index: int) -> str:
    """Return where video ``index`` (from 1) lies beside the page."""
    return f"videos/{index:02d}.mp4"


@cache
def _environment() -> Environment:
    loader = PackageLoader("worldrl.evaluation.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    own = (_parts, _png_uri, _mp4_uri, _embeddable, _chart_caption, _gate_value, _value_with_unit, _with_total, _true_minus_rows)  # fmt: skip
    said = (words.percent, words.points, words.number, words.duration, words.count, words.interval, words.gain_interval, words.gain_kind, words.p_value, words.true_minus, words.flatten)  # fmt: skip
    environment.filters |= {call.__name__.lstrip("_"): call for call in (*own, *said, video_path)}
    drawn = (charts.curve_chart, charts.rate_axis, charts.rate_bars, charts.scatter)
    environment.globals |= {call.__name__: call for call in drawn}
    environment.globals |= {"marks": MARKS, "badges": words.BADGES}
    return environment


# --- filters ----------------------------------------------------------------------------------------------------------


def _parts(name: str) -> list[str]:
    """Cut a name where it may break: neither within a number nor within dB."""
    return re.split(r"(?<=[a-z0-9]{2})(?=[A-Z])|(?<=[_/])(?=\w)|(?<=\.)(?=[A-Za-z])", name)


def _png_uri(frames: Frames, steps: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(encode_png(row_image(frames, steps))).decode('ascii')}"


def _mp4_uri(data: bytes) -> str:
    return f"data:video/mp4;base64,{base64.b64encode(data).decode('ascii')}"


def _embeddable(given: Sequence[Video]) -> set[int]:
    """Return the numbers (from 1) of the videos that are embedded, in order until the page is full."""
    chosen: set[int] = set()
    total = 0
    for index, video in enumerate(given, 1):
        if len(video.mp4) <= MAX_VIDEO and total + len(video.mp4) <= MAX_VIDEOS:
            chosen.add(index)
            total += len(video.mp4)
    return chosen


def _chart_caption(curve: Curve) -> str:
    only = [charts.label(name, curve) for name in curve.series] if len(curve.series) == 1 else []
    averaged = ["neighbouring points averaged"] if charts.is_thinned(curve) else []
    said = [part for part in (curve.y_label, *only) if not curve.title.lower().startswith(part.lower())]
    return "; ".join(dict.fromkeys([*said, *averaged]))


def _gate_value(gate: Gate) -> str:
    known = gate.lo is not None and gate.hi is not None
    return words.number(gate.value) + (f" [{gate.lo:.2f}, {gate.hi:.2f}]" if known else "")


def _value_with_unit(tile: Number) -> str:
    """Write a headline value; the unit only where there is a number, and a long one on a line of its own if need be."""
    shown, space = words.number(tile.value), words.NBSP if len(tile.unit) <= 4 else " "
    return f"{shown}{space}{tile.unit}" if tile.unit and shown != "not measured" else shown


def _with_total(stages: Sequence[Stage]) -> list[Stage]:
    known = (stage.wall_s for stage in stages if stage.wall_s is not None and is_number(stage.wall_s))
    return [*stages, Stage("All stages", sum(known))]


def _true_minus_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[words.true_minus(cell) for cell in row] for row in rows]
