"""Model cards: numbers stand there only with the hash of their artefact, and what is missing is named."""

import json

import pytest
import torch

from worldrl.cli import main
from worldrl.core.errors import ArtefactError
from worldrl.core.storage.artefact import artefact_hash, write_artefact
from worldrl.evaluation.report.card import card, write_card

RATE = {"k": 6, "n": 10, "rate": 0.6, "lo": 0.31, "hi": 0.83, "method": "wilson"}


def made(folder, kind="policy", config=None, parents=()):
    write_artefact(folder, kind=kind, config=config or {"width": 4}, tensors={"w": torch.zeros(2)}, parents=parents)
    return folder


def result(tmp_path, metrics, **more):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"schema": 1, "command": "evaluate", "seed": 3, "metrics": metrics, **more}))
    return path


def test_a_number_stands_with_its_interval_and_its_source(tmp_path):
    folder = made(tmp_path / "policy")
    metrics = {"policy_hash": artefact_hash(folder), "success": RATE, "tasks": {"Pick": {**RATE, "k": 5, "rate": 0.5}}}
    text = card(folder, [result(tmp_path, metrics, protocol_hash="abc", hardware="Two cores", device="cpu", wall_s=61)])
    for row in (
        "| success in the simulator | 60\u202f% [31, 83] (6/10) |",
        "| Pick | 50\u202f% [31, 83] (5/10) |",
        "| command | worldrl evaluate, seed 3 |",
        "| hash of its protocol | abc |",
        "| hardware | Two cores, cpu |",
    ):
        assert row.replace("\u202f", "\u00a0") in text or row in text
    assert "Not measured" not in text
    assert "Not measured: success in the simulator." in card(folder, [])


@pytest.mark.parametrize(("own", "rate"), [("a_hash", "40"), ("b_hash", "60")])
def test_before_and_after_are_not_confused(tmp_path, own, rate):
    folder = made(tmp_path / "policy")
    paired = {"n": 10, "diff": 0.2, "lo": -0.1, "hi": 0.5}
    sides = {"before": {**RATE, "k": 4, "rate": 0.4}, "after": RATE, "paired": paired, "a_hash": "0", "b_hash": "1"}
    text = card(folder, [result(tmp_path, {"comparison": {**sides, own: artefact_hash(folder)}})])
    assert f"| success in the simulator | {rate}" in text
    assert ("paired (points)" in text) == (own == "b_hash")


def test_a_result_of_another_artefact_is_refused(tmp_path):
    folder = made(tmp_path / "policy")
    with pytest.raises(ArtefactError, match=r"result\.json: this result of 'evaluate' measures another artefact"):
        card(folder, [result(tmp_path, {"policy_hash": "0" * 64, "success": RATE})])


def test_a_world_models_gaps_and_gates_are_named(tmp_path):
    folder = made(tmp_path / "world_model", kind="video-world-model")
    value = {"n": 9, "value": 27.5, "lo": 26.5, "hi": 28.5}
    metrics = {"world_model": {"hash": artefact_hash(folder)}, "closed_loop.psnr@32": value, "recall": RATE}
    text = card(folder, [result(tmp_path, metrics)])
    assert "| image similarity after 32 control steps (dB) | 27.5 [26.5, 28.5], n = 9 |" in text
    assert "Not measured: image similarity after 8 control steps (dB); " in text
    gate = {
        "name": "psnr",
        "meaning": "image error",
        "value": 20.0,
        "lo": None,
        "hi": None,
        "threshold": 22.0,
        "passed": False,
    }
    text = card(folder, [result(tmp_path, {"hash": artefact_hash(folder), "gates": [gate]})])
    assert "| gate psnr: image error | 20, failed, needs 22 |" in text


def test_what_a_stranger_wrote_stays_a_word_in_a_table(tmp_path):
    config = {"name": "a | b\n\n# Title <script>alert(1)</script> [x](javascript:1)"}
    parents = [{"path": "/somebody/secret/runs/data|set", "hash": "0" * 64}]
    text = card(made(tmp_path / "policy", config=config, parents=parents), [])
    assert "\n# Title" not in text
    assert "<" not in text.replace("<br>", "")
    assert "](" not in text
    assert "somebody" not in text
    assert "runs/data set" in text


def test_a_card_leaves_the_hash_as_it_was_and_can_be_written_again(tmp_path):
    folder = made(tmp_path / "policy")
    before = artefact_hash(folder)
    first = write_card(folder).read_text()
    assert write_card(folder).read_text() == first
    assert artefact_hash(folder) == before


def test_the_command_writes_it_and_names_what_is_wrong(tmp_path, capsys):
    folder = made(tmp_path / "policy")
    assert main(["card", str(folder)]) == 0
    assert artefact_hash(folder) in (folder / "README.md").read_text()
    assert main(["card", str(tmp_path / "nowhere")]) == 2
    assert main(["card", str(folder), "push=nobody"]) == 2
    assert "a model of the hub is written OWNER/NAME" in capsys.readouterr().err
    other = made(tmp_path / "batch", kind="imagined-successes")
    assert main(["card", str(other)]) == 2
