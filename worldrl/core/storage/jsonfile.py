"""Strict JSON files: what is written reads back equal (floats by ``repr``); no NaN, no repeated key."""

import hashlib
import json
import math
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from worldrl.core.errors import RunDirectoryError, SettingError, WorldrlError
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.typed import from_plain

T = TypeVar("T")

MAX_BYTES = 256 * 2**20  # A JSON file larger than this is refused before it is read: ours are kilobytes

MAX_DIGITS = 400  # Digits of a whole number: more than the largest float has

NonFinite = Literal["refuse", "null"]


def plain(value: Any, *, where: str, nonfinite: NonFinite = "refuse", error: type[WorldrlError] = SettingError) -> Any:
    """Turn a value into plain JSON values; mappings become dicts, sequences lists, 0-d arrays numbers.

    ``where`` names it in messages; NaN and infinity are refused, or become None by ``nonfinite="null"``. Raises
    ``error``, with the key, for what JSON cannot hold.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _number(value, where, nonfinite, error)
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[object, Any]", value), where, nonfinite, error)
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return [plain(v, where=f"{where}[{i}]", nonfinite=nonfinite, error=error) for i, v in enumerate(items)]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain(value.item(), where=where, nonfinite=nonfinite, error=error)
    raise error(f"{where}: {type(value).__name__} is not a JSON value; convert it to numbers, text, lists or dicts")


def _number(value: float, where: str, nonfinite: NonFinite, error: type[WorldrlError]) -> float | None:
    if math.isfinite(value):
        return float(value)
    if nonfinite == "null":
        return None
    raise error(f"{where}: {value} is not a finite number and cannot be stored in JSON; store None instead")


def _mapping(
    value: Mapping[object, Any], where: str, nonfinite: NonFinite, error: type[WorldrlError]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise error(f"{where}: key {key!r} is {type(key).__name__}, JSON keys are text; use str(key)")
        result[key] = plain(item, where=f"{where}.{key}", nonfinite=nonfinite, error=error)
    return result


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of a plain JSON value, independent of key order and layout."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def json_bytes(value: Any) -> bytes:
    """Return the file content of a plain JSON value: indented UTF-8 with a final newline."""
    return (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def write_json(path: Path, value: Any, *, error: type[WorldrlError] = RunDirectoryError) -> None:
    """Write a plain JSON value (:func:`plain`) atomically; ``error`` where it cannot be written."""
    write_file(path, json_bytes(plain(value, where=path.name, error=error)), error=error)


def parse_json(data: bytes, *, path: Path, error: type[WorldrlError]) -> Any:
    """Parse bytes read from ``path``, refusing NaN, infinity and repeated keys with an ``error`` that names it."""
    try:
        text = data.decode("utf-8-sig")
        return json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole
        )
    except RecursionError as reason:
        raise error(
            f"{path}: not valid JSON (nested too deeply); the file is damaged: restore or delete it"
        ) from reason
    except ValueError as reason:
        raise error(f"{path}: not valid JSON ({reason}); the file is damaged: restore or delete it") from reason


def read_json(path: Path, *, error: type[WorldrlError] = RunDirectoryError) -> dict[str, Any]:
    """Read a JSON object; ``error`` where it is missing, unreadable, too large, or something else."""
    try:
        there = path.stat()
        if not stat.S_ISREG(there.st_mode):
            raise error(
                f"{path}: cannot be read (not a regular file but a folder, pipe or device); put a JSON file there"
            )
        size = there.st_size
        if size > MAX_BYTES:
            raise error(f"{path}: {size} bytes, more than the {MAX_BYTES} a JSON file may have; it is not ours")
        value = parse_json(path.read_bytes(), path=path, error=error)
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror}); restore it or check its permissions") from reason
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, found {type(value).__name__}; the file is not ours or is damaged")
    return cast("dict[str, Any]", value)


def read_record(path: Path, hint: type[T], *, error: type[WorldrlError], mend: str) -> T:
    """Read a JSON object as ``hint``, without keys that a dataclass does not know.

    Raises ``error`` as :func:`read_json`, or naming a field of another type; ``mend`` says what to do with a damaged
    file.
    """
    return from_plain(hint, read_json(path, error=error), where=f"{path}: damaged; {mend}", error=error, others=True)


def check_digest(path: Path, record: Mapping[str, Any], name: str, *, error: type[WorldrlError], mend: str) -> Any:
    """Return the object ``record[name]``, checked against ``record["digest"]`` where there is one; else ``error``."""
    value = record.get(name)
    if not isinstance(value, dict):
        raise error(f"{path}: holds no {name}; {mend}")
    if "digest" in record and record["digest"] != digest(value):
        raise error(f"{path}: {name} is not what was written (its digest differs); {mend}")
    return cast("dict[str, Any]", value)


def differing(before: Any, now: Any) -> dict[str, list[str]]:
    """Both values of each dotted key in which two plain values differ, as text."""
    old, new = _leaves(before), _leaves(now)
    changed = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    return {key: [old.get(key, "(absent)"), new.get(key, "(absent)")] for key in changed}


def difference(before: Any, now: Any, *, most: int = 8) -> str:
    """Say where two plain values differ, by ``most`` keys: ``"policy.width: 64 -> 128"``; empty where they do not."""
    changed = differing(before, now)
    shown = [f"{key}: {old} -> {new}" for key, (old, new) in list(changed.items())[:most]]
    more = f" and {len(changed) - most} more" if len(changed) > most else ""
    return ", ".join(shown) + more


def _leaves(value: Any, prefix: str = "") -> dict[str, str]:
    """Flatten nested dicts to dotted keys; values as their repr, so that 1, 1.0, True and "1" differ."""
    if isinstance(value, dict) and value:
        items = cast("dict[str, Any]", value).items()
        return {k: v for key, item in items for k, v in _leaves(item, f"{prefix}.{key}" if prefix else key).items()}
    return {prefix: repr(cast("object", value))}


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {repeated!r} appears twice")
    return result


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is more than a number may be")
    return value


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:40]}... is more than a number may be")
    return int(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
