"""A dataset without an episode is refused by every command that reads recorded episodes, before anything is written."""

import pytest

from worldrl.cli import USER_ERROR, main
from worldrl.core.embodiment import Embodiment
from worldrl.data.lerobot.writer import LeRobotWriter

COMMANDS = (
    "restyle data={}",
    "restyle data={} by=image",
    "extend data={}",
    "train-policy data=[{}] preset=tiny",
    "train-world-model data=[{}] preset=tiny",
    "train-idm data=[{}] preset=tiny",
    "imagine data={} preset=tiny",
    "check-protocol data={}",
    "evaluate-world-model data=[{}] world_model=bundled preset=tiny",
    "train-vla data={} preset=tiny",
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "empty"
    robot = Embodiment(0.02, 0.1, (0.2, -0.4, 0.0), (0.8, 0.4, 0.6), 1.0, 20.0)
    LeRobotWriter(folder, fps=20, image_size=(64, 64), embodiment=robot, suite="worldrl").close()
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_dataset_is_one_line(empty, tmp_path, capfd, command):
    run = tmp_path / "run"
    assert main([*command.format(empty).split(), f"run_dir={run}"]) == USER_ERROR
    message = capfd.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"worldrl: {empty}: holds no episode")
    assert not any(path.is_file() and path.suffix in (".parquet", ".safetensors") for path in run.rglob("*"))
