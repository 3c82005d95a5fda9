"""Units under test: ``worldrl.data.foreign_*`` through ``EpisodeDataset.open``, on folders in the published layouts.

The folders are written by ``conftest.py``: the layout of ``HuggingFaceVLA/libero`` (images in the rows), and videos.
"""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset, assumed
from worldrl.data.lerobot.external.gripper import measured_gripper
from worldrl.data.lerobot.external.libero_robot import libero_embodiment
from worldrl.workers.libero.observation import command_vector, robot_observation

SCENE, WRIST = "observation.images.image", "observation.images.image2"
PLATE, STOVE = "put the bowl on the plate", "turn on the stove"


@pytest.fixture(scope="module")
def demos(libero_demo):
    return [libero_demo(0), libero_demo(1, rows=20, sentence=STOVE), libero_demo(2, rows=30)]


@pytest.fixture
def folder(tmp_path, demos, publish_lerobot):
    """Images in the rows; two data files."""
    return publish_lerobot(tmp_path / "libero", demos, files=(2, 1))


def say(folder, **stated):
    (folder / "worldrl.json").write_text(json.dumps({"success": "every episode"} | stated))
    return EpisodeDataset.open(folder)


def changed(demos, **columns):
    return [{**demo, **{name: change(demo[name]) for name, change in columns.items()}} for demo in demos]


# --- what is recognised ---


def test_liberos_published_layout_opens_as_it_is(folder, demos):
    data = EpisodeDataset.open(folder)
    assert (len(data), data.fps, data.cameras, data.image_size) == (3, 20, ("scene", "wrist"), (16, 16))
    assert data.embodiment == libero_embodiment()
    assert data.tasks() == ("put_the_bowl_on_the_plate", "turn_on_the_stove")
    assert [record.rows for record in data.records] == [24, 20, 30]
    for demo, episode in zip(demos, data, strict=True):
        rows = len(demo["action"])
        assert len(episode) == rows - 1
        np.testing.assert_array_equal(episode.action, demo["action"][:-1])
        np.testing.assert_array_equal(episode.state, demo["observation.state"])
        np.testing.assert_array_equal(episode.view("scene"), demo[SCENE])
        np.testing.assert_array_equal(episode.view("wrist"), demo[WRIST])
        assert (episode.instruction, episode.meta["source"]) == (demo["sentence"], "lerobot")
        assert not episode.contact.any()


def test_an_action_leads_from_its_row_to_the_next_and_the_command_is_the_measured_pose(folder):
    episode = EpisodeDataset.open(folder)[0]
    np.testing.assert_allclose(np.diff(episode.state[:, :3], axis=0), 0.01 * episode.action[:, :3], atol=1e-6)
    np.testing.assert_array_equal(episode.command[:, 6], [-1, *episode.action[:, 6]])
    row = episode.state[5]
    expected = command_vector(robot_observation(row[:3], row[3:6], row[6:]), episode.action[4, 6])
    np.testing.assert_array_equal(episode.command[5], expected)


def test_what_is_assumed_is_said_and_kept(folder, capsys):
    data, said = EpisodeDataset.open(folder), capsys.readouterr().err
    for word in (
        "20 a second, though info.json says 10 fps",
        "-1 opens and 1 closes",
        "LIBERO's, by",
    ):
        assert word in " ".join(assumed(data.records))
        assert word in said
    assert data[0].meta["lerobot"]["success"] == "every episode"
    assert data[0].meta["lerobot"]["assumed"] == list(assumed(data))
    assert (data[0].first_success, data[0].reward.sum()) == (23, 1)
    assert all(record.success for record in data.records)
    assert say(folder, robot="libero", success="no episode").records[0].success is False


def test_videos_give_each_episode_its_own_frames(tmp_path, demos, publish_lerobot):
    """Data files hold 1 and 2 episodes, videos 2 and 1: who took one's number for the other's would read a wrong film."""
    folder = publish_lerobot(tmp_path / "films", demos, files=(1, 2), films=(2, 1))
    data = EpisodeDataset.open(folder)
    for demo, episode in zip(demos, data, strict=True):
        np.testing.assert_array_equal(episode.view("scene"), demo[SCENE])
        np.testing.assert_array_equal(episode.view("wrist"), demo[WRIST])


def test_a_gripper_of_0_and_1_is_read_off_the_fingers(tmp_path, demos, publish_lerobot):
    """IPEC-COMMUNITY's conversions have 1 for open: taken for LIBERO's sign, every policy would let go where it should hold."""

    def to(opened, closed):
        def change(action):
            action = action.copy()
            action[:, 6] = np.where(action[:, 6] > 0, closed, opened)
            return action

        return change

    for opened, closed in ((1, 0), (0, 1), (1, -1)):
        folder = publish_lerobot(tmp_path / f"{opened}{closed}", changed(demos, action=to(opened, closed)))
        data = EpisodeDataset.open(folder)
        np.testing.assert_array_equal(data[0].action[:, 6], demos[0]["action"][:-1, 6])
        assert data[0].meta["lerobot"]["gripper"] == [opened, closed]
        with pytest.raises(SettingError, match=r"the fingers do the opposite; write \{\"gripper\""):
            say(folder, gripper={"open": closed, "closed": opened})


def test_fingers_that_do_not_tell_are_no_guess(tmp_path, demos, publish_lerobot):
    def open_only(action):
        return np.concatenate([action[:, :6], np.full((len(action), 1), -1, np.float32)], axis=1)

    folder = publish_lerobot(tmp_path / "open", changed(demos, action=open_only))
    with pytest.raises(
        SettingError, match=r"which gripper command closes .*\"gripper\": \{\"open\": -1\.0, \"closed\": 1\.0\}"
    ):
        EpisodeDataset.open(folder)
    np.testing.assert_array_equal(say(folder, gripper={"open": -1, "closed": 1})[0].action[:, 6], -1)
    assert measured_gripper(np.zeros((40, 8)), np.full((40, 7), 3.0)) is None


# --- what worldrl.json says ---


def test_images_are_resized_and_turned(folder, demos):
    data = say(folder, image_size=8, pictures="turned")
    assert data.image_size == (8, 8)
    expected = demos[0][SCENE][3, ::-1, ::-1].reshape(8, 2, 8, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(data[0].view("scene")[3], expected, atol=0.51)
    assert say(folder, image_size=[4, 8]).image_size == (4, 8)
    np.testing.assert_array_equal(say(folder, pictures="mirrored")[0].view("scene"), demos[0][SCENE][:, :, ::-1])
    np.testing.assert_array_equal(say(folder, pictures="flipped")[0].view("scene"), demos[0][SCENE][:, ::-1])


def test_a_row_seen_after_its_action_is_paired_the_other_way(folder, demos):
    episode = say(folder, observed="after")[0]
    np.testing.assert_array_equal(episode.action, demos[0]["action"][1:])
    np.testing.assert_array_equal(episode.command[:, 6], demos[0]["action"][:, 6])
    assert episode.first_success == len(episode)


def test_tasks_keep_and_rename(folder):
    data = say(folder, tasks={STOVE: "KITCHEN_SCENE3_turn_on_the_stove"})
    assert [(r.index, r.task, r.instruction) for r in data.records] == [(1, "KITCHEN_SCENE3_turn_on_the_stove", STOVE)]
    with pytest.raises(SettingError, match="no episode is about 'turn on the stov'; did you mean 'turn on the stove'"):
        say(folder, tasks={"turn on the stov": "x"})


def test_a_success_column_is_used_and_may_say_no(tmp_path, demos, publish_lerobot):
    marked = [
        {**demo, "next.success": np.arange(len(demo["action"])) == at}
        for demo, at in zip(demos, (23, 99, 7), strict=True)
    ]
    data = EpisodeDataset.open(publish_lerobot(tmp_path / "a", marked))
    assert [record.success for record in data.records] == [True, False, True]
    assert [episode.first_success for episode in data] == [
        23,
        None,
        8,
    ]  # the last row's action has no frame: its flag moves
    assert not any("succeeded" in text for text in assumed(data))
    rewarded = [{**demo, "next.reward": np.zeros(len(demo["action"]), np.float32)} for demo in demos]
    folder = publish_lerobot(tmp_path / "b", rewarded)
    with pytest.raises(SettingError, match=r"'next.reward' is there and 'next.success' is not"):
        EpisodeDataset.open(folder)
    assert [record.success for record in say(folder, success="next.reward").records] == [False] * 3


def test_parts_of_features_are_put_together(tmp_path, demos, publish_lerobot):
    def split(demo):
        state = demo["observation.state"]
        joints = np.zeros((len(state), 7), np.float32)
        long = np.concatenate([state[:, :6], joints, state[:, 6:]], axis=1)
        return {**{k: v for k, v in demo.items() if k != "observation.state"}, "states": long}

    folder = publish_lerobot(tmp_path / "long", [split(demo) for demo in demos])
    with pytest.raises(SettingError, match=r"no feature is called 'observation.state'; write it to .*worldrl\.json"):
        EpisodeDataset.open(folder)
    data = say(folder, state=["states[0:6]", "states[13:15]"])
    np.testing.assert_array_equal(data[0].state, demos[0]["observation.state"])


def test_joints_hold_the_target_before_and_need_their_success_said(tmp_path, publish_lerobot, libero_demo):
    demo = libero_demo(0)
    size = 3
    columns = {
        "sentence": PLATE,
        "observation.state": np.abs(demo["observation.state"][:, :size]),
        "action": np.abs(demo["action"][:, :size]),
        "observation.images.head": demo[SCENE],
    }
    folder = publish_lerobot(tmp_path / "joints", [columns], fps=30, success=None)
    with pytest.raises(SettingError, match=r"the robot is unknown .*\"kind\": \"joints\""):
        EpisodeDataset.open(folder)
    robot = JointEmbodiment(("a", "b", "left_gripper"), (0,) * size, (2,) * size, (60,) * size, 30).to_json()
    (folder / "worldrl.json").write_text(json.dumps({"robot": robot, "cameras": {"head": "observation.images.head"}}))
    with pytest.raises(SettingError, match="nothing says which episodes succeeded"):
        EpisodeDataset.open(folder)
    with pytest.raises(SettingError, match="robot must be of control_hz 30"):
        say(folder, robot=robot | {"control_hz": 50})
    stated = {"cameras": {"head": "observation.images.head"}, "success": "every episode"}
    data = say(folder, robot=robot, gripper={"open": 0, "closed": 1}, **stated)
    episode = data[0]
    assert (data.fps, episode.cameras) == (30, ("head",))
    np.testing.assert_allclose(episode.action[:, 2], 1 - columns["action"][:-1, 2], rtol=1e-6)
    np.testing.assert_array_equal(episode.command[0], episode.state[0])
    np.testing.assert_array_equal(episode.command[1:], episode.action)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"success_": "every episode"}, "unknown key 'success_'; did you mean 'success'"),
        (
            {"cameras": {"scene": "observation.images.imag"}},
            "no image feature 'observation.images.imag'; did you mean",
        ),
        ({"cameras": {"wrist": WRIST}}, "one of them scene or head"),
        ({"image_size": -3}, "image_size must be a number of pixels"),
        ({"image_size": [16, 10**9]}, "image_size must be a number of pixels up to 8192"),
        ({"pictures": "upside down"}, "pictures must be one of 'as they are'"),
        ({"gripper": {"open": 1}}, "gripper must be"),
        ({"success": "maybe"}, "success must be"),
        ({"robot": {"kind": "joints"}}, "robot must be 'libero' or an embodiment"),
        ({"state": "observation.state[0:9]"}, "a part of observation.state's 8 numbers"),
        ({"state": "observation.state[0:6]"}, "state has 6 numbers, the robot 8"),
        ({"command": "action[0:3]"}, "command must be 7 numbers"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key(stated, message, folder):
    with pytest.raises(SettingError, match=message):
        say(folder, **({"robot": "libero"} | stated))


# --- damage and ambiguity ---


def rewrite(file, change):
    pq.write_table(change(pq.read_table(file)), file)


def replaced(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"


def test_missing_files_and_fields_are_named_when_the_folder_is_opened(folder):
    for name in ("meta/tasks.parquet", EPISODES, "data/chunk-000/file-001.parquet"):
        whole = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(ArtefactError, match=r"(missing|no such file).*hf download") as error:
            EpisodeDataset.open(folder)
        assert name.split("/")[1].removesuffix(".parquet") in str(error.value)
        (folder / name).write_bytes(whole)
    info = json.loads((folder / "meta/info.json").read_text())
    for change, message in (
        ({"fps": None}, "info.json: fps: Input should be a valid number, got None; download"),
        ({"total_episodes": 4}, "total_episodes is 4, the episode table has 3"),
        ({"data_path": "{chunk}"}, "field 'data_path' is '{chunk}'"),
        ({"features": info["features"] | {SCENE: {"dtype": "image"}}}, f"features.{SCENE} must have dtype and shape"),
    ):
        (folder / "meta/info.json").write_text(json.dumps(info | change))
        with pytest.raises(ArtefactError, match=message):
            EpisodeDataset.open(folder)
    (folder / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    with pytest.raises(ArtefactError, match=r"LeRobotDataset v2\.1, worldrl reads v3\.0"):
        EpisodeDataset.open(folder)


def test_rows_that_the_episode_table_does_not_mean_are_an_error_not_a_wrong_frame(folder):
    whole = (folder / DATA).read_bytes()

    def first(name, value):
        return lambda table: replaced(table, name, [value, *table[name].to_pylist()[1:]])

    action = pq.read_table(folder / DATA)["action"].to_pylist()
    pictures = pq.read_table(folder / DATA)[SCENE].to_pylist()
    for change, message in (
        (lambda table: table.slice(0, 10), "episode 0 has 10 rows here, the episode table says 24"),
        (first("frame_index", 3), "in the order of frame_index"),
        (first("task_index", 1), "field 'task_index': .* means"),
        (
            lambda table: replaced(table, SCENE, [{**pictures[0], "bytes": b"x"}, *pictures[1:]]),
            "row 0 holds no readable image",
        ),
        (
            lambda table: replaced(table, SCENE, [{"bytes": None, "path": "images/0.png"}, *pictures[1:]]),
            "row 0 holds no readable image; it names the file 'images/0.png'; write that file's bytes into the column",
        ),
        (lambda table: replaced(table, "action", [[2.0] * 7, *action[1:]]), r"action leaves \[-1, 1\] at row 0"),
    ):
        rewrite(folder / DATA, change)
        with pytest.raises(ArtefactError, match=message) as error:
            say(folder, robot="libero", gripper={"open": -1, "closed": 1})[0]
        assert "file-000.parquet: episode 0" in str(error.value)
        (folder / DATA).write_bytes(whole)
    rewrite(folder / DATA, lambda table: replaced(table, "action", [*action[:3], [float("nan")] * 7, *action[4:]]))
    with pytest.raises(ArtefactError, match=r"file-000\.parquet: episode 0, field 'action' is not finite at row 3"):
        EpisodeDataset.open(folder)
    rewrite(folder / DATA, lambda table: table.drop_columns(["action"]))
    with pytest.raises(ArtefactError, match=r"file-000\.parquet: column 'action' is missing"):
        EpisodeDataset.open(folder)


def test_a_video_that_ends_early_or_starts_elsewhere_is_named(tmp_path, demos, publish_lerobot):
    """Also where another of its episodes is read: a table that is wrong about one place need not be right about the next."""
    folder = publish_lerobot(tmp_path / "films", demos, films=(3,))
    start = f"videos/{SCENE}/from_timestamp"
    rewrite(folder / EPISODES, lambda table: replaced(table, start, [0.0, 2.4, 6.0]))
    data = EpisodeDataset.open(folder)
    message = (
        rf"file-000\.mp4: field '{SCENE}': episode 2 is said to lie from 6\.000 to 7\.400 s, .* too short for 30 rows"
    )
    for number in (1, 2):
        with pytest.raises(ArtefactError, match=message):
            data[number]
    (folder / f"videos/{SCENE}/chunk-000/file-000.mp4").write_bytes(b"no film")
    with pytest.raises(ArtefactError, match=r"file-000\.mp4: .*damaged: cannot be read"):
        data[0]


def test_cameras_that_cannot_be_distinguished_are_asked_for(tmp_path, demos, publish_lerobot):
    named = [{k.replace("images.image", "images.cam"): v for k, v in demo.items()} for demo in demos]
    folder = publish_lerobot(tmp_path / "cams", named)
    with pytest.raises(SettingError, match=r"which camera is the main one is unknown; there are .*cam2"):
        EpisodeDataset.open(folder)
    data = say(folder, cameras={"scene": "observation.images.cam2"})
    np.testing.assert_array_equal(data[0].main_view, demos[0][WRIST])


def test_oblong_images_are_not_squeezed_unasked(tmp_path, demos, publish_lerobot):
    wide = changed(demos, **{name: (lambda p: p.repeat(2, axis=2)) for name in (SCENE, WRIST)})
    folder = publish_lerobot(tmp_path / "wide", wide)
    assert EpisodeDataset.open(folder).image_size == (16, 32)
    with pytest.raises(SettingError, match="would be distorted to a square"):
        say(folder, image_size=16)
    assert say(folder, image_size=[16, 16])[0].frames.shape == (24, 2, 16, 16, 3)


# --- as a dataset among others ---


def test_it_is_lazy_loads_and_travels_to_other_processes(folder, same_tree):
    data = EpisodeDataset.open(folder)
    with pytest.raises(ArtefactError, match="recorded at 20 frames per second, 10 is needed"):
        EpisodeDataset.open(folder, fps=10)
    there = pickle.loads(pickle.dumps(data))
    loaded = data.load(workers=2)
    assert loaded.fingerprint == data.fingerprint == there.fingerprint
    (folder / DATA).unlink()
    same_tree(loaded[0].frames, loaded.subset([0])[0].frames)
    with pytest.raises(ArtefactError, match="missing"):
        there[0]


def test_the_fingerprint_knows_meaning_and_files(folder):
    before = EpisodeDataset.open(folder).fingerprint
    assert EpisodeDataset.open(folder).fingerprint == before
    assert say(folder, pictures="turned").fingerprint != before
    say(folder)
    rewrite(folder / DATA, lambda table: table.append_column("more", pa.array([0.0] * table.num_rows)))
    assert EpisodeDataset.open(folder).fingerprint != before
