"""What commands that learn from several datasets refuse before anything is decoded, and that what they offer instead works."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.cli import USER_ERROR, main
from worldrl.core.errors import SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.world_model.rollout_error import replay, static_error
from worldrl.jobs.world_model import train_world_model
from worldrl.jobs.world_model.train_world_model import TrainWorldModelSettings
from worldrl.policies.token.policy import TokenPolicyConfig
from worldrl.recipes.training_data import note_events, offers, require_image_size
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training_config import WorldModelTraining

SMALL = WorldModelTraining(
    codec_steps=1, codec_batch=4, steps=1, batch=2, warmup=1, dtype="float32", unroll=2, outcome_steps=0
)


def write(folder, episodes, robot, **over):
    first = episodes[0]
    given = {"fps": robot.control_hz, "cameras": first.cameras, "image_size": first.frames.shape[2:4], **over}
    with LeRobotWriter(folder, embodiment=robot, **given) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return folder


@pytest.fixture
def other_robot(push_episode, robot, tmp_path):
    return write(tmp_path / "libero", [push_episode(3, 10)], replace(robot, position_scale=0.05, rotation_scale=0.5))


@pytest.mark.parametrize(
    "command", ["train-policy", "train-world-model", "train-idm", "align-world-model", "evaluate-world-model"]
)
def test_two_robots_in_one_training_are_refused(command, push_dataset, other_robot, tmp_path, capfd):
    start = ["start=bundled"] if command == "align-world-model" else []
    given = [f"data=['{other_robot}','{push_dataset}']", f"run_dir={tmp_path / 'run'}", *start]
    assert main([command, *given]) == USER_ERROR
    message = capfd.readouterr().err.strip().splitlines()[-1]
    assert message == (
        f"worldrl: data: {other_robot} and {push_dataset} cannot be used together, they differ in embodiment.position_scale: "
        "0.05 -> 0.02, embodiment.rotation_scale: 0.5 -> 0.1; give datasets of one robot"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ("train-policy data=[{}] model.image_size=32", "model.image_size is 32; give model.image_size=16, or record them"),
        ("train-world-model data=[{}]", "the size of start=bundled is 64; give start=scratch training.codec_steps=2000 model.codec.image_size=16, or record them again with image_size=64"),
        ("train-world-model data=[{}] start=scratch training.codec_steps=2", "model.codec.image_size is 64; give model.codec.image_size=16, or"),
        ("train-world-model data=[{}] start=scratch training.codec_steps=2 model.codec.patch=32", "model.codec.image_size is 64; record them again with image_size=64"),
        ("train-world-model data=[{}] backbone=wan start=scratch", "wan.model.codec.image_size is 256; record them again with image_size=256"),
        ("train-idm data=[{}] world_model=bundled", "the size of world_model=bundled is 64; record them"),
        ("align-world-model data=[{}] start=bundled", "the size of start=bundled is 64; record them"),
        ("imagine data={}", "the size of world_model=bundled is 64; record them"),
    ],
)  # fmt: skip
def test_images_of_another_size_are_refused(tokens, told, push_dataset, tmp_path, capfd):
    assert main([*tokens.format(push_dataset).split(), f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    message = capfd.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"worldrl: data: the images in {push_dataset} are 16 by 16 pixels, {told}")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_offers_are_sizes_that_the_model_takes(push_episode, robot, tmp_path):
    policy, world = TokenPolicyConfig(), VideoWorldModelConfig()
    larger = offers("model.image_size={side}", lambda side: replace(policy, image_size=side))
    assert (larger(96), larger(100)) == ("give model.image_size=96", None)
    codec = offers("x={side}", lambda side: replace(world, codec=replace(world.codec, image_size=side)))
    assert (codec(96), codec(100)) == ("give x=96", None)
    frames = np.zeros((11, 1, 48, 64, 3), np.uint8)
    wide = replace(push_episode(0, 10), frames=frames)
    for meta, mend in (
        ({}, "record them again with image_size=64"),
        ({"lerobot": {}}, r'write \{"image_size": 64, "fit": "letterbox"\} to .*/wide.*/worldrl\.json'),
    ):
        folder = write(tmp_path / f"wide{len(meta)}", [replace(wide, meta=meta)], robot)
        with pytest.raises(SettingError, match=rf"are 64 by 48 pixels, model\.image_size is 64; {mend}$"):
            require_image_size(EpisodeDataset.open(folder), 64, "model.image_size", larger)


def test_an_inverse_dynamics_needs_sides_of_whole_cells(push_episode, robot, tmp_path, capfd):
    episode = replace(push_episode(0, 10), frames=np.zeros((11, 1, 20, 28, 3), np.uint8))
    folder = write(tmp_path / "odd", [episode], robot)
    assert main(["train-idm", f"data=['{folder}']", f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    assert "are 28 by 20 pixels, of which both sides must be multiples of 8; the nearest square is 16; record" in (
        capfd.readouterr().err
    )


@pytest.fixture
def still_gripper(push_episode, robot, tmp_path):
    return write(tmp_path / "still", [push_episode(n, 20, close_at=None) for n in range(6)], robot)


def test_without_gripper_changes_windows_start_anywhere_and_a_note_is_printed(
    still_gripper, push_dataset, world_model, tmp_path, capfd
):
    settings = TrainWorldModelSettings(
        run_dir=str(tmp_path / "run"),
        data=[str(still_gripper)],
        start="scratch",
        model=VideoWorldModelConfig.from_json(world_model.config.to_json()),
        training=SMALL,
        held_out=0.0,
    )
    assert SMALL.event_share > 0
    assert train_world_model.main(settings)["episodes"] == 6
    assert "no contact begins in the 6 training episodes; windows start at any frame" in capfd.readouterr().err
    note_events(EpisodeDataset.open(push_dataset), "them")
    assert not capfd.readouterr().err


@pytest.fixture
def two_views(push_episode):
    """The same four episodes twice: first with the scene's camera listed before the wrist's, then after it."""

    def listed(episode, names):
        frames = {"scene": episode.frames, "wrist": 255 - episode.frames // 2}
        return replace(episode, cameras=names, frames=np.concatenate([frames[name] for name in names], axis=1))

    seen = [push_episode(n, 12) for n in range(4)]
    return [[listed(e, names) for e in seen] for names in (("scene", "wrist"), ("wrist", "scene"))]


def test_a_training_reads_the_main_camera_wherever_it_is_listed(two_views, robot, tmp_path, world_model):
    weights = []
    for number, episodes in enumerate(two_views):
        settings = TrainWorldModelSettings(
            run_dir=str(tmp_path / f"run{number}"),
            data=[str(write(tmp_path / f"data{number}", episodes, robot))],
            start="scratch",
            model=VideoWorldModelConfig.from_json(world_model.config.to_json()),
            training=SMALL,
            held_out=0.0,
        )
        train_world_model.main(settings)
        weights.append(VideoWorldModel.load(tmp_path / f"run{number}" / "world_model").state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_what_is_measured_and_begun_is_what_the_main_camera_sees(two_views, world_model, same_tree):
    found = []
    for episodes in two_views:
        actions = np.stack([episode.action for episode in episodes])
        record = record_at(episodes[0], 6, memory_frames=2, frame_stride=2, source="x")
        error = static_error(world_model, episodes, 4, seed=0)
        found.append((record, replay(world_model, episodes, actions, seed=0), error))
    same_tree(found[0], found[1])
    np.testing.assert_array_equal(found[0][1].real[0, 0], two_views[0][0].frames[2, 0])
