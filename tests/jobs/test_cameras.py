"""Several cameras and the measured state through the commands, as a user gives them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.policy.result import EvalResult
from worldrl.jobs.policy.train_policy import TrainPolicySettings
from worldrl.jobs.policy.train_policy import main as train_policy
from worldrl.jobs.vla.plan import check_policy_fits
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.world_model.policy_rollouts import check_policies
from worldrl.recipes.world_model.start import check_start, check_wan_start
from worldrl.recipes.world_model.wan_settings import WanSettings
from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND
from worldrl.rollout.real.embedded import embedded_cameras
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training_config import WorldModelTraining
from worldrl.world_models.wan.config import WanConfig
from worldrl.world_models.wan.training import WanTraining

SCRIPT = Path(__file__).parent / "vla_script.py"
CAMERAS = ["image", "wrist_image"]
SMALL = (
    "cameras=[image,wrist_image]", "state=measured", "rounds=1", "tasks=[PickRedCube]", "demonstrations=1", "cloning.steps=3",
    "cloning.checkpoint_every=1", "collection.policy_episodes=1", "scratch.expert_episodes=3", "scratch.training.codec_steps=2",
    "scratch.training.steps=2", "improvement.self_training.rollouts=4", "improvement.starts_per_task=1", "evaluation.episodes=1",
    "evaluation.verify=1",
)  # fmt: skip


@pytest.fixture
def policy_folder(tmp_path):
    """A tiny policy of two cameras and the measured state."""
    sizes = {"image_size": 16, "width": 8, "blocks": 1, "keypoints": 4, "text_width": 8, "hidden": 16}
    ones, state = torch.ones(7), torch.ones(8)
    statistics = PolicyStatistics(-ones, ones, 0 * ones, ones, state_mean=0 * state, state_std=state)
    with initial_weights(0, "policy"):
        policy = TokenPolicy(TokenPolicyConfig(**sizes, cameras=CAMERAS, state="measured"), statistics)
    policy.save(tmp_path / "policy")
    return tmp_path / "policy"


def test_the_loop_of_two_views_is_killed_and_ends_with_its_report(run_python, tmp_path):
    run = tmp_path / "run"
    killed = run_python(SCRIPT, run, "finished:round-1-2-world-model", *SMALL, cwd=tmp_path)
    assert killed.returncode == -9, killed.stderr
    ended = run_python(SCRIPT, run, "none", *SMALL, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert (run / "report.html").exists()
    gates = metrics["rounds"][0]["gates"]
    assert "view_psnr" in {gate["name"] for gate in gates["gates"]}
    model, policy = VideoWorldModel.load(run / metrics["world_model"]), TokenPolicy.load(run / metrics["policy"], "cpu")
    assert model.more == policy.more == ("wrist_image", "state")
    assert model.observation == policy.observation
    for stage in ("01-demonstrations", "round-1-1-practice"):
        assert EpisodeDataset.open(run / "stages" / stage / "dataset").cameras == ("scene", "wrist")
    assert EvalResult.load(run / "stages" / "03-before" / "evaluation").protocol.cameras == ("scene", "wrist")


def test_policy_and_world_model_that_observe_other_things_are_refused_before_anything_is_recorded(
    policy_folder, world_model
):
    with pytest.raises(SettingError, match=r"(?s)takes.*shows.*wrist_image 16x16 +\| -.*state \(8\) +\| -"):
        check_policy_fits(TrainVlaSettings(supervised=str(policy_folder)))
    model = replace_chunk(world_model)
    with pytest.raises(SettingError, match=r"(?s)the world model shows.*wrist_image 16x16 +\| -"):
        check_policies([str(policy_folder)], model)


def replace_chunk(model):
    """The one-view model with the policy's chunk length, as far as the check looks."""
    config = VideoWorldModelConfig.from_json(
        {**model.config.to_json(), "dynamics": {**model.config.to_json()["dynamics"], "chunk_length": 8}}
    )
    with initial_weights(0, "world-model"):
        return VideoWorldModel(config, model.embodiment)


def test_one_setting_gives_policy_and_world_model_the_same_inputs():
    settings = TrainVlaSettings(cameras=CAMERAS, state="measured")
    for part in (settings.policy, settings.world_model, settings.wan.model):
        assert (part.cameras, part.state) == (CAMERAS, "measured")
    with pytest.raises(SettingError, match=r"policy\.cameras.*differ from cameras=\[image\]"):
        TrainVlaSettings(policy=TokenPolicyConfig(cameras=CAMERAS))
    with pytest.raises(SettingError, match=r"wan\.model\.cameras.*differ from cameras=\[image\]"):
        TrainVlaSettings(wan=WanSettings(model=WanConfig(cameras=CAMERAS)))


def test_data_without_the_camera_is_refused_with_both_lists(push_dataset, tmp_path):
    settings = TrainPolicySettings(
        run_dir=str(tmp_path / "run"), data=[str(push_dataset)], model=TokenPolicyConfig(image_size=16, cameras=CAMERAS)
    )
    with pytest.raises(
        SettingError, match=r"no wrist_image\n  the model takes image, wrist_image \| the data has image"
    ):
        train_policy(settings)
    assert not (tmp_path / "run").exists()


def test_added_views_must_be_trained():
    config = VideoWorldModelConfig(cameras=CAMERAS, state="measured")
    check_start("bundled", config, WorldModelTraining(steps=1))
    with pytest.raises(SettingError, match=r"training\.steps=0 leaves untrained"):
        check_start("bundled", config, WorldModelTraining(steps=0))


def test_views_added_to_a_wan_model_must_be_trained(make_wan, wan_config, tmp_path):
    make_wan().save(tmp_path / "wan")
    config = wan_config(cameras=CAMERAS, state="measured")
    check_wan_start(str(tmp_path / "wan"), WanSettings(model=config, training=WanTraining(steps=1)))
    with pytest.raises(SettingError, match=r"training\.steps=0 leaves untrained"):
        check_wan_start(str(tmp_path / "wan"), WanSettings(model=config, training=WanTraining(steps=0)))
    make_wan(cameras=CAMERAS).save(tmp_path / "two")
    other = WanSettings(model=wan_config(cameras=["image", "left_image"]), training=WanTraining(steps=1))
    with pytest.raises(SettingError, match=r"not made for wan\.model\.cameras"):
        check_wan_start(str(tmp_path / "two"), other)


def test_start_states_show_what_a_model_imagines():
    layout = {"seed": 7, "memory_frames": 2, "image_size": 16}
    (plain,) = EMBEDDED_BACKEND.starts(["PickRedCube"], 1, **layout)
    (two,) = EMBEDDED_BACKEND.starts(["PickRedCube"], 1, **layout, more=("wrist_image", "state"))
    assert plain.state is None
    np.testing.assert_array_equal(two.reference[:16], plain.reference)
    assert two.memory.shape == (2, 32, 16, 3)
    assert two.state.shape == (8,)
    assert np.abs(two.state[:3] - two.command[:3]).max() < 0.01
    assert embedded_cameras(["BimanualLiftPot"], ["image", "left_wrist_image"]) == ("head", "left_wrist")
    with pytest.raises(SettingError, match="has image, wrist_image, got side_image"):
        embedded_cameras(["PickRedCube"], ["image", "side_image"])


def test_headers_and_folders_describe_one_observation(push_dataset):
    header = EpisodeDataset.open(push_dataset).header
    assert header.observation.to_json()["cameras"] == {"image": {"height": 16, "width": 16}}
    assert header.observation.state.names[:3] == ("x", "y", "z")
    two = replace(header, cameras=("wrist", "scene"))
    assert list(two.observation.cameras) == ["wrist_image", "image"]
