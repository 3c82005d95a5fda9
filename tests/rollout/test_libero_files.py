"""Unit under test: ``worldrl.rollout.suites.libero_files``, on real HDF5 files of LIBERO's layout (written by ``conftest.py``)."""

import h5py
import numpy as np
import pytest

from worldrl.cli import USER_ERROR, main
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.types import Episode
from worldrl.rollout.suites.libero_files import Demonstration, find_demonstrations, read_demonstration
from worldrl.workers.link.rotations import axis_angle, quaternion

TASKS = ["open_the_drawer", "put_the_bowl_on_the_plate"]
TASK = TASKS[1]


def read(file, number=0, cameras=("scene", "wrist")) -> Episode:
    return read_demonstration(Demonstration(file, TASK, number), cameras=cameras, seed=5)


def test_an_action_lies_between_the_frame_before_it_and_the_one_it_led_to(tmp_path, write_libero_file):
    """The double moves its hand by 0.01 m per action: 0.01 action must be the way between neighbouring frames."""
    kept = {}
    for after in (True, False):
        raw = write_libero_file(tmp_path / f"{after}.hdf5", task=TASK, rows=9, after=after)
        episode = read(tmp_path / f"{after}.hdf5")
        np.testing.assert_allclose(np.diff(episode.state[:, :3], axis=0), 0.01 * episode.action[:, :3], atol=1e-6)
        assert len(episode) == 8
        assert episode.first_success == 8
        kept[after] = episode.action
        start = np.array(episode.meta["start_state"])
        np.testing.assert_allclose(start[1:8], raw["obs/joint_states"][0], atol=1e-6)
    np.testing.assert_array_equal(kept[True][:-1], kept[False][1:])  # the first action is left out, or the last


def test_the_commanded_gripper_is_that_of_the_action_before(tmp_path, write_libero_file):
    raw = write_libero_file(tmp_path / "a.hdf5", task=TASK, after=True)
    np.testing.assert_array_equal(read(tmp_path / "a.hdf5").command[:, 6], raw["actions"][:, 6])
    raw = write_libero_file(tmp_path / "b.hdf5", task=TASK, after=False)
    np.testing.assert_array_equal(read(tmp_path / "b.hdf5").command[:, 6], [-1, *raw["actions"][:-1, 6]])


def test_images_are_turned_and_the_state_keeps_its_numbers(tmp_path, write_libero_file):
    raw = write_libero_file(tmp_path / "a.hdf5", task=TASK)
    episode = read(tmp_path / "a.hdf5")
    np.testing.assert_array_equal(episode.view("scene"), raw["obs/agentview_rgb"][:, ::-1, ::-1])
    np.testing.assert_array_equal(episode.view("wrist"), raw["obs/eye_in_hand_rgb"][:, ::-1, ::-1])
    state = np.concatenate([raw["obs/ee_pos"], raw["obs/ee_ori"], raw["obs/gripper_states"]], axis=1)
    np.testing.assert_allclose(episode.state, state, atol=1e-6)
    assert read(tmp_path / "a.hdf5", cameras=("scene",)).frames.shape[1] == 1
    assert (episode.instruction, episode.task) == ("put the bowl on the plate", TASK)


def test_a_turn_of_more_than_half_a_circle_comes_back_as_it_went():
    for turned in ([0.0, 0, 0], [3.1, 0.2, -0.1], [0, 4.5, 0.3], [-1e-4, 2e-4, 0]):
        np.testing.assert_allclose(axis_angle(quaternion(np.array(turned))), turned, atol=1e-12)


def test_files_are_listed_by_the_suites_order_and_by_number(tmp_path, write_libero_file):
    write_libero_file(tmp_path / "z.hdf5", task=TASKS[0], demos=11)
    write_libero_file(tmp_path / f"{TASK}_demo.hdf5", task=TASK, bddl=None)
    found = find_demonstrations(tmp_path, "libero_goal", TASKS)
    assert [(item.task, item.number) for item in found] == [*((TASKS[0], n) for n in range(11)), (TASK, 0)]
    assert find_demonstrations(tmp_path / "z.hdf5", "libero_goal", TASKS) == found[:-1]


def broken(file, field, value):
    with h5py.File(file, "a") as content:
        del content[f"data/demo_0/{field}"]
        if value is not None:
            content[f"data/demo_0/{field}"] = value


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("obs/ee_ori", None, "is missing"),
        ("actions", np.zeros((12, 6)), r"has shape \[12, 6\]"),
        ("actions", np.full((12, 7), 1.5), r"leaves \[-1, 1\] at step 0"),
        ("obs/ee_pos", np.full((12, 3), np.nan), "is NaN"),
        ("obs/gripper_states", np.zeros((11, 2)), r"has shape \[11, 2\]"),
        ("obs/agentview_rgb", np.zeros((12, 8, 6, 3), np.uint8), r"must be uint8 \[12, Y, Y, 3\]"),
        ("obs/agentview_rgb", np.zeros((12, 8, 8, 3)), "must be uint8"),
        ("states", np.zeros((12, 5)), "too few"),
        ("obs/joint_states", np.zeros((12, 7)), "mixes demonstrations"),
        ("rewards", np.array(["a"] * 12, "S1"), "not numbers"),
    ],
)
def test_damage_is_named_by_file_demonstration_and_field(field, value, message, tmp_path, write_libero_file):
    write_libero_file(tmp_path / "a.hdf5", task=TASK)
    broken(tmp_path / "a.hdf5", field, value)
    with pytest.raises(ArtefactError, match=message) as error:
        read(tmp_path / "a.hdf5")
    assert "a.hdf5/data/demo_0" in str(error.value)
    assert repr(field) in str(error.value)


def test_actions_beyond_the_range_are_clipped_by_a_setting_and_counted(tmp_path, write_libero_file):
    write_libero_file(tmp_path / "a.hdf5", task=TASK)
    actions = np.linspace(-1.2, 1.2, 84).reshape(12, 7)
    broken(tmp_path / "a.hdf5", "actions", actions)
    beyond = int((np.abs(actions).max(axis=1) > 1).sum())
    with pytest.raises(ArtefactError, match=rf"\(1\.200\) and in {beyond} of 12 steps; clip_actions=true"):
        read(tmp_path / "a.hdf5")
    (demonstration, *_) = find_demonstrations(tmp_path / "a.hdf5", "libero_goal", TASKS)
    episode = read_demonstration(demonstration, cameras=("scene",), seed=0, clip_actions=True)
    np.testing.assert_array_equal(episode.action, np.clip(actions, -1, 1).astype(np.float32)[1:])
    assert np.abs(episode.command[:, -1]).max() <= 1
    assert episode.meta["actions_clipped"] == beyond
    for given in (["collect"], ["check-protocol", f"data={tmp_path / 'other'}"]):
        assert main([*given, "clip_actions=true", f"run_dir={tmp_path / 'run'}"]) == USER_ERROR


def test_links_and_other_storage_of_a_strangers_file_are_not_followed(tmp_path, write_libero_file):
    """External links, soft links and virtual datasets would read other files of the user."""
    other = tmp_path / "private.h5"
    with h5py.File(other, "w") as content:
        content["rows"] = np.zeros((12, 7))
    plan = h5py.VirtualLayout((12, 7), "f8")
    plan[:] = h5py.VirtualSource(str(other), "rows", (12, 7))
    for number, value in enumerate(
        (h5py.ExternalLink(str(other), "rows"), h5py.SoftLink("/data/demo_0/rewards"), plan)
    ):
        file = tmp_path / f"{number}" / "a.hdf5"
        file.parent.mkdir()
        write_libero_file(file, task=TASK)
        with h5py.File(file, "a") as content:
            group = content["data/demo_0"]
            del group["actions"]
            if isinstance(value, h5py.VirtualLayout):
                group.create_virtual_dataset("actions", value)
            else:
                group["actions"] = value
        (demonstration, *_) = find_demonstrations(file, "libero_goal", TASKS)
        with pytest.raises(
            ArtefactError, match=r"episode 0, field 'actions' (is a link, which|names other files, which)"
        ):
            read_demonstration(demonstration, cameras=("scene",), seed=0)


def test_what_is_no_file_of_this_suite_is_refused(tmp_path, write_libero_file):
    with pytest.raises(SettingError, match=r"no \.hdf5 file in"):
        find_demonstrations(tmp_path, "libero_goal", TASKS)
    write_libero_file(tmp_path / "a.hdf5", task="put_the_bowl_on_the_plat")
    with pytest.raises(ArtefactError, match=r"a\.hdf5: attribute bddl_file_name gives .*did you mean 'put_the_bowl_on"):
        find_demonstrations(tmp_path, "libero_goal", TASKS)
    whole = (tmp_path / "a.hdf5").read_bytes()
    (tmp_path / "a.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtefactError, match=r"a\.hdf5.*damaged"):
        find_demonstrations(tmp_path, "libero_goal", TASKS)
    (tmp_path / "a.hdf5").unlink()
    write_libero_file(tmp_path / "b.hdf5", task=TASK)
    write_libero_file(tmp_path / "c.hdf5", task=TASK, convention="opencv")
    with pytest.raises(ArtefactError, match="macros_image_convention"):
        find_demonstrations(tmp_path, "libero_goal", TASKS)
    write_libero_file(tmp_path / "c.hdf5", task=TASK)
    with pytest.raises(ArtefactError, match="keep one of them"):
        find_demonstrations(tmp_path, "libero_goal", TASKS)
