"""Units under test: ``train-policy`` and ``train-world-model`` on LeRobotDataset v3 folders that others made, from the command line."""

import json
from dataclasses import replace

import pytest
import torch

from worldrl.cli import main
from worldrl.core.image_fit import Fit, ImageFit
from worldrl.jobs.world_model.train_world_model import TrainWorldModelSettings, wanted_images
from worldrl.recipes.world_model.start import images_of, starting_world_model
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.world_models.video.config import CodecConfig, VideoWorldModelConfig


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


def test_a_fit_is_kept_with_the_model_and_used_again(tmp_path, folder, robot):
    (folder / "worldrl.json").write_text('{"success": "every episode"}')
    assert run("train-policy", folder, tmp_path / "p", "model.image_size=16", "model.fit=crop", "training.steps=4") == 0
    facts = policy_facts(tmp_path / "p" / "policy")
    assert [(row["fit"], row["image_size"]) for row in facts.trained_on["recorded"]] == [("crop", [16, 16])]
    settings = TrainWorldModelSettings(model=VideoWorldModelConfig(codec=CodecConfig(fit="letterbox")))
    assert wanted_images(settings) == ImageFit(64, Fit.letterbox)  # the bundled weights keep their 64 pixels
    model = starting_world_model("bundled", settings.model, robot, seed=0, device=torch.device("cpu"))
    model.save(tmp_path / "w")
    assert images_of(str(tmp_path / "w")) == ImageFit(64, Fit.letterbox)
    assert (
        wanted_images(replace(settings, start=str(tmp_path / "w"), model=VideoWorldModelConfig())).fit is Fit.letterbox
    )


def test_a_world_model_learns_from_it(tmp_path, folder):
    (folder / "worldrl.json").write_text('{"image_size": 64, "success": "every episode"}')
    assert run("train-world-model", folder, tmp_path / "run", "start=scratch", "gates=warn") == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert any("20 a second, though info.json says 10 fps" in text for text in metrics["assumed"])
