import enum
import json
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError, RunDirectoryError, SettingError
from worldrl.core.storage.jsonfile import difference, digest, plain, read_json, write_json


def test_every_finite_float_survives(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**64, 2000, dtype=np.uint64)
    floats = [x for x in bits.view(np.float64).tolist() if math.isfinite(x)]
    write_json(tmp_path / "x.json", {"floats": floats})
    assert read_json(tmp_path / "x.json")["floats"] == floats


def test_plain_converts_what_has_one_meaning():
    value = OrderedDict(a=(1, np.float32(0.5)), b=np.int64(3), c=torch.tensor(True), d=None, e="ü")
    assert plain(value, where="x") == {"a": [1, 0.5], "b": 3, "c": True, "d": None, "e": "ü"}
    assert plain({"a": math.inf}, where="x", nonfinite="null") == {"a": None}


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, math.nan]}, r"x.a\[1\]: nan is not a finite number"),
        ({"a": np.float32(math.inf)}, r"x.a: inf is not a finite number"),
        ({"a": {3: 1}}, r"x.a: key 3 is int"),
        ({"a": b"bytes"}, r"x.a: bytes is not a JSON value"),
        ({"a": np.zeros(3)}, r"x.a: ndarray is not a JSON value"),
        ({"a": {1, 2}}, r"x.a: set is not a JSON value"),
        ({"a": Colour.RED}, r"x.a: Colour is not a JSON value"),
    ],
)
def test_plain_names_what_it_refuses(value, message):
    with pytest.raises(SettingError, match=message):
        plain(value, where="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ('{"a": 1, "a": 2}', "key 'a' appears twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ("[1]", "expected a JSON object, found list"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": 1', "not valid JSON"),
    ],
)
def test_damaged_files_are_named(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ArtefactError, match=rf"x.json: .*{message}"):
        read_json(tmp_path / "x.json", error=ArtefactError)


def test_undecodable_missing_and_folder(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(RunDirectoryError, match="not valid JSON"):
        read_json(tmp_path / "x.json")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        read_json(tmp_path / "none.json")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        read_json(tmp_path)


def test_a_refused_value_leaves_the_file_as_it_was(tmp_path):
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(RunDirectoryError, match=r"x.json.a: ndarray"):
        write_json(tmp_path / "x.json", {"a": np.zeros(2)})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}


def test_digest_is_of_the_value():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest([1, 2]) != digest([2, 1])
    assert len({digest(x) for x in (1, 1.0, "1", True, None, [], {})}) == 7


def test_difference_in_words():
    assert difference({"a": {"b": 1}, "c": []}, {"c": [], "a": {"b": 1}}) == ""
    assert difference({"a": {"b": 1}}, {"a": {"b": True}}) == "a.b: 1 -> True"
    assert difference({"a": {}}, {"a": {"b": 1}}) == "a: {} -> (absent), a.b: (absent) -> 1"
