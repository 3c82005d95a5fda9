"""``worldrl methods``: every method and part of RL in imagination that a setting can name, plug-ins included.

What is said of each stands in its docstring: the first line, ``Equation:`` and ``Paper:``.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

import worldrl
from worldrl.core.storage.log import console
from worldrl.recipes.rl_parts import ALIGNMENT, IMPROVEMENT
from worldrl.registry import (
    ADVANTAGES,
    ALIGNMENTS,
    BUDGETS,
    CONTROLS,
    IMPROVEMENTS,
    LOG_PROBS,
    LOSSES,
    REWARD_MIXES,
    SCHEDULES,
    SELECTORS,
    START_SAMPLERS,
    VIDEO_REWARDS,
    Registry,
)
from worldrl.settings import one_of, setting

KINDS: dict[str, Registry[Any]] = {
    "improvement": IMPROVEMENTS,
    "alignment": ALIGNMENTS,
    "reward": VIDEO_REWARDS,
    "mixing": REWARD_MIXES,
    "advantage": ADVANTAGES,
    "selection": SELECTORS,
    "starts": START_SAMPLERS,
    "budget": BUDGETS,
    "schedule": SCHEDULES,
    "log_prob": LOG_PROBS,
    "loss": LOSSES,
    "control": CONTROLS,
}
"""What methods are made of, by the name of the kind: methods first, then the ten interfaces."""


@dataclass
class MethodsSettings:
    """What is listed, and how."""

    kind: str = setting("", f"one of {', '.join(KINDS)}; empty: all")
    json: bool = setting(False, "write JSON to standard output in place of a table")

    def __post_init__(self) -> None:
        """Check the kind."""
        if self.kind:
            one_of("kind", self.kind, tuple(KINDS))


@dataclass(frozen=True)
class Part:
    """One row."""

    kind: str  # what it is.
    name: str  # what settings call it.
    what: str  # its first statement.
    equation: str  # that tells it from others.
    paper: str  # where it comes from.
    file: str  # where it is.
    setting: str  # how a command line names it; empty where a method chooses it.


def main(settings: MethodsSettings) -> dict[str, Any]:
    """List every part.

    Returns ``{"parts": rows}``.
    """
    found = [part for kind in KINDS if settings.kind in ("", kind) for part in parts_of(kind)]
    rows = [asdict(part) for part in found]
    if settings.json:
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    else:
        for made in tables(found):
            console().print(made, "")
        console().print(f"parts.* is {IMPROVEMENT}.* of train-vla, and {ALIGNMENT}.* of align-world-model")
    return {"parts": rows}


def parts_of(kind: str) -> list[Part]:
    """Describe every part of a kind."""
    registry = KINDS[kind]
    return [describe(kind, name, registry.get(name), registry.setting.format(name)) for name in registry.names()]


def describe(kind: str, name: str, part: Callable[..., Any], setting_text: str) -> Part:
    """Read what is said of a part in its docstring and its file."""
    doc = inspect.getdoc(part) or ""
    stated = dict(re.findall(r"^(Equation|Paper): (.+)$", doc, flags=re.MULTILINE))
    file = Path(inspect.getsourcefile(part) or "")
    root = Path(worldrl.__file__).parent
    place = file.relative_to(root) if file.is_relative_to(root) else file
    what = doc.partition("\n")[0]
    return Part(kind, name, what, stated.get("Equation", ""), stated.get("Paper", ""), place.as_posix(), setting_text)


def tables(parts: list[Part]) -> Iterator[Table]:
    """Lay rows out for the console: a table for each kind."""
    for kind, rows in groupby(parts, key=lambda part: part.kind):
        named = KINDS[kind].setting.format("NAME") or "chosen by the method"
        made = Table(title=escape(f"{kind}: {named}"), title_justify="left", box=None, pad_edge=False)
        for title in ("name", "paper", "file"):
            made.add_column(title, overflow="fold")
        for part in rows:
            made.add_row(part.name, escape(part.paper), part.file)
        yield made
