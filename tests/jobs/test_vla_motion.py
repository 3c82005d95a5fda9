"""The stage of ``train-vla`` that learns inverse dynamics, and both algorithms believing it."""

import pytest
import torch

from worldrl.algorithms.behaviour_cloning import BehaviourCloning
from worldrl.algorithms.grpo import GrpoConfig
from worldrl.algorithms.imagination import imagined_env
from worldrl.algorithms.improve import ALGORITHMS, Improvement, improve
from worldrl.algorithms.motion_trust import MotionTrust
from worldrl.algorithms.self_training import SelfTraining
from worldrl.core.log import MetricLog, read_metrics
from worldrl.jobs.arena import EmbeddedArena
from worldrl.jobs.opening import open_run
from worldrl.jobs.vla_loop import Loop, load
from worldrl.jobs.vla_motion import motion_check
from worldrl.jobs.vla_settings import TrainVlaSettings
from worldrl.policies.samples import make_samples
from worldrl.policies.token_policy import TokenPolicyConfig
from worldrl.rewards.idm_training import IdmTraining
from worldrl.rewards.inverse_dynamics import IdmConfig
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.reset_store import ResetStore

IDM = {
    "model": IdmConfig(width=8, blocks=1, keypoints=2, hidden=8),
    "training": IdmTraining(steps=3, batch=4, checkpoint_every=2),
}


def settings_in(folder, use):
    improvement = Improvement(idm=MotionTrust(use=use, **IDM))
    policy = TokenPolicyConfig(image_size=16, chunk_length=4)
    return TrainVlaSettings(run_dir=str(folder), policy=policy, improvement=improvement, held_out=0.5)


def test_it_is_off_by_default(push_dataset, world_model, tmp_path):
    settings = settings_in(tmp_path, "off")
    with open_run("train-vla", settings) as run, MetricLog(run.path, tensorboard=False) as log:
        loop = Loop(settings, run, log, torch.device("cpu"), EmbeddedArena(settings, ("PickRedCube",)))
        assert motion_check(loop, 1, world_model, [push_dataset]) is None
        assert not (tmp_path / "stages" / "round-1-4-idm").exists()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_learned_judge_weighs_what_is_imagined(
    push_dataset, world_model, tiny_policy, make_record, tmp_path, algorithm
):
    settings = settings_in(tmp_path, "weight")
    with open_run("train-vla", settings) as run, MetricLog(run.path, tensorboard=False) as log:
        loop = Loop(settings, run, log, torch.device("cpu"), EmbeddedArena(settings, ("PickRedCube",)))
        check = motion_check(loop, 1, world_model, [push_dataset])
        assert check is not None
        assert check.bound > 0
        found = motion_check(loop, 1, world_model, [push_dataset])  # learned once
        assert found is not None
        assert torch.equal(found.idm.head[0].weight, check.idm.head[0].weight)  # pyright: ignore
        store = ResetStore([make_record(grey) for grey in (20, 200)])
        env = imagined_env(world_model, store, SuccessRule(0.01, 1), rows=4, horizon={"PickRedCube": 8})
        cloning = BehaviourCloning(steps=2, batch_size=4, warmup_steps=1)
        config = Improvement(
            algorithm,
            grpo=GrpoConfig(iterations=1, groups=2, group_size=2, minibatch=8),
            self_training=SelfTraining(rollouts=4, rows=4, cloning=cloning),
        )
        history = improve(
            tiny_policy(),
            env,
            config,
            demonstrations=make_samples(load(push_dataset)[:1], 4),
            paraphrases={"PickRedCube": ["pick up the red cube"]},
            seed=0,
            folder=tmp_path / "improve",
            log=log,
            motion=check,
        )
        assert history == [1.0]  # every first frame is a success under such a rule
    values = next(line["values"] for line in read_metrics(tmp_path) if line["series"] == "improve")
    if algorithm == "grpo":
        assert 0 < values["grpo/motion_trust"] <= 1
    else:
        assert 0 < values["self_training/weight"] <= values["self_training/samples"]
