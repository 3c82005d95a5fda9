"""Fixtures of the evaluation tests: a small protocol, and outcomes made by hand."""

import pytest

from worldrl.evaluation.protocol import EvalProtocol
from worldrl.evaluation.result import EvalResult
from worldrl.rollout.specs import EpisodeOutcome


@pytest.fixture
def protocol():
    return EvalProtocol(
        suite="worldrl",
        suite_version="v0",
        tasks=("PickRedCube", "CloseDrawer"),
        episodes_per_task=3,
        seed=11,
        horizon={"PickRedCube": 40, "CloseDrawer": 40},
        chunk_length=8,
        replan=8,
        control_hz=20.0,
        packages={"mujoco": "4.0.0"},
        image_size=16,
    )


@pytest.fixture
def make_result():
    """Build a result whose n-th episode succeeds where the n-th letter of ``pattern`` is ``s``."""

    def make(protocol, pattern, *, policy="p", restarted=0):
        outcomes = [
            EpisodeOutcome(
                spec=spec,
                success_once=letter == "s",
                success_at_end=False,
                steps=10 + number,
                first_success=5 if letter == "s" else None,
                restarted=number < restarted,
            )
            for number, (spec, letter) in enumerate(zip(protocol.specs(), pattern, strict=True))
        ]
        return EvalResult(protocol, policy, f"hash of {policy}", tuple(outcomes))

    return make
