"""Small datasets on the disk, pushed squares and two arms that open a drawer; and LIBERO's place taken by a tiny suite."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import worldrl.jobs.benchmark.check_protocol as check_protocol
import worldrl.rollout.suites.libero as libero
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.simulators.process import Launch

FAKE_SUITE = f"{Path(__file__).parents[1] / 'workers' / 'fake_suite.py'}:Fake"


@pytest.fixture(scope="session")
def push_dataset(tmp_path_factory, push_episode, robot):
    """Sixteen episodes of 34 steps in 16 pixels, two tasks in turn."""
    folder = tmp_path_factory.mktemp("push") / "dataset"
    fsync, os.fsync = os.fsync, lambda _descriptor: None
    try:
        with LeRobotWriter(folder, fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
            for number in range(16):
                writer.add_episode(push_episode(number, 34, task=("PickRedCube", "PickGreenCylinder")[number % 2]))
    finally:
        os.fsync = fsync
    return folder


@pytest.fixture(scope="session")
def two_armed(tmp_path_factory):
    """One expert's and one noisy episode with three cameras of 16 pixels: the dataset's folder, and what collect printed."""
    from worldrl.jobs.data.collect import CollectSettings, main

    run_dir = tmp_path_factory.mktemp("two-arms") / "run"
    settings = CollectSettings(
        run_dir=str(run_dir),
        workers=0,
        envs_per_worker=1,
        image_size=16,
        hold_steps=2,
        tasks=["BimanualOpenDrawer"],
        expert_episodes=1,
        noisy_episodes=1,
        noise=0.05,
        wrist=True,
    )
    metrics = main(settings)
    return run_dir / "dataset", metrics


@pytest.fixture(scope="session")
def two_armed_data(two_armed):
    """Folder of the dataset of :func:`two_armed`."""
    return two_armed[0]


@pytest.fixture(scope="session")
def two_armed_twice(two_armed_data, tmp_path_factory):
    """The same two episodes twice, in two datasets: enough to keep some of them apart."""
    recorded, again = EpisodeDataset.open(two_armed_data), tmp_path_factory.mktemp("two-arms-again") / "dataset"
    with LeRobotWriter(again, **vars(recorded.header)) as writer:
        for episode in recorded:
            writer.add_episode(replace(episode, meta={**episode.meta, "source": "another"}))
    return [str(two_armed_data), str(again)]


@pytest.fixture
def fake_libero(monkeypatch):
    """LIBERO's launch starts a tiny suite instead; everything else is the real path."""

    def install(**options):
        launch = Launch(
            "libero_goal", sys.executable, FAKE_SUITE, {"suite": "libero_goal", "image_size": 16, **options}
        )
        monkeypatch.setattr(libero, "libero_launch", lambda suite, **settings: launch)

    instructions = {"reach_right": "reach right", "reach_up": "reach up"}
    for job in (libero, check_protocol):
        monkeypatch.setattr(job, "libero_tasks", lambda suite: ["reach_right", "reach_up"])
        monkeypatch.setattr(job, "libero_instructions", lambda suite: instructions)
    record = type("E", (), {"record": {"assets_note": "toy"}})
    monkeypatch.setattr(libero, "find_environment", lambda name: record)
    install()
    return install
