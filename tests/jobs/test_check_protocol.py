"""Unit under test: ``worldrl check-protocol``, on real demonstrations of the embedded suite that are damaged on purpose."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

import worldrl.jobs.benchmark.check_protocol as check_protocol
from worldrl.cli import main
from worldrl.core.actions import TOOL_ACTIONS
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.evaluation.conventions.conventions import other_sign, shifted
from worldrl.evaluation.conventions.tool import ToolFit
from worldrl.evaluation.report.store import load_report_data
from worldrl.jobs.benchmark.check_protocol import idle_actions, idle_words
from worldrl.jobs.data.collect import CollectSettings
from worldrl.jobs.data.collect import main as collect
from worldrl.workers.link.server import BatchServer, start_name

EPISODES = 2


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstrations")
    collect(
        CollectSettings(
            run_dir=str(folder),
            tasks=["PickRedCube"],
            expert_episodes=EPISODES,
            workers=0,
            envs_per_worker=1,
            image_size=32,
        )
    )
    return EpisodeDataset.open(folder / "dataset")


def written(folder, dataset, change):
    """The same demonstrations, each changed."""
    with LeRobotWriter(
        folder,
        fps=dataset.fps,
        cameras=dataset.header.cameras,
        image_size=dataset.header.image_size,
        embodiment=dataset.embodiment,
    ) as writer:
        for episode in dataset:
            writer.add_episode(change(episode))
    return folder


def actions(change):
    def apply(episode):
        action = change(episode.action.copy()).astype(np.float32)
        return replace(episode, action=action)

    return apply


def check(tmp_path, dataset, change):
    data = written(tmp_path / "data", dataset, change)
    assert main(["check-protocol", f"data={data}", f"episodes={EPISODES}", f"run_dir={tmp_path / 'run'}"]) == 0
    return json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]


def off(metrics):
    return {(item["family"], item["name"]) for item in metrics["off"]}


def test_demonstrations_of_this_suite_fit_exactly(tmp_path, demonstrations, capsys):
    metrics = check(tmp_path, demonstrations, lambda episode: episode)
    assert metrics["fits"] is True
    assert off(metrics) == set()
    assert (metrics["as_recorded"]["k"], metrics["as_recorded"]["n"]) == (EPISODES, EPISODES)
    assert metrics["best"]["position_m"] < 1e-5  # the simulator repeats itself
    assert all(frame["error"] < 1e-5 for frame in metrics["first_frames"])
    assert len(metrics["tried"]) == 1  # nothing to look for
    assert [(metrics[name]["k"], metrics[name]["n"]) for name in ("no_op", "random")] == [(0, EPISODES)] * 2
    (strip,) = load_report_data(tmp_path / "run").filmstrips
    np.testing.assert_array_equal(strip.rows["recorded"], strip.rows["the suite's"])
    np.testing.assert_array_equal(strip.rows["recorded"], [episode.frames[0, 0] for episode in demonstrations])
    assert "nothing: the first command is held" in (tmp_path / "run" / "report.html").read_text()
    assert "Actions mean what this suite means" in capsys.readouterr().err


def gripper(action):
    action[:, 6] *= -1
    return action


def half(action):
    action[:, :3] *= 0.5
    return action


def late(action):
    return shifted(action, -2)


def other_order(action):
    return action[:, [0, 1, 2, 5, 4, 3, 6]]


def other_way_round(action):
    action[:, 3:6] *= -1
    return action


DAMAGES = {
    "order of rotations": (
        other_order,
        "rotation",
        "in the order z, y, x",
        "action[..., 3:6] = action[..., [5, 4, 3]]",
    ),
    "way of rotations": (other_way_round, "rotation", "the other way round", "action[..., 3:6] = -action[..., 3:6]"),
    "gripper": (gripper, "gripper", "reversed: +1 opens", "action[..., 6] = -action[..., 6]"),
    "scale": (half, "position scale", "too small by", "action[..., 0:3] ="),
    "delay": (late, "delay", "recorded 2 steps late", "action = action[2:]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_action_is_named_with_the_line_that_mends_it(damage, tmp_path, demonstrations, capsys):
    change, family, name, line = DAMAGES[damage]
    metrics = check(tmp_path, demonstrations, actions(change))
    assert not metrics["fits"]
    (found,) = metrics["off"]
    assert found["family"] == family
    assert found["name"].startswith(name)
    assert found["line"].startswith(line)
    assert metrics["best"]["successes"] == EPISODES
    assert found["line"] in capsys.readouterr().err


def test_two_damages_at_once_are_both_found(tmp_path, demonstrations):
    metrics = check(tmp_path, demonstrations, actions(lambda action: gripper(half(action))))
    assert {family for family, _ in off(metrics)} == {"gripper", "position scale"}
    assert metrics["best"]["successes"] == EPISODES


def test_images_and_states_are_distinguished_without_any_replay_of_alternatives(tmp_path, demonstrations):
    def change(episode):
        state = episode.state.copy()
        state[:, 3:6] = other_sign(state[:, 3:6])
        state[:, 7] *= -1
        return replace(episode, frames=np.ascontiguousarray(episode.frames[:, :, ::-1, ::-1]), state=state)

    metrics = check(tmp_path, demonstrations, change)
    assert not metrics["fits"]
    assert off(metrics) == {
        ("image of scene", "turned by 180 degrees"),
        ("state rotation", "of the other quaternion sign"),
        ("state fingers", "both positive"),
    }
    assert metrics["as_recorded"]["k"] == EPISODES
    (strip,) = load_report_data(tmp_path / "run").filmstrips
    np.testing.assert_array_equal(strip.rows["recorded"][:, ::-1, ::-1], strip.rows["the suite's"])


def test_doing_nothing_and_doing_anything_are_what_they_say(demonstrations):
    found = idle_actions(list(demonstrations), TOOL_ACTIONS, seed=0)
    for episode, still, anything in zip(demonstrations, found["no_op"], found["random"], strict=True):
        assert still.shape == anything.shape == episode.action.shape
        assert not still[:, :6].any()
        assert set(still[:, 6]) == {-1.0}  # open, as it begins
        assert np.ptp(anything, axis=0).min() > 1
        assert np.abs(anything).max() <= 1
    done, failed = (ToolFit(k, 4, 0.0, 0.0, 0.0) for k in (3, 0))
    assert idle_words({"no_op": failed, "random": failed}) == []
    (said,) = idle_words({"no_op": done, "random": failed})
    assert said.startswith("Doing nothing fulfils 3 of 4")


def test_where_anything_succeeds_as_often_nothing_is_decided(tmp_path, demonstrations, monkeypatch, capsys):
    """The arm that should do nothing is made to succeed; its actions are all that is not the real job's."""
    own = [episode.action for episode in demonstrations]
    monkeypatch.setattr(
        check_protocol, "idle_actions", lambda *_: {"no_op": own, "random": [0 * action for action in own]}
    )
    metrics = check(tmp_path, demonstrations, lambda episode: episode)
    assert metrics["fits"] is None
    assert (metrics["as_recorded"]["k"], metrics["no_op"]["k"], metrics["random"]["k"]) == (EPISODES, EPISODES, 0)
    said, page = capsys.readouterr().err, (tmp_path / "run" / "report.html").read_text()
    for text in (metrics["verdict"], said, page):
        assert "Actions mean what this suite means" not in text
        assert "Not decided: 2 of 2 succeed without the demonstrations" in text
        assert "demonstrations of another task" in text
    first = load_report_data(tmp_path / "run").sentence
    assert "Not decided" in first
    damaged = check(tmp_path / "2", demonstrations, actions(late))  # what the motion finds off is off all the same
    assert damaged["fits"] is False
    assert [item["family"] for item in damaged["off"]] == ["delay"]


def test_what_no_convention_explains_is_said_to_be_that(tmp_path, demonstrations):
    draw = np.random.default_rng(0)
    metrics = check(tmp_path, demonstrations, actions(lambda action: draw.uniform(-1, 1, action.shape)))
    assert metrics["fits"] is False
    assert "No convention that was tried explains it" in metrics["verdict"]


def test_failed_recordings_and_unknown_suites_are_refused(tmp_path, demonstrations, capsys):
    data = written(tmp_path / "data", demonstrations, lambda e: replace(e, reward=np.zeros_like(e.reward)))
    assert main(["check-protocol", f"data={data}", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "no recorded episode succeeded" in capsys.readouterr().err
    assert main(["check-protocol", f"data={data}", "suite=libero_gaol"]) == 2
    assert "did you mean" in capsys.readouterr().err


def as_libero_file(file, episodes, change):
    """The same episodes as LIBERO's script would have written them: an observation behind each action."""
    with h5py.File(file, "w") as content:
        data = content.create_group("data")
        data.attrs["bddl_file_name"] = f"bddl_files/libero_goal/{episodes[0].task}.bddl"
        for number, episode in enumerate(episodes):
            joints = np.pad(episode.state[:, :2], ((0, 0), (0, 5)))  # the tiny suite's two, and five that rest
            demo = data.create_group(f"demo_{number}")
            demo["states"] = np.pad(joints[:-1], ((0, 0), (1, 0)))  # after the time
            demo["actions"], demo["rewards"] = change(episode.action.copy()), episode.reward
            demo["obs/joint_states"] = joints[1:]
            for name, part in (("ee_pos", slice(3)), ("ee_ori", slice(3, 6)), ("gripper_states", slice(6, 8))):
                demo[f"obs/{name}"] = episode.state[1:, part]
            for camera in ("agentview_rgb", "eye_in_hand_rgb"):
                demo[f"obs/{camera}"] = episode.frames[1:, 0, ::-1, ::-1]


def test_liberos_own_files_are_replayed_from_the_states_that_they_hold(tmp_path, fake_libero, capsys):
    record = ["collect", "suite=libero_goal", "expert_episodes=2", "tasks=[reach_up]", "image_size=16", "workers=1"]
    assert main([*record, f"run_dir={tmp_path / 'run'}"]) == 0
    episodes = list(EpisodeDataset.open(tmp_path / "run" / "dataset"))
    fake_libero(wrist=True)
    found = {}
    for name, change in (("fits", lambda action: action), ("half", half)):
        (tmp_path / name).mkdir()
        as_libero_file(tmp_path / name / "reach_up_demo.hdf5", episodes, change)
        tokens = ["suite=libero_goal", "episodes=2", f"run_dir={tmp_path / name / 'run'}"]
        assert main(["check-protocol", f"data={tmp_path / name}", *tokens]) == 0
        found[name] = json.loads((tmp_path / name / "run" / "result.json").read_text())["metrics"]
    assert found["fits"]["fits"], found["fits"]["verdict"]
    assert found["fits"]["best"]["position_m"] < 1e-6
    assert {frame["what"] for frame in found["fits"]["first_frames"]} >= {"image of scene", "image of wrist"}
    assert not found["half"]["fits"]
    assert [item["family"] for item in found["half"]["off"]] == ["position scale"]


def as_foreign_folder(publish_lerobot, folder, episodes, change=lambda action: action, **stated):
    """The same episodes as another project would have published them: no initial state, no journal."""
    columns = [
        {
            "sentence": episode.instruction,
            "observation.state": episode.state,
            "observation.command": episode.command,
            "action": np.concatenate([change(episode.action.copy()), episode.action[-1:]]).astype(np.float32),
            "observation.images.image": episode.view("scene"),
        }
        for episode in episodes
    ]
    publish_lerobot(folder, columns, fps=20)
    (folder / "worldrl.json").write_text(json.dumps(stated))
    return folder


def check_folder(tmp_path, data, *tokens):
    assert main(["check-protocol", f"data={data}", f"episodes={EPISODES}", f"run_dir={tmp_path / 'run'}", *tokens]) == 0
    return json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]


@pytest.mark.parametrize(
    ("change", "family"), [(lambda action: action, None), (half, "position scale"), (gripper, "gripper")]
)
def test_demonstrations_of_others_are_measured_by_their_motion(
    change, family, tmp_path, demonstrations, publish_lerobot
):
    """They hold no initial state, so objects stand elsewhere in the replay: no success says anything about conventions."""
    stated = {
        "robot": demonstrations.embodiment.to_json(),
        "command": "observation.command",
        "success": "every episode",
    }
    data = as_foreign_folder(publish_lerobot, tmp_path / "theirs", demonstrations, change, **stated)
    metrics = check_folder(tmp_path, data)
    assert metrics["as_recorded"] is None
    assert "do not state where they began" in metrics["verdict"]
    assert {name for name, _ in off(metrics)} == ({family} if family else set())
    assert metrics["fits"] == (family is None)


def test_demonstrations_of_no_task_of_the_suite_are_refused(tmp_path, demonstrations, publish_lerobot, capsys):
    stated = {
        "robot": demonstrations.embodiment.to_json(),
        "command": "observation.command",
        "success": "every episode",
    }
    others = [replace(episode, instruction="pick up the red cub") for episode in demonstrations]
    data = as_foreign_folder(publish_lerobot, tmp_path / "theirs", others, **stated)
    assert main(["check-protocol", f"data={data}", f"run_dir={tmp_path / 'run'}"]) == 2
    assert (
        "no episode is about a task of embedded; the first has the instruction 'pick up the red cub'; did you mean"
        in capsys.readouterr().err
    )


def test_liberos_published_layout_is_replayed_in_its_suite(tmp_path, fake_libero, publish_lerobot, libero_demo):
    """A folder in LIBERO's layout, of the tiny suite's motion, with a task of another suite among the others."""
    record = ["collect", "suite=libero_goal", "expert_episodes=2", "tasks=[reach_up]", "image_size=16", "workers=1"]
    assert main([*record, f"run_dir={tmp_path / 'run0'}"]) == 0
    episodes = list(EpisodeDataset.open(tmp_path / "run0" / "dataset"))
    stated = {"robot": "libero", "gripper": {"open": -1, "closed": 1}, "success": "every episode"}
    others = replace(episodes[0], instruction="pick up the moon")
    data = as_foreign_folder(publish_lerobot, tmp_path / "theirs", [others, *episodes], **stated)
    metrics = check_folder(tmp_path, data, "suite=libero_goal")
    assert metrics["fits"], metrics["verdict"]
    assert any("images are taken as they are" in text for text in metrics["assumed"])
    data = as_foreign_folder(publish_lerobot, tmp_path / "half", episodes, half, **stated)
    assert [item["family"] for item in check_folder(tmp_path / "2", data, "suite=libero_goal")["off"]] == [
        "position scale"
    ]


def test_a_suite_without_such_states_says_so():
    server = BatchServer(None, lambda call, slot: None)
    with pytest.raises(ValueError, match="begins at its own initial states only"):
        server.answer({"kind": "reset", "episodes": [[0, "t", 0, 0, False]]}, {start_name(0): np.zeros(3)})
