"""Parts of an observation by name: which numbers of a flat vector are which part of a Dict or Tuple space.

A part is matched by its key, never by its position: Minari writes a Dict space as JSON and gets it back sorted, while an
environment may keep an order of its own (``OrderedDict``, a sequence of pairs, ``sort_keys=False``).
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl.core.errors import SettingError

Layout = tuple[tuple[tuple[str, ...], int], ...]
"""Path of keys and number of values of each part, in the order in which they lie side by side."""


def layout_of(space: spaces.Space[Any]) -> Layout | None:
    """Return the parts of a Dict or Tuple space in its own order; None of any other space.

    ValueError where a part has no fixed number of values.
    """
    return tuple(_parts(space, ())) if isinstance(space, spaces.Dict | spaces.Tuple) else None


def _parts(space: spaces.Space[Any], path: tuple[str, ...]) -> list[tuple[tuple[str, ...], int]]:
    if isinstance(space, spaces.Dict):
        inner = [(str(key), part) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        inner = [(f"[{index}]", part) for index, part in enumerate(space.spaces)]
    else:
        return [(path, int(spaces.flatdim(space)))]
    return [found for key, part in inner for found in _parts(part, (*path, key))]


def words(layout: Layout) -> str:
    """Return a layout for a message, such as ``goal (2), robot/arm (3)``."""
    return ", ".join(f"{name(path)} ({size})" for path, size in layout) or "no parts"


def name(path: Sequence[str]) -> str:
    """Return a part's path as one word."""
    return "/".join(path)


def ordered_by(layout: Layout, keys: Sequence[str], source: str) -> Layout:
    """Return an environment's parts in the order that the user names (SettingError for other keys)."""
    known = {name(path): (path, size) for path, size in layout}
    if sorted(keys) != sorted(known):
        raise SettingError(
            f"obs_keys: {list(keys)} must name each of {', '.join(known)} once, in the order of {source}"
        )
    return tuple(known[key] for key in keys)


def is_sorted(layout: Layout) -> bool:
    """Whether the parts lie in the order that Gymnasium gives a plain dictionary: sorted at every depth."""
    return [path for path, _ in layout] == sorted((path for path, _ in layout), key=_depth_first)


def _depth_first(path: tuple[str, ...]) -> list[tuple[int, str]]:
    """Sort indices of a tuple by their number, keys by their text."""
    return [(int(key[1:-1]), "") if key.startswith("[") and key[1:-1].isdigit() else (0, key) for key in path]


def places(have: Layout, want: Layout) -> NDArray[np.int64] | None:
    """Return where each number of ``want`` lies in ``have``; None where their keys or sizes differ."""
    if sorted(have) != sorted(want) or len({path for path, _ in have}) < len(have):
        return None
    begins = np.cumsum([0, *(size for _, size in have)])
    where = {path: np.arange(begins[i], begins[i + 1]) for i, (path, _) in enumerate(have)}
    return np.concatenate([where[path] for path, _ in want]).astype(np.int64) if want else np.zeros(0, np.int64)


def to_json(layout: Layout) -> list[list[Any]]:
    """Return a layout as plain JSON values."""
    return [[list(path), size] for path, size in layout]


def from_json(value: object) -> Layout | None:
    """Read what :func:`to_json` wrote; ValueError where it is no layout."""
    if value is None:
        return None
    try:
        found = [(tuple(path), size) for path, size in cast("list[Any]", value)]
    except TypeError as reason:
        raise ValueError("is no list of parts") from reason
    if not all(type(size) is int and size >= 0 and all(isinstance(key, str) for key in path) for path, size in found):
        raise ValueError("is no list of [keys, number of values]")
    return tuple(found)
