"""Advice and errors name settings: what they name must be a setting of the command, or nobody can follow them."""

import re

import pytest

from worldrl.aliases import HINTS
from worldrl.cli import COMMANDS, main
from worldrl.core.errors import SettingError
from worldrl.evaluation.world_model.gates import ADVICE, ELSEWHERE
from worldrl.settings import as_plain, compose
from worldrl.usage import describe

KEY = re.compile(r"\b(?:[a-z_]+\.[a-z_.]*[a-z_]|target_precision)\b")
LOOP_ONLY = re.compile(r"train-vla: ([^);]*)")
"""What a piece of advice says to whoever runs the loop, and to nobody else."""


def schema(command):
    return COMMANDS[command].load()[1]


def composes(command, key):
    """Give a setting its own default on the command line; KeyError where there is none of that name."""
    row = {row.key: row for row in describe(schema(command))}[key]
    needed = {one.key: one.values[0] for one in row.conditions if not one.other}  # or it would have no effect
    default = as_plain(row.default)
    compose(command, schema(command), {key: "null" if default is None else str(default), **needed})


@pytest.mark.parametrize("gate", list(ADVICE))
def test_every_setting_that_a_failed_gate_advises_exists(gate):
    own = KEY.findall(LOOP_ONLY.sub("", ADVICE[gate]))
    for key in own:
        composes("train-world-model", key)
        composes("train-vla", key.replace("model.", "world_model.", 1) if key.startswith("model.") else key)
        if key.startswith(("training.", "model.")):
            composes("train-world-model", f"wan.{key}")
        if key.startswith("training."):
            composes("train-vla", f"scratch.{key}")
    loop = [key for part in LOOP_ONLY.findall(ADVICE[gate]) for key in KEY.findall(part)]
    for key in loop:
        composes("train-vla", key)
    assert own or loop
    assert "scratch.training.*" in ELSEWHERE


@pytest.mark.parametrize("command", list(HINTS))
def test_a_hint_names_a_setting_of_the_command_for_a_name_that_is_none(command):
    own = {row.key for row in describe(schema(command))}
    for key, (spelled, _) in HINTS[command].items():
        assert spelled in own
        assert key not in own
        with pytest.raises(SettingError, match=rf"{command} has no setting '{key}'; here it is called {spelled}="):
            compose(command, schema(command), {key: "x"})


def test_the_issues_spelling_of_the_main_job_is_answered(capsys):
    assert main(["train-vla", "suite=libero_goal", "policy=smolvla"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "train-vla has no setting 'policy'; here it is called supervised=: a lerobot policy such as SmolVLA is a local folder"
        in told
    )
    assert "hf download <user>/<policy> --local-dir FOLDER" in told
    assert (
        "a second camera or the measured state, as published ones do, can be measured (benchmark), not improved" in told
    )
    assert "policy.bins" not in told


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("train-world-model", {"training.bootstrap": "2"}),
        ("train-world-model", {"training.flow_map_rollout_steps": "0"}),
        ("train-world-model", {"training.outcome_dropout": "1"}),
        ("train-world-model", {"training.bootstrap_rows": "-1"}),
        ("train-world-model", {"training.bootstrap": "0.5", "training.unroll": "1"}),
        ("train-world-model", {"thresholds.recall": "80"}),
        ("train-vla", {"training.bootstrap": "2"}),
        ("train-vla", {"scratch.training.bootstrap": "2"}),
        ("train-vla", {"thresholds.precision": "2"}),
        ("train-vla", {"improvement.grpo.group_size": "1"}),
        ("train-vla", {"improvement.grpo.groups": "0"}),
        ("train-vla", {"improvement.grpo.keep_low": "0.95"}),
        ("restyle", {"image.segments": "0"}),
        ("restyle", {"image.texture": "-1"}),
    ],
    ids=str,
)
def test_an_error_names_the_setting_that_was_given(command, given):
    keys = {row.key for row in describe(schema(command))}
    with pytest.raises(SettingError) as caught:
        compose(command, schema(command), given)
    named = KEY.findall(str(caught.value))
    assert any(next(iter(given)).endswith(name) for name in named), str(caught.value)
    assert all(any(key == name or key.endswith(f".{name}") for key in keys) for name in named), str(caught.value)
