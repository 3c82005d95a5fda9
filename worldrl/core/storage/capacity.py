"""Requests that no disk or memory here can hold: refused before the work, with what they would need at least."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError
from worldrl.core.storage.atomic import free_bytes

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch
    from torch import nn

TRAINED_BYTES = 16  # Per weight of a network in training: the weight, its gradient and Adam's two moments, in float32
MAPPED_FROM = 8
"""Images that need more than the available memory divided by this are mapped from a file."""


def available_memory() -> int:
    """Available memory in bytes; the whole memory where the system does not tell what is free."""
    table = Path("/proc/meminfo")
    if table.is_file():
        rows = dict(line.split(":", 1) for line in table.read_text().splitlines())
        return int(rows["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_disk(folder: Path, needed: int, asked: str) -> None:
    """SettingError where ``folder`` has less than ``needed`` bytes free; ``asked`` names the settings and their sum."""
    if needed > (free := free_bytes(folder.absolute())):
        raise SettingError(
            f"{asked}, which takes at least {_size(needed)} of disk, {_size(free)} are free in {folder}; give less, or a "
            "run_dir on a larger disk"
        )


def is_large(size: int) -> bool:
    """Whether ``size`` bytes are more than a :data:`MAPPED_FROM` th part of the available memory."""
    return size * MAPPED_FROM > available_memory()


def mapped_array(shape: Sequence[int], dtype: npt.DTypeLike, folder: Path, asked: str) -> npt.NDArray[Any]:
    """Return an array in a file in ``folder``, for what is written once and then read.

    The system keeps in memory what is read, and gives the rest away where memory is needed elsewhere. The file has no
    name, so it ends with the process. SettingError where the disk has no room; ``asked`` as of the disk.
    """
    import numpy as np

    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    require_disk(folder, size, asked)
    with TemporaryFile(dir=folder) as file:
        _reserve(file.fileno(), size)
        return np.asarray(np.memmap(file, dtype, "r+", shape=tuple(shape)))


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)  # a disk that fills up later would end the process with SIGBUS
    else:
        os.ftruncate(file, size)


def require_memory(needed: int, asked: str, *, free: int | None = None) -> None:
    """SettingError where less than ``needed`` bytes are ``free`` (None: asks the system); ``asked`` as of the disk."""
    free = available_memory() if free is None else free
    if needed > free:
        raise SettingError(
            f"{asked}, which takes at least {_size(needed)} of memory, {_size(free)} are free; give less"
        )


def require_frames_memory(count: int, side: int, asked: str) -> None:
    """Refuse ``count`` images of ``side`` pixels, held at once, that are larger than the available memory; SettingError."""
    require_memory(3 * side**2 * count, f"{asked}: {count:,} images of {side} by {side} pixels at once")


def require_model_memory(make: Callable[[], nn.Module], device: torch.device, group: str) -> None:
    """SettingError where the network of settings ``group`` cannot be trained in the device's memory; made on "meta"."""
    import torch  # a second, and datasets ask for memory without it

    with torch.device("meta"):
        count = sum(weight.numel() for weight in make().parameters())
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    require_memory(TRAINED_BYTES * count, f"{group}: its sizes make a network of {count:,} weights", free=free)


def require_layers(widths: Sequence[int], asked: str) -> None:
    """Refuse dense layers between hidden ``widths`` that cannot be trained in the available memory; SettingError."""
    count = sum(before * after for before, after in pairwise(widths))
    require_memory(TRAINED_BYTES * count, f"{asked}: its layers have {count:,} weights or more")


def _size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
