"""Help pages of commands with many settings.

Unit under test: `worldrl.usage.fold`, `chosen`, and `worldrl COMMAND --help [GROUP|all]`.
"""

import re

import pytest

from worldrl.cli import main
from worldrl.commands import COMMANDS
from worldrl.usage import MOST_ROWS, fold


def listed(text: str) -> list[str]:
    return re.findall(r"^  ([a-z][\w.]*(?:\.\*)?)  ", text, flags=re.MULTILINE)


def test_the_largest_groups_are_folded_first_and_no_more_than_needed() -> None:
    keys = ["a", *(f"b.{n}" for n in range(5)), *(f"c.d.{n}" for n in range(3))]
    assert fold(keys, most=9) == {}
    assert fold(keys, most=8) == {"b": 5}
    assert fold(keys, most=3) == {"b": 5, "c": 3}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_help_page_is_short_and_all_lists_the_rest(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    short = listed(capsys.readouterr().out)
    assert len(short) <= MOST_ROWS + 1  # the preset is one more
    assert main([command, "--help", "all"]) == 0
    every = listed(capsys.readouterr().out)
    folded = tuple(key.removesuffix("*") for key in short if key.endswith(".*"))
    assert set(every) - {key for key in every if key.startswith(folded)} == set(short) - {f"{g}*" for g in folded}
    for group in folded:
        assert main([command, "--help", group.rstrip(".")]) == 0
        assert listed(capsys.readouterr().out) == [key for key in every if key.startswith(group)]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["improvemet"], "no such group"), (["improvement", "wan"], "give one group")],
)
def test_a_group_that_is_not_there_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train-vla", "--help", *words]) == 2
    assert message in capsys.readouterr().err
