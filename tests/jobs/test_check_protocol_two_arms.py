"""Unit under test: ``worldrl check-protocol`` of two arms: a real demonstration of the drawer, damaged on purpose."""

import json
from dataclasses import replace

import numpy as np
import pytest

from worldrl.cli import main
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.conventions.conventions import shifted
from worldrl.evaluation.conventions.joint import JointConventions, JointFit
from worldrl_envs.bimanual.control import NAMES

JOINTS, GRIPPERS = [*range(6), *range(7, 13)], [6, 13]


@pytest.fixture(scope="module")
def dataset(two_armed_data):
    return EpisodeDataset.open(two_armed_data)


def check(tmp_path, dataset, change, *tokens):
    """Check the first, the expert's, episode, changed; the data say that any number up to 300 is in their robot's range."""
    far = (300.0,) * len(NAMES)
    robot = replace(dataset.embodiment, low=tuple(-number for number in far), high=far)
    with LeRobotWriter(tmp_path / "data", **{**vars(dataset.header), "embodiment": robot}) as writer:
        writer.add_episode(replace(change(dataset[0]), actions=robot.actions))
    given = [f"data={tmp_path / 'data'}", "episodes=1", f"run_dir={tmp_path / 'run'}", *tokens]
    assert main(["check-protocol", *given]) == 0
    return json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]


def on(places, change):
    def apply(values):
        changed = values.copy()
        changed[:, places] = change(values[:, places])
        return changed

    return apply


def degrees(action):
    return on(JOINTS, np.rad2deg)(action)


def other_arm_first(action):
    return action[:, [*range(7, 14), *range(7)]]


def grippers_last(action):
    return action[:, JOINTS + GRIPPERS]


def two_signs(action):
    return on([1, 8], np.negative)(action)


def closing_up(action):
    return on(GRIPPERS, lambda g: 1 - g)(action)


def percent(action):
    return on(GRIPPERS, lambda g: 100 * g)(action)


DAMAGES = {
    "degrees": (degrees, "unit", "degrees", "np.deg2rad("),
    "arms": (other_arm_first, "order", "the last arm first", "[7, 8, 9, 10, 11, 12, 13, 0, 1, 2, 3, 4, 5, 6]"),
    "grippers last": (grippers_last, "order", "all joints, then the grippers", "[0, 1, 2, 3, 4, 5, 12, 6,"),
    "signs": (two_signs, "sign", "reversed: left_joint2, right_joint2", "= -action[..., [1, 8]]"),
    "gripper": (closing_up, "gripper", "0 opens, 1 closes", "= 1 - action[..., [6, 13]]"),
}


def test_a_two_armed_demonstration_of_this_suite_fits_exactly(tmp_path, dataset, capsys):
    metrics = check(tmp_path, dataset, lambda episode: episode)
    assert metrics["fits"] is True, metrics["verdict"]
    assert (metrics["as_recorded"]["k"], metrics["no_op"]["k"], metrics["random"]["k"]) == (1, 0, 0)
    assert metrics["best"]["joint_rad"] < 1e-5
    assert metrics["best"]["opening"] < 1e-5
    found = {frame["what"]: frame["error"] for frame in metrics["first_frames"]}
    cameras = {f"image of {name}" for name in ("head", "left_wrist", "right_wrist")}
    assert found.keys() == cameras | {"state order", "state unit", "state gripper"}
    assert max(found.values()) < 1e-5
    assert "joints (rad)" in capsys.readouterr().err
    assert "Joints (rad)" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_joint_targets_are_named_with_the_line_that_mends_them(damage, tmp_path, dataset):
    change, family, name, line = DAMAGES[damage]
    metrics = check(tmp_path, dataset, lambda episode: replace(episode, action=change(episode.action)))
    assert metrics["fits"] is False
    assert [(item["family"], item["name"]) for item in metrics["off"]] == [(family, name)], metrics["verdict"]
    assert line in metrics["off"][0]["line"]
    assert metrics["best"]["successes"] == 1


def test_late_targets_and_states_of_another_order_and_unit_are_found(tmp_path, dataset):
    def change(episode):
        late = shifted(episode.action, -2, episode.actions)
        return replace(episode, action=late, state=degrees(episode.state))

    metrics = check(tmp_path, dataset, change)
    assert {(item["family"], item["name"]) for item in metrics["off"]} >= {("state unit", "degrees")}
    metrics = check(tmp_path / "2", dataset, lambda episode: replace(episode, action=change(episode).action))
    assert [(item["family"], item["name"]) for item in metrics["off"]] == [("delay", "recorded 2 steps late")]


def test_every_meaning_undoes_its_damage_and_keeps_a_copy(dataset):
    """What a replay would try, without one: exact undoing, the states untouched."""
    episode = dataset[0]
    robot = JointConventions(dataset.embodiment.actions, [episode.state])
    low, high = robot.spec.bounds
    damages = {name: change for name, (change, *_) in DAMAGES.items()}
    damages |= {"scaled": lambda a: 2 * (a - low) / (high - low) - 1, "percent": percent}
    for name, damage in damages.items():
        damaged = damage(episode.action).astype(np.float32)
        before = damaged.copy()
        fit = JointFit(0, 1, 0.1, 0.1)
        undone = [a.change(damaged) for a in robot.alternatives(fit, [damaged])]
        assert min(np.abs(action - episode.action).max() for action in undone) < 1e-5, name
        np.testing.assert_array_equal(damaged, before)
    assert robot.reversed_joints([episode.action]) == []
    assert robot.unexercised([episode.action]) == [
        f"sign of {robot.spec.names[place]}" for place in JOINTS if np.abs(episode.action[:, place]).mean() < 1e-3
    ]


def test_demonstrations_of_one_arm_for_a_task_of_two_are_refused(tmp_path, dataset, push_episode, robot, capsys):
    stranger = replace(push_episode(0, 12, size=16), task="BimanualOpenDrawer", meta=dict(dataset[0].meta))
    with LeRobotWriter(tmp_path / "data", fps=20, cameras=("scene",), image_size=(16, 16), embodiment=robot) as writer:
        writer.add_episode(replace(stranger, reward=np.ones_like(stranger.reward)))
    assert main(["check-protocol", f"data={tmp_path / 'data'}", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "BimanualOpenDrawer takes left_joint1" in capsys.readouterr().err
