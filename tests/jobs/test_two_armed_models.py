"""Two arms from demonstrations to imagination: every job of the main path with fourteen joint targets instead of seven changes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.errors import ProtocolError, SettingError
from worldrl.core.storage.artefact import read_manifest
from worldrl.core.storage.learned import Learned
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.policy.protocol import EvalProtocol, embedded_protocol
from worldrl.jobs.benchmark import compare
from worldrl.jobs.benchmark.compare import CompareSettings
from worldrl.jobs.motion import align_world_model, train_idm
from worldrl.jobs.policy import evaluate, train_policy
from worldrl.jobs.world_model import evaluate_world_model, imagine, train_world_model
from worldrl.policies.token.policy import TokenPolicy
from worldrl.recipes.motion.planned_execution import plan_states
from worldrl.rewards.execution_critic import execution_reward
from worldrl.settings import compose
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.pose_map import JointPoseMap
from worldrl_envs.bimanual.control import NAMES

TASK = "BimanualOpenDrawer"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two-armed-models")


@pytest.fixture(scope="module")
def policy(folder, two_armed_data):
    given = {"run_dir": f"{folder}/policy", "data": f"['{two_armed_data}']", "preset": "tiny", "model.image_size": "16"}
    train_policy.main(compose("train-policy", train_policy.TrainPolicySettings, given | {"model.bins": "65"}))
    return folder / "policy/policy"


@pytest.fixture(scope="module")
def world(folder, two_armed_data):
    given = {
        "run_dir": f"{folder}/world",
        "data": f"['{two_armed_data}']",
        "preset": "tiny",
        "model.codec.image_size": "16",
        "model.dynamics.planning": "true",
        "training.action_dropout": "0.5",
        "training.unroll": "2",
        "training.outcome_steps": "2",
        "training.outcome_batch": "2",
        "held_out": "0",
    }
    train_world_model.main(compose("train-world-model", train_world_model.TrainWorldModelSettings, given))
    return folder / "world/world_model"


def test_a_policy_of_fourteen_comes_back_with_its_robot(policy, two_armed_data):
    loaded = TokenPolicy.load(policy, "cpu")
    assert loaded.actions.names == NAMES
    assert json.loads((policy / "config.json").read_text())["actions"]["names"] == list(NAMES)
    low, high = loaded.actions.bounds
    token = torch.full((1, 8, 14), 64)
    action = loaded.decode(token).numpy()
    assert action.shape == (1, 8, 14)
    assert ((action >= low) & (action <= high)).all()
    np.testing.assert_allclose(action[0, 0], loaded.action_high.numpy(), atol=1e-3)  # the last bin's centre
    recorded = np.concatenate([episode.action for episode in EpisodeDataset.open(two_armed_data)])
    assert (loaded.action_high.numpy() <= recorded.max(axis=0) + 1e-6).all()


def test_the_policy_is_measured_on_its_own_robot_alone(policy, folder, tiny_policy, tmp_path):
    given = {"policy": str(policy), "run_dir": f"{folder}/evaluate", "tasks": f"[{TASK}]", "workers": "0"}
    given |= {"episodes": "1", "videos": "1", "seed": "5"}
    metrics = evaluate.main(compose("evaluate", evaluate.EvaluateSettings, given))
    assert metrics["success"]["n"] == 1
    protocol = embedded_protocol([TASK], episodes_per_task=1, seed=5, chunk_length=8, image_size=16)
    assert protocol.cameras == ("head",)
    assert EvalProtocol.from_json(json.loads(json.dumps(protocol.to_json()))) == protocol
    tiny_policy(chunk_length=8).save(tmp_path / "one-arm")
    strange = compose(
        "evaluate",
        evaluate.EvaluateSettings,
        {**given, "policy": str(tmp_path / "one-arm"), "run_dir": f"{tmp_path}/e"},
    )
    with pytest.raises(SettingError, match=r"action \(7,\) +\| action \(14,\)(?s:.)*another robot"):
        evaluate.main(strange)
    with pytest.raises(SettingError, match="is of two arms, PickRedCube of one"):
        embedded_protocol([TASK, "PickRedCube"], episodes_per_task=1, seed=0, chunk_length=8)


def test_clean_and_randomised_are_measured_apart_on_the_same_layouts(policy, tmp_path, monkeypatch):
    """The domain reaches the simulator, and the two results refuse to be compared."""
    seen = {}

    def keep(folder, fps):
        return lambda episode: seen.setdefault(folder.parent.name, episode)

    monkeypatch.setattr(evaluate, "video_writer", keep)
    for domain in ("clean", "randomised"):
        given = {
            "policy": str(policy), "run_dir": f"{tmp_path}/{domain}", "tasks": f"[{TASK}]", "episodes": "1",
            "workers": "0", "domain": domain,
        }  # fmt: skip
        metrics = evaluate.main(compose("evaluate", evaluate.EvaluateSettings, given))
        assert metrics["protocol"].get("domain", "clean") == domain
    clean, drawn = seen["clean"], seen["randomised"]
    assert ("domain" in clean.meta, drawn.meta["domain"]) == (False, "randomised")
    assert clean.meta["index"] == drawn.meta["index"]
    assert np.abs(clean.frames[0].astype(int) - drawn.frames[0]).mean() > 5
    with pytest.raises(ProtocolError, match="domain: None against 'randomised'"):
        compare.main(CompareSettings(a=f"{tmp_path}/clean", b=f"{tmp_path}/randomised", run_dir=f"{tmp_path}/c"))


def test_the_world_model_imagines_both_arms(world, folder, two_armed_data):
    given = {
        "run_dir": f"{folder}/dreams",
        "data": str(two_armed_data),
        "world_model": str(world),
        "preset": "tiny",
    }
    metrics = imagine.main(compose("imagine", imagine.ImagineSettings, {**given, "episodes": "1", "steps": "16"}))
    assert np.isfinite(metrics["closed_loop.psnr@8"])
    model = VideoWorldModel.load(world)
    assert model.embodiment == EpisodeDataset.open(two_armed_data).embodiment
    assert isinstance(model.dynamics.pose_map, JointPoseMap)
    assert len(model.dynamics.pose_map.hands) == 2
    assert model.gripper.out[-1].out_features == 2


def test_two_armed_episodes_are_refused_where_they_cannot_be_continued(policy, world, folder, two_armed_data):
    """Before anything is measured, and whatever their domain: imagined rollouts of policies would begin in the clean one."""
    given = {
        "run_dir": f"{folder}/refused", "data": f"['{two_armed_data}']", "world_model": str(world), "preset": "tiny",
        "policies.folders": f"['{policy}']",
    }  # fmt: skip
    settings = compose("evaluate-world-model", evaluate_world_model.EvaluateWorldModelSettings, given)
    with pytest.raises(SettingError, match=r"path of one tool, .* left_joint1, .* give a dataset of tasks of one arm"):
        evaluate_world_model.main(settings)
    assert not (folder / "refused").exists()


@pytest.fixture(scope="module")
def reader(folder, two_armed_twice):
    """An inverse dynamics' run directory."""
    given = {
        "run_dir": f"{folder}/idm", "data": str(two_armed_twice), "preset": "tiny", "camera": "head", "target": "[command]",
        "frame_stride": "2", "held_out": "0.5", "clip_frames": "4", "foresight.steps": "0",
    }  # fmt: skip
    train_idm.main(compose("train-idm", train_idm.TrainIdmSettings, given))
    return folder / "idm"


def test_plans_are_executed_before_the_alignment_and_teach_the_reward(
    world, reader, folder, two_armed_data, monkeypatch
):
    """Two real plans of an untrained planner fail both, which is refused; with a success among them alignment continues, once executed."""
    given = {
        "run_dir": f"{folder}/aligned", "data": f"['{two_armed_data}']", "preset": "tiny", "start": str(world),
        "rewards": "[execution]", "folders.execution": str(reader), "executed_plans": "2", "alignment.chunks": "1", "held_out": "0.5",
    }  # fmt: skip
    settings = compose("align-world-model", align_world_model.AlignWorldModelSettings, given)
    with pytest.raises(SettingError, match="all 2 plans failed"):
        align_world_model.main(settings)
    collect_plans, asked = align_world_model.collect_plans, []

    def lucky(planning, chunks, count, **given):
        asked.append((chunks, count))
        tried = collect_plans(planning, chunks, count, **given)
        return replace(tried, success=np.array([True, False]))

    monkeypatch.setattr(align_world_model, "collect_plans", lucky)
    monkeypatch.setattr(align_world_model, "COLLECTION_KEPT", 0)
    metrics = align_world_model.main(settings)
    assert asked == [({"BimanualOpenDrawer": 1}, 2)]
    assert metrics["terms"].keys() >= {"execution"}
    kept = execution_reward(f"{folder}/aligned/execution", [], torch.device("cpu"))
    assert kept.critic.width == 14
    assert metrics["executed_plans"]["terms"].keys() == {
        "executability",
        "position_limits",
        "motion",
        "moving_executability",
    }
    page = (folder / "aligned/report.html").read_text()
    for words in ("How rewards rank executed plans", "area within tasks", "all tasks together"):
        assert words in page
    assert metrics["executed_plans"]["terms_pooled"].keys() == metrics["executed_plans"]["terms"].keys()
    manifest, learned = (read(Path(folder) / "aligned/world_model") for read in (read_manifest, Learned.read))
    made_from = {Path(entry["path"]).name for entry in manifest["parents"]}
    assert made_from == {Path(two_armed_data).name, Path(world).name, "idm", "critic"}
    states = plan_states(["BimanualOpenDrawer"], 2, settings.seed)
    assert states.episodes <= learned.episodes
    assert Learned.read(reader / "idm").datasets <= learned.datasets
    assert kept.critic.config.distance_penalty == 1
    again = {
        **given,
        "run_dir": f"{folder}/again",
        "executed_plans": "0",
        "folders.execution": f"{folder}/aligned/execution",
    }
    found = align_world_model.main(compose("align-world-model", align_world_model.AlignWorldModelSettings, again))
    first, second = (run["terms"]["execution"]["before"]["value"] for run in (metrics, found))
    assert first == second
    for wrong, words in (({}, r"rewards=\[execution\]"), ({"conditioning": "actions"}, "conditioning=instruction")):
        with pytest.raises(SettingError, match=words):
            compose("align-world-model", align_world_model.AlignWorldModelSettings, {"executed_plans": "2", **wrong})
