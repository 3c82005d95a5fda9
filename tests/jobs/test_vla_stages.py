"""Stages of ``worldrl train-vla`` by themselves."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.artefact import artefact_hash, read_manifest
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.learned import Learned
from worldrl.core.log import MetricLog
from worldrl.core.rng import initial_weights
from worldrl.data.dataset import EpisodeDataset
from worldrl.jobs import restyle, train_vla, vla_stages
from worldrl.jobs.arena import EmbeddedArena
from worldrl.jobs.opening import open_run
from worldrl.jobs.restyle import RestyleSettings
from worldrl.jobs.vla_loop import Loop, check_policy_fits
from worldrl.jobs.vla_settings import TrainVlaSettings
from worldrl.jobs.vla_stages import supervised_policy
from worldrl.jobs.world_model_lineage import learned_from
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token_policy import TokenPolicy, TokenPolicyConfig
from worldrl.rewards.success import SuccessRule
from worldrl.workers.boot import load_file

fake = load_file("fake_network", Path(__file__).parents[1] / "policies" / "fake_network.py")
SIZES = {"image_size": 16, "width": 8, "blocks": 1, "keypoints": 4, "text_width": 8, "hidden": 16}


@pytest.fixture
def policy_folder(tmp_path):
    with initial_weights(0, "policy"):
        policy = TokenPolicy(
            TokenPolicyConfig(**SIZES), PolicyStatistics(-torch.ones(7), torch.ones(7), torch.zeros(7), torch.ones(7))
        )
    policy.save(tmp_path / "policy")
    return tmp_path / "policy"


def take(run_dir: Path, folder: Path, **sizes):
    settings = TrainVlaSettings(
        run_dir=str(run_dir), supervised=str(folder), policy=TokenPolicyConfig(**{**SIZES, **sizes})
    )
    with open_run("train-vla", settings) as run, MetricLog(run.path) as log:
        return supervised_policy(
            Loop(settings, run, log, torch.device("cpu"), EmbeddedArena(settings, ("PickRedCube",))), Path("unused")
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "diffusion", "n_obs_steps": 2}, r"looks at 2 observations \(n_obs_steps\); imagination shows"),
        ({"wrist": True}, "looks at wrist_image; imagination shows"),
    ],
)
def test_a_policy_that_imagination_cannot_serve_is_refused_before_anything_is_recorded(tmp_path, changes, words):
    sees, moves = {"type": "VISUAL", "shape": [3, 16, 16]}, {"type": "STATE", "shape": [7]}
    if changes.pop("wrist", False):
        seen = {"observation.images.scene": sees, "observation.images.wrist": sees, "observation.state": moves}
        changes["input_features"] = seen
    folder = fake.publish(tmp_path / "policy", **changes)
    with pytest.raises(SettingError, match=f"supervised: the policy in .*policy {words}"):
        check_policy_fits(TrainVlaSettings(supervised=str(folder)))


def test_a_given_policy_is_taken_as_it_is(policy_folder, tmp_path):
    taken = take(tmp_path / "run", policy_folder)
    given, found = (TokenPolicy.load(folder, "cpu").state_dict() for folder in (policy_folder, taken))
    assert all(torch.equal(found[name], value) for name, value in given.items())
    assert [parent["hash"] for parent in read_manifest(taken)["parents"]] == [artefact_hash(policy_folder)]
    assert take(tmp_path / "run", policy_folder) == taken  # finished: a second start takes nothing


@pytest.mark.parametrize(
    ("improve_from", "begun"),
    [("latest", ["supervised", "improved-1", "improved-2"]), ("supervised", ["supervised"] * 3)],
)
def test_each_round_improves_the_policy_that_is_asked_for_and_practises_with_the_latest(
    monkeypatch, improve_from, begun
):
    learners, actors = [], []

    def practice(loop, number, policy, world):
        actors.append(policy.name)
        return Path(f"practice-{number}")

    def improved(loop, number, demos, learner, world, practices):
        learners.append(learner.name)
        return Path(f"improved-{number}")

    monkeypatch.setattr(train_vla.stages, "practice", practice)
    monkeypatch.setattr(train_vla.stages, "world_model", lambda loop, number, *_: Path(f"world-{number}"))
    monkeypatch.setattr(train_vla.stages, "improved_policy", improved)
    monkeypatch.setattr(train_vla.checks, "gates", lambda *_: None)
    loop = SimpleNamespace(settings=TrainVlaSettings(rounds=3, improve_from=improve_from, start="scratch"))
    last = train_vla.run_rounds(loop, Path("demos"), Path("supervised"))
    assert last == (Path("improved-3"), Path("world-3"))
    assert learners == begun
    assert actors == ["supervised", "improved-1", "improved-2"]


def test_a_rounds_world_model_remembers_demonstrations_practice_and_its_weights(
    push_dataset, make_world_model, monkeypatch, tmp_path
):
    """Trainings, dreams and calibration are left out: what is in question is what the saved folder says of them."""
    before = Learned(frozenset({"a"}), frozenset({"of a"}))
    make_world_model().save(tmp_path / "before", learned=before)
    restyle.main(RestyleSettings(str(push_dataset), str(tmp_path / "practice"), by="image"))
    practice = tmp_path / "practice" / "dataset"
    model = make_world_model()
    for name, value in {
        "starting_world_model": model, "learn_world_model": {}, "practice_split": ([], [], []), "load_policy": None,
        "fresh_dreams": None, "keyframe_dreams": None, "join_dreams": None, "calibrate": SuccessRule(0.5, 1),
    }.items():  # fmt: skip
        monkeypatch.setattr(vla_stages, name, lambda *_, value=value, **__: value)
    settings = TrainVlaSettings(run_dir=str(tmp_path / "run"), dtype="float32")
    with open_run("train-vla", settings) as run, MetricLog(run.path) as log:
        loop = Loop(settings, run, log, torch.device("cpu"), EmbeddedArena(settings, ("PickRedCube",)))
        folder = vla_stages.world_model(loop, 1, push_dataset, [practice], Path("p"), tmp_path / "before")
    assert Learned.read(folder) == before | learned_from(
        [EpisodeDataset.open(push_dataset), EpisodeDataset.open(practice)]
    )
    parents = [Path(one["path"]) for one in read_manifest(folder)["parents"]]
    assert parents == [push_dataset, practice, tmp_path / "before"]


def test_a_policy_of_other_sizes_is_refused(policy_folder, tmp_path):
    with pytest.raises(SettingError, match="hidden: 32 -> 16"):
        take(tmp_path / "run", policy_folder, hidden=32)
    with pytest.raises(ArtefactError):
        take(tmp_path / "other", tmp_path / "nothing")
