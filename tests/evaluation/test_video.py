import av
import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.evaluation.world_model.film import enlarge, write_mp4


def test_a_film_reads_back(tmp_path):
    frames = np.zeros((12, 33, 40, 3), np.uint8)
    frames[:, :, 20:] = (200, 40, 40)
    frames[6:, :16] = 255
    path = tmp_path / "videos" / "film.mp4"
    write_mp4(frames, path, 20.0)
    with av.open(path) as film:
        stream = film.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 20)
        seen = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(stream)])
    assert seen.shape == (12, 264, 320, 3)
    expected = enlarge(frames, 256)
    middle = (slice(None), slice(4, None, 8), slice(4, None, 8))  # centres of the enlarged pixels
    assert np.abs(seen[middle].astype(int) - expected[middle]).mean() < 8


def test_small_frames_are_enlarged_by_whole_pixels_to_even_sides():
    frames = np.arange(2 * 5 * 7 * 3, dtype=np.uint8).reshape(2, 5, 7, 3)
    large = enlarge(frames, 15)
    assert large.shape == (2, 16, 22, 3)
    np.testing.assert_array_equal(large[:, 1:15:3, 1:21:3], frames)
    np.testing.assert_array_equal(large[:, 15], large[:, 14])


@pytest.mark.parametrize(
    "frames",
    [np.zeros((2, 8, 8, 3), np.float32), np.zeros((0, 8, 8, 3), np.uint8), np.zeros((8, 8, 3), np.uint8)],
)
def test_other_arrays_are_refused(tmp_path, frames):
    with pytest.raises(SettingError, match="frames: must be uint8"):
        write_mp4(frames, tmp_path / "film.mp4", 20.0)
    assert not list(tmp_path.iterdir())
