"""Columns read from dataset files: their shape and values, and the error that every damaged one gives."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from worldrl.core.errors import ArtefactError


def fault(source: object, episode: int | str, field_name: str, what: str) -> ArtefactError:
    """Make the error that every damaged dataset gives: file, episode, field, and what is wrong with it."""
    return ArtefactError(f"{source}: episode {episode}, field {field_name!r} {what}")


def column(
    value: ArrayLike, *, rows: int, width: int | None, source: object, episode: int | NDArray[np.int64], name: str
) -> NDArray[np.float32]:
    """Return numbers read from a file as float32 ``[rows, width]``, or ``[rows]`` where ``width`` is None.

    Width 0 takes what is there; ``episode`` is one number, or that of each row. ArtefactError for another shape, no
    numbers, or a value that is NaN, infinite or too large for float32.
    """
    array = np.asarray(value)
    first = int(episode[0]) if isinstance(episode, np.ndarray) else episode
    if array.dtype.kind not in "fiub":
        raise fault(source, first, name, f"holds {array.dtype}, not numbers; convert it")
    wanted = (rows,) if width is None else (rows, width or (array.shape[-1] if array.ndim == 2 else -1))
    if array.shape != wanted:
        raise fault(source, first, name, f"has shape {list(array.shape)}, expected {list(wanted)}; write it again")
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(np.float32)
    check_finite(result, source, episode, name)
    return result


def truth(
    value: ArrayLike, *, rows: int, source: object, episode: int | NDArray[np.int64], name: str
) -> NDArray[np.bool_]:
    """Return flags read from a file, ``[rows]``: 1 is true, 0 and -1 are false. Raises as :func:`column`, and for others."""
    flags = column(value, rows=rows, width=None, source=source, episode=episode, name=name)
    if (other := ~np.isin(flags, (-1, 0, 1))).any():
        row = int(np.argmax(other))
        first = int(episode[0]) if isinstance(episode, np.ndarray) else episode
        raise fault(source, first, name, f"is {flags[row]:g} at step {row}, neither true (1) nor false (0); correct it")
    return flags > 0


def check_finite(array: NDArray[Any], source: object, episode: int | NDArray[np.int64], name: str) -> None:
    """Require finite numbers ``[rows, ...]``; ArtefactError names the first value that is not."""
    finite = np.isfinite(array)
    if not finite.all():
        wrong = ~finite.all(axis=tuple(range(1, array.ndim)))
        row = int(np.flatnonzero(wrong)[0])
        number = int(episode[row]) if isinstance(episode, np.ndarray) else episode
        step = row - int(np.searchsorted(episode, number)) if isinstance(episode, np.ndarray) else row
        what = f"is NaN, infinite or too large for float32 at step {step}; repair or leave it out"
        raise fault(source, number, name, what)
