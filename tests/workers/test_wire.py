"""Unit under test: ``workers/wire.py``; what two processes of different environments say to each other."""

import numpy as np
import pytest

from worldrl.workers.wire import WireError, decode, encode


def test_round_trip_keeps_bits_shapes_and_dtypes():
    arrays = {
        "frames": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "action": np.array([[np.pi, -0.0]], np.float32),
        "contact": np.array([True, False]),
        "empty": np.zeros((0, 7), np.float32),
        "scalar": np.array(2.5),
        "transposed": np.arange(6.0).reshape(2, 3).T,
    }
    header, back = decode(encode({"kind": "episode", "text": "π"}, arrays))
    assert header == {"kind": "episode", "text": "π"}
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back[name], array)
        assert back[name].flags.writeable  # torch.from_numpy warns otherwise


@pytest.mark.parametrize("value", [np.array([print], dtype=object), np.array(["text"]), np.array([1j])])
def test_only_numbers_travel(value):
    with pytest.raises(WireError, match="dtype"):
        encode({}, {"code": value})


def test_an_announced_object_is_refused():
    message = encode({}, {"code": np.zeros(1)}).replace(b'"<f8"', b'"|O" ')
    with pytest.raises(WireError, match=r"dtype .\|O"):
        decode(message)


def test_every_truncation_is_an_error():
    message = encode({"kind": "rows"}, {"state": np.arange(5.0), "success": np.array([True])})
    for length in range(len(message)):
        with pytest.raises(WireError):
            decode(message[:length])
    with pytest.raises(WireError, match="1 bytes follow"):
        decode(message + b"\0")


def test_noise_is_never_anything_but_an_error():
    draw = np.random.default_rng(0)
    message = bytearray(encode({"kind": "rows"}, {"state": np.arange(5.0)}))
    for _ in range(300):
        noisy = bytearray(message)
        noisy[int(draw.integers(len(message) - 40))] ^= int(draw.integers(1, 256))  # length or header
        try:
            header, arrays = decode(bytes(noisy))
        except WireError:
            continue
        assert isinstance(header, dict)
        assert all(array.dtype.kind in "buif" for array in arrays.values())
