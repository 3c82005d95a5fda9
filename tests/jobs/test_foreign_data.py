"""Units under test: ``train-policy`` and ``train-world-model`` on LeRobotDataset v3 folders that others made, from the command line."""

import json

import pytest

from worldrl.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory, libero_demo, publish_lerobot):
    """Films in LIBERO's published layout, larger than what is trained on."""
    demos = [libero_demo(n, rows=24, size=32, sentence=("close it", "open it")[n % 2]) for n in range(6)]
    return publish_lerobot(tmp_path_factory.mktemp("published") / "libero", demos, films=(3, 3), files=(4, 2))


def run(command, folder, run_dir, *tokens):
    return main([command, "preset=tiny", f"data=[{folder}]", f"run_dir={run_dir}", *tokens])


def test_a_policy_is_cloned_from_it_and_the_result_says_what_was_assumed(tmp_path, folder, capsys):
    (folder / "worldrl.json").write_text('{"success": "every episode"}')
    assert run("train-policy", folder, tmp_path / "run", "model.image_size=16") == 2
    said = capsys.readouterr().err
    assert "32 by 32 pixels, model.image_size is 16; give model.image_size=32, or" in said
    assert "assumed: a row shows what its action was decided on" in said
    (folder / "worldrl.json").write_text('{"image_size": 16, "success": "every episode"}')
    assert run("train-policy", folder, tmp_path / "run", "model.image_size=16", "training.steps=4") == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert metrics["episodes"] + metrics["held_out_episodes"] == 6
    assert any("its action was decided on" in text for text in metrics["assumed"])


def test_a_world_model_learns_from_it(tmp_path, folder):
    (folder / "worldrl.json").write_text('{"image_size": 64, "success": "every episode"}')
    assert run("train-world-model", folder, tmp_path / "run", "start=scratch", "gates=warn") == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert any("20 a second, though info.json says 10 fps" in text for text in metrics["assumed"])
