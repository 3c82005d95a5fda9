"""What weighs in ``train-vla``: the stage that learns inverse dynamics, and both algorithms believing it."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.storage.artefact import read_manifest
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.jobs.vla import filtering as vla_trust
from worldrl.jobs.vla.artefacts import Recording
from worldrl.jobs.vla.filtering import round_filter
from worldrl.jobs.vla.loop import Loop
from worldrl.jobs.vla.plan import planned
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig
from worldrl.methods.rl.imagination import imagined_env
from worldrl.methods.rl.improve import ALGORITHMS, Improvement, improve
from worldrl.methods.rl.trust import GraspUncertainty, MotionUncertainty, Trust
from worldrl.policies.samples import make_samples
from worldrl.policies.token.policy import TokenPolicyConfig
from worldrl.recipes.motion.idm_stages import learn_grasp
from worldrl.recipes.run import open_run
from worldrl.recipes.world_model.lineage import learned_from
from worldrl.rewards.config import GraspConfig, IdmConfig, IdmTraining
from worldrl.rewards.grasp import closing_of
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore

IDM = {
    "model": IdmConfig(width=8, blocks=1, keypoints=2, hidden=8),
    "training": IdmTraining(steps=3, batch=4, checkpoint_every=2),
}


GRASP = GraspConfig(width=8, blocks=1, keypoints=2, text_width=8, hidden=8, steps=3, batch=4)


def settings_in(folder, **trust):
    improvement = Improvement(trust=Trust(idm=MotionUncertainty(**IDM), grasp=GraspUncertainty(model=GRASP), **trust))
    policy = TokenPolicyConfig(image_size=16, chunk_length=4)
    return TrainVlaSettings(
        run_dir=str(folder), policy=policy, tasks=["PickRedCube"], improvement=improvement, held_out=0.5
    )


def test_it_is_off_by_default(push_dataset, world_model, tmp_path):
    settings = settings_in(tmp_path)
    with open_run("train-vla", settings) as run, MetricLog(run.path, tracker=TrackerName.none) as log:
        loop = Loop(planned(settings, torch.device("cpu")), run, log)
        assert round_filter(loop, 1, world_model, Recording(push_dataset), [Recording(push_dataset)]) is None
        assert not (tmp_path / "stages" / "round-1-4-idm").exists()


def test_one_member_cannot_disagree(push_dataset, world_model, tmp_path):
    settings = settings_in(tmp_path, confidence_score="member_agreement", limit=0.1)
    with open_run("train-vla", settings) as run, MetricLog(run.path, tracker=TrackerName.none) as log:
        loop = Loop(planned(settings, torch.device("cpu")), run, log)
        with pytest.raises(SettingError, match="has 1 member"):
            round_filter(loop, 1, world_model, Recording(push_dataset), [Recording(push_dataset)])


def test_a_held_out_share_without_a_closing_is_reported_on_in_no_line(push_dataset, world_model, tmp_path, monkeypatch):
    """It only measures errors: a weak policy that has none there loses a number, not the run."""
    split = vla_trust.collection_split

    def without(loop, practices):
        training, calibrating, held_out = split(loop, practices)
        return training, calibrating, [replace(episode, reward=0 * episode.reward) for episode in held_out]

    monkeypatch.setattr(vla_trust, "collection_split", without)
    settings = settings_in(tmp_path, confidence_score="grasp_agreement")
    with open_run("train-vla", settings) as run, MetricLog(run.path, tracker=TrackerName.none) as log:
        loop = Loop(planned(settings, torch.device("cpu")), run, log)
        assert round_filter(loop, 1, world_model, Recording(push_dataset), [Recording(push_dataset)]).reader.bound > 0
        assert run.stage("round-1-4-grasp").summary["errors"] is None
    grasp = tmp_path / "stages/round-1-4-grasp/grasp"
    dataset = EpisodeDataset.open(push_dataset)
    assert [entry["hash"] for entry in read_manifest(grasp)["parents"]] == [dataset.fingerprint]
    assert Learned.read(grasp) == learned_from([dataset])


def test_the_grasp_is_learned_from_demonstrations_too(push_dataset, world_model, push_episode, tmp_path, monkeypatch):
    """Practice is unsuccessful hands alone, from which nobody learns how exact a hand can be."""
    dataset, seen = EpisodeDataset.open(push_dataset), {}
    demos = tmp_path / "demonstrations"
    with LeRobotWriter(
        demos, fps=20, cameras=("scene",), image_size=(16, 16), embodiment=dataset.header.embodiment
    ) as writer:
        for number in range(20, 24):
            writer.add_episode(push_episode(number, 34, task="PickRedCube"))

    def spied(folder, closings, kept, *args, **kwargs):
        seen.update(learned=int(closings.first.sum()), kept=int(kept.first.sum()))
        return learn_grasp(folder, closings, kept, *args, **kwargs)

    monkeypatch.setattr(vla_trust, "learn_grasp", spied)
    settings = settings_in(tmp_path, confidence_score="grasp_agreement")
    with open_run("train-vla", settings) as run, MetricLog(run.path, tracker=TrackerName.none) as log:
        loop = Loop(planned(settings, torch.device("cpu")), run, log)
        round_filter(loop, 1, world_model, Recording(demos), [Recording(push_dataset)])
        collected, calibrating, _ = vla_trust.collection_split(loop, [Recording(push_dataset)])
    # What measures its error and bound is the practice alone: imagined rollouts are of its hands.
    assert seen == {"learned": closings(Recording(demos).episodes) + closings(collected), "kept": closings(calibrating)}
    assert closings(Recording(demos).episodes) > 0
    assert Learned.read(tmp_path / "stages/round-1-4-grasp/grasp") == learned_from(
        [EpisodeDataset.open(demos), dataset]
    )


def closings(episodes):
    """How many of them close the hand and then succeed."""
    return sum(closing_of(episode) >= 0 for episode in episodes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("sign", "part"), [("motion_agreement", "idm"), ("grasp_agreement", "grasp")])
def test_a_learned_check_weighs_imagined_rollouts(
    push_dataset, world_model, tiny_policy, make_record, tmp_path, algorithm, sign, part
):
    settings = settings_in(tmp_path, confidence_score=sign)
    with open_run("train-vla", settings) as run, MetricLog(run.path, tracker=TrackerName.none) as log:
        loop = Loop(planned(settings, torch.device("cpu")), run, log)
        judge = round_filter(loop, 1, world_model, Recording(push_dataset), [Recording(push_dataset)])
        assert judge.reader.bound > 0
        found = round_filter(loop, 1, world_model, Recording(push_dataset), [Recording(push_dataset)])  # learned once
        heads = [getattr(one.reader, part).head[0].weight for one in (judge, found)]
        assert torch.equal(*heads)
        assert (tmp_path / "stages" / f"round-1-4-{part}" / part).is_dir()
        store = ResetStore([make_record(grey) for grey in (20, 200)])
        env = imagined_env(world_model, store, SuccessRule(0.01, 1), rows=4, horizon={"PickRedCube": 8})
        cloning = BehaviourCloning(steps=2, batch_size=4, warmup_steps=1)
        config = Improvement(
            algorithm,
            grpo=GrpoConfig(iterations=1, groups=2, group_size=2, minibatch=8),
            self_training=FilteredCloning(cycles=1, rollouts=4, rows=4, cloning=cloning),
        )
        history = improve(
            tiny_policy(),
            env,
            config,
            demonstrations=make_samples(Recording(push_dataset).episodes[:1], 4),
            paraphrases={"PickRedCube": ["pick up the red cube"]},
            seed=0,
            folder=tmp_path / "improve",
            log=log,
            judge=judge,
        )
        assert history == [1.0]  # every first frame is a success under such a rule
    values = next(line["values"] for line in read_metrics(tmp_path) if line["series"] == "improve")
    if algorithm == "grpo":
        assert 0 < values["grpo/trusted_success"] <= 1
    else:
        assert 0 < values["self_training/weight"] <= values["self_training/samples"]
