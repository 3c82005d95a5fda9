import numpy as np
import pytest

from worldrl.workers.wire import decode, encode


def test_round_trip_keeps_bits_shapes_and_dtypes():
    arrays = {
        "frames": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "action": np.array([[np.pi, -0.0]], np.float32),
        "contact": np.array([True, False]),
        "empty": np.zeros((0, 7), np.float32),
        "transposed": np.arange(6.0).reshape(2, 3).T,
    }
    header, back = decode(encode({"kind": "episode", "text": "π"}, arrays))
    assert header == {"kind": "episode", "text": "π"}
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
        assert back[name].flags.writeable  # torch.from_numpy warns otherwise


def test_objects_do_not_travel():
    with pytest.raises(ValueError, match="OBJECT"):
        decode(encode({}, {"code": np.array([print], dtype=object)}))
