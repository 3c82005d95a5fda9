"""Stages of ``worldrl train-vla`` by themselves."""

from pathlib import Path

import pytest
import torch

from worldrl.core.artefact import artefact_hash, read_manifest
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.log import MetricLog
from worldrl.core.rng import initial_weights
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


def test_a_policy_of_other_sizes_is_refused(policy_folder, tmp_path):
    with pytest.raises(SettingError, match="hidden: 32 -> 16"):
        take(tmp_path / "run", policy_folder, hidden=32)
    with pytest.raises(ArtefactError):
        take(tmp_path / "other", tmp_path / "nothing")
