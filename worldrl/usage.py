"""``--help``: settings dataclasses described field by field from their types and meanings.

A field's meaning is its metadata (:func:`worldrl.settings.setting`), its line in the class's Google ``Attributes:``
section, or the comment behind it or above it.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from worldrl import __version__
from worldrl.core.errors import SettingError, nearest
from worldrl.ranges import range_of

REQUIRED = "???"
"""OmegaConf's mark for a setting without default."""


@dataclass(frozen=True)
class Condition:
    """``group`` has an effect where ``key`` is one of ``values``, or where it is none of them if ``other``."""

    group: str
    key: str
    values: tuple[str, ...]
    other: bool

    def holds(self, plain: Any) -> bool:
        """Whether plain settings meet it."""
        return (show(value_at(plain, self.key)) in self.values) != self.other

    def __str__(self) -> str:
        return f"{self.key}{'!=' if self.other else '='}{'|'.join(self.values)}"


@dataclass(frozen=True)
class SettingRow:
    """One setting: dotted key, annotation, default (or ``REQUIRED``), meaning, and what must hold for it to have an effect."""

    key: str
    hint: Any
    default: Any
    meaning: str
    conditions: tuple[Condition, ...] = ()

    def unmet(self, plain: Any) -> Condition | None:
        """Return the outermost condition that plain settings do not meet."""
        return next((condition for condition in self.conditions if not condition.holds(plain)), None)

    @property
    def type_text(self) -> str:
        """The type for readers, for example ``tiny|cpu|gpu|wan|libero`` or ``list of int``."""
        return type_text(self.hint)


@lru_cache(maxsize=64)
def describe(schema: type[Any]) -> tuple[SettingRow, ...]:
    """List every setting of a dataclass, nested ones with dotted keys.

    A field's metadata ``only_with`` says when its group has an effect: ``"key=a|b"`` or ``"key!=a"``. The key is a
    sibling's, or, where it begins with a dot, one of the command.
    """
    return tuple(_rows(schema))


def _rows(
    schema: type[Any], prefix: str = "", default: Any = None, conditions: tuple[Condition, ...] = ()
) -> Iterator[SettingRow]:
    """The settings below ``prefix``; ``default``: an instance with their defaults."""
    hints = get_type_hints(schema)
    written = _written_meanings(schema)
    for item in fields(schema):
        key = f"{prefix}{item.name}"
        value = getattr(default, item.name) if default is not None else _default(item)
        inner = bare_hint(hints[item.name])
        if is_dataclass(inner) and isinstance(inner, type):
            own = (_condition(key, prefix, rule),) if (rule := item.metadata.get("only_with")) else ()
            yield from _rows(inner, f"{key}.", None if value == REQUIRED else value, conditions + own)
        else:
            meaning = _bare_words(item.metadata.get("meaning") or written.get(item.name, ""))
            yield SettingRow(key, hints[item.name], value, meaning, conditions)


def _condition(group: str, prefix: str, rule: str) -> Condition:
    name, _, values = rule.partition("=")
    other = name.endswith("!")
    name = name.removesuffix("!")
    return Condition(group, name[1:] if name.startswith(".") else prefix + name, tuple(values.split("|")), other)


def type_text(hint: Any) -> str:
    """Write an annotation for readers."""
    origin, args = get_origin(hint), [a for a in get_args(hint) if a is not Ellipsis]
    if origin in (Union, types.UnionType):
        return " or ".join("null" if a is type(None) else type_text(a) for a in args)
    if origin in (list, tuple, Sequence):
        return f"list of {type_text(args[0])}" if args else "list"
    if origin in (dict, Mapping):
        return f"{type_text(args[0])} to {type_text(args[1])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(member.name for member in hint)
    return "path" if hint is Path else getattr(hint, "__name__", str(hint))


def bare_hint(hint: Any) -> Any:
    """Drop ``| None``."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in get_args(hint) if a is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _bare_words(meaning: str) -> str:
    """Remove a docstring's markup: ``:data:`CLIPS``` and double backquotes."""
    return re.sub(r"(?::\w+:)?`+~?([^`]+)`+", r"\1", meaning)


def _default(item: Any) -> Any:
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else REQUIRED


def _written_meanings(schema: type[Any]) -> dict[str, str]:
    """Meanings from the comments and docstrings of a dataclass and its parents; the class's own take precedence."""
    written: dict[str, str] = {}
    for parent in reversed(schema.__mro__):
        if is_dataclass(parent):
            written |= _comments(parent) | _docstring_meanings(parent)
    return written


def _comments(schema: type[Any]) -> dict[str, str]:
    """Read what stands behind each field of a class at a module's top level, or else the comment lines above it."""
    source = "".join(linecache.getlines(getattr(sys.modules[schema.__module__], "__file__", None) or ""))
    body = re.search(rf"^class {schema.__name__}\b.*\n((?:[ #].*\n|\n)*)", source, flags=re.MULTILINE)
    found = re.findall(r"((?:^ {4}#.*\n)*)^ {4}(\w+): [^#\n]*(?:# (.*))?$", body[1] if body else "", flags=re.MULTILINE)
    meanings = {name: behind or " ".join(above.replace("#", " ").split()) for above, name, behind in found}
    return {name: meaning for name, meaning in meanings.items() if meaning}


def _docstring_meanings(schema: type[Any]) -> dict[str, str]:
    """Read ``name: meaning`` from the Google ``Attributes:`` section, continuation lines joined."""
    _, _, section = (inspect.cleandoc(schema.__doc__ or "")).partition("Attributes:\n")
    entries = re.findall(r"^ {4}(\w+)(?: \([^)]*\))?: (.*(?:\n {5,}\S.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def general_help(commands: Mapping[str, str]) -> str:
    """Write ``worldrl --help`` from each command's summary."""
    rows = "\n".join(f"  {name:<20} {summary}" for name, summary in commands.items())
    return f"""worldrl {__version__}: improve robot policies inside learned video simulators, check every gain in physics.

usage: worldrl COMMAND [preset=tiny|cpu|gpu|wan|libero] [run_dir=FOLDER] [seed=N] [key=value ...]
       worldrl COMMAND --help [GROUP|all]            settings with type, default and meaning
       worldrl config show COMMAND [key=value ...]   the composed settings; nothing is run
       worldrl --version

commands:
{rows}

preset=libero measures on LIBERO's stored states and trains on others; commands that it would not change refuse
it and do not list it.

The same command line resumes a stopped run. Without run_dir it writes to runs/COMMAND, followed by -PRESET
unless the preset is cpu, and by -HASH if other settings were given. HASH is six hex digits of those settings;
gates is not one of them: a run that a gate has stopped resumes with gates=warn.
Text and paths are taken as typed; lists are written 'key=[a,b]', and 'null' is no value.

exit codes: 0 ok; 1 a bug, with traceback; 2 a wrong setting, file or machine; 3 a gate failed; 130 interrupted
"""


MOST_ROWS = 90
"""Settings that ``worldrl COMMAND --help`` lists; of more, the largest groups are one line each."""
ALL = "all"
"""Asks for every setting: ``worldrl COMMAND --help all``."""


def fold(keys: Sequence[str], most: int = MOST_ROWS) -> dict[str, int]:
    """Choose groups to fold, the largest outermost first, until at most ``most`` lines are left.

    Returns group → how many settings it has.
    """
    sizes = Counter(key.partition(".")[0] for key in keys if "." in key)
    folded: dict[str, int] = {}
    for group, size in sizes.most_common():
        if len(keys) - sum(folded.values()) + len(folded) <= most:
            break
        folded[group] = size
    return folded


def chosen(rows: Sequence[SettingRow], part: str, defaults: Any) -> tuple[list[SettingRow], dict[str, str]]:
    """Return the settings that a help page lists, and what it says of the groups that it folds.

    A short page folds groups without effect under ``defaults``, then the largest. ``part`` is empty for it,
    :data:`ALL`, or a group, for example ``"improvement.trust"``. Raises SettingError: there is no such group.
    """
    if part == ALL:
        return list(rows), {}
    if not part:
        without = Counter(condition for row in rows if (condition := row.unmet(defaults)))
        rows = [row for row in rows if row.unmet(defaults) is None]
        large = fold([row.key for row in rows], MOST_ROWS - len(without))
        folded = {group: f"{size} settings" for group, size in large.items()}
        folded |= {
            condition.group: f"{size} settings, only with {condition}"
            for condition, size in without.items()
            if condition.group.partition(".")[0] not in large
        }
        return [row for row in rows if row.key.partition(".")[0] not in large], folded
    found = [row for row in rows if row.key.startswith(f"{part}.") or row.key == part]
    if not found:
        groups = {row.key.rpartition(".")[0] for row in rows if "." in row.key}
        raise SettingError(f"--help {part}: there is no such group of settings{nearest(part, (ALL, *sorted(groups)))}")
    return found, {}


def command_help(
    command: str,
    summary: str,
    examples: Sequence[str],
    schema: type[Any],
    defaults: Any,
    presets: Sequence[str],
    part: str = "",
) -> str:
    """Write ``worldrl COMMAND --help``; ``defaults`` are plain values under preset=cpu, ``part`` as in :func:`chosen`."""
    rows, folded = chosen(describe(schema), part, defaults)
    cells = [(row.key, _type_and_range(row, command), show(value_at(defaults, row.key)), row.meaning) for row in rows]
    if part in ("", ALL):
        cells = [row for row in cells if row[0] != "preset"]
        cells.insert(0, ("preset", "|".join(presets), "cpu", "size or kind of the run"))
    cells += [(f"{group}.*", "", "", f"{said}: worldrl {command} --help {group}") for group, said in folded.items()]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    lines = [
        f"worldrl {command}: {summary}",
        "",
        "settings (key=value), their type and range, default under preset=cpu, and meaning:",
    ]
    lines += [
        "  " + "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in cells
    ]
    if folded:
        lines += ["", f"every setting: worldrl {command} --help {ALL}"]
    lines += ["", "examples:", *(f"  worldrl {command} {example}".rstrip() for example in examples)]
    lines += [f"  worldrl config show {command} preset=gpu", "", "Without run_dir: see worldrl --help."]
    return "\n".join(lines) + "\n"


def _type_and_range(row: SettingRow, command: str) -> str:
    """A setting's type, and for numbers their range: ``float in [0, 1]``."""
    allowed = str(range_of(row.key, command) or "") if re.search(r"\b(?:int|float)\b", row.type_text) else ""
    return f"{row.type_text} {allowed}" if allowed not in ("", "any number") else row.type_text


def value_at(plain: Any, key: str) -> Any:
    """Look up a dotted key in nested dictionaries; None where a parent is missing."""
    for part in key.split("."):
        plain = cast("dict[str, Any]", plain).get(part) if isinstance(plain, dict) else None
    return plain


def show(value: Any) -> str:
    """Write a plain value as the command line takes it."""
    if value == REQUIRED:
        return "(required)"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"[{','.join(show(item) for item in value)}]" if isinstance(value, list) else str(value) or "''"
