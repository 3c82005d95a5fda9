"""Settings: one plain dataclass per command, composed by Hydra at the edge and checked before anything runs.

A job writes::

    @dataclass
    class TrainPolicySettings:
        steps: int = setting(2000, "optimiser steps")

and :func:`compose` fills it from ``configs/<command>/`` and the command line. Functions import Hydra where they need it.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, field, fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from worldrl.aliases import hint as other_name
from worldrl.core.errors import SettingError, nearest, one_of, require_value
from worldrl.paths import config_dir
from worldrl.ranges import check_range
from worldrl.text_items import is_text_list, takes_text, text_hint, text_items
from worldrl.usage import REQUIRED, bare_hint, describe, show, type_text, value_at

T = TypeVar("T")
COMMAND_LINE: ContextVar[tuple[str, ...]] = ContextVar("COMMAND_LINE", default=())
"""Words after ``worldrl``; empty when a job is called from Python."""

MAY_CHANGE = ("run_dir", "gates", "tracker")
"""Settings that change no computation: a run may be moved, resume after a failed gate, or be shown elsewhere."""
WHERE = ("workers", "worlds", "engine", "ray")
"""Settings that distribute the work: a run may resume with others. Its config holds those it was started with."""


class Preset(StrEnum):
    """Kind of run: its size, which every command has, or its topic, which exists where it changes something."""

    tiny = "tiny"
    cpu = "cpu"
    gpu = "gpu"
    wan = "wan"
    libero = "libero"


PUBLISHED = (Preset.gpu, Preset.wan)
"""Presets with the sizes of published methods."""


# --- declaring -----------------------------------------------------------------------------------------------------


def setting(default: T, meaning: str) -> T:
    """Declare a field with its default (copied per instance) and the one-line meaning that ``--help`` shows."""
    return field(default_factory=lambda: copy.deepcopy(default), metadata={"meaning": meaning})


def required(meaning: str, *, made_by: str) -> Any:
    """Declare a field that the user must give, before those with defaults; ``made_by`` is the command that makes the value."""
    return field(metadata={"meaning": meaning, "made_by": made_by})


# --- checking ------------------------------------------------------------------------------------------------------


def positive(name: str, value: float) -> None:
    """Require a finite number above zero."""
    require_value(math.isfinite(value) and value > 0, name, "positive", value)


def non_negative(name: str, value: float) -> None:
    """Require a finite number of at least zero."""
    require_value(math.isfinite(value) and value >= 0, name, "zero or more", value)


def fraction(name: str, value: float) -> None:
    """Require a number in [0, 1]."""
    require_value(0 <= value <= 1, name, "between 0 and 1", value)


# --- composing -----------------------------------------------------------------------------------------------------


def parse_overrides(tokens: Sequence[str]) -> dict[str, str]:
    """Split ``key=value`` tokens; SettingError for another form, text that is not UTF-8, or a key given twice."""
    given: dict[str, str] = {}
    for token in tokens:
        match = re.fullmatch(r"([A-Za-z_]\w*(?:\.\w+)*)=(.*)", token, flags=re.DOTALL)
        if match is None:
            raise SettingError(f"cannot read {token!r}; settings are written key=value, for example seed=1")
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise SettingError(
                f"{match[1]}: {match[2]!r} is not UTF-8, which files of a run need; rename that file or folder"
            )
        if "\0" in token:
            raise SettingError(f"{match[1]}: {match[2]!r} holds a null character, which no file and no text has")
        if match[1] in given:
            raise SettingError(f"{match[1]} is given twice: {given[match[1]]!r} and {match[2]!r}; keep one")
        given[match[1]] = match[2]
    return given


def keys_of(schema: type[Any]) -> list[str]:
    """Return the dotted keys of a settings dataclass."""
    return [row.key for row in describe(schema)]


def compose(command: str, schema: type[T], given: Mapping[str, str]) -> T:
    """Compose a command's settings: dataclass defaults, then YAML, then preset, then the command line.

    ``given`` is text by dotted key as of :func:`parse_overrides`; its ``preset`` chooses the preset. Raises
    SettingError: unknown key, wrong type, missing value, or a check of the dataclass failed.
    """
    plain = compose_plain(command, schema, given)
    missing = [row.key for row in describe(schema) if value_at(plain, row.key) == REQUIRED]
    if missing:
        made_by = next(item.metadata["made_by"] for item in fields(cast("Any", schema)) if item.name == missing[0])
        raise SettingError(
            f"{command} needs {missing[0]}; give {missing[0]}=..., which `{made_by}` makes (see worldrl {command} --help)"
        )
    if plain.get("run_dir") == "":
        raise SettingError(f"run_dir must name a folder, got ''; leave it out for runs/{command}")
    for row in describe(schema):
        check_range(row.key, value_at(plain, row.key), command)
        if row.key in given and (condition := row.unmet(plain)):
            held = show(value_at(plain, condition.key))
            mend = f"another {condition.key}" if condition.other else condition
            raise SettingError(f"{row.key} has no effect with {condition.key}={held}; leave it out, or give {mend}")
    return cast("T", build(schema, plain))


def compose_plain(command: str, schema: type[Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Compose like :func:`compose`, but return plain values; missing ones are ``REQUIRED``."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    preset = given.get("preset", Preset.cpu.value)
    _check_preset(command, preset)
    try:
        node = copy.deepcopy(_without_overrides(schema, config_dir() / command, preset))
        literal = _set_overrides(command, schema, node, given)
        plain = cast("dict[str, Any]", OmegaConf.to_container(node, resolve=True))
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingError(f"configs/{command}: {_first_lines(error)}") from error
    own_suite = plain.get("suite")
    for key, text in literal.items():
        set_value(plain, key, text)
    if "tasks" in plain and "tasks" not in given and plain.get("suite") != own_suite:
        plain["tasks"] = []  # a preset names tasks of its own suite
    if "preset" in plain:
        plain["preset"] = Preset(preset) if bare_hint(get_type_hints(schema)["preset"]) is Preset else preset
    return plain


def as_plain(settings: Any) -> Any:
    """Convert settings to plain YAML and JSON values: enums by name, paths as text, tuples as lists."""
    if is_dataclass(settings) and not isinstance(settings, type):
        return {item.name: as_plain(getattr(settings, item.name)) for item in fields(settings)}
    if isinstance(settings, Mapping):
        return {str(key): as_plain(value) for key, value in cast("Mapping[Any, Any]", settings).items()}
    if isinstance(settings, list | tuple):
        return [as_plain(value) for value in cast("Sequence[Any]", settings)]
    if isinstance(settings, Enum):
        return settings.name
    return str(settings) if isinstance(settings, Path) else settings


def resume_command(command: str) -> str:
    """Return the command that resumes a run: the typed command line, or the bare command after a call from Python."""
    from worldrl.core.training.ranks import launcher

    return shlex.join([*(launcher() or ["worldrl"]), *(COMMAND_LINE.get() or (command,))])


def to_yaml(settings: Any) -> str:
    """Write settings as YAML, in the order of their declaration."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(as_plain(settings)))


def presets_of(command: str) -> list[str]:
    """Names of the presets that a command has."""
    return [preset.value for preset in Preset if _preset_file(command, preset.value).is_file()]


def _preset_file(command: str, preset: str) -> Path:
    return config_dir() / command / "preset" / f"{preset}.yaml"


def _check_preset(command: str, preset: str) -> None:
    one_of("preset", preset, [member.value for member in Preset])
    if preset not in presets_of(command):
        acts = ", ".join(sorted(folder.name for folder in config_dir().iterdir() if preset in presets_of(folder.name)))
        raise SettingError(
            f"preset: {preset} has no effect in {command} and is refused; it has an effect in {acts}. Leave it out, and "
            "give the run's own settings"
        )


def _set_overrides(
    command: str, schema: type[Any], node: Any, given: Mapping[str, str]
) -> dict[str, str | list[str] | None]:
    """Check each override on its own, and set it in ``node``; return literal texts by key, which are not set."""
    hints = {row.key: row.hint for row in describe(schema)}
    literal: dict[str, str | list[str] | None] = {}
    for key, text in given.items():
        if key == "preset":
            continue
        owner = (
            key if key in hints else next((k for k in hints if _is_mapping(hints[k]) and key.startswith(f"{k}.")), "")
        )
        if not owner:
            hint = other_name(command, key) or nearest(key, [*hints, "preset"])
            raise SettingError(f"{command} has no setting {key!r}{hint} (worldrl {command} --help lists all)")
        if "${" in text and not takes_text(hints[owner], named=key != owner):
            raise SettingError(f"{key}: {text!r} is an interpolation; give the value itself")
        if is_text_list(hints[owner]) and key == owner:
            literal[key] = text_items(key, text)
        elif text_hint(hints[owner], named=key != owner) in (str, Path):
            # Text is taken as typed: no quoting rules, so paths may hold =, commas, brackets and spaces.
            name, _, rest = key.removeprefix(f"{owner}.").partition(".") if key != owner else (owner, "", "")
            if rest:
                raise SettingError(f"{owner}.{name} takes one text; give {owner}.{name}='{rest}={text}'")
            literal[key] = None if text == "null" and bare_hint(hints[owner]) is not hints[owner] else text
        else:
            check_range(key, _set_typed(node, key, text, hints[owner]), command)
    return literal


def _set_typed(node: Any, key: str, text: str, hint: Any) -> Any:
    """Parse a value of Hydra's grammar, require the setting's type, and set it in ``node``."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OverridesParser.create().parse_override(f"++{key}={text}").value()
        OmegaConf.update(node, key, value, force_add=True)
        return value
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingError(f"{key} must be {type_text(hint)}, got {text!r}{_as_list(key, text, hint)}") from error


def _as_list(key: str, text: str, hint: Any) -> str:
    """Show the syntax of a list where one item was given for a list."""
    wanted = get_origin(bare_hint(hint)) in (list, tuple) and text and not text.startswith("[")
    return f"; a list is written '{key}=[{text}]'" if wanted else ""


@cache
def _without_overrides(schema: type[Any], folder: Path, preset: str) -> Any:
    """Make the typed OmegaConf node of a dataclass with a command's YAML files; frozen nested records become composable."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import DictConfig, OmegaConf

    node = OmegaConf.structured(schema)

    def unlock(part: DictConfig) -> None:
        OmegaConf.set_readonly(part, None)
        for key in part:
            child = part._get_node(key)  # pyright: ignore[reportPrivateUsage]
            if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():  # pyright: ignore[reportPrivateUsage]
                unlock(child)

    unlock(node)
    with initialize_config_dir(str(folder), version_base="1.3"):
        return OmegaConf.merge(node, hydra_compose("config", overrides=[f"preset={preset}"]))


def build(hint: Any, value: Any, path: str = "") -> Any:
    """Make dataclasses, tuples and paths from plain values; the dataclasses' own checks run here.

    A check's message names a field of its dataclass; ``path`` completes it to the setting's dotted name.
    """
    hint = bare_hint(hint)
    origin, args = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        built = {key: build(hints[key], part, f"{path}{key}.") for key, part in value.items()}
        try:
            return hint(**built)
        except SettingError as error:
            raise SettingError(_completed(str(error), path, built)) from error
    if origin in (list, tuple) and args:
        item_hints = itertools.repeat(args[0]) if origin is list or args[-1] is Ellipsis else args
        built = [build(item, part) for item, part in zip(item_hints, value, strict=False)]
        return tuple(built) if origin is tuple else built
    if origin is dict:
        return {key: build(args[1], part) for key, part in value.items()}
    return Path(value) if hint is Path else value


def _completed(message: str, path: str, built: Mapping[str, Any]) -> str:
    """Write the setting's whole name at the beginning of a dataclass's message, which knows its own or its group's."""
    name = re.split(r"[^\w.]", message, maxsplit=1)[0].rstrip(".")
    words = name.split(".")
    for first in range(len(words)):
        value: Any = SimpleNamespace(**built)
        for word in words[first:]:
            value = getattr(value, word, MISSING)
        if value is not MISSING:
            return path + ".".join(words[first:]) + message[len(name) :]
    return message


def _is_mapping(hint: Any) -> bool:
    return get_origin(bare_hint(hint)) is dict


def one_or_more(key: str, text: str) -> list[str]:
    """Read a setting that takes one text or a list of them; SettingError for a list that is empty or cannot be read."""
    found = text_items(key, text) if text.startswith("[") else [text]
    if not found:
        raise SettingError(f"{key}: an empty list; name at least one")
    return found


def set_value(plain: dict[str, Any], key: str, value: Any) -> None:
    """Set one setting of plain settings by its dotted key."""
    *parents, last = key.split(".")
    for part in parents:
        plain = plain[part]
    plain[last] = value


def _first_lines(error: BaseException) -> str:
    """Keep the message without OmegaConf's type report; prefer the cause, which names the key."""
    text = str(error.__cause__ or error)
    return "; ".join(line.strip() for line in text.splitlines()[:2] if line.strip())
