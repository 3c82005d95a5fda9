"""A small dataset of pushed squares on the disk."""

import os

import pytest

from worldrl.data.lerobot_writer import LeRobotWriter


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
