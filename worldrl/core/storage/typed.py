"""Typed values from JSON that somebody else may have written: pydantic checks types, the dataclasses their own ranges."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from worldrl.core.errors import SettingError, WorldrlError, nearest

T = TypeVar("T")
LARGEST = 2**64  # Seeds are below 2^63; nothing else is near
_DIGITS = str.maketrans("123456789", "0" * 9)


def from_plain(
    hint: type[T], value: Any, *, where: str, error: type[WorldrlError] = SettingError, others: bool = False
) -> T:
    """Make a dataclass, or another typed value, from plain JSON values; nothing is converted but lists to tuples.

    Raises ``error`` with ``where`` for a field that is missing, of another type or range, or unknown (unless
    ``others``).
    """
    from pydantic import ValidationError  # a tenth of a second, only where a file is read

    if not others:
        _refuse_unknown(hint, value, where, error)
    text = json.dumps(value)
    if "0" * 20 in text.translate(_DIGITS).replace(
        ".0", "."
    ):  # every larger integer has as many; most values have none
        _refuse_huge(value, "", where, error)
    try:
        return cast("T", _adapter(hint).validate_json(text, strict=True))
    except ValidationError as reason:
        first = reason.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        rule = first["msg"].removeprefix("Value error, ")
        raise error(f"{where}: {f'{name}: ' if name else ''}{rule}, got {_short(first['input'])}") from reason


@cache
def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def _refuse_unknown(hint: Any, value: Any, where: str, error: type[WorldrlError]) -> None:
    """Fields that no dataclass knows: pydantic would drop them, and with them what they ask for."""
    if not (is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict)):
        return
    known = _known(hint)
    for name, part in cast("dict[str, Any]", value).items():
        if name not in known:
            raise error(f"{where}: unknown field {name!r}{nearest(name, known)}")
        if isinstance(part, dict):
            _refuse_unknown(known[name], part, f"{where}: {name}", error)


@cache
def _known(hint: Any) -> Mapping[str, Any]:
    """The fields of a dataclass, and the type of each; of a union the first."""
    hints = get_type_hints(hint)
    firsts = {name: get_args(h)[0] if get_origin(h) in (Union, UnionType) else h for name, h in hints.items()}
    return {item.name: firsts[item.name] for item in fields(hint) if item.init}


def _refuse_huge(value: Any, name: str, where: str, error: type[WorldrlError]) -> None:
    """Integers that no field means, and that as a float would be infinite."""
    if isinstance(value, dict | list):
        part = cast("dict[str, Any] | list[Any]", value)
        for key, item in part.items() if isinstance(part, dict) else enumerate(part):
            _refuse_huge(item, f"{name}.{key}" if name else str(key), where, error)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise error(f"{where}: {name}: must be at most 2^64, got {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
