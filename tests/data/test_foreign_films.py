"""Damaged files of a LeRobotDataset that others made.

Units under test: ``worldrl.data.lerobot.external.images`` (what a decoder notices) and ``foreign_digest`` (stored digests).
"""

import hashlib
import os
import random

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.external.digest import require_digest
from worldrl.data.lerobot.external.folder import Clip
from worldrl.data.lerobot.external.images import film_images, read_film

FRAMES, SIZE, FPS = 40, 64, 20
FILM = "videos/observation.images.image/chunk-000/file-000.mp4"
DATA = "data/chunk-000/file-000.parquet"
CODECS = {
    "libx264": {"crf": "23", "g": "2"},
    "libsvtav1": {"crf": "30", "preset": "12", "g": "2", "svtav1-params": "lp=1"},
}
"""What lerobot films with: two frames to a key frame."""


def film(file, codec, options):
    """Write a moving square before coarse ground, with the noise of a camera: smooth frames would leave little to damage."""
    draw, policy = np.random.default_rng(0), os.sched_getscheduler(0)
    simulator_backend = draw.integers(0, 255, (8, 8, 3), np.uint8).repeat(SIZE // 8, 0).repeat(SIZE // 8, 1)
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options=options)
        stream.height, stream.width, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for number in range(FRAMES):
            frame = simulator_backend + draw.integers(-6, 7, simulator_backend.shape)
            frame[20:36, number : number + 16] = (255, 0, 0)
            frame = frame.clip(0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    # SVT-AV1, run by root, gives the calling thread the highest real-time priority, and nothing else gets this core.
    os.sched_setscheduler(0, policy, os.sched_param(0))
    return file


def shown(file, start=0):
    read_film(file, "film")
    clip = Clip(file, start / FPS, FRAMES / FPS)
    return np.array(list(film_images(clip, np.arange(FRAMES - start) / FPS, "film")))


def damaged(content, draw):
    """Flip a bit, change a byte, or overwrite a run of bytes."""
    content, at = bytearray(content), draw.randrange(len(content))
    length = draw.choice((0, 1, draw.randrange(2, 200)))
    if length:
        content[at : at + length] = draw.randbytes(len(content[at : at + length]))
    else:
        content[at] ^= 1 << draw.randrange(8)
    return bytes(content)


@pytest.mark.parametrize(("codec", "most"), [("libx264", 10), ("libsvtav1", 2)])
def test_damage_that_a_decoder_can_see_is_an_error(tmp_path, codec, most):
    """Of 40 random damages, without a digest; by default FFmpeg conceals most of them and says nothing.

    H.264 has no checksums: damage that leaves its code valid is another image. AV1's code is seldom valid after damage.
    """
    file = film(tmp_path / "film.mp4", codec, CODECS[codec])
    content, whole, draw = file.read_bytes(), shown(file), random.Random(1)
    unseen = 0
    for _ in range(40):
        file.write_bytes(damaged(content, draw))
        try:
            unseen += not np.array_equal(shown(file), whole)
        except ArtefactError as reason:
            assert "film: " in str(reason)  # noqa: PT017
    assert unseen <= most


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "12", "x264-params": "open-gop=1:bframes=3:keyint=12:min-keyint=12"}),
        ("libx264", {"x264-params": "intra-refresh=1:keyint=12"}),
        ("libx265", {"x265-params": "log-level=none:open-gop=1:bframes=3:keyint=12"}),
        ("libsvtav1", {"preset": "12", "g": "12", "svtav1-params": "lp=1"}),
    ],
)
def test_a_whole_film_is_read_from_any_frame_on(tmp_path, codec, options):
    """Also where frames before a key frame need the frames before a seek: their errors are no damage."""
    file = film(tmp_path / "film.mp4", codec, options)
    whole = shown(file)
    for start in range(0, FRAMES, 7):
        np.testing.assert_array_equal(shown(file, start), whole[start:])


def test_a_frame_that_is_missing_is_named(tmp_path):
    file = film(tmp_path / "film.mp4", "libx264", CODECS["libx264"])
    with pytest.raises(
        ArtefactError, match=r"film: row 39 is at 2\.000 s of the film, which has no frame within 0\.25"
    ):
        list(film_images(Clip(file, 0.05, 2.05), np.arange(FRAMES) / FPS, "film"))


# --- digests ---


@pytest.fixture
def folder(tmp_path, libero_demo, publish_lerobot):
    return publish_lerobot(tmp_path / "set", [libero_demo(0), libero_demo(1)], films=(2,))


def say_as_the_hub(folder, name, digest):
    """As ``hf download --local-dir`` leaves it."""
    file = folder / ".cache/huggingface/download" / f"{name}.metadata"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{'0' * 40}\n{digest}\n1790000000.5\n")
    return file


def say_as_sha256sum(folder, name, digest):
    file = folder / "SHA256SUMS"
    file.write_text(f"{'0' * 64}  other.mp4\n{digest}  ./{name}\n")
    return file


@pytest.mark.parametrize("name", [FILM, DATA])
@pytest.mark.parametrize("say", [say_as_the_hub, say_as_sha256sum])
def test_a_file_is_held_against_its_stored_digest(folder, say, name):
    content = (folder / name).read_bytes()
    place = say(folder, name, hashlib.sha256(content).hexdigest())
    before = EpisodeDataset.open(folder)[1].frames
    if name == DATA:  # what no reader sees anything of
        pq.write_table(pq.read_table(folder / name), folder / name, compression="none")
    else:
        (folder / name).write_bytes(content + b"\0")
    with pytest.raises(ArtefactError, match=r"damaged or changed: its SHA-256 is .*, or delete the digest in") as error:
        EpisodeDataset.open(folder)[1]
    assert str(folder / name) in str(error.value)
    assert str(place) in str(error.value)
    (folder / name).write_bytes(content)
    np.testing.assert_array_equal(EpisodeDataset.open(folder)[1].frames, before)


def test_every_damage_of_a_film_with_a_digest_is_seen(folder):
    content, draw = (folder / FILM).read_bytes(), random.Random(2)
    say_as_the_hub(folder, FILM, hashlib.sha256(content).hexdigest())
    data = EpisodeDataset.open(folder)
    for _ in range(40):
        bad = damaged(content, draw)
        (folder / FILM).write_bytes(bad)
        with pytest.raises(ArtefactError, match=r"file-000\.mp4"):
            assert bad == content or data[0]


def test_films_without_a_digest_are_said_when_the_folder_is_opened(folder):
    def said():
        return [text for text in EpisodeDataset.open(folder).records[0].meta["lerobot"]["assumed"] if "SHA" in text]

    count = len(list((folder / "videos").rglob("*.mp4")))
    assert [text.partition(" films ")[0] for text in said()] == [f"{count} of {count}"]
    say_as_sha256sum(folder, FILM, hashlib.sha256((folder / FILM).read_bytes()).hexdigest())
    assert [text.partition(" films ")[0] for text in said()] == ([f"{count - 1} of {count}"] if count > 1 else [])


def test_a_film_is_read_for_its_digest_once(folder, monkeypatch):
    say_as_sha256sum(folder, FILM, hashlib.sha256((folder / FILM).read_bytes()).hexdigest())
    read = []
    kept = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, name: read.append(stream.name) or kept(stream, name))
    data = EpisodeDataset.open(folder)
    assert [len(data[number]) for number in (0, 1, 0)] == [23, 23, 23]
    assert read == [str(folder / FILM)]


def test_a_link_into_the_hubs_cache_carries_its_digest(tmp_path):
    content = b"film"
    blob = tmp_path / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(content)
    snapshot = tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "film.mp4").symlink_to(blob)
    require_digest(snapshot, snapshot / "film.mp4")
    blob.write_bytes(b"filn")
    with pytest.raises(ArtefactError, match="damaged or changed"):
        require_digest(snapshot, snapshot / "film.mp4")


def test_a_digest_that_is_none_is_not_compared(folder):
    """The hub names small files by git's digest; a damaged list of digests is an error."""
    say_as_the_hub(folder, FILM, "1" * 40)
    assert len(EpisodeDataset.open(folder)[0]) == 23
    (folder / "SHA256SUMS").write_bytes(b"\xff\xfe")
    with pytest.raises(ArtefactError, match=r"SHA256SUMS: cannot be read"):
        EpisodeDataset.open(folder)[0]
