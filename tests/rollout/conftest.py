"""Fixtures of the rollout tests: small environments, a random policy, and an environment with planned accidents."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.simulators.process import SimulatorProcess


@pytest.fixture
def options():
    return EnvOptions(image_size=16, max_steps={"PickRedCube": 40})


@pytest.fixture
def specs():
    return [EpisodeSpec("PickRedCube", index, seed=5, source="test") for index in range(4)]


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies") / "random"
    ones = torch.ones(7)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = TokenPolicy(
            TokenPolicyConfig(image_size=16, chunk_length=4, width=8, blocks=1, keypoints=2, hidden=16),
            PolicyStatistics(-ones, ones, 0 * ones, ones),
        )
    policy.save(folder)
    return folder


@pytest.fixture
def faulty(monkeypatch, tmp_path):
    """Plan an accident; returns the environment options that meet it."""

    def plan(kind, *, index=1, at=3, times=None):
        marker = str(tmp_path / "happened") if times else None
        fault = {"kind": kind, "index": index, "at": at, "marker": marker, "times": times}
        monkeypatch.setenv("WORLDRL_TEST_FAULT", json.dumps(fault))
        monkeypatch.syspath_prepend(str(Path(__file__).parent / "faulty"))
        return EnvOptions(image_size=16, max_steps={"PickRedCube": 40}, env_id="worldrl_faulty:faulty/{task}-v0")

    return plan


@pytest.fixture
def started(monkeypatch):
    """Every worker process, from its start on."""
    found, start = [], SimulatorProcess.__init__
    monkeypatch.setattr(
        SimulatorProcess, "__init__", lambda self, *a, **k: (found.append(self), start(self, *a, **k))[1]
    )
    return found


@pytest.fixture
def no_orphans(started):
    """Fail when a test leaves a worker behind."""
    yield
    assert running(started) == []


def running(started):
    return [process.pid for process in started if process.started.end(0) is None]


@pytest.fixture(scope="module")
def two_view_episodes(push_episodes):
    """Pushing with a wrist camera, the mirrored scene, and a drawn measured state."""
    return [
        replace(
            e,
            frames=np.concatenate([e.frames, e.frames[:, :, ::-1]], axis=1),
            cameras=("scene", "wrist"),
            state=np.random.default_rng(n).normal(size=e.state.shape).astype(np.float32),
        )
        for n, e in enumerate(push_episodes)
    ]
