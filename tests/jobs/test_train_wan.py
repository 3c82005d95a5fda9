"""The Wan backbone through the jobs: trained, gated, saved, imagined in, chosen by words."""

import json

import gymnasium
import numpy as np
import pytest
import torch

from worldrl.cli import main
from worldrl.core.errors import SettingError
from worldrl.core.rng import row_streams
from worldrl.jobs.vla.plan import planned
from worldrl.jobs.vla.train_vla import TrainVlaSettings
from worldrl.jobs.world_model import imagine, train_world_model
from worldrl.jobs.world_model.imagine import ImagineSettings
from worldrl.jobs.world_model.train_world_model import TrainWorldModelSettings
from worldrl.recipes.stages import learn_world_model
from worldrl.recipes.world_model.start import SCRATCH, check_wan_start, starting_world_model
from worldrl.recipes.world_model.wan_settings import WanSettings
from worldrl.settings import compose
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.training_config import WorldModelTraining
from worldrl.world_models.wan.config import WanConfig
from worldrl.world_models.wan.model import WanWorldModel
from worldrl.world_models.wan.training import WanTraining

pytest.importorskip("diffusers")
pytest.importorskip("peft")
pytest.importorskip("accelerate")

CPU = torch.device("cpu")
SMALL = {"steps": 2, "batch": 2, "warmup": 1, "checkpoint_every": 1, "dtype": "float32"}


@pytest.fixture
def make_settings(push_dataset, wan_base, wan_config, tmp_path):
    def make(**over):
        wan = WanSettings(str(wan_base), wan_config(), WanTraining(**SMALL))
        return TrainWorldModelSettings(
            **{
                "run_dir": str(tmp_path / "run"),
                "data": [str(push_dataset)],
                "backbone": "wan",
                "start": "scratch",
                "wan": wan,
                "held_out": 0.5,
                "gates": "warn",
                **over,
            }
        )

    return make


def test_a_run_leaves_a_model_that_other_jobs_take(make_settings, tmp_path, push_dataset, wan_base):
    metrics = train_world_model.main(make_settings(store_dtype="bfloat16"))
    assert len(metrics["gates"]) == 5
    assert metrics["training"].keys() >= {"wm/flow_loss", "wm/success_loss"}
    folder = tmp_path / "run" / "world_model"
    model = WanWorldModel.load(folder)
    assert model.config.outcome.threshold == metrics["threshold"]
    parents = [parent["path"] for parent in json.loads((folder / "manifest.json").read_text())["parents"]]
    assert parents == [str(push_dataset), str(wan_base)]
    again = train_world_model.main(make_settings(store_dtype="bfloat16"))  # finds everything finished
    assert again == metrics
    env = gymnasium.make_vec(
        "worldrl.rollout.imagined.registration:worldrl/Imagined-v0",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        world_model=folder,
        data=push_dataset,
        p_keyframe=1.0,
        keyframe_margin=4,
    )
    env.reset(seed=0)
    obs, *_ = env.unwrapped.chunk_step(np.zeros((2, 4, 7), np.float32))
    assert obs["image"].shape == (2, 16, 16, 3)
    seen = imagine.main(
        ImagineSettings(
            run_dir=str(tmp_path / "imagine"), world_model=str(folder), data=str(push_dataset), episodes=2, steps=8
        )
    )
    assert "action_swap_ratio" in seen
    assert len(list((tmp_path / "imagine" / "videos").iterdir())) == 2


def test_a_saved_model_is_trained_on(make_settings, tmp_path):
    train_world_model.main(make_settings(held_out=0.0))
    start = str(tmp_path / "run" / "world_model")
    train_world_model.main(make_settings(run_dir=str(tmp_path / "more"), start=start, held_out=0.0))
    one, two = (WanWorldModel.load(tmp_path / name / "world_model").trained() for name in ("run", "more"))
    assert not all(torch.equal(one[name], two[name]) for name in one)


def test_an_ensemble_is_trained_saved_and_used(make_settings, wan_base, wan_config, wan_record, tmp_path):
    """``wan.model.outcome.ensemble_size`` gives the model an outcome ensemble that learns after the rest; one that nothing trains is refused."""
    small = SMALL | {"outcome_steps": 3, "outcome_batch": 2, "outcome_episodes": 2}
    wan = WanSettings(str(wan_base), wan_config(ensemble_size=2), WanTraining(**small))
    metrics = train_world_model.main(make_settings(wan=wan, held_out=0.0))
    assert metrics["training"].keys() >= {"wm/flow_loss", "wm/outcome_loss"}
    model = WanWorldModel.load(tmp_path / "run" / "world_model")
    fresh = WanWorldModel.from_base(wan_base, wan.model, model.embodiment, seed=0).outcome.state_dict()
    assert not any(
        torch.equal(value, fresh[name]) for name, value in model.outcome.state_dict().items() if "weight" in name
    )
    _, imagined = model.imagine(model.start([wan_record()]), torch.zeros(1, 4, 7), generators=row_streams(0, ("x",), 1))
    assert imagined.uncertainty.max() > 0
    untrained = WanSettings(str(wan_base), wan_config(ensemble_size=1), WanTraining(**(small | {"outcome_steps": 0})))
    with pytest.raises(SettingError, match="members would stay untrained"):
        train_world_model.main(make_settings(wan=untrained, run_dir=str(tmp_path / "other")))


def test_saved_weights_take_what_fits_any_weights_and_refuse_another_layout(
    make_wan, wan_base, wan_config, robot, tmp_path, capsys
):
    """What stands at its default is not asked for; sampling and what counts as success are taken; the rest is printed, not ignored."""
    make_wan().save(tmp_path / "wan")
    start = {"start": str(tmp_path / "wan"), "embodiment": robot, "seed": 0, "device": CPU}
    same = wan_config()
    same.outcome.threshold, same.outcome.debounce, same.dynamics.sampling_steps = 0.6, 3, 7
    same.codec.dtype, same.codec.rows, same.dynamics.bell_weight = "bfloat16", 2, False
    for config, taken in ((same, same), (WanConfig(), wan_config())):
        model = starting_world_model(config=WanSettings(str(wan_base), config), **start)
        assert model.config == taken
        assert (model.codec.config, model.dynamics.config) == (taken.codec, taken.dynamics)
    check_wan_start(str(tmp_path / "wan"), WanSettings(str(wan_base), same))
    told = "".join(capsys.readouterr().err.split())  # the console breaks lines
    assert f"start={tmp_path / 'wan'}:takenover:codec.dtypefloat32->bfloat16,codec.rows" in told
    assert "outcome.threshold0.7->0.6" in told
    other = WanSettings(str(wan_base), wan_config(reference=False, ensemble_size=2))
    told = r"not made for wan\.model\.dynamics\.reference=False \(True\), wan\.model\.outcome\.ensemble_size=2 \(0\)"
    with pytest.raises(SettingError, match=told):
        starting_world_model(config=other, **start)
    with pytest.raises(SettingError, match=told):  # before anything is recorded
        check_wan_start(str(tmp_path / "wan"), other)


def test_a_model_from_nothing_has_a_configuration_of_its_own(wan_base, wan_config, robot):
    """Its threshold is calibrated; the settings, which later rounds and the run's config go by, are not."""
    settings = WanSettings(str(wan_base), wan_config())
    model = starting_world_model(SCRATCH, settings, robot, seed=0, device=CPU)
    model.config.outcome.threshold = 0.123
    assert settings.model.outcome.threshold != 0.123


def test_a_missing_folder_is_reported_before_anything_is_learned(make_settings, wan_config, tmp_path):
    from worldrl.core.errors import ArtefactError

    missing = WanSettings(str(tmp_path / "none"), wan_config())
    with pytest.raises(ArtefactError, match="hf download Wan-AI/Wan2"):
        train_world_model.main(make_settings(wan=missing))
    with pytest.raises(SettingError, match=r"wan\.folder: give the folder"):
        train_world_model.main(make_settings(run_dir=str(tmp_path / "b"), wan=WanSettings(model=wan_config())))


def test_weights_of_the_other_backbone_are_refused(wan_model, world_model, push_episodes, tmp_path, robot):
    world_model.save(tmp_path / "video")
    start = {"embodiment": robot, "seed": 0, "device": CPU}
    video = starting_world_model(str(tmp_path / "video"), WanSettings(), **start)
    for model, training, word in ((video, WanTraining(), "video"), (wan_model, WorldModelTraining(), "wan")):
        with pytest.raises(SettingError, match=f"give backbone={word}, or start=scratch"):
            learn_world_model(tmp_path, model, push_episodes, training, seed=0, log=None)


def test_a_policy_collects(tmp_path, make_wan):
    """``train-vla backbone=wan`` to its end, begun with a trained folder of one camera, to which another is added."""
    make_wan(lora_rank=3).save(tmp_path / "wan")
    small = (
        "preset=tiny", "backbone=wan", f"start={tmp_path / 'wan'}", "tasks=[PickRedCube]", "demonstrations=1", "policy.image_size=16",
        "policy.chunk_length=4", "wan.training.steps=1", "wan.training.batch=2", "wan.training.dtype=float32",
        "collection.policy_episodes=4", "collection.expert_episodes=0", "collection.imagined_episodes=0", "evaluation.episodes=1",
        "evaluation.verify=1", "improvement.starts_per_task=1", "cameras=[image,wrist_image]", "state=measured",
    )  # fmt: skip
    run = tmp_path / "run"
    assert main(["train-vla", *small, f"run_dir={run}"]) == 0
    trained = run / json.loads((run / "result.json").read_text())["metrics"]["world_model"]
    model = WanWorldModel.load(trained)
    assert model.config.dynamics.lora_rank == 3  # the folder's, not the settings'
    assert model.more == ("wrist_image", "state")
    assert bool(model.state_head.scaled)
    assert (run / "report.html").exists()


def test_words_choose_the_backbone_in_both_jobs():
    chosen = compose("train-world-model", TrainWorldModelSettings, {"preset": "wan", "wan.training.batch": "3"})
    assert (chosen.backbone, chosen.start, chosen.wan.training.batch) == ("wan", "scratch", 3)
    loop = compose("train-vla", TrainVlaSettings, {"preset": "wan", "wan.model.dynamics.adapter": "full"})
    plan = planned(loop, torch.device("cpu"))
    assert isinstance(plan.world_model, WanSettings)
    assert isinstance(plan.first_training, WanTraining)
    assert plan.world_model.model.dynamics.adapter == "full"
    assert loop.policy.image_size == plan.world_model.model.codec.image_size
    plain = compose("train-vla", TrainVlaSettings, {})
    assert isinstance(planned(plain, torch.device("cpu")).world_model, VideoWorldModelConfig)
    with pytest.raises(SettingError, match="did you mean 'wan'"):
        compose("train-vla", TrainVlaSettings, {"backbone": "wann"})
