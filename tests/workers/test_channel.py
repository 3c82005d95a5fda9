"""Unit under test: ``workers/channel.py``; messages over a real socket pair."""

import socket
import struct
import threading
import time

import numpy as np
import pytest

from worldrl.workers.link.channel import Channel
from worldrl.workers.link.wire import WireError


@pytest.fixture
def ends():
    pair = [Channel(end) for end in socket.socketpair()]
    yield pair
    for end in pair:
        end.close()


def sent(ends, header, arrays):
    """What arrives of a message that is sent from another thread, as it may be larger than the kernel's buffers."""
    sender = threading.Thread(target=ends[0].send, args=(header, arrays))
    sender.start()
    came = ends[1].receive()
    sender.join()
    return came


def test_images_larger_than_the_kernels_buffers_arrive_whole_and_writable(ends):
    draw = np.random.default_rng(0)
    frames = draw.integers(0, 256, (8, 512, 512, 3)).astype(np.uint8)  # 6 MB
    arrays = {"state": draw.normal(size=(8, 9)).astype(np.float32), "image": frames, "mirrored": frames[:, :, ::-1]}
    header, back = sent(ends, {"kind": "rows", "slots": list(range(8))}, arrays)
    assert header == {"kind": "rows", "slots": list(range(8))}
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].flags.writeable
    back["image"][:] = 0  # a view of the message, which nobody else holds
    np.testing.assert_array_equal(back["mirrored"], arrays["mirrored"])


def test_a_kept_state_does_not_keep_its_images_alive(ends):
    _, back = sent(ends, {}, {"state": np.zeros((1, 8), np.float32), "image": np.ones((1, 256, 256, 3), np.uint8)})
    assert back["state"].base is None
    assert back["image"].base is not None


def test_a_network_of_more_tensors_than_one_call_takes(ends):
    arrays = {f"weight-{number}": np.full((number % 3, 5), number, np.float64) for number in range(2500)}
    _, back = sent(ends, {}, arrays)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)


def test_messages_keep_their_order_and_an_end_is_noticed(ends):
    for number in range(3):
        ends[0].send({"number": number})
    assert [ends[1].receive()[0]["number"] for _ in range(3)] == [0, 1, 2]
    assert not ends[1].poll(0.0)
    ends[0].close()
    assert ends[1].poll(1.0)
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(BrokenPipeError):
        ends[1].send({"kind": "step"})


def test_a_message_that_ends_inside_is_an_end_not_a_message():
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.sendall(struct.pack("<Q", 100) + b"half")
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive()
    channel.close()


@pytest.mark.parametrize("announced", [2**63, 3])
def test_lengths_that_cannot_be_are_refused(announced):
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours)
        theirs.sendall(struct.pack("<Q", announced) + b"???")
        with pytest.raises(WireError):
            channel.receive()
        channel.close()


def test_waiting_ends_when_something_comes(ends):
    threading.Timer(0.05, ends[0].send, args=({"kind": "pulse"},)).start()
    began = time.monotonic()
    assert ends[1].poll(30.0)
    assert time.monotonic() - began < 30.0
    assert ends[1].receive()[0] == {"kind": "pulse"}
