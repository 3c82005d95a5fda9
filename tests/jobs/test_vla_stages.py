"""Stages of ``worldrl train-vla`` by themselves."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.artefact import artefact_hash, read_manifest
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.log import MetricLog
from worldrl.core.rng import initial_weights
from worldrl.jobs import train_vla
from worldrl.jobs.arena import EmbeddedArena
from worldrl.jobs.opening import open_run
from worldrl.jobs.vla_loop import Loop
from worldrl.jobs.vla_settings import TrainVlaSettings
from worldrl.jobs.vla_stages import supervised_policy
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token_policy import TokenPolicy, TokenPolicyConfig

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


def test_a_policy_of_other_sizes_is_refused(policy_folder, tmp_path):
    with pytest.raises(SettingError, match="hidden: 32 -> 16"):
        take(tmp_path / "run", policy_folder, hidden=32)
    with pytest.raises(ArtefactError):
        take(tmp_path / "other", tmp_path / "nothing")
