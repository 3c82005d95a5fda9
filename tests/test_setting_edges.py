"""A sample of ``tests/setting_edges.py``: each command refuses numbers outside their ranges in one line, before its job."""

from pathlib import Path

import pytest

from worldrl.cli import USER_ERROR
from worldrl.ranges import range_of
from worldrl.reproductions.catalogue import CATALOGUE, changed
from worldrl.workers.link.boot import load_file

edges = load_file("setting_edges", Path(__file__).with_name("setting_edges.py"))
SAMPLED = 3


@pytest.mark.parametrize(("name", "given"), edges.VARIANTS, ids=[" ".join((n, *g.values())) for n, g in edges.VARIANTS])
def test_a_sample_outside_is_refused(name: str, given: dict[str, str]) -> None:
    lines = list(edges.lines_outside(name, given))
    _, wrong = edges.check_outside(name, given, every=max(1, len(lines) // SAMPLED))
    assert wrong == []


@pytest.mark.parametrize(("name", "given"), edges.VARIANTS, ids=[" ".join((n, *g.values())) for n, g in edges.VARIANTS])
def test_the_ends_that_help_states_are_taken(name: str, given: dict[str, str]) -> None:
    """Ninety settings stated "at least 0" and the like, and refused 0."""
    assert edges.check_stated(name, given)[1] == []


def test_a_narrower_rule_is_found() -> None:
    rule = edges.OTHER_RANGE
    assert all(
        map(
            rule.search,
            ("steps must be positive, got 0", "a: must be in [0, 1), got 1.0", "b must be at least 2, got 1"),
        )
    )
    assert not any(
        map(
            rule.search,
            (
                "must be below steps=10, got 3",
                "must be in [0, steps=2), got 1",
                "must divide width 16, got 5",
                "must be above 0 and below sigma_start",
            ),
        )
    )


def test_what_is_taken_is_found() -> None:
    with edges.without_jobs():
        assert edges.refused(["doctor"], "seed") == "taken"
        assert "seed" in edges.refused(["train-policy", "preset=tiny", "seed=-1"], "training.steps")
        assert edges.refused(["train-policy", "preset=tiny", "seed=-1"], "seed") == ""


@pytest.mark.parametrize(
    ("code", "said", "what"),
    [
        (0, "", "runs"), (None, "", "still running"), (USER_ERROR, "worldrl: seed must be 1\n", "refused: worldrl: seed must be 1"),
        (1, "Traceback (most recent call last):\nKeyError: 1\n", "WRONG 1: KeyError: 1"), (-9, "", "WRONG -9: "),
        (USER_ERROR, "worldrl: a\nworldrl: b\n", "WRONG 2: worldrl: a\nworldrl: b\n"),
    ],
)  # fmt: skip
def test_verdicts(code: int | None, said: str, what: str) -> None:
    assert edges.verdict(code, said, 1.0) == what


def test_the_ends_of_a_command_run_or_are_refused(tmp_path) -> None:
    found = edges.check_ends(tmp_path, "doctor", {}, 60.0)
    assert len(found) == 8
    assert [text for text in found.values() if text.startswith("WRONG")] == []


def test_numbers_of_an_effect_have_ranges_that_hold_at_every_scale() -> None:
    """``reproduce change.NAME``: ``change.updates=-1`` and ``change.tau=nan`` were taken."""
    for entry in CATALOGUE.values():
        for settings in entry.load().SETTINGS.values():
            numbers = {name: value for name, value in vars(settings).items() if not isinstance(value, str)}
            for name, value in numbers.items():
                allowed = range_of(f"change.{name}")
                assert allowed is not None, name
                assert value in allowed, (name, value)
            assert changed(settings, numbers) == settings
    assert len({token.partition("=")[0] for _, token in edges.effect_tokens()}) > 80
