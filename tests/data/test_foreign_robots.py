"""Units under test: what an external recording's robot is, and the ``worldrl.json`` that is asked for (``data/foreign_*.py``).

Recordings are made as lerobot-record lays them out: joints in degrees, a gripper from 0 to 100, two cameras, no success.
"""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from worldrl.core.actions import gripper_places, is_gripper
from worldrl.core.embodiment import JointEmbodiment, integrate_commands
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.external.cameras import SIZE
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.data.windows.keyframes import gripper_changes
from worldrl.policies.token.policy import TokenPolicyConfig

SO101 = ("shoulder_pan.pos", "shoulder_lift.pos", "elbow_flex.pos", "wrist_flex.pos", "wrist_roll.pos", "gripper.pos")
OLD = (
    "main_shoulder_pan",
    "main_shoulder_lift",
    "main_elbow_flex",
    "main_wrist_flex",
    "main_wrist_roll",
    "main_gripper",
)
TWO_ARMS = tuple(f"{side}_{name}" for side in ("left", "right") for name in ("joint_0", "joint_1", "gripper.pos"))
FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def recording(number, names=SO101, *, rows=30, unit=60.0, ends=(42.0, 8.0), size=(24, 32), still=4):
    """One episode: joints on arcs of ``unit``, joint ``still`` never moves, grippers between ``ends`` (open, closed)."""
    noise = np.random.default_rng(number)
    arc = np.sin(np.linspace(0, np.pi, rows))[:, None] * noise.uniform(0.3, 1.0, len(names))
    action = unit * (arc - noise.uniform(-0.2, 0.8, len(names))) + noise.normal(0, unit / 300, (rows, len(names)))
    action[:, still] = unit / 7
    for place in gripper_places(names):
        closed = (np.arange(rows) > rows // 3) & (np.arange(rows) < 4 * rows // 5)
        action[:, place] = np.where(closed, ends[1], ends[0]) + noise.normal(0, abs(ends[0] - ends[1]) / 200, rows)
    action = action.astype(np.float32)
    state = np.concatenate([action[:1], action[:-1]]) + noise.normal(0, unit / 200, action.shape)
    images = noise.integers(0, 256, (2, rows, *size, 3), np.uint8)
    columns = {"sentence": "Pick the block.", "observation.state": state.astype(np.float32), "action": action}
    return {**columns, FRONT: images[0], WRIST: images[1]}


def relabel(folder, robot_type, **names):
    file = folder / "meta/info.json"
    info = json.loads(file.read_text())
    for feature, labels in names.items():
        info["features"][feature.replace("_state", ".state")]["names"] = list(labels)
    file.write_text(json.dumps(info | {"robot_type": robot_type}))
    return folder


@pytest.fixture
def recorded(tmp_path, publish_lerobot):
    """Publish recordings of a robot under its labels."""

    def publish(names=SO101, *, name="so101", **options):
        episodes = [recording(number, names, **options) for number in range(3)]
        folder = publish_lerobot(tmp_path / name, episodes, files=(2, 1), fps=30, success=None)
        return relabel(folder, "so101_follower", action=names, observation_state=names)

    return publish


def asked(folder):
    """Open a folder that does not open; return the message and the JSON in it."""
    with pytest.raises(SettingError) as error:
        EpisodeDataset.open(folder)
    text = str(error.value)
    return text, json.loads(re.search(r"for example (\{.*\})$", text)[1])


def write(folder, stated):
    (folder / "worldrl.json").write_text(json.dumps(stated))
    return EpisodeDataset.open(folder)


# --- one answer is enough ---


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (SO101, {}),
        (OLD, {"ends": (0.0, 100.0)}),
        (SO101, {"unit": 1.5, "ends": (1.0, 0.0)}),
        (SO101, {"unit": 0.003, "ends": (0.07, 0.0)}),
        (SO101, {"unit": 40_000.0, "ends": (3100.0, 2000.0)}),
        (TWO_ARMS, {"still": 0}),
        (tuple("abcdef"), {"still": 0, "size": (16, 16)}),
    ],
)
def test_the_json_of_the_first_error_opens_the_folder_and_every_target_is_followed(names, options, recorded):
    folder = recorded(names, **options)
    message, stated = asked(folder)
    assert {"robot", "cameras", "image_size", "success"} <= set(stated)
    assert "nothing says which episodes succeeded" in message
    data = write(folder, stated)
    assert data.cameras == ("scene", "wrist")
    assert data.image_size == options.get("size", (SIZE, SIZE))
    for episode in data:
        start, action = (torch.from_numpy(x) for x in (episode.command[:1], episode.action[None]))
        followed = integrate_commands(data.embodiment, start, action)[0].numpy()
        np.testing.assert_array_equal(followed, episode.command[1:])
        np.testing.assert_array_equal(episode.command[1:], episode.action)
        if gripper_places(names):
            assert len(gripper_changes(episode.command, episode.actions)) >= 2
            closed = episode.action[:, list(gripper_places(names))]
            assert closed.min() >= -0.05
            assert closed.max() <= 1.05


def test_the_guessed_image_size_is_the_default_of_policies():
    assert TokenPolicyConfig().image_size == SIZE


def test_ranges_cover_rows_behind_the_sample_and_are_never_rounded_inwards(recorded, monkeypatch):
    monkeypatch.setattr("worldrl.data.lerobot.external.robot.SAMPLE_ROWS", 10)
    folder = recorded(unit=90.28413)
    robot = asked(folder)[1]["robot"]
    rows = np.concatenate([np.array(pq.read_table(f)["action"].to_pylist()) for f in folder.glob("data/*/*")])
    joints = slice(0, 5)
    assert (np.array(robot["low"])[joints] <= rows.min(axis=0)[joints]).all()
    assert (np.array(robot["high"])[joints] >= rows.max(axis=0)[joints]).all()
    assert all(low < high for low, high in zip(robot["low"], robot["high"], strict=True))


def test_episodes_that_are_left_out_say_nothing_about_ranges_and_speeds(recorded):
    folder = recorded()
    file = folder / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    episode, action = (table[name].to_pylist() for name in ("episode_index", "action"))
    far = [[1e6] * 6 if number == 1 else row for number, row in zip(episode, action, strict=True)]
    pq.write_table(table.set_column(table.column_names.index("action"), "action", pa.array(far)), file)
    assert max(asked(folder)[1]["robot"]["high"]) > 1e5
    (folder / "worldrl.json").write_text('{"leave_out": [1]}')
    stated = asked(folder)[1]
    assert stated["leave_out"] == [1]
    assert max(stated["robot"]["high"]) < 1e3
    assert [record.index for record in write(folder, stated).records] == [0, 2]


def test_a_stated_robot_that_contradicts_the_rows_is_refused_with_one_that_does_not(recorded):
    folder = recorded()
    stated = asked(folder)[1]
    robot = stated["robot"]
    for change, problem in (
        ({"max_speed": [3.0] * 6}, r"targets of shoulder_pan.pos change by up to .* allows 3"),
        (
            {"high": [*robot["high"][:2], 0.5 * robot["high"][2], *robot["high"][3:]]},
            "robot says elbow_flex.pos lies in",
        ),
        (
            {"high": [*robot["high"][:5], 100.0]},
            r"gripper.pos is mapped to \[0 closed, 1 open\], robot says \[0, 100\]",
        ),
    ):
        with pytest.raises(SettingError, match=problem):
            write(folder, {**stated, "robot": {**robot, **change}})
        again = asked(folder)[1]
        assert again["gripper"] == stated["gripper"]
        assert write(folder, again)[0].actions.grippers == (5,)
    with pytest.raises(SettingError, match=r"which numbers of gripper\.pos are open and closed"):
        write(folder, {key: value for key, value in stated.items() if key != "gripper"})
    assert asked(folder)[1]["gripper"] == stated["gripper"]
    with pytest.raises(
        SettingError, match=r"numbers of gripper.pos must lie in \[0 closed, 1 open\], with the stated ends"
    ):
        write(folder, {**stated, "gripper": {"open": 20, "closed": 8}})
    assert asked(folder)[1]["gripper"] == stated["gripper"]


def test_ends_between_which_a_gripper_never_changes_sides_are_taken_but_not_in_silence(recorded):
    folder = recorded()
    data = write(folder, {**asked(folder)[1], "gripper": {"open": 100, "closed": 0}})
    assert any(
        "gripper.pos stays on one side of the middle" in text for text in data.records[0].meta["lerobot"]["assumed"]
    )


# --- names ---


@pytest.mark.parametrize(
    "name",
    [
        "gripper",
        "gripper.pos",
        "main_gripper",
        "left_gripper.pos",
        "right_gripper_joint",
        "gripper_0",
        "Gripper.position",
    ],
)
def test_grippers_are_known_by_their_names(name):
    assert is_gripper(name)


@pytest.mark.parametrize("name", ["wrist_roll.pos", "gripper_yaw", "grip", "gripperless", "elbow"])
def test_other_names_are_no_grippers(name):
    assert not is_gripper(name)


def test_a_gripper_is_refused_where_no_number_is_one(recorded):
    folder = recorded(tuple("abcdef"), still=0)
    stated = asked(folder)[1]
    assert "gripper" not in stated
    with pytest.raises(SettingError, match=r"gripper fits nothing: none of the robot's numbers is a gripper \(a, b, c"):
        write(folder, {**stated, "gripper": {"open": 42, "closed": 8}})


def test_ends_may_be_given_by_the_grippers_names(recorded):
    folder = recorded(TWO_ARMS, still=0)
    stated = asked(folder)[1]
    pair = {"open": 50.0, "closed": 0.0}
    data = write(
        folder, {**stated, "gripper": {"left_gripper.pos": pair, "right_gripper.pos": {"open": 0.0, "closed": 50.0}}}
    )
    left, right = data[0].action[:, 2], data[0].action[:, 5]
    assert (left[0] > 0.7, right[0] < 0.3) == (True, True)
    with pytest.raises(SettingError, match=r"no gripper 'left_gripper'; did you mean 'left_gripper.pos'"):
        write(folder, {**stated, "gripper": {"left_gripper": pair}})
    with pytest.raises(SettingError, match=r"a pair for each of left_gripper.pos, right_gripper.pos"):
        write(folder, {**stated, "gripper": {"left_gripper.pos": pair}})


def test_columns_are_ordered_and_chosen_by_the_robots_names(recorded):
    folder = recorded()
    stated = asked(folder)[1]
    plain = write(folder, stated)[0]
    order = [5, 0, 1, 2, 4, 3]
    robot = {key: [v[i] for i in order] if isinstance(v, list) else v for key, v in stated["robot"].items()}
    turned = write(folder, {**stated, "robot": robot})[0]
    np.testing.assert_array_equal(turned.action, plain.action[:, order])
    np.testing.assert_array_equal(turned.state, plain.state[:, order])
    named = write(folder, {**stated, "state": [f"observation.state[{name}]" for name in SO101]})[0]
    np.testing.assert_array_equal(named.state, plain.state)
    with pytest.raises(SettingError, match=r"observation.state has no number 'gripper'; did you mean 'gripper.pos'"):
        write(folder, {**stated, "state": ["observation.state[gripper]"]})
    with pytest.raises(SettingError, match=r"robot.names: state has no number 'elbow'"):
        write(folder, {**stated, "robot": {**stated["robot"], "names": [*SO101[:2], "elbow", *SO101[3:]]}})


def test_the_main_camera_is_the_first_of_the_frames_in_either_order(recorded):
    folder = recorded()
    stated = asked(folder)[1]
    for cameras in ({"wrist": WRIST, "scene": FRONT}, {"scene": FRONT, "wrist": WRIST}):
        data = write(folder, {**stated, "cameras": cameras, "image_size": [24, 32]})
        assert data.cameras == ("scene", "wrist")
        np.testing.assert_array_equal(data[0].frames[:, 0], recording(0)[FRONT])
        np.testing.assert_array_equal(data[0].frames[:, 0], data[0].main_view)


def test_changes_are_not_taken_for_targets_in_silence(tmp_path, publish_lerobot):
    def changes(number):
        made = recording(number)
        moved = np.random.default_rng(number).normal(0, 1, made["action"].shape).astype(np.float32)
        return {**made, "action": moved, "observation.state": np.cumsum(moved, axis=0) - moved}

    folder = publish_lerobot(tmp_path / "changes", [changes(n) for n in range(2)], fps=30, success=None)
    message, stated = asked(folder)
    assert "the actions do not follow the measured numbers, so they are no joint targets" in message
    told = write(folder, stated).records[0].meta["lerobot"]["assumed"]
    assert any("though they do not follow" in text for text in told)


# --- success ---


@pytest.mark.parametrize("name", ["success", "is_success", "task_success", "next.success"])
def test_success_is_found_under_the_names_in_use(name, tmp_path, publish_lerobot, libero_demo):
    demos = [{**libero_demo(n), name: np.arange(24) > (20 if n else 99)} for n in range(2)]
    folder = publish_lerobot(tmp_path / "d", demos, success=None)
    assert [record.success for record in EpisodeDataset.open(folder).records] == [False, True]


def add_to_table(folder, **columns):
    file = folder / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, file)


def test_success_may_stand_in_the_episode_table(tmp_path, publish_lerobot, libero_demo):
    folder = publish_lerobot(tmp_path / "d", [libero_demo(n) for n in range(2)], success=None)
    add_to_table(folder, success=[True, False], outcome=["yes", "no"])
    data = EpisodeDataset.open(folder)
    assert [record.success for record in data.records] == [episode.success for episode in data] == [True, False]
    assert data[0].reward[-1] == 1
    with pytest.raises(ArtefactError, match="field 'outcome' must be true, false or a number, episode 0 has 'yes'"):
        write(folder, {"success": "meta/episodes:outcome"})
    assert not any(record.success for record in write(folder, {"success": "no episode"}).records)


def test_a_flag_that_is_none_stops_only_who_reads_its_episode(tmp_path, publish_lerobot, libero_demo):
    folder = publish_lerobot(tmp_path / "d", [libero_demo(n) for n in range(3)], success=None)
    add_to_table(folder, success=[1.0, float("nan"), 0.0])
    with pytest.raises(ArtefactError, match=r'episode 1 has .nan.*write "leave_out": \[1\] to /') as error:
        EpisodeDataset.open(folder)
    assert "\n" not in str(error.value)
    data = write(folder, {"leave_out": [1]})
    assert [(record.index, record.success) for record in data.records] == [(0, True), (2, False)]


@pytest.mark.parametrize("name", ["is_success", "next.reward"])
def test_a_success_that_info_json_does_not_list_is_not_dropped(name, tmp_path, publish_lerobot, libero_demo):
    folder = publish_lerobot(tmp_path / "d", [{**libero_demo(0), name: np.arange(24) > 20}], success=None)
    file = folder / "meta/info.json"
    info = json.loads(file.read_text())
    del info["features"][name]
    file.write_text(json.dumps(info))
    with pytest.raises(ArtefactError, match=re.escape(f"features does not list ['{name}'], which the tables have")):
        EpisodeDataset.open(folder)


def test_an_ended_or_rewarded_episode_is_no_success(tmp_path, publish_lerobot, libero_demo):
    ended = [{**libero_demo(0), "next.done": np.arange(24) == 23}]
    assert "nothing says which episodes succeeded" in asked(publish_lerobot(tmp_path / "a", ended, success=None))[0]
    for name, scale, guess in (("b", 1.0, "next.reward"), ("c", 0.3, "every episode")):
        rewarded = [{**libero_demo(0), "next.reward": np.float32(scale) * (np.arange(24) == 23)}]
        assert asked(publish_lerobot(tmp_path / name, rewarded, success=None))[1]["success"] == guess
    both = [{**libero_demo(0), "success": np.ones(24, bool), "next.success": np.zeros(24, bool)}]
    assert (
        "success may be any of next.success, success" in asked(publish_lerobot(tmp_path / "d", both, success=None))[0]
    )


# --- whose robot: LIBERO's, or worldrl's own ---


def test_libero_is_not_guessed_against_the_folders_own_word_or_its_motion(tmp_path, publish_lerobot, libero_demo):
    demos = [libero_demo(n) for n in range(2)]
    folder = publish_lerobot(tmp_path / "ur5", demos, info={"robot_type": "ur5"})
    assert "LIBERO's 8 and 7 numbers, but robot_type is 'ur5'" in asked(folder)[0]
    assert write(folder, asked(folder)[1]).embodiment.position_scale == 0.05
    wander = np.random.default_rng(0).normal(0, 0.02, (24, 3)).cumsum(axis=0)
    for name, factor, extra in (("against", -1, 0), ("faster", 10, 0), ("elsewhere", 1, wander)):
        moved = [{**demo, "observation.state": demo["observation.state"].copy()} for demo in demos]
        for demo in moved:
            demo["observation.state"][:, :3] = factor * demo["observation.state"][:, :3] + extra
        folder = publish_lerobot(tmp_path / name, moved, info={"robot_type": "franka"})
        assert "the hand does not move as LIBERO's would" in asked(folder)[0]


def test_names_that_publishers_give_a_tools_numbers_decide_nothing(tmp_path, publish_lerobot, libero_demo):
    folder = publish_lerobot(tmp_path / "ipec", [libero_demo(n) for n in range(2)])
    plain = EpisodeDataset.open(folder)[0]
    tool = ["x", "y", "z", "roll", "pitch", "yaw"]
    relabel(folder, "franka", action=[*tool, "gripper"], observation_state=[*tool, "pad", "gripper"])
    named = EpisodeDataset.open(folder)[0]
    np.testing.assert_array_equal(named.action, plain.action)
    np.testing.assert_array_equal(named.state, plain.state)


def follow(robot, start, action):
    """Commands under a tool's actions, ``[T + 1, 7]``."""
    start, action = torch.from_numpy(start)[None], torch.from_numpy(action)[None]
    return np.concatenate([start, integrate_commands(robot, start, action)[0].numpy()]).astype(np.float32)


@pytest.fixture
def edited(tmp_path, make_episode, embodiment):
    """A recording of worldrl as lerobot's tools leave it: no journal, no unknown keys in info.json, features as they were."""

    def make(*, header=True, cameras=("scene",)):
        folder = tmp_path / f"own-{header}-{len(cameras)}"
        episodes = []
        for number in range(2):
            made = make_episode(number, cameras=cameras, contact_at=12, close_at=8)
            start = np.array([0.5, 0, 0.3, 0, 0, 0, -1], np.float32)
            command = follow(embodiment, start, made.action)
            state = np.column_stack([command[:, :6], *(s * np.where(command[:, 6] > 0, 0.01, 0.04) for s in (1, -1))])
            fields = {"command": command, "state": state.astype(np.float32)}
            episodes.append(make_episode(number, cameras=cameras, contact_at=12, close_at=8, **fields))
        with LeRobotWriter(folder, fps=20, cameras=cameras, image_size=(12, 16), embodiment=embodiment) as writer:
            for episode in episodes:
                writer.add_episode(episode)
        info = json.loads((folder / "meta/info.json").read_text())
        del info["worldrl"]
        if not header:
            del info["features"]["action"]["worldrl"]
        (folder / "meta/info.json").write_text(json.dumps(info))
        (folder / "meta/worldrl.jsonl").unlink()
        return folder, episodes

    return make


def test_an_own_recording_is_known_after_lerobots_tools_rewrote_it(edited, embodiment):
    folder, episodes = edited(cameras=("wrist", "scene"))
    data = EpisodeDataset.open(folder)
    assert (data.embodiment, data.cameras) == (embodiment, ("scene", "wrist"))
    for mine, theirs in zip(episodes, data, strict=True):
        for name in ("state", "command", "action", "reward", "contact"):
            np.testing.assert_array_equal(getattr(theirs, name), getattr(mine, name), err_msg=name)
        np.testing.assert_array_equal(theirs.frames[:, 0], mine.view("scene"))


def test_an_own_recording_without_any_header_is_never_liberos(edited, embodiment):
    folder, episodes = edited(header=False)
    message, stated = asked(folder)
    assert "worldrl recorded it, but the description of its robot is gone" in message
    data = write(folder, stated)
    robot = data.embodiment
    assert robot.position_scale == pytest.approx(embodiment.position_scale, rel=0.01)
    assert robot.rotation_scale == pytest.approx(embodiment.rotation_scale, rel=0.01)
    np.testing.assert_array_equal(data[0].command, episodes[0].command)


def test_joint_embodiments_of_own_recordings_travel_too(tmp_path, make_episode):
    robot = JointEmbodiment(("a", "gripper"), (-2.0, 0.0), (2.0, 1.0), (40.0, 40.0), 20.0)
    rows = np.random.default_rng(0).uniform(0, 1, (21, 2)).astype(np.float32)
    made = make_episode(action=rows[1:], command=rows, state=rows, actions=robot.actions)
    with LeRobotWriter(tmp_path / "d", fps=20, cameras=("scene",), image_size=(12, 16), embodiment=robot) as writer:
        writer.add_episode(made)
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    (tmp_path / "d/meta/info.json").write_text(json.dumps({k: v for k, v in info.items() if k != "worldrl"}))
    (tmp_path / "d/meta/worldrl.jsonl").unlink()
    data = EpisodeDataset.open(tmp_path / "d")
    assert data.embodiment == robot
    np.testing.assert_array_equal(data[0].command, made.command)
