"""Unit under test: ``workers/wire.py``; what two processes of different environments say to each other."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from worldrl.workers.link.boot import load_file
from worldrl.workers.link.wire import WireError, decode, parts

hostile = load_file("hostile", Path(__file__).parents[1] / "hostile.py")


def encode(header, arrays):
    return b"".join(parts(header, arrays))


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


HEADER = {"kind": "rows", "slots": [1, 2], "arrays": [["state", "<f8", [5]], ["image", "|u1", [2, 2, 3]]]}


def framed(header):
    """A message around any header, damaged or not."""
    head = json.dumps(header).encode()
    return struct.pack("<I", len(head)) + head + np.arange(5.0).tobytes() + bytes(12)


def said(error):
    """False, for an error of bounded length."""
    assert len(str(error)) < 400
    return False


def decoded(message):
    """Decode where that works; any other error than the typed one fails the test."""
    try:
        header, arrays = decode(message)
    except WireError as error:
        return said(error)
    assert isinstance(header, dict)
    assert all(array.dtype.kind in "buif" for array in arrays.values())
    return True


@pytest.mark.parametrize("mutate", ["bytes", "header", "both"])
def test_thousands_of_mutated_messages_are_never_anything_but_the_typed_error(mutate):
    draw = np.random.default_rng(0)
    assert decoded(framed(HEADER))
    count = 0
    for _ in range(3000):
        message = framed(HEADER if mutate == "bytes" else hostile.mutated(draw, HEADER))
        count += decoded(message if mutate == "header" else hostile.damaged(draw, message))
    assert count < 2000  # some are whole all the same: a changed number, a changed text


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("value", hostile.VALUES, ids=lambda value: repr(value)[:20])
def test_no_name_dtype_or_shape_leaves_another_error(part, value):
    entry = ["state", "<f8", [5]]
    entry[part] = value
    assert not decoded(framed({"arrays": [entry]}))  # seven bytes too many where the entry itself is taken


def test_deep_headers_and_names_given_twice_are_refused():
    deep = b'{"arrays": ' + b"[" * 100_000
    assert not decoded(struct.pack("<I", len(deep)) + deep)
    twice = encode({}, {"a": np.zeros(1), "b": np.zeros(1)}).replace(b'"b"', b'"a"')
    with pytest.raises(WireError, match="a name of its own"):
        decode(twice)


def test_an_array_without_numbers_keeps_its_sizes():
    _, back = decode(encode({}, {"none": np.zeros((3, 0, 4), np.float32)}))
    assert back["none"].shape == (3, 0, 4)
