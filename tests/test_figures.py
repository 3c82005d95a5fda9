"""Every figure of the results pages against the stored file that its row links, and every relative link.

A table row that links a file under ``docs/results/`` is checked cell by cell, apart from links, code and the columns of
``FREE``. An interval belongs to one measurement of the file, a count `k/n` to one rate, any other number to some number
there. Rounding to the shown digits is allowed, nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "measurements.md",
    ROOT / "docs" / "methods.md",
    *sorted((ROOT / "docs" / "reference").glob("results-*.md")),
]
FREE = {"seed", "asked", "paper", "command", "reproduced?"}
"""Columns whose numbers are no measurements."""
Z95 = 1.959963984540054
CENTRE = ("rate", "value", "diff", "mean", "r")
LONGEST_LIST = 30
"""Longer lists are per-episode records, in which any two-digit number would be found."""

NUMBER = r"[+−-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
INTERVAL = re.compile(
    rf"(?P<value>{NUMBER})[^\d\[|(]{{0,12}}\[(?P<lo>{NUMBER}),\s*(?P<hi>{NUMBER})\](?:\s*\((?P<k>\d+)/(?P<n>\d+)\))?"
)
COUNT = re.compile(r"(?<![\w.@/])(?P<k>\d+)/(?P<n>\d+)(?![\w/])")
BARE = re.compile(rf"(?<![\w.@,])(?P<value>{NUMBER})(?![\w]|\.\d)")
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)")
DEFINITION = re.compile(r"^\[[^\]]+\]:\s*(?P<target>\S+)", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
DATE = re.compile(r"\b20\d\d(?:-\d\d(?:-\d\d)?)?\b")


class Measurement(NamedTuple):
    """One measured quantity of a file: its value, its interval, and the counts where it is a rate."""

    value: float
    lo: float | None
    hi: float | None
    k: int | None
    n: int | None


class Content(NamedTuple):
    """All measurements of a file, all its other numbers with what they may be multiplied by, and the file itself."""

    measurements: list[Measurement]
    numbers: list[tuple[float, tuple[float, ...]]]
    tree: Any


def _scales(key: str) -> tuple[float, ...]:
    """Fractions may be shown in percent, seconds in minutes, MiB in GiB."""
    units = (1 / 60,) if key.endswith(("_s", "seconds")) else (1 / 1024,) if "_mb" in key else ()
    return (1.0, 100.0, *units)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mean_of_siblings(trees: list[Any]) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Means over seeds, where a file holds one entry per seed."""
    if all(_is_number(tree) for tree in trees):
        yield sum(trees) / len(trees), _scales("")
    elif all(isinstance(tree, dict) for tree in trees):
        for key, value in trees[0].items():
            if all(_is_number(tree.get(key)) for tree in trees):
                yield sum(tree[key] for tree in trees) / len(trees), _scales(key)
            elif all(isinstance(tree.get(key), list) for tree in trees) and value and _is_number(value[0]):
                every = [number for tree in trees for number in tree[key]]
                yield sum(every) / len(every), _scales(key)


def _numbers(tree: Any, name: str = "") -> Iterator[tuple[float, tuple[float, ...]]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key not in ("lo", "hi", "p"):
                yield from _numbers(value, key)
        if name == "seeds" and len(tree) > 1:
            yield from _mean_of_siblings(list(tree.values()))
    elif isinstance(tree, list):
        if len(tree) <= LONGEST_LIST:
            for value in tree:
                yield from _numbers(value, name)
            if len(tree) > 1:
                yield from _mean_of_siblings(tree)
    elif _is_number(tree):
        yield float(tree), _scales(name)


def _measurements(tree: Any) -> Iterator[Measurement]:
    if isinstance(tree, dict):
        centre = next((tree[key] for key in CENTRE if isinstance(tree.get(key), int | float)), None)
        if centre is not None:
            counts = [tree.get(key) if isinstance(tree.get(key), int) else None for key in ("k", "n")]
            yield Measurement(centre, tree.get("lo"), tree.get("hi"), *counts)
        for value in tree.values():
            yield from _measurements(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _measurements(value)


@cache
def content(file: Path) -> Content:
    """Read a stored file once."""
    tree = json.loads(file.read_text())
    return Content(list(_measurements(tree)), list(_numbers(tree)), tree)


def _wilson(k: int, n: int) -> Measurement:
    z2 = Z95**2
    middle, half = (k + z2 / 2) / (n + z2), Z95 * math.sqrt(k * (n - k) / n + z2 / 4) / (n + z2)
    return Measurement(k / n, max(middle - half, 0.0), min(middle + half, 1.0), k, n)


def _newcombe(both: int, only_a: int, only_b: int, neither: int) -> Measurement:
    """Paired difference with Newcombe's interval (method 10), written anew here."""
    n = both + only_a + only_b + neither
    a, b = _wilson(both + only_a, n), _wilson(both + only_b, n)
    numerator = both * neither - only_a * only_b
    if numerator > 0:
        numerator = max(numerator - n / 2, 0)
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    phi = numerator / math.sqrt(margins) if margins else 0.0

    def side(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    diff = b.value - a.value
    low, high = side(b.value - b.lo, a.hi - a.value), side(b.hi - b.value, a.value - a.lo)
    return Measurement(diff, diff - low, diff + high, None, n)


def _hits(tree: Any, name: str = "") -> Iterator[tuple[str, list[bool]]]:
    """Success of every episode, over all seeds of a method."""
    entries = list(tree.values()) if isinstance(tree, dict) and name == "seeds" else tree
    if isinstance(entries, list) and entries and all(isinstance(e, dict) and "hits" in e for e in entries):
        yield name, [hit for entry in entries for hit in entry["hits"]]
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _hits(value, key)


def derived(trees: list[Any]) -> list[Measurement]:
    """What follows from the linked files together: pooled pairs, pooled episodes, newest rates of all tasks."""
    found: list[Measurement] = []
    metrics = [tree["metrics"] for tree in trees if isinstance(tree, dict) and "metrics" in tree]
    pairs = [m["comparison"]["paired"] for m in metrics if "comparison" in m]
    if len(pairs) > 1:
        found.append(_newcombe(*(sum(p[key] for p in pairs) for key in ("both", "only_a", "only_b", "neither"))))
    tasks: dict[str, Any] = {}
    for one in metrics:
        tasks.update({name: rate for name, rate in (one.get("tasks") or {}).items() if "k" in rate})
    if len(metrics) > 1 and tasks:
        found.append(_wilson(sum(t["k"] for t in tasks.values()), sum(t["n"] for t in tasks.values())))
    series = [hits for tree in trees for _, hits in _hits(tree)]
    found += [_wilson(sum(hits), len(hits)) for hits in series]
    for a in series:
        for b in series:
            if a is not b and len(a) == len(b):
                both, either = sum(x and y for x, y in zip(a, b, strict=True)), sum(a) + sum(b)
                found.append(_newcombe(both, sum(a) - both, sum(b) - both, len(a) - either + both))
    return found


def fits(shown: str, true: float | None, scale: float = 1.0) -> bool:
    """Whether `true` times `scale`, rounded to the shown digits, is what is shown."""
    if true is None or not math.isfinite(true):
        return False
    plain = shown.replace(",", "").replace("−", "-")
    digits = len(plain.partition(".")[2])
    return abs(float(plain) - true * scale) <= 0.5 * 10**-digits * (1 + 1e-6) + 1e-12


def faults_of_cell(cell: str, files: list[Content]) -> list[str]:
    """Numbers of one cell that none of the files holds."""
    together = derived([file.tree for file in files])
    measurements = [m for file in files for m in file.measurements] + together
    values = [(m.value, (1.0, 100.0)) for m in measurements] + [(float(m.n), (1.0,)) for m in together if m.n]
    values += [number for file in files for number in file.numbers]
    faults = []
    cell = DATE.sub(" ", cell)
    for shown in INTERVAL.finditer(cell):
        scales = (100.0,) if "%" in shown[0] else (1.0, 100.0)
        found = any(
            all(fits(shown[key], getattr(m, key), scale) for key in ("value", "lo", "hi"))
            and (shown["k"] is None or (int(shown["k"]), int(shown["n"])) == (m.k, m.n))
            for m in measurements
            for scale in scales
        )
        if not found:
            faults.append(shown[0])
    cell = INTERVAL.sub(" ", cell)
    for shown in COUNT.finditer(cell):
        if not any((int(shown["k"]), int(shown["n"])) == (m.k, m.n) for m in measurements):
            faults.append(shown[0])
    cell = COUNT.sub(" ", cell)
    for shown in BARE.finditer(cell):
        if not any(fits(shown["value"], value, scale) for value, scales in values for scale in scales):
            faults.append(shown["value"])
    return faults


def cells_of(line: str) -> list[str]:
    """The cells of one row of a table; an escaped bar belongs to its cell."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def rows(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Header and cells of every row of every table."""
    header: list[str] = []
    for line in FENCE.sub("", text).split("\n"):
        if not line.lstrip().startswith("|"):
            header = []
        elif not header:
            header = cells_of(line)
        elif not set(line) <= set("|-: "):
            yield header, cells_of(line)


def results_of(cells: list[str], folder: Path) -> list[Path]:
    """Stored results that a row links."""
    targets = [match["target"] for cell in cells for match in LINK.finditer(cell)]
    return [folder / t for t in targets if "results/" in t and t.endswith(".json")]


def checked(text: str, folder: Path) -> tuple[list[str], int]:
    """Faults of the figures of one page, and how many of its rows link a stored file."""
    faults, seen = [], 0
    for header, cells in rows(text):
        files = [content(file) for file in results_of(cells, folder) if file.is_file()]
        if not files:
            continue
        seen += 1
        for name, cell in zip(header, cells, strict=True):
            if name.lower() not in FREE:
                plain = re.sub(r"`[^`]*`", " ", LINK.sub(" ", cell))
                faults += [f"{cells[0]}, {name}: {fault}" for fault in faults_of_cell(plain, files)]
    return faults, seen


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative links whose file does not exist."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    found = [match["target"] for pattern in (LINK, DEFINITION) for match in pattern.finditer(prose)]
    local = [t for t in found if not re.match(r"[a-z]+:|#|mailto:", t)]
    return [t for t in local if not (folder / unquote(t.partition("#")[0])).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_is_the_stored_one(page: Path) -> None:
    faults, seen = checked(page.read_text(), page.parent)
    assert not faults, "\n".join(faults)
    assert seen, f"{page.name} links no stored result"


def test_every_relative_link_leads_somewhere() -> None:
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [(page, target) for page in pages for target in broken_links(page.read_text(), page.parent)]
    assert not broken, "\n".join(f"{page.relative_to(ROOT)}: {target}" for page, target in broken)


ROW = "| [three rounds](results/train-vla-three-rounds-seed-1.json) | 1 | {} |\n"
HEAD = "| run | seed | {} |\n|---|---|---|\n"
TRUE = [
    "48 % [44, 53]",
    "48.4 %",
    "+23.5 [18.4, 28.5]",
    "+23.5 [+18.4, +28.5]",
    "80 % [63, 90]",
    "247/510",
    "66",
    "5942",
]
PLANTED = [
    "49 % [44, 53]",  # a digit of the value
    "48 % [45, 53]",  # a digit of the interval
    "+23.4 [18.4, 28.5]",
    "72 % [44, 53]",  # the value of one measurement with the interval of another
    "+32.5 [27.5, 37.3]",  # another row's
    "248/510",
    "47.4 %",
    "67.3",
    "5943",
]


@pytest.mark.parametrize("cell", TRUE)
def test_true_figures_pass(cell: str) -> None:
    assert checked(HEAD.format("figure") + ROW.format(cell), ROOT / "docs") == ([], 1)


@pytest.mark.parametrize("cell", PLANTED)
def test_planted_figures_are_caught(cell: str) -> None:
    faults, _ = checked(HEAD.format("figure") + ROW.format(cell), ROOT / "docs")
    assert len(faults) == 1


def test_a_planted_digit_on_a_real_page_is_caught() -> None:
    text = (ROOT / "docs" / "measurements.md").read_text()
    wrong = text.replace("+17.7 [", "+17.8 [")
    assert wrong != text
    faults, _ = checked(wrong, ROOT / "docs")
    assert faults


def test_free_columns_and_code_are_not_figures() -> None:
    assert checked(HEAD.format("asked") + ROW.format("at least +99.9"), ROOT / "docs") == ([], 1)
    assert checked(HEAD.format("figure") + ROW.format("`rounds=77`"), ROOT / "docs") == ([], 1)


def test_a_dead_link_is_caught() -> None:
    text = "[there](results/ablations-loop.json), [not there](results/none.json), `[code](none.md)`\n\n[a]: gone.md\n"
    assert broken_links(text, ROOT / "docs") == ["results/none.json", "gone.md"]


def test_every_method_is_in_a_file_that_exists() -> None:
    named = [
        path
        for header, cells in rows((ROOT / "docs" / "methods.md").read_text())
        for name, cell in zip(header, cells, strict=True)
        if name == "file"
        for path in re.findall(r"`([^`]+\.py)`", cell)
    ]
    assert named
    assert [path for path in named if not (ROOT / "worldrl" / path).is_file()] == []
