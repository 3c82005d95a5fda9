"""Fixtures of the evaluation tests: a small protocol, outcomes made by hand, and pushed squares as true runs."""

import numpy as np
import pytest

from worldrl.core.observation import IMAGE
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.rollout.camera import Camera
from worldrl.rollout.real.execution import TrueRun
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec


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


OVERHEAD = Camera(np.array([0.0, 0.0, 2.0]), np.eye(3), half_width=0.04)
"""Looks straight down from two metres: an image of 16 pixels shows 16 cm of the ground."""


def square_sight(frame):
    """Sight of the square in an image of the pushed-square world, on the ground; NaN where there is none."""
    rows, columns = np.nonzero((frame != 90).any(axis=-1))
    if not len(rows):
        return np.full(3, np.nan)
    return np.array([(columns.mean() + 0.5) / 8 - 1, (rows.mean() + 0.5) / 8 - 1, 0.0])


class SquareReader:
    """Reads where the pushed square is in an image, for every point alike."""

    names = ("gripper", "red_cube", "green_cylinder")

    def read(self, frames, task):
        sight = np.stack([square_sight(frame) for frame in frames])
        return np.repeat(sight[:, None], len(self.names), axis=1).astype(np.float32)


@pytest.fixture(scope="session")
def square_reader():
    return SquareReader()


@pytest.fixture(scope="session")
def push_runs(push_episode):
    """Eight true runs of 40 steps, of which 24 and more were recorded; two tasks in turn, one square each."""

    def run(number):
        task, square = (("PickRedCube", "red_cube"), ("PickGreenCylinder", "green_cylinder"))[number % 2]
        spec = EpisodeSpec(task, number, seed=0, source="test")
        episode = push_episode(number, 40, task=task, meta={**spec.to_json(), "restarted": False})
        centre = OVERHEAD.unproject(np.stack([square_sight(frame[0]) for frame in episode.frames]))
        point = np.repeat(centre[:, None], 2, axis=1).astype(np.float32)
        return TrueRun(episode, 24 + number, point, ("gripper", square), {IMAGE: OVERHEAD}, repeated=number != 5)

    return [run(number) for number in range(8)]
