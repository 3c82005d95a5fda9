"""LeRobotDataset v3.0 as worldrl writes it: names, columns, and the journal that is the source of truth.

Layout of a folder::

    meta/worldrl.jsonl                      journal: a header line, then one line per episode, append-only
    data/chunk-000/file-000.parquet         episode 0: one row per frame, PNG bytes in the image columns
    meta/info.json, tasks.parquet,          what lerobot reads; derived from the journal by ``finalize``
         stats.json, episodes/chunk-000/file-000.parquet

One episode is one data file, which exists once its journal line is complete; the next writer removes one without a
line. ``T`` actions make ``T + 1`` rows. The last one stores the *hold* action (the commanded pose and gripper stay),
reward 0 and ``is_last``, as RLDS does; worldrl's reader drops it and returns exactly the episode that was written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from worldrl.core.embodiment import AnyEmbodiment, embodiment_from_json
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.image_fit import FIT, Fit, fit_name
from worldrl.core.observation import OBSERVATION, ObservationSpec, image_name
from worldrl.core.storage.typed import from_plain
from worldrl.core.types import Episode

LEROBOT_VERSION = "v3.0"
JOURNAL_SCHEMA = 1
FILES_PER_CHUNK = 1000
ACTION_TOLERANCE = 1e-6  # rounding of a float32 pipeline

JOURNAL_PATH = Path("meta/worldrl.jsonl")
OURS = "worldrl.json"
"""What a user states of an external dataset, in its folder."""
LOCK_PATH = Path("meta/worldrl.lock")
INFO_PATH = Path("meta/info.json")
STATS_PATH = Path("meta/stats.json")
TASKS_PATH = Path("meta/tasks.parquet")
EPISODES_PATH = Path("meta/episodes/chunk-000/file-000.parquet")
DATA_PATTERN = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

IMAGE_PREFIX = "observation.images."
COMMAND, SUCCESS, CONTACT = "observation.command", "next.success", "contact"
ROBOT_TYPE = "worldrl"
"""``robot_type`` of ``info.json``."""
HEADER_COPY = "worldrl"
"""Key of the feature ``action`` in ``info.json`` with a copy of the header: lerobot's tools drop unknown keys of the file itself
and keep those of a feature."""
# "contact" without the prefix "observation.": lerobot makes a policy input of every such column, and contact is
# known to the simulator only; its normaliser also refuses boolean inputs.
SCALARS: dict[str, str] = {
    CONTACT: "bool",
    "next.reward": "float32",
    SUCCESS: "bool",
    "is_last": "bool",
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


WRISTS = ("wrist", "hand")
"""Words in the name of a camera that the hand carries."""


def camera_role(feature: str, cameras: int) -> str | None:
    """What a camera among so many unmistakably is, ``scene`` or ``wrist``; None where nothing is sure."""
    last = feature.rpartition(".")[2]
    if any(word in last for word in WRISTS) or (cameras == 2 and last == "image2"):
        return "wrist"
    return "scene" if cameras == 1 or (cameras == 2 and last in ("image", "scene")) else None


@dataclass(frozen=True)
class DatasetHeader:
    """What all episodes of a dataset share."""

    fps: int  # frames per second, equal to the embodiment's control rate: one frame per control step
    cameras: tuple[str, ...]  # names, in the order of the episode's camera axis
    image_size: tuple[int, int]  # rows and columns of every camera, in pixels
    embodiment: AnyEmbodiment  # constants of the robot that was recorded
    # Benchmark whose tasks and initial states these are, as a protocol names it; empty where nobody said.
    suite: str = ""
    # How images of another aspect got this size; `refuse` where nobody said, as of images that were drawn at it.
    fit: Fit = Fit.refuse

    def __post_init__(self) -> None:
        """SettingError for another rate than the embodiment's, no camera, one twice, or an image without pixels."""
        rate = self.embodiment.control_hz
        if self.fps != round(rate):
            raise SettingError(
                f"fps: {self.fps} beside the embodiment's control_hz {rate}; every control step is a frame"
            )
        if not self.cameras or len(set(self.cameras)) < len(self.cameras):
            raise SettingError(f"cameras: need names, each once, got {list(self.cameras)}; leave the copy out")
        if min(self.image_size) < 1:
            raise SettingError(f"image_size: needs rows and columns of at least 1, got {list(self.image_size)}")

    @property
    def observation(self) -> ObservationSpec:
        """What is observed at every step: cameras by the names of their images, measured state and command."""
        images = [image_name(camera) for camera in self.cameras]
        return ObservationSpec.of(self.embodiment.actions, images, self.image_size, state=True, fit=fit_name(self.fit))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "schema": JOURNAL_SCHEMA,
            "fps": self.fps,
            "cameras": list(self.cameras),
            "image_size": list(self.image_size),
            "embodiment": self.embodiment.to_json(),
            **({"suite": self.suite} if self.suite else {}),
            **({FIT: fit_name(self.fit)} if fit_name(self.fit) else {}),
            OBSERVATION: self.observation.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DatasetHeader:
        """Rebuild from :meth:`to_json`; SettingError for an unknown field, another type or a wrong value."""
        stored = from_plain(_StoredHeader, dict(data), where="header")
        embodiment = embodiment_from_json(stored.embodiment)
        header = cls(stored.fps, stored.cameras, stored.image_size, embodiment, stored.suite, stored.fit)
        header.observation.require_stored(data, "header")
        return header


@dataclass(frozen=True)
class _StoredHeader:
    """The types of :meth:`DatasetHeader.to_json`."""

    schema: int
    fps: int
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    embodiment: dict[str, Any]
    suite: str = ""
    fit: Fit = Fit.refuse
    observation: dict[str, Any] | None = None


RECOVERY = "recovery"
"""Key of a corrected episode's meta: its :class:`Recovery`, see :mod:`worldrl.data.lerobot.recoveries`."""


@dataclass(frozen=True)
class Recovery:
    """Frames of a stored episode: the last one before the rewinding, and the one that it returned to."""

    alarm: int
    rewound: int


@dataclass(frozen=True)
class EpisodeRecord:
    """What the journal says of one episode: everything but its arrays."""

    index: int  # its number in the dataset, contiguous from 0
    length: int  # how many actions `T`; its data file has `T + 1` rows
    first_row: int  # how many rows come before it in the dataset
    task: str  # name of the task
    instruction: str  # what the robot is to do
    task_index: int  # number of the instruction, in order of first appearance (lerobot's `task_index`)
    terminated: bool  # the task ended the episode
    truncated: bool  # the time limit ended it
    success: bool  # the task was fulfilled at some frame
    meta: Mapping[str, Any]  # provenance as given by the recorder
    sha256: str  # of the data file
    content: str  # digest of the episode's arrays and metadata, independent of how they are encoded
    stats: Mapping[str, Any] = field(default_factory=dict, repr=False)  # per column, in lerobot's layout

    @property
    def rows(self) -> int:
        """How many rows (frames) the episode has."""
        return self.length + 1

    @property
    def source(self) -> str | None:
        """Who acted (expert, policy id, random), if the recorder said so."""
        return self.meta.get("source")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EpisodeRecord:
        """Rebuild from :meth:`to_json`; SettingError for an unknown field or type. ``merge_stats`` checks the stats."""
        rest = dict(data)
        stats = rest.pop("stats", {})
        if not isinstance(stats, dict):
            raise SettingError(f"record: stats: must be an object, got {stats!r:.80}")
        return replace(from_plain(cls, rest, where="record"), stats=cast("dict[str, Any]", stats))


def data_path(index: int) -> Path:
    """Return the data file of episode ``index``, relative to the dataset."""
    chunk, file = divmod(index, FILES_PER_CHUNK)
    return Path(DATA_PATTERN.format(chunk_index=chunk, file_index=file))


def feature_table(header: DatasetHeader) -> dict[str, dict[str, Any]]:
    """Return ``features`` of ``info.json``: dtype, shape and names of each column, in file order."""
    images = {
        IMAGE_PREFIX + camera: {
            "dtype": "image",
            "shape": [*header.image_size, 3],
            "names": ["height", "width", "channels"],
        }
        for camera in header.cameras
    }
    robot = header.embodiment
    names = {
        "observation.state": robot.state_names,
        COMMAND: robot.command_names,
        "action": robot.actions.names,
    }
    vectors = {k: {"dtype": "float32", "shape": [len(v)], "names": list(v)} for k, v in names.items()}
    scalars = {k: {"dtype": dtype, "shape": [1], "names": None} for k, dtype in SCALARS.items()}
    return {**images, **vectors, **scalars}


def _column_type(feature: Mapping[str, Any]) -> tuple[pa.DataType, dict[str, Any]]:
    """Return the Arrow type of a feature and its description for Hugging Face datasets."""
    if feature["dtype"] == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())]), {"_type": "Image"}
    scalar = {"bool": pa.bool_(), "float32": pa.float32(), "int64": pa.int64()}[feature["dtype"]]
    value = {"dtype": feature["dtype"], "_type": "Value"}
    if feature["names"] is None:
        return scalar, value
    size = feature["shape"][0]
    # "Sequence", not "List": datasets 3 does not know the latter, datasets 4 reads both.
    return pa.list_(scalar, size), {"feature": value, "length": size, "_type": "Sequence"}


@lru_cache(maxsize=64)  # the same for all episodes of a dataset; making it anew took 4 % of reading
def data_schema(header: DatasetHeader) -> pa.Schema:
    """Return the Arrow schema of a data file."""
    columns = {name: _column_type(feature) for name, feature in feature_table(header).items()}
    described = {"info": {"features": {name: text for name, (_, text) in columns.items()}}}
    metadata = {b"huggingface": json.dumps(described).encode()}
    return pa.schema([pa.field(name, kind) for name, (kind, _) in columns.items()], metadata=metadata)


def episode_digest(episode: Episode) -> str:
    """Return a digest of everything an episode holds; equal episodes have equal digests."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (episode.frames, episode.state, episode.command, episode.action, episode.reward, episode.contact):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    text = [episode.terminated, episode.truncated, episode.instruction, episode.task, list(episode.cameras)]
    digest.update(json.dumps([*text, dict(episode.meta)], sort_keys=True).encode())
    return digest.hexdigest()


def _rules(episode: Episode, header: DatasetHeader) -> Sequence[tuple[str, np.ndarray, tuple[int, ...], type]]:
    steps, robot = len(episode), header.embodiment
    frames = (steps + 1, len(header.cameras), *header.image_size, 3)
    return (
        ("frames", episode.frames, frames, np.uint8),
        ("state", episode.state, (steps + 1, len(robot.state_names)), np.float32),
        ("command", episode.command, (steps + 1, len(robot.command_names)), np.float32),
        ("action", episode.action, (steps, robot.actions.size), np.float32),
        ("reward", episode.reward, (steps,), np.float32),
        ("contact", episode.contact, (steps + 1,), np.bool_),
    )


def check_episode(episode: Episode, header: DatasetHeader, where: str) -> None:
    """Refuse an episode that is not what :class:`~worldrl.core.types.Episode` promises.

    ArtefactError, from ``where``, for a shape, dtype, camera, not finite value or action outside the robot's range.
    """
    if len(episode) < 1:
        raise ArtefactError(f"{where}: the episode has no action; drop episodes that end before their first step")
    if tuple(episode.cameras) != header.cameras:
        raise ArtefactError(f"{where}: the episode's cameras are {episode.cameras}, the dataset's {header.cameras}")
    for name, array, shape, dtype in _rules(episode, header):
        if array.shape != shape or array.dtype != dtype:
            expected = f"{np.dtype(dtype).name} {shape}"
            raise ArtefactError(f"{where}: {name} must be {expected}, got {array.dtype} {array.shape}")
        if dtype is np.float32 and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise ArtefactError(f"{where}: {name} is not finite at row {row} ({array[row]}); drop this episode")
    actions = header.embodiment.actions
    if episode.actions != actions:
        raise ArtefactError(
            f"{where}: the episode's actions are {', '.join(episode.actions.names)}, the dataset's "
            f"{', '.join(actions.names)}; record it for its own robot"
        )
    low, high = np.array(actions.low), np.array(actions.high)
    beyond = np.maximum(low - episode.action, episode.action - high)
    if beyond.max() > ACTION_TOLERANCE:
        row, column = (int(i) for i in np.unravel_index(beyond.argmax(), beyond.shape))
        name, received = actions.names[column], episode.action[row]
        raise ArtefactError(
            f"{where}: action leaves [{low[column]:g}, {high[column]:g}] at row {row} ({received}), "
            f"in {name}; clip it first"
        )
