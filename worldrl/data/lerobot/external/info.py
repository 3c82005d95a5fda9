"""``meta/info.json`` of a LeRobotDataset that others made, with every field's type checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.typed import from_plain
from worldrl.data.lerobot.external.files import WHOLE
from worldrl.data.lerobot.format import INFO_PATH

IMAGES = ("image", "video")
"""Dtypes of features that are images."""
DEPTH = ("is_depth_map", "video.is_depth_map")
MAX_FPS, MAX_SIDE, MAX_SIZE = 10_000, 8192, 100_000
"""Largest frame rate, side of an image (pixels) and count of numbers of a feature."""


@dataclass(frozen=True)
class Feature:
    """One feature of ``info.json``."""

    name: str  # its key
    dtype: str  # as written there: `float32`, `image`, `video`, ...
    shape: tuple[int, ...]  # of one row
    labels: tuple[str, ...]  # names of its numbers, where it has as many
    depth: bool = False  # a camera that measures distance and is marked as such

    @property
    def is_image(self) -> bool:
        """Whether it is a camera."""
        return self.dtype in IMAGES

    @property
    def is_colour(self) -> bool:
        """Whether its images have three channels."""
        return self.is_image and len(self.shape) == 3 and 3 in (self.shape[0], self.shape[-1])

    @property
    def image_size(self) -> tuple[int, int]:
        """Rows and columns of a colour camera; both orders are in use: ``[Y, X, 3]`` and ``[3, Y, X]``."""
        rows, columns = self.shape[1:] if self.shape[0] == 3 and self.shape[-1] != 3 else self.shape[:2]
        return rows, columns


@dataclass(frozen=True)
class FeatureEntry:
    """A feature as it is written; its other keys are not read."""

    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: Any = None
    video_info: Any = None


@dataclass(frozen=True)
class Info:
    """The fields that are read."""

    fps: float  # frames per second
    features: dict[str, Any]  # by name, as written
    data_path: str  # pattern of the data files
    video_path: str | None = None  # pattern of the video files, where there are any
    robot_type: str | None = None  # name of the robot, if it has one
    total_episodes: int | None = None  # how many there should be, where it is written
    total_frames: int | None = None  # how many rows there should be, where it is written

    def typed_features(self, where: Path) -> dict[str, Feature]:
        """Return the features; ArtefactError for one without dtype and shape, or with impossible ones."""
        return {name: _feature(where, name, entry) for name, entry in self.features.items()}


def read_info(path: Path) -> Info:
    """Read ``info.json`` of a dataset; ArtefactError with the field that is missing or of another type."""
    where = path / INFO_PATH
    info: Info = _typed(Info, read_json(where, error=ArtefactError), str(where))
    if not 0 < info.fps <= MAX_FPS:
        raise ArtefactError(f"{where}: fps must be above 0 and at most {MAX_FPS}, got {info.fps:g}; {WHOLE}")
    return info


def _typed(hint: Any, entry: Mapping[str, Any], where: str) -> Any:
    known = {name: entry[name] for name in hint.__dataclass_fields__ if name in entry}
    try:
        return from_plain(hint, known, where=where, error=ArtefactError)
    except ArtefactError as reason:
        raise ArtefactError(f"{reason}; {WHOLE}") from reason


def _feature(where: Path, name: str, entry: Any) -> Feature:
    place = f"{where}: features.{name}"
    if not isinstance(entry, Mapping) or not {"dtype", "shape"} <= set(entry):
        raise ArtefactError(f"{place} must have dtype and shape, got {str(entry)[:80]!r}; {WHOLE}")
    typed: FeatureEntry = _typed(FeatureEntry, entry, place)
    largest = MAX_SIDE if typed.dtype in IMAGES else MAX_SIZE
    if not all(1 <= size <= largest for size in typed.shape):
        raise ArtefactError(f"{place}: shape must be sizes from 1 to {largest}, got {list(typed.shape)}; {WHOLE}")
    labels = _labels(typed.names)
    notes = [note for note in (typed.info, typed.video_info, entry) if isinstance(note, Mapping)]
    depth = any(note.get(key) not in (None, False) for note in notes for key in DEPTH)
    return Feature(name, typed.dtype, typed.shape, labels if typed.shape == (len(labels),) else (), depth)


def _labels(names: Any) -> tuple[str, ...]:
    """Names as a list, or as lerobot's older ``{"motors": [...]}``."""
    if isinstance(names, Mapping):
        names = next(iter(names.values()), ())
    return tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()
