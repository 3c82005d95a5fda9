"""Help pages of commands with many settings.

Unit under test: `worldrl.usage.fold`, `chosen`, and `worldrl COMMAND --help [GROUP|all]`.
"""

import re

import pytest

from worldrl.cli import main
from worldrl.commands import COMMANDS
from worldrl.core.errors import SettingError
from worldrl.settings import compose
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


def test_a_group_without_effect_at_the_defaults_is_one_line_that_says_what_it_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["align-world-model", "--help"]) == 0
    text = capsys.readouterr().out
    assert "methods.sol_rl.*" in text
    assert "only with method=sol_rl" in text
    assert "methods.sol_rl.nft" not in text
    assert "methods.flow_grpo.denoising" in text


@pytest.mark.parametrize(
    ("command", "given", "needed"),
    [
        ("train-vla", {"wan.training.batch": "2"}, {"backbone": "wan"}),
        ("train-vla", {"improvement.algorithm": "self_training", "improvement.grpo.groups": "4"}, {"improvement.algorithm": "grpo"}),
        ("train-vla", {"scratch.training.steps": "7"}, {"start": "scratch"}),
        ("train-vla", {"improvement.trust.idm.training.steps": "7"}, {"improvement.trust.confidence_score": "motion_agreement"}),
        ("train-policy", {"fine_tuning.batch_size": "7"}, {"start": "folder"}),
        ("train-offline", {"data": "d", "diffusion.training.steps": "7"}, {"world": "diffusion"}),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_refused_and_taken_where_it_has_one(
    command: str, given: dict[str, str], needed: dict[str, str]
) -> None:
    key, (name, value) = list(given)[-1], *needed.items()
    schema = COMMANDS[command].schema(given)
    wanted = {"folder": f"another {name}", "grpo": rf"{name}=grpo\|both"}.get(value, f"{name}={value}")
    with pytest.raises(SettingError, match=rf"^{key} has no effect with {name}=.*; leave it out, or give {wanted}$"):
        compose(command, schema, given)
    compose(command, COMMANDS[command].schema({**given, **needed}), {**given, **needed})
