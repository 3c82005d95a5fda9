"""Scripts of the review that need a harness which is not kept, rebuilt small against the real commands.

Units under test: the commands on crafted artefacts (script 05), on two robots (07) and on recordings (20). The kinds of
scripts 12, 13, 15 and 17 stand in ``data/test_foreign_neighbours.py``, ``world_models/test_crafted_folders.py``,
``rollout/test_imagined_checks.py`` and ``rollout/test_policy_server_clients.py``.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from worldrl.cli import USER_ERROR, main
from worldrl.core.errors import WorldrlError
from worldrl.core.storage.artefact import read_artefact, write_artefact


def poison(folder: Path, kind: str, value: float) -> None:
    """Write one weight of an artefact anew, with right checksums."""
    held = read_artefact(folder, kind=kind)
    tensors = dict(held.tensors)
    name = next(name for name in sorted(tensors) if name.endswith("weight"))
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] = value
    write_artefact(folder, kind=kind, config=held.config, tensors=tensors)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "line",
    [
        "evaluate preset=tiny policy={policy} episodes=1 workers=0",
        "benchmark policy={policy} tasks=[PickRedCube] episodes=1 workers=0",
        "collect preset=tiny image_size=16 policy={policy} policy_episodes=1 expert_episodes=0 noisy_episodes=0",
        "imagine preset=tiny world_model={model} data={data} episodes=1",
        "evaluate-world-model preset=tiny world_model={model} data=[{data}]",
    ],
)
def test_05_weights_that_are_not_finite_are_not_measured(
    line, value, tiny_policy, make_world_model, push_dataset, tmp_path, capfd
):
    """They were: ``0/1 success``, exit code 0."""
    tiny_policy().save(tmp_path / "policy")
    make_world_model().save(tmp_path / "model")
    poison(tmp_path / "policy", "policy", value)
    poison(tmp_path / "model", "video-world-model", value)
    places = {"policy": tmp_path / "policy", "model": tmp_path / "model", "data": push_dataset}
    assert main([*line.format(**places).split(), f"run_dir={tmp_path / 'run'}"]) == USER_ERROR
    (said,) = [text for text in capfd.readouterr().err.splitlines() if text.startswith("worldrl: ")]
    assert "are not finite" in said or ("data" in line and "its meta lacks" in said and "evaluate-world" in line)


@pytest.mark.parametrize("command", ["train-policy", "train-world-model start=scratch", "train-idm"])
def test_07_two_robots_are_not_trained_together(command, push_dataset, libero_demo, publish_lerobot, tmp_path, capfd):
    """LIBERO's unit of 0.05 m and ours of 0.02 m were one column of actions."""
    other = publish_lerobot(tmp_path / "libero", [libero_demo(number) for number in range(3)])
    (other / "worldrl.json").write_text('{"robot": "libero", "success": "every episode"}')
    words = [*command.split(), "preset=tiny", f"data=[{other},{push_dataset}]", f"run_dir={tmp_path / 'run'}"]
    assert main(words) == USER_ERROR
    assert "cannot be used together, they differ in" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("field", ["instruction", "task"])
@pytest.mark.parametrize("value", [5, "", " ", None, ["a"], "\ud800"])
def test_20_what_could_not_be_closed_is_refused_when_it_is_added(field, value, push_episodes, tmp_path, robot):
    from worldrl.data.lerobot.dataset import EpisodeDataset
    from worldrl.data.lerobot.writer import LeRobotWriter

    good = push_episodes[0]
    size = (good.frames.shape[2], good.frames.shape[3])
    with LeRobotWriter(tmp_path, fps=20, cameras=good.cameras, image_size=size, embodiment=robot) as writer:
        with pytest.raises(WorldrlError, match=field):
            writer.add_episode(replace(good, **{field: value}))
        writer.add_episode(good)
    assert len(EpisodeDataset.open(tmp_path)) == 1
    assert torch.equal(torch.from_numpy(EpisodeDataset.open(tmp_path)[0].action), torch.from_numpy(good.action))
