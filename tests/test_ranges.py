"""Every numeric setting of every command has a range, every preset is inside, and nothing outside is taken."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from worldrl.cli import COMMANDS, main
from worldrl.core.errors import SettingError
from worldrl.ranges import LARGE, RANGES, Range, check_range, range_of
from worldrl.settings import compose, compose_plain, presets_of
from worldrl.text_items import text_items
from worldrl.usage import value_at
from worldrl.workers.link.boot import load_file

edges = load_file("setting_edges", Path(__file__).with_name("setting_edges.py"))
VARIANTS, numeric, fill = edges.VARIANTS, edges.numeric, edges.fill
IDS = [" ".join((name, *given.values())) for name, given in VARIANTS]


@pytest.mark.parametrize(("name", "given"), VARIANTS, ids=IDS)
def test_every_number_has_a_range_and_every_preset_is_inside(name: str, given: dict[str, str]) -> None:
    rows = list(numeric(name, given))
    assert [row.key for row in rows if range_of(row.key, name) is None] == []
    for preset in presets_of(name):
        plain = compose_plain(name, COMMANDS[name].schema(given), fill(name, given, preset))
        for row in rows:
            check_range(row.key, value_at(plain, row.key), name)


def outside(allowed: Range) -> Iterator[float]:
    yield from (math.nan, math.inf, -math.inf, 1e300, -1e300)
    yield from (allowed.low - 1, allowed.high + 1)
    yield from ([allowed.low] if allowed.above else [])
    yield from ([allowed.high] if allowed.below else [])


@pytest.mark.parametrize(("name", "given"), VARIANTS, ids=IDS)
def test_numbers_outside_are_refused_with_the_settings_name_and_range(name: str, given: dict[str, str]) -> None:
    for row in numeric(name, given):
        allowed = range_of(row.key, name)
        assert allowed is not None
        for value in outside(allowed):
            with pytest.raises(
                SettingError, match=rf"^{row.key} must be .*got .*; give {row.key}=\.\.\. in that range$"
            ):
                check_range(row.key, [value], name)


SPECIAL = (
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "1000000000000",
    "''",
    "[]",
    "null",
    "true",
    "x",
    "${now:%Y}",
    "1_0",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_texts_compose_or_are_refused_in_one_line(name: str) -> None:
    """Numeric settings of each command with negative, zero, huge, NaN and odd texts: composed, or one SettingError."""
    rows = list(numeric(name, {}))
    for number, row in enumerate(rows[:: max(1, len(rows) // 10)]):
        for text in SPECIAL[number % 3 :: 3]:
            line = fill(name, {}, "tiny" if "tiny" in presets_of(name) else "cpu") | {row.key: text}
            try:
                settings = compose(name, COMMANDS[name].schema({}), line)
            except SettingError as error:
                assert "\n" not in str(error)  # noqa: PT017  (composing is right, too)
                continue
            allowed, value = range_of(row.key, name), settings
            for part in row.key.split("."):
                value = getattr(value, part)
            assert allowed is not None
            assert value is None or isinstance(value, list | tuple | dict) or value in allowed


def test_training_uphill_is_refused(tmp_path, capsys) -> None:
    """``clip_norm=-1`` turned the gradient around: the loss rose from 3.5 to 420,000."""
    for wrong in (
        "training.clip_norm=-1",
        "training.clip_norm=0",
        "training.learning_rate=-1",
        "model.blocks=-1",
        "seed=-1",
    ):
        assert main(["train-policy", "preset=tiny", f"run_dir={tmp_path / 'run'}", wrong]) == 2
        assert f"worldrl: {wrong.partition('=')[0]} must be" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_empty_run_dir_is_refused(capsys) -> None:
    assert main(["collect", "preset=tiny", "run_dir="]) == 2
    assert "run_dir must name a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[2026_11_25]", ["2026_11_25"]), ("[1e3]", ["1e3"]), ("[true,null]", ["true", "null"]), ("[数据]", ["数据"]),
        ("[a=b]", ["a=b"]), ("[c#1]", ["c#1"]), ("[x(1),y{2}]", ["x(1)", "y{2}"]), ("[a, b c ]", ["a", "b c"]),
        ("['a,b',\"c\"]", ["a,b", "c"]), ("[]", []), ("[${oc.env:HOME}]", ["${oc.env:HOME}"]), ("[state.0:14]", ["state.0:14"]),
        ("[x[0:14]]", ["x[0:14]"]), ("[/home" "/josé/a b]", ["/home" "/josé/a b"]), ("[दाल]", ["दाल"]), ("[it's]", ["it's"]),
    ],
)  # fmt: skip
def test_items_of_a_list_of_text_are_taken_as_typed(text: str, items: list[str]) -> None:
    assert text_items("data", text) == items
    if items:
        assert compose("train-policy", COMMANDS["train-policy"].load()[1], {"data": text}).data == items


def test_ranges_in_words() -> None:
    assert str(RANGES["steps"]) == "at least 0"
    assert str(RANGES["ema_decay"]) == "in [0, 1)"
    assert str(RANGES["clip_norm"]) == "above 0"
    assert str(RANGES["ceiling"]) == "any number"
    with pytest.raises(SettingError, match=r"training.steps must be at least 0, and at most 1e\+09, got 1000000000000"):
        check_range("training.steps", 10**12)
    assert all(r.high < LARGE or r.high >= 65_535 or r.high in (10_000, 4096) for r in RANGES.values())


@pytest.mark.parametrize(
    ("key", "value", "cost"),
    [
        ("training.steps", 10**12, "31.7 years and 8,000 GB"),
        ("workers", 10**12, "50,000,000,000 GB"),
        ("model.width", 10**6, "4,000 GB"),
        ("model.blocks", 10**12, "1,000,000 GB"),
        pytest.param("training.steps", 10**400, "31,688,087.8 years and 8,000,000,000 GB", id="beyond-floats"),
    ],
)
def test_an_absurd_request_is_answered_with_its_cost(key, value, cost):
    with pytest.raises(SettingError, match=rf"got {value}, which would take at least {cost} \("):
        check_range(key, value)


@pytest.mark.parametrize(("key", "value"), [("training.steps", -1), ("seed", 2**70), ("training.learning_rate", 1e300)])
def test_other_refusals_name_no_cost(key, value):
    with pytest.raises(SettingError) as caught:
        check_range(key, value)
    assert "would take" not in str(caught.value)
