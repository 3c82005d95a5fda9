"""Films of any origin as arrays of frames: videos, folders of images, numpy arrays, LeRobotDatasets.

Shapes legend: ``N`` films, ``T`` frames, ``Y X`` pixels.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.data.lerobot.dataset import open_recorded
from worldrl.data.lerobot.external.files import read_columns
from worldrl.data.lerobot.external.folder import ExternalEpisode, ExternalFolder, is_external, read_folder, with_films
from worldrl.data.lerobot.external.images import film_images, stored_images, whole_film
from worldrl.data.lerobot.external.stated import scalars
from worldrl.data.lerobot.external.times import require_steps
from worldrl.data.lerobot.format import INFO_PATH

Frames = NDArray[np.uint8]
VIDEOS = (".mp4", ".mov", ".webm", ".mkv", ".avi")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
ARRAYS = (".npy", ".npz")
TAKEN = (
    f"a folder of videos ({', '.join(VIDEOS)}), of arrays uint8 [T, Y, X, 3] or of folders of images ({', '.join(IMAGES)}); "
    "one of these alone; an array of films [N, T, Y, X, 3]; or a LeRobotDataset v3"
)


@dataclass(frozen=True)
class Film:
    """One film, decoded when it is read."""

    name: str  # by which it is paired: a file's name without its ending, or the number in an array or a dataset
    where: str  # for messages
    read: Callable[[], Frames]  # uint8 ``[T, Y, X, 3]``, RGB


@dataclass(frozen=True)
class Films:
    """Films of one path in natural order; ``fingerprint`` is a hash of their content."""

    films: tuple[Film, ...]
    fingerprint: str


def open_films(path: Path, camera: str = "") -> Films:
    """Find the films of a path; of a LeRobotDataset those of one ``camera``, empty for the main or only one.

    ArtefactError where there is none, or one is of another layout; SettingError for a camera that is not there.
    """
    if not path.exists():
        raise ArtefactError(f"{path}: does not exist; give {TAKEN}")
    if (path / INFO_PATH).exists():
        return _of_external(path, camera) if is_external(path) else _of_dataset(path, camera)
    if camera:
        raise SettingError(f"camera={camera}: {path} is no LeRobotDataset and has no named cameras; leave it out")
    parts = _films_in(path)
    if not parts:
        raise ArtefactError(f"{path}: holds no film; give {TAKEN}")
    films = [film for part in parts for film in _opened(part, alone=len(parts) == 1)]
    names = [film.name for film in films]
    if twice := next((film for film in films if names.count(film.name) > 1), None):
        raise ArtefactError(f"{path}: there are two films {twice.name!r}; give each a name of its own")
    return Films(tuple(films), _digest(parts))


def _films_in(path: Path) -> list[Path]:
    """Return files and folders that hold films; ``path`` itself where it is one."""
    if path.is_file() or _images(path):
        return [path]
    return [part for part in in_order(path.iterdir()) if _images(part) or part.suffix.lower() in (*VIDEOS, *ARRAYS)]


def in_order(paths: Any) -> list[Path]:
    """Sort paths by name, numbers in it by their value: ``film-2`` comes before ``film-10``."""
    return sorted(paths, key=lambda path: [int(p) if p.isdigit() else p for p in re.split(r"([0-9]+)", path.name)])


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return in_order(file for file in folder.iterdir() if file.suffix.lower() in IMAGES)


def _opened(path: Path, *, alone: bool) -> Iterator[Film]:
    if path.is_dir():
        yield Film(path.name, str(path), partial(_image_film, path))
    elif path.suffix.lower() in VIDEOS:
        yield Film(path.stem, str(path), partial(_video, path))
    elif path.suffix.lower() in ARRAYS:
        array = _array(path)
        if array.ndim == 4:
            yield Film(path.stem, str(path), partial(np.ascontiguousarray, array))
            return
        for row in range(len(array)):
            name = str(row) if alone else f"{path.stem}/{row}"
            yield Film(name, f"{path}: film {row}", partial(np.ascontiguousarray, array[row]))
    else:
        raise ArtefactError(f"{path}: is no film; give {TAKEN}")


def _video(file: Path) -> Frames:
    return _stacked(whole_film(file), str(file))


def _image_film(folder: Path) -> Frames:
    return _stacked(map(_image, _images(folder)), str(folder))


def _image(file: Path) -> Frames:
    content = np.frombuffer(file.read_bytes(), np.uint8)
    image = cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None
    if image is None:
        raise ArtefactError(f"{file}: is no readable image; write it again, or move it out of the folder")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def _stacked(images: Iterator[Frames], where: str) -> Frames:
    frames = list(images)
    sizes = sorted({image.shape for image in frames})
    if len(sizes) > 1:
        raise ArtefactError(
            f"{where}: its images have several sizes, {sizes[0][:2]} and {sizes[-1][:2]}; give one size"
        )
    if not frames:
        raise ArtefactError(f"{where}: has no frame; write it again, or leave it out")
    return np.stack(frames)


def _array(file: Path) -> Frames:
    """Open the only array of a file, ``[T, Y, X, 3]`` or ``[N, T, Y, X, 3]``; an .npy file stays on disk."""
    try:
        opened: Any = np.load(file, allow_pickle=False, mmap_mode="r" if file.suffix.lower() == ".npy" else None)
        if isinstance(opened, np.ndarray):
            array: Any = opened
        else:
            with opened:
                if len(opened.files) != 1:
                    raise ArtefactError(f"{file}: must hold one array, holds {opened.files}; write the films alone")
                array = opened[opened.files[0]]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as reason:
        raise ArtefactError(f"{file}: cannot be read as a numpy array ({reason}); write it again") from reason
    if array.dtype != np.uint8 or array.ndim not in (4, 5) or array.shape[-1] != 3 or 0 in array.shape:
        raise ArtefactError(
            f"{file}: must be uint8 [N, T, Y, X, 3] or [T, Y, X, 3], colours from 0 to 255 last, got {array.dtype} "
            f"{list(array.shape)}; convert it with numpy's moveaxis and astype"
        )
    return array


def _digest(parts: Sequence[Path]) -> str:
    """Hash the content of files, whatever folder they lie in."""
    digest = hashlib.sha256()
    for part in parts:
        for file in [part] if part.is_file() else _images(part):
            with file.open("rb") as opened:
                digest.update(f"{part.name}/{file.name} ".encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


# --- LeRobotDatasets ------------------------------------------------------------------------------------------------


def _of_dataset(path: Path, camera: str) -> Films:
    dataset = open_recorded(path)
    view = dataset.cameras.index(_chosen(camera, dataset.cameras, path, main=True))

    def read(row: int) -> Frames:
        return np.ascontiguousarray(dataset[row].frames[:, view])

    films = (Film(str(row), f"{path}: episode {row}", partial(read, row)) for row in range(len(dataset)))
    return Films(tuple(films), f"{dataset.fingerprint}{camera}")


def _of_external(path: Path, camera: str) -> Films:
    """Open the images of a dataset of others; what its numbers mean need not be known."""
    folder = read_folder(path)
    name = _chosen(camera, [key for key, feature in folder.features.items() if feature.is_colour], path, main=False)
    folder = with_films(folder, [name])
    films = (
        Film(str(episode.index), f"{path}: episode {episode.index}", partial(_external, folder, episode, name))
        for episode in folder.episodes
    )
    return Films(tuple(films), f"{folder.identity}{name}")


def _chosen(camera: str, there: Sequence[str], path: Path, *, main: bool) -> str:
    if camera and camera not in there:
        raise SettingError(f"camera={camera}: {path} has none of that name{nearest(camera, there)}")
    if not camera and not main and len(there) != 1:
        raise SettingError(f"camera: {path} has the cameras {', '.join(there) or 'none'}; give the name of one")
    return camera or there[0]


def _external(folder: ExternalFolder, episode: ExternalEpisode, name: str) -> Frames:
    clip = episode.clips.get(name)
    where = f"{clip.file if clip else episode.file}: episode {episode.index}, field {name!r}"
    columns = ["frame_index", "timestamp", *([] if clip else [name])]
    table = read_columns(episode.file, columns, filters=[("episode_index", "=", episode.index)]).sort_by("frame_index")
    if table.num_rows != episode.rows:
        raise ArtefactError(f"{where}: has {table.num_rows} rows, the episode table says {episode.rows}")
    times = scalars(table, "timestamp", episode.file)
    require_steps(times, folder.fps, where)
    return _stacked(film_images(clip, times, where) if clip else stored_images(table[name].to_pylist(), where), where)
