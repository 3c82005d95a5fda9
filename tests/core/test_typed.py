"""Units under test: ``core/storage/typed.py``, and the records of episodes that it reads."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.typed import LARGEST, from_plain
from worldrl.data.lerobot.format import EpisodeRecord
from worldrl.data.lerobot.stats import column_stats, merge_stats


@dataclass(frozen=True)
class Inner:
    number: int = 0


@dataclass(frozen=True)
class Outer:
    inner: Inner | None = None
    rate: float = 0.0
    rest: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("number", [LARGEST + 1, -(10**20), 10**400])
@pytest.mark.parametrize("place", ["rate", "rest"])
def test_integers_that_no_field_means_are_refused_wherever_they_stand(number: int, place: str) -> None:
    value = {"rate": number} if place == "rate" else {"rest": {"a": [0.5, {"b": number}]}}
    with pytest.raises(SettingError, match=rf"file: {place}.*: must be at most 2\^64"):
        from_plain(Outer, value, where="file")


@pytest.mark.parametrize("number", [LARGEST, 0, 0.00012345678901234567, 1.2345678901234567e-300, 1e300, 1e22])
def test_numbers_with_many_digits_are_taken(number: float) -> None:
    assert from_plain(Outer, {"rest": {"a": [number]}}, where="file").rest == {"a": [number]}


def test_unknown_fields_are_refused_at_every_depth() -> None:
    assert from_plain(Outer, {"inner": {"number": 1}}, where="file").inner == Inner(1)
    for value in ({"innr": {}}, {"inner": {"nummer": 1}}):
        with pytest.raises(SettingError, match=r"unknown field '(innr|nummer)'"):
            from_plain(Outer, value, where="file")


RECORD: dict[str, Any] = {
    "index": 0, "length": 2, "first_row": 0, "task": "a", "instruction": "b", "task_index": 0, "terminated": False,
    "truncated": True, "success": False, "meta": {}, "sha256": "0", "content": "1", "stats": {"a": {"min": [0.5]}},
}  # fmt: skip


def test_a_record_keeps_its_statistics_and_refuses_what_is_no_object() -> None:
    assert EpisodeRecord.from_json(RECORD).to_json() == RECORD
    for wrong in ([], "x", 5, None):
        with pytest.raises(SettingError, match="record: stats: must be an object"):
            EpisodeRecord.from_json(RECORD | {"stats": wrong})
    with pytest.raises(SettingError, match="record: length"):
        EpisodeRecord.from_json(RECORD | {"length": "2"})


@pytest.mark.parametrize(
    "wrong", [{}, {"a": 5}, {"a": {"min": [1]}}, {"a": {"count": ["x"]}}, {"a": {"count": [10**400]}}, {"b": {}}]
)
def test_damaged_statistics_are_one_error_when_they_are_merged(wrong: dict[str, Any]) -> None:
    good = {"a": column_stats(np.ones((3, 1)))}
    assert merge_stats([good, good])["a"]["count"] == [6]
    with pytest.raises(ArtefactError, match="statistics of the episodes do not fit together"):
        merge_stats([good, wrong])
