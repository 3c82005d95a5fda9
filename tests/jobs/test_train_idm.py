"""``worldrl train-idm`` on pushed squares: numbers, page, folder, and what it refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.core.storage.artefact import read_manifest
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.report.words import percent
from worldrl.jobs.motion import train_idm
from worldrl.jobs.motion.idm_execution import executions
from worldrl.jobs.motion.train_idm import TrainIdmSettings
from worldrl.recipes.motion import idm_stages
from worldrl.recipes.motion.idm_stages import through_codec
from worldrl.rewards.config import GraspConfig, IdmConfig, IdmTraining
from worldrl.rewards.grasp import GraspDynamics
from worldrl.rewards.motion.foresight import FeaturePredictor, ForesightConfig
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.settings import compose
from worldrl.world_models.video.codec import to_unit
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.extension import extended

SIZES = {"width": 8, "blocks": 1, "keypoints": 2, "value_width": 2, "hidden": 8}
GRASP_SIZES = {"width": 8, "blocks": 1, "keypoints": 2, "text_width": 8, "hidden": 8}


@pytest.fixture
def make_settings(push_dataset, tmp_path):
    def make(run="run", *, window=1, **over):
        small = {
            "run_dir": str(tmp_path / run),
            "threads": 1,
            "data": [str(push_dataset)],
            "target": ["command"],
            "held_out": 0.5,
            "clip_frames": 8,
            "model": IdmConfig(window=window, **SIZES),
            "training": IdmTraining(steps=3, batch=4, checkpoint_every=2),
        }
        return TrainIdmSettings(**(small | over))

    return make


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, make_world_model):
    folder = tmp_path_factory.mktemp("model") / "world_model"
    make_world_model(size=16).save(folder)
    return folder


def test_the_tiny_preset_reads_every_second_frame_of_the_tiny_recordings(tmp_path, push_episode, robot):
    """`collect preset=tiny` leaves four episodes of some forty steps."""
    with LeRobotWriter(tmp_path / "data", fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
        for number in range(4):
            writer.add_episode(push_episode(number, 40))
    given = {"preset": "tiny", "frame_stride": "2", "data": f"[{tmp_path / 'data'}]", "run_dir": str(tmp_path / "run")}
    assert train_idm.main(compose("train-idm", TrainIdmSettings, given))["foresight"]


def test_a_run_leaves_numbers_a_page_and_a_model(make_settings, model_folder, tmp_path, push_dataset):
    settings = make_settings(
        world_model=str(model_folder),
        foresight=ForesightConfig(hidden=8, steps=2, batch=4),
        grasp=GraspConfig(**GRASP_SIZES, steps=2, batch=4),
    )
    metrics = train_idm.main(settings)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["schema"], result["command"]) == (1, "train-idm")
    assert metrics["episodes"] == {"training": 8, "scaling": 4, "held_out": 4}
    assert metrics["frames"] == 4 * 35
    for look in ("recorded", "restored"):
        rows = result["metrics"]["errors"][look]
        assert [row["column"] for row in rows] == [f"command.{n}" for n in ("x", "y", "z", "rx", "ry", "rz", "gripper")]
        for row in rows:
            assert row["median"].keys() == {"n", "value", "lo", "hi", "method"}
            assert row["median"]["value"] <= row["p90"]["value"]
            assert row["coverage"].keys() == {"0.5", "0.9", "0.95"}
        assert result["metrics"]["by_unit"][look].keys() == {"m"}  # the hand never turns here
    floor = metrics["noise_floor"]
    assert floor["p0"] == pytest.approx(floor["medians"]["penalty"]["real"])
    assert floor["medians"]["executability"]["real"] == pytest.approx(10 / 2**0.5, abs=0.2)
    assert floor["medians"]["motion"]["still"] == 0
    assert metrics["acceptance"]["scores"].keys() >= {"exact", "static", "wrong_action"}
    assert metrics["foresight"].keys() == {"moving_foresight", "physical_foresight"}
    guarded, published = metrics["foresight"].values()
    assert guarded.keys() == published.keys() == {"real", "still", "shuffled"}
    assert guarded["still"] < guarded["real"]
    assert FeaturePredictor.load(tmp_path / "run" / "foresight").get_buffer("pace") > 0
    assert metrics["grasp"].keys() == {"x", "y", "z"}
    assert GraspDynamics.load(tmp_path / "run" / "grasp").actions == TOOL_ACTIONS
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (
        "Errors, frames as the world model",
        "Noise floor",
        "Acceptance probe",
        "Closing of the hand",
        "command.x in a held-out",
    ):
        assert text in page
    idm = InverseDynamics.load(tmp_path / "run" / "idm")
    assert idm.basis is not None
    assert idm.basis.dt == 0.05
    parents = [entry["path"] for entry in read_manifest(tmp_path / "run" / "idm")["parents"]]
    assert parents == [str(push_dataset), str(model_folder)]
    again = train_idm.main(settings)  # its training is finished: the checkpoint gives the same model
    once, twice = ({name: one["value"] for name, one in found.pop("grasp").items()} for found in (metrics, again))
    assert once == twice  # of one held-out closing, whose interval is not a number
    assert {**again, "hash": metrics["hash"]} == metrics


@pytest.mark.parametrize("width", [0, 4])
def test_frames_are_shown_as_imagined_ones_are_with_their_restorer(make_world_model, width):
    """What inverse dynamics learns from has the look of what it will read: a still imagined rollout of the same image."""
    model = make_world_model(size=16)
    wanted = VideoWorldModelConfig.from_json(model.config.to_json())
    wanted.restorer.width = width
    model = extended(model, wanted, seed=0)
    if model.restorer is not None:
        with torch.no_grad():
            model.restorer.out.bias.fill_(0.2)  # an untrained one changes nothing
    generator = stream(0, "frames")
    frame, first = (torch.randint(0, 256, (3, 16, 16, 3), generator=generator, dtype=torch.uint8) for _ in range(2))
    shown = through_codec(model, batch=2)(frame, first)
    with torch.no_grad():
        latent = model.codec.encode(to_unit(frame)[:, None]).float()
        assert torch.equal(shown, model.decode(latent, first)[:, 0])
        assert torch.equal(shown, through_codec(model)(frame, frame)) == (width == 0)


def test_many_frames_through_the_codec_say_how_far_they_are(make_world_model, monkeypatch):
    said = []

    class Bar:
        def __init__(self, description, total, *, unit):
            said.append((description, total, unit))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            said.append("end")

        def advance(self, amount):
            said.append(amount)

    monkeypatch.setattr(idm_stages, "Progress", Bar)
    frame = torch.zeros(5, 16, 16, 3, dtype=torch.uint8)
    through_codec(make_world_model(size=16), batch=2)(frame, frame)
    assert said == []
    monkeypatch.setattr(idm_stages, "MANY", 4)
    through_codec(make_world_model(size=16), batch=2)(frame, frame)
    assert said == [("through the codec", 5, "frames"), 2, 2, 1, "end"]


def test_actions_between_frames_have_no_noise_floor(make_settings):
    metrics = train_idm.main(make_settings(window=2, target=["action.dx", "action.dy"], frame_stride=2))
    assert metrics["noise_floor"] is None
    assert metrics["foresight"] is None
    assert metrics["grasp"] is None
    assert metrics["errors"].keys() == {"recorded"}
    assert metrics["by_unit"] == {"recorded": {}}
    assert metrics["frames"] == 4 * 17  # every second frame but the last


def test_held_out_videos_of_two_arms_are_decoded_and_executed(make_settings, two_armed_twice, tmp_path):
    data = two_armed_twice
    metrics = train_idm.main(make_settings(data=data, camera="head", clip_frames=4, executed=1))
    executed = metrics["executed"]
    assert executed["commanded"]["k"] == 1  # the true commands open the drawer again
    assert executed["decoded"]["k"] == 0  # what nothing was learned for does not
    assert executed["tasks"] == {"BimanualOpenDrawer": {name: executed[name] for name in ("commanded", "decoded")}}
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"Executed decodes succeed in {percent(0, 0)}" in page
    with pytest.raises(SettingError, match="it must read the whole command"):
        train_idm.main(make_settings("half", data=data, camera="head", target=["command.0:7"], executed=1))
    episode = EpisodeDataset.open(data[0])[0]
    failed = replace(episode, reward=np.zeros_like(episode.reward))
    with pytest.raises(SettingError, match="executed: none of the 1 held-out episodes succeeded"):
        executions(InverseDynamics.load(tmp_path / "run" / "idm"), [failed], 1, camera="head", restore=None)


def test_what_does_not_fit_is_refused(make_settings, make_world_model, tmp_path):
    make_world_model(size=32).save(tmp_path / "large")
    for over, message in (
        ({"target": ["state.w"]}, "has no column 'w'"),
        ({"held_out": 0.05}, "held_out"),
        ({"clip_frames": 40}, "clip_frames: the held-out episodes hold 0 clips"),
        ({"limits": "piper"}, "of 14 coordinates"),
        (
            {"world_model": str(tmp_path / "large")},
            "16 by 16 pixels, the size of world_model=.* is 32; record them again with image_size=32",
        ),
    ):
        with pytest.raises(SettingError, match=message):
            train_idm.main(make_settings(next(iter(over)), **over))
    for over in (
        {"limits": "arm"},
        {"executed": -1},
        {"clip_frames": 3},
        {"data": []},
        {"temperature": 0.0},
        {"held_out": 2.0},
    ):
        with pytest.raises(SettingError, match=next(iter(over))):
            make_settings(**over)
