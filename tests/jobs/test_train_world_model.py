import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import ArtefactError, GateError, SettingError
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.world_model.gates import GateThresholds
from worldrl.jobs.world_model import imagine, train_world_model
from worldrl.jobs.world_model.imagine import ImagineSettings
from worldrl.jobs.world_model.train_world_model import TrainWorldModelSettings
from worldrl.paths import weights_dir
from worldrl.recipes.sampler import Sampler
from worldrl.recipes.stages import calibrate, split_held_out
from worldrl.recipes.world_model.lineage import bundled_by_name, learned_from, lineage
from worldrl.recipes.world_model.start import check_start, robot_of, starting_world_model, weights_folder
from worldrl.recipes.world_model.unseen_episodes import refuse_seen
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.settings import compose
from worldrl.world_models.video.config import CodecConfig, DynamicsKind, VideoWorldModelConfig
from worldrl.world_models.video.extension import transferred
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training_config import WorldModelTraining

SMALL = {"codec_steps": 3, "codec_batch": 4, "steps": 4, "batch": 2, "warmup": 1, "dtype": "float32", "unroll": 2}


@pytest.fixture
def make_settings(push_dataset, world_model, tmp_path):
    def make(**over):
        return TrainWorldModelSettings(
            **{
                "run_dir": str(tmp_path / "run"),
                "data": [str(push_dataset)],
                "start": "scratch",
                "model": VideoWorldModelConfig.from_json(world_model.config.to_json()),
                "training": WorldModelTraining(**SMALL, checkpoint_every=2),
                "held_out": 0.5,
                "gates": "warn",
                **over,
            }
        )

    return make


def test_a_run_leaves_a_model_a_result_and_repeats_itself(make_settings, tmp_path, push_dataset):
    metrics = train_world_model.main(make_settings())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["schema"], result["command"]) == (1, "train-world-model")
    assert (metrics["episodes"], metrics["held_out_episodes"]) == (8, 4)
    assert len(metrics["gates"]) == 5
    assert metrics["training"].keys() >= {"codec/psnr_db", "wm/flow_loss", "wm/success_loss"}
    model = VideoWorldModel.load(tmp_path / "run" / "world_model")
    assert model.config.outcome.threshold == metrics["threshold"]
    manifest = json.loads((tmp_path / "run" / "world_model" / "manifest.json").read_text())
    assert manifest["parents"] == [{"path": str(push_dataset), "hash": EpisodeDataset.open(push_dataset).fingerprint}]
    train_world_model.main(make_settings())  # finds everything finished
    again = json.loads((tmp_path / "run" / "result.json").read_text())
    assert again["metrics"] == result["metrics"]
    other = train_world_model.main(make_settings(run_dir=str(tmp_path / "other")))
    assert other["hash"] == metrics["hash"]


def test_parents_name_bundled_weights_without_a_path_of_this_machine(world_model, tmp_path):
    (bundled,), _ = lineage({}, ["bundled"])
    assert bundled == {"path": "bundled/world_model", "hash": artefact_hash(weights_dir() / "world_model")}
    policy = {"path": str(weights_dir() / "policy"), "hash": "00"}
    assert bundled_by_name(policy) == {"path": "bundled/policy", "hash": "00"}
    world_model.save(tmp_path / "world_model")
    (own,), _ = lineage({}, [str(tmp_path / "world_model")])
    assert own["path"] == str(tmp_path / "world_model")


def test_bundled_world_models_are_named_as_in_a_manifest():
    assert weights_folder("bundled") == weights_folder("bundled/world_model") == weights_dir() / "world_model"
    assert weights_folder("bundled/world_model_wrist") == weights_dir() / "world_model_wrist"
    assert weights_folder("runs/bundled/x") == Path("runs/bundled/x")
    (two,), _ = lineage({}, ["bundled/world_model_wrist"])
    assert two["path"] == "bundled/world_model_wrist"


@pytest.mark.parametrize("name", ["bundled/policy", "bundled/world_model_wris", "bundled/../weights/world_model"])
def test_no_other_name_is_bundled(name):
    with pytest.raises(SettingError, match="no such world model is bundled"):
        weights_folder(name)


def test_bundled_weights_of_two_cameras_predict_both_and_the_state():
    model = VideoWorldModel.load(weights_folder("bundled/world_model_wrist"))
    assert (model.config.cameras, model.config.state) == (["image", "wrist_image"], "measured")
    assert robot_of("bundled/world_model_wrist") == robot_of("bundled")


def test_what_the_weights_learned_from_is_remembered(make_settings, world_model, push_dataset, tmp_path):
    before = Learned(frozenset({"a"}), frozenset({"of a"}))
    world_model.save(tmp_path / "model", learned=before)
    training = WorldModelTraining(**{**SMALL, "codec_steps": 0, "steps": 0}, outcome_steps=2, checkpoint_every=2)
    train_world_model.main(make_settings(start=str(tmp_path / "model"), training=training, held_out=0.0))
    own = learned_from([EpisodeDataset.open(push_dataset)])
    assert len(own.episodes) == 16
    assert Learned.read(tmp_path / "run" / "world_model") == before | own
    with pytest.raises(SettingError, match="or weights that it began with, was trained on"):
        refuse_seen("a", SimpleNamespace(fingerprint="a"), before | own, tmp_path)
    # What weights without a record saw stays unknown, however often they are trained on.
    world_model.save(tmp_path / "old")
    train_world_model.main(make_settings(codec=str(tmp_path / "old"), held_out=0.0, run_dir=str(tmp_path / "on")))
    assert Learned.read(tmp_path / "on" / "world_model") == replace(own, complete=False)


def test_the_other_backend_trains_is_saved_loads_and_imagines(push_dataset, tmp_path):
    """What ``train-world-model preset=tiny model.dynamics.kind=edm_unet`` does, on images of 16 pixels."""
    given = {
        "preset": "tiny",
        "model.dynamics.kind": "edm_unet",
        "model.codec.image_size": "16",
        "training.outcome_steps": "2",
        "data": f"['{push_dataset}']",
        "run_dir": str(tmp_path / "run"),
    }
    metrics = train_world_model.main(compose("train-world-model", TrainWorldModelSettings, given))
    assert metrics["training"].keys() >= {"wm/edm_loss", "wm/success_loss", "wm/gripper_loss"}
    assert "codec/psnr_db" not in metrics["training"]  # pixels: the preset's codec steps have nothing to learn
    folder = tmp_path / "run" / "world_model"
    model = VideoWorldModel.load(folder)
    assert (model.config.dynamics.kind, model.codec.latent_shape) == (DynamicsKind.edm_unet, (3, 16, 16))
    settings = {"data": str(push_dataset), "episodes": 2, "steps": 8}
    policy_rollouts = imagine.main(
        ImagineSettings(run_dir=str(tmp_path / "dreams"), world_model=str(folder), **settings)
    )
    assert 0 < policy_rollouts["closed_loop.psnr@8"] < 100


def test_weights_of_the_other_backend_are_refused(make_settings, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    settings = make_settings(start=str(tmp_path / "model"))
    settings.model.dynamics.kind = DynamicsKind.edm_unet
    with pytest.raises(SettingError, match=r"are flow_transformer, dynamics\.kind is edm_unet; use start=scratch"):
        train_world_model.main(settings)


def test_what_the_weights_are_given_otherwise_is_said_or_refused(world_model, make_world_model, tmp_path, capsys):
    world_model.save(tmp_path / "model")
    start, asked, training = str(tmp_path / "model"), VideoWorldModelConfig(), WorldModelTraining()
    asked.dynamics.width = 24
    check_start("scratch", asked, training)
    asked.dynamics.width = VideoWorldModelConfig().dynamics.width
    check_start(start, asked, training)  # other sizes, but none that anybody asked for
    assert capsys.readouterr().err == ""
    asked.dynamics.memory_noise, asked.outcome.ensemble_size = 0.5, 2
    check_start(start, asked, training)
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith("taken over: dynamics.memory_noise 0.15 -> 0.5, outcome.ensemble_size 1 -> 2")
    with pytest.raises(
        SettingError, match=r"outcome\.ensemble_size=2 adds members .* training\.outcome_steps=0 leaves untrained"
    ):
        check_start(start, asked, replace(training, outcome_steps=0))
    asked.dynamics.width = 24
    with pytest.raises(SettingError, match=r"do not fit dynamics\.width=24 \(16\)"):
        check_start(start, asked, training)
    other = make_world_model(memory_noise=0.3)
    other.save(tmp_path / "other")
    check_start(str(tmp_path / "other"), VideoWorldModelConfig(), training)
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith("its own kept: dynamics.memory_noise 0.15 -> 0.3")


def test_an_ensemble_of_three_on_existing_weights_is_trained_and_saved(make_settings, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    training = WorldModelTraining(**{**SMALL, "codec_steps": 0, "steps": 0}, outcome_steps=2, checkpoint_every=2)
    settings = make_settings(start=str(tmp_path / "model"), training=training, held_out=0.0)
    settings.model.outcome.ensemble_size, settings.model.outcome.debounce = 3, 1
    train_world_model.main(settings)
    learned = VideoWorldModel.load(tmp_path / "run" / "world_model")
    assert (learned.config.outcome.ensemble_size, learned.config.outcome.debounce) == (3, 1)
    assert len(learned.outcome.members) == 3


def test_the_sampler_may_change_and_stays_with_the_model(make_settings, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    steps = world_model.config.dynamics.sampling_steps + 3
    training = WorldModelTraining(**{**SMALL, "codec_steps": 0, "steps": 0}, outcome_steps=2, checkpoint_every=2)
    settings = make_settings(start=str(tmp_path / "model"), training=training, sampler=Sampler(steps=steps))
    train_world_model.main(settings)
    learned = VideoWorldModel.load(tmp_path / "run" / "world_model")
    assert learned.config.dynamics.sampling_steps == steps
    as_before = train_world_model.main(replace(settings, sampler=Sampler(), run_dir=str(tmp_path / "as before")))
    assert as_before["hash"] != json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["hash"]
    with pytest.raises(SettingError, match="sampler: is of backbone=video"):
        make_settings(backbone="wan", sampler=Sampler(steps=2))


def test_weights_become_a_flow_map(make_settings, world_model, tmp_path):
    world_model.save(tmp_path / "model")
    own = {"flow_map_steps": 2, "on_policy_steps": 1, "flow_map_sampling_steps": 4, "outcome_steps": 2}
    training = WorldModelTraining(**{**SMALL, "codec_steps": 0, "steps": 0}, **own, checkpoint_every=2)
    settings = make_settings(start=str(tmp_path / "model"), training=training)
    metrics = train_world_model.main(settings)
    assert metrics["training"].keys() >= {"wm/flow_map_loss", "wm/matching_loss", "wm/fake_loss"}
    learned = VideoWorldModel.load(tmp_path / "run" / "world_model").config.dynamics
    assert (learned.flow_map, learned.sampling_steps) == (True, 4)
    assert train_world_model.main(settings)["hash"] == metrics["hash"]  # finds both stages finished
    with pytest.raises(SettingError, match=r"give those instead"):
        make_settings(training=training, sampler=Sampler(steps=2))


def test_looks_that_are_kept_for_tests_are_not_trained_on(make_settings, push_episodes, robot, tmp_path):
    with LeRobotWriter(tmp_path / "looks", fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
        for episode, style in zip(push_episodes, ("sampled-3", "dim", "image", "default"), strict=False):
            writer.add_episode(replace(episode, meta={**episode.meta, "style": style}))
    with pytest.raises(SettingError, match=r"looks has episodes in the visual styles dim, which are kept for tests"):
        train_world_model.main(make_settings(data=[str(tmp_path / "looks")]))
    assert not (tmp_path / "run").exists()


def test_a_failed_gate_stops_but_the_model_is_there(make_settings, tmp_path):
    with pytest.raises(GateError, match="gates=warn"):
        train_world_model.main(make_settings(gates="stop", thresholds=GateThresholds(psnr=90)))
    VideoWorldModel.load(tmp_path / "run" / "world_model")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["gates"]


def test_the_codec_of_another_model_is_taken_as_it_is(make_settings, world_model, make_world_model, tmp_path):
    make_world_model(seed=7).save(tmp_path / "other")
    other = VideoWorldModel.load(tmp_path / "other", "cpu")
    training = WorldModelTraining(**{**SMALL, "codec_steps": 0}, outcome_steps=2, checkpoint_every=2)
    train_world_model.main(make_settings(codec=str(tmp_path / "other"), training=training, held_out=0.0))
    learned = VideoWorldModel.load(tmp_path / "run" / "world_model", "cpu")
    for name, value in other.codec.state_dict().items():
        assert torch.equal(learned.codec.state_dict()[name], value), name
    assert any(
        not torch.equal(a, b) for a, b in zip(learned.dynamics.parameters(), other.dynamics.parameters(), strict=True)
    )
    with pytest.raises(SettingError, match=r"codec: the one in .* differs from model.codec"):
        train_world_model.main(make_settings(codec="bundled", run_dir=str(tmp_path / "b")))
    with pytest.raises(SettingError, match="start=scratch"):
        make_settings(codec="bundled", start="bundled")


def test_a_codec_that_nothing_trains_is_refused(make_settings):
    """Its latents would mean nothing, and no image could be decoded."""
    untrained = WorldModelTraining(**{**SMALL, "codec_steps": 0})
    with pytest.raises(SettingError, match=r"start=scratch: the frame codec would stay untrained.*codec_steps above 0"):
        make_settings(training=untrained)
    make_settings(training=untrained, codec="bundled")
    make_settings(training=untrained, start="bundled")
    pixels = VideoWorldModelConfig()
    pixels.dynamics.kind = DynamicsKind.edm_unet
    make_settings(training=untrained, model=pixels)


def test_more_successive_frames_than_an_episode_has_are_refused(make_settings):
    settings = make_settings()
    settings.model.outcome.debounce = 1000
    with pytest.raises(
        SettingError, match=r"outcome\.debounce: 1000 frames .* the longest episode has \d+; give fewer"
    ):
        train_world_model.main(settings)


def test_without_held_out_episodes_nothing_is_measured(make_settings, tmp_path):
    metrics = train_world_model.main(make_settings(held_out=0.0, gates="stop", store_dtype="float16"))
    assert metrics["gates"] == []
    VideoWorldModel.load(tmp_path / "run" / "world_model")


def test_a_model_of_another_robot_is_refused(world_model, robot, tmp_path):

    world_model.save(tmp_path / "model")
    config = VideoWorldModelConfig()
    again = starting_world_model(str(tmp_path / "model"), config, robot, seed=0, device=torch.device("cpu"))
    assert again.config == world_model.config  # the folder's sizes, not the settings'
    with pytest.raises(SettingError, match="another robot"):
        starting_world_model(
            str(tmp_path / "model"), config, replace(robot, control_hz=10.0), seed=0, device=torch.device("cpu")
        )
    with pytest.raises(ArtefactError):
        starting_world_model(str(tmp_path / "none"), config, robot, seed=0, device=torch.device("cpu"))


JOINTS = JointEmbodiment(("a", "b", "gripper"), (-1.0,) * 3, (1.0,) * 3, (2.0,) * 3, 20.0)


@pytest.mark.parametrize("joints", [False, True])
def test_weights_of_another_robot_give_what_fits(world_model, robot, joints):
    other = JOINTS if joints else replace(robot, control_hz=10.0, position_scale=0.05)
    model, untrained = transferred(world_model, VideoWorldModelConfig(), other, seed=3)
    again, _ = transferred(world_model, VideoWorldModelConfig(), other, seed=4)
    assert (model.embodiment, model.config) == (other, world_model.config)
    own, held, drawn = model.state_dict(), world_model.state_dict(), again.state_dict()
    assert bool(untrained) == joints  # seven numbers are seven numbers, three are others
    for name, value in own.items():
        if name in untrained:
            assert name not in held or held[name].shape != value.shape
        else:
            assert torch.equal(value, held[name])
            assert torch.equal(value, drawn[name])
    assert not joints or any(not torch.equal(own[name], drawn[name]) for name in untrained)
    assert any("action" in name or "pose" in name for name in untrained) == joints


def test_training_begins_with_the_weights_of_another_robot(make_settings, world_model, robot, tmp_path, capsys):
    other = VideoWorldModel(world_model.config, replace(robot, control_hz=10.0))
    other.load_state_dict(world_model.state_dict())
    other.save(tmp_path / "other", learned=Learned(frozenset({"seen"}), frozenset(), True))
    training = WorldModelTraining(**{**SMALL, "codec_steps": 1, "steps": 1}, outcome_steps=1)
    settings = make_settings(weights=str(tmp_path / "other"), model=VideoWorldModelConfig(), training=training)
    train_world_model.main(settings)
    count = len(world_model.state_dict())
    assert f"weights={tmp_path / 'other'}: {count} of {count} taken" in " ".join(capsys.readouterr().err.split())
    made = VideoWorldModel.load(tmp_path / "run" / "world_model")
    assert (made.embodiment, made.config.codec) == (robot, world_model.config.codec)
    moved = {
        n: (v - world_model.state_dict()[n]).abs().max()
        for n, v in made.state_dict().items()
        if v.dtype.is_floating_point
    }
    assert 0 < max(moved.values()) < 0.01  # a step of each, not other weights
    assert "seen" in Learned.read(tmp_path / "run" / "world_model").datasets


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"start": "bundled"}, "weights=bundled: is for backbone=video with start=scratch; give start=bundled"),
        ({"codec": "bundled"}, "codec=bundled: weights=bundled has a frame codec; give one of them"),
        (
            {"model": VideoWorldModelConfig(codec=CodecConfig(depth=2))},
            r"weights: these weights do not fit codec.depth=2 \(3\), .*; leave it out, or begin without weights$",
        ),
        (
            {"training": WorldModelTraining(codec_steps=1, steps=1, outcome_steps=0)},
            "training.outcome_steps=0: would leave a part of weights",
        ),
        ({"training": WorldModelTraining(steps=1, outcome_steps=1)}, "training.codec_steps=0: would leave a part"),
    ],
)
def test_weights_of_another_robot_are_trained_further(make_settings, over, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        make_settings(weights="bundled", **({"model": VideoWorldModelConfig()} | over))


def test_scratch_weights_depend_on_the_seed_alone(robot, world_model):
    def weights(seed):
        torch.rand(3)  # whatever others drew
        model = starting_world_model("scratch", world_model.config, robot, seed=seed, device=torch.device("cpu"))
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_held_out_episodes_are_apart_and_stay_so(push_episodes):
    parts = split_held_out(push_episodes, 0.5, seed=0)
    assert [len(part) for part in parts] == [4, 2, 2]
    assert sorted(id(e) for part in parts for e in part) == sorted(id(e) for e in push_episodes)
    again = split_held_out(push_episodes, 0.5, seed=0)
    assert [[id(e) for e in part] for part in again] == [[id(e) for e in part] for part in parts]
    assert [len(part) for part in split_held_out(push_episodes, 0.1, seed=0)] == [8, 0, 0]


def test_the_same_motion_in_other_looks_stays_on_one_side(push_episodes):
    def shown(episode, number, style):
        spec = EpisodeSpec("PickRedCube", number, 5, style=style, source="expert")
        return replace(episode, meta={**episode.meta, **spec.to_json()})

    pairs = [shown(e, n, style) for style in ("default", "sampled-3") for n, e in enumerate(push_episodes)]
    parts = split_held_out(pairs, 0.5, seed=0)
    assert [len(part) for part in parts] == [8, 4, 4]
    numbers = [{e.meta["index"] for e in part} for part in parts]
    assert sum(map(len, numbers)) == len(set.union(*numbers)) == len(push_episodes)


def test_calibration_sets_the_models_own_threshold(make_world_model, push_simulator, push_episodes):
    model = make_world_model()
    before = model.config.outcome.threshold
    assert calibrate(model, [], target_precision=0.9, seed=0).threshold == before

    class RolloutFilter(push_simulator):
        config = model.config

    steps = np.array([episode.success for episode in push_episodes])
    assert steps.any()
    model.config.outcome.debounce = 1
    assert calibrate(RolloutFilter(certainty=0.8), push_episodes, target_precision=0.9, seed=0).threshold == 0.5
    assert model.config.outcome.threshold == 0.5
    rule = calibrate(RolloutFilter(certainty=0.8, uncertainty=0.7), push_episodes, target_precision=0.99, seed=0)
    assert rule.threshold == pytest.approx(0.8)  # 0.7 would accept every failure
    # A head that says the same of everything leaves no choice; the gates refuse it.
    same = calibrate(RolloutFilter(uncertainty=0.9), push_episodes, target_precision=0.99, seed=0)
    assert same.threshold == pytest.approx(0.9)


@pytest.mark.parametrize(
    "over", [{"held_out": 1.5}, {"gates": "maybe"}, {"store_dtype": "int8"}, {"data": []}, {"target_precision": 2}]
)
def test_impossible_settings_are_refused(make_settings, over):
    with pytest.raises(SettingError, match=next(iter(over))):
        make_settings(**over)


def test_the_log_is_where_a_finished_trainings_numbers_come_from(make_settings, tmp_path):
    from worldrl.recipes.world_model.numbers import last_numbers

    train_world_model.main(make_settings())
    with MetricLog(tmp_path / "run", tracker=TrackerName.none) as log:
        assert last_numbers(log, "dynamics")["wm/flow_loss"] > 0
        assert last_numbers(log, "nothing") == {}
