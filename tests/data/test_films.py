"""Films of any origin become the same frames; what is no film is refused with what to change."""

import hashlib
import shutil

import cv2
import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.films import open_films
from worldrl.evaluation.world_model.film import write_mp4

SIZE = (12, 16)


def film(seed=0, frames=4, size=SIZE):
    """Coarse blocks, which a video keeps."""
    blocks = np.random.default_rng(seed).integers(0, 256, (frames, 3, 4, 3), dtype=np.uint8)
    return blocks.repeat(size[0] // 3, axis=1).repeat(size[1] // 4, axis=2)


def write_images(folder, frames, first=8):
    """Numbers without leading zeros: 10 follows 9."""
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames, first):
        assert cv2.imwrite(str(folder / f"frame_{number}.png"), frame[..., ::-1])


def read(path, **more):
    return {one.name: one.read() for one in open_films(path, **more).films}


def same(found, expected):
    assert list(found) == list(expected)
    for name, frames in expected.items():
        assert found[name].dtype == np.uint8
        np.testing.assert_array_equal(found[name], frames)


def test_folders_of_images_arrays_and_files_of_them_hold_the_same_films(tmp_path):
    films = {"film-2": film(1), "film-10": film(2, frames=6)}
    for name, frames in films.items():
        write_images(tmp_path / "images" / name, frames)
        (tmp_path / "arrays").mkdir(exist_ok=True)
        np.save(tmp_path / "arrays" / f"{name}.npy", frames)
    (tmp_path / "images" / "README.md").write_text("what it is")
    same(read(tmp_path / "images"), films)
    same(read(tmp_path / "arrays"), films)
    same(read(tmp_path / "images" / "film-2"), {"film-2": films["film-2"]})
    same(read(tmp_path / "arrays" / "film-2.npy"), {"film-2": films["film-2"]})


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_an_array_of_films_names_them_by_number(tmp_path, ending):
    films = np.stack([film(1), film(2)])
    save = np.save if ending == "npy" else np.savez_compressed
    save(tmp_path / f"films.{ending}", films)
    same(read(tmp_path / f"films.{ending}"), {"0": films[0], "1": films[1]})
    same(read(tmp_path), {"0": films[0], "1": films[1]})


def test_videos_are_decoded_in_full(tmp_path):
    frames = film(frames=9, size=(258, 336))
    write_mp4(frames, tmp_path / "a.mp4", 10)
    (found,) = read(tmp_path).values()
    assert found.shape == frames.shape
    assert np.abs(found.astype(int) - frames).mean() < 8


def test_a_dataset_of_ours_gives_the_frames_of_one_camera(tmp_path, record, make_episode):
    episodes = [make_episode(number, cameras=("scene", "wrist")) for number in (0, 1)]
    folder = record(tmp_path / "set", episodes)
    same(read(folder), {"0": episodes[0].frames[:, 0], "1": episodes[1].frames[:, 0]})
    same(read(folder, camera="wrist"), {"0": episodes[0].frames[:, 1], "1": episodes[1].frames[:, 1]})
    with pytest.raises(SettingError, match="has none of that name; did you mean 'wrist'"):
        open_films(folder, "wrists")


@pytest.mark.parametrize("films", [None, (2,)], ids=["images in the rows", "two episodes in a video"])
def test_a_dataset_of_others_needs_no_meaning_of_its_numbers(tmp_path, publish_lerobot, films):
    shown = {f"observation.images.{name}": film(k, 5, (24, 32)) for k, name in enumerate(("front", "side"))}
    rows = {"sentence": "x", "strange": np.zeros((5, 3), np.float32), "action": np.zeros((5, 2), np.float32)}
    other = {name: frames[::-1].copy() for name, frames in shown.items()}
    folder = publish_lerobot(tmp_path / "set", [rows | shown, rows | other], films=films, success=None)
    camera = "observation.images.side"
    same(read(folder, camera=camera), {"0": shown[camera], "1": other[camera]})
    with pytest.raises(SettingError, match=r"has the cameras observation\.images\.front, .*; give the name of one"):
        open_films(folder)


def test_the_fingerprint_is_of_the_content_alone(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "film.npy", film(1))
    first = open_films(tmp_path / "a").fingerprint
    assert open_films(tmp_path / "b").fingerprint == first
    assert len(first) == len(hashlib.sha256().hexdigest())
    np.save(tmp_path / "b" / "film.npy", film(2))
    assert open_films(tmp_path / "b").fingerprint != first


def arrays(folder, **parts):
    np.savez(folder / "films.npz", **parts)


WRONG = {
    "nothing there": (lambda folder: shutil.rmtree(folder), "does not exist; give a folder of videos"),
    "an empty folder": (lambda _folder: None, "holds no film; give a folder of videos"),
    "text alone": (lambda folder: (folder / "a.txt").write_text("x"), "holds no film"),
    "no video": (lambda folder: (folder / "a.mp4").write_bytes(b"x" * 99), r"a\.mp4: cannot be decoded as a video"),
    "an empty video": (lambda folder: (folder / "a.mp4").touch(), r"a\.mp4: cannot be decoded as a video"),
    "floats": (
        lambda folder: np.save(folder / "a.npy", np.zeros((2, 4, 4, 3), np.float32)),
        r"must be uint8 \[N, T, Y, X, 3\] or \[T, Y, X, 3\].* got float32 \[2, 4, 4, 3\]",
    ),
    "colours first": (lambda folder: np.save(folder / "a.npy", np.zeros((2, 3, 4, 4), np.uint8)), "moveaxis"),
    "objects": (lambda folder: np.save(folder / "a.npy", np.array([{}])), "cannot be read as a numpy array"),
    "no frame": (lambda folder: np.save(folder / "a.npy", np.zeros((0, 4, 4, 3), np.uint8)), r"got uint8 \[0, 4"),
    "a cut array": (
        lambda folder: (folder / "a.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{"),
        "cannot be read as a numpy array",
    ),
    "two arrays": (lambda folder: arrays(folder, a=film(), b=film()), r"must hold one array, holds \['a', 'b'\]"),
    "two films of one name": (
        lambda folder: [np.save(folder / "a.npy", film()), write_images(folder / "a", film())],
        "there are two films 'a'",
    ),
    "no image": (
        lambda folder: [write_images(folder / "a", film()), (folder / "a" / "frame_9.png").write_bytes(b"x")],
        r"frame_9\.png: is no readable image",
    ),
    "several sizes": (
        lambda folder: (
            [write_images(folder / "a", film()), write_images(folder / "b", film(size=(24, 16)))]
            and shutil.copy(folder / "b" / "frame_9.png", folder / "a")
        ),
        r"its images have several sizes, \(12, 16\) and \(24, 16\)",
    ),
}


@pytest.mark.parametrize(("make", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_film_is_refused(tmp_path, make, said):
    folder = tmp_path / "films"
    folder.mkdir()
    make(folder)
    with pytest.raises(ArtefactError, match=said) as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_a_damaged_video_is_refused_and_a_file_that_is_no_film(tmp_path):
    write_mp4(film(frames=30, size=(240, 320)), tmp_path / "a.mp4", 10)
    content = bytearray((tmp_path / "a.mp4").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 300] = bytes(range(100)) * 3
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(ArtefactError, match="cannot be decoded as a video without errors"):
        read(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ArtefactError, match="is no film; give a folder of videos"):
        open_films(tmp_path / "a.txt")
    with pytest.raises(SettingError, match="is no LeRobotDataset and has no named cameras"):
        open_films(tmp_path, "wrist")
