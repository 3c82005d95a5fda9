"""Bimanual episodes through `collect`, the dataset on disk, and what does not go together."""

import json

import numpy as np
import pytest

from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.lerobot.dataset import EpisodeDataset, check_dataset
from worldrl.data.windows.frame_store import build_store
from worldrl.jobs.data.collect import CollectSettings, main
from worldrl.policies.samples import make_samples
from worldrl.rollout.real.restyle import restyle_dataset
from worldrl_envs.bimanual.control import NAMES, next_command

TASK = "BimanualOpenDrawer"


def collect(run_dir, **settings):
    return main(
        CollectSettings(
            run_dir=str(run_dir),
            workers=0,
            envs_per_worker=1,
            image_size=16,
            hold_steps=2,
            **{"tasks": [TASK], **settings},
        )
    )


def test_collected_episodes_come_back_as_recorded(two_armed):
    folder, metrics = two_armed
    assert metrics["episodes"] == 2
    assert metrics["tasks"][TASK]["expert"]["k"] == 1
    assert check_dataset(folder) == []
    dataset = EpisodeDataset.open(folder)
    assert dataset.cameras == ("head", "left_wrist", "right_wrist")
    for episode in dataset:
        steps = len(episode)
        assert episode.frames.shape == (steps + 1, 3, 16, 16, 3)
        assert episode.state.shape == episode.command.shape == (steps + 1, 14)
        assert episode.action.shape == (steps, 14)
        command = episode.command[0]
        for action, after in zip(episode.action, episode.command[1:], strict=True):
            command = next_command(command, action)
            np.testing.assert_array_equal(command, after)
        assert np.abs(episode.state - episode.command)[:, :6].max() < 0.2
        # Three cameras, three images.
        assert len({episode.frames[0, view].tobytes() for view in range(3)}) == 3


def test_columns_are_named_after_the_joints_and_the_last_row_holds(two_armed):
    import pyarrow.parquet as pq

    folder, _ = two_armed
    info = json.loads((folder / "meta/info.json").read_text())
    for column in ("observation.state", "observation.command", "action"):
        assert info["features"][column]["names"] == list(NAMES)
        assert info["features"][column]["shape"] == [14]
    table = pq.read_table(next(iter(sorted(folder.glob("data/**/*.parquet")))))
    assert table["action"].to_pylist()[-1] == table["observation.command"].to_pylist()[-1]


def test_header_and_episodes_know_the_robot_and_models_are_of_one(two_armed, push_episode):
    dataset = EpisodeDataset.open(two_armed[0])
    assert isinstance(dataset.embodiment, JointEmbodiment)
    assert dataset[0].actions.names == dataset.embodiment.actions.names == NAMES
    store = build_store([dataset[0]])
    assert store.action.shape[1] == store.command.shape[1] == 14
    np.testing.assert_array_equal(store.opening, dataset[0].state[:, [6, 13]])
    np.testing.assert_array_equal(store.action[-1], dataset[0].command[-1])
    stranger = push_episode(size=dataset.image_size[0])
    with pytest.raises(ArtefactError, match=r"episode 1 .*: actions are dx, dy"):
        build_store([dataset[0], stranger])
    with pytest.raises(ArtefactError, match="of one robot"):
        make_samples([dataset[0], stranger], 8)


def test_replay_under_another_look_is_the_same_motion(two_armed, tmp_path):
    specs = restyle_dataset(two_armed[0], tmp_path / "dim", ["dim"], seed=0, workers=0)
    assert {spec.style for spec in specs} == {"dim"}
    before, after = EpisodeDataset.open(two_armed[0])[0], EpisodeDataset.open(tmp_path / "dim")[0]
    np.testing.assert_array_equal(before.state, after.state)
    assert not np.array_equal(before.frames, after.frames)


def test_the_randomised_domain_is_recorded_with_its_name(tmp_path):
    collect(tmp_path / "run", expert_episodes=1, domain="randomised")
    dataset = EpisodeDataset.open(tmp_path / "run/dataset")
    assert dataset.records[0].meta["domain"] == "randomised"
    with pytest.raises(ArtefactError, match="randomised domain"):
        restyle_dataset(tmp_path / "run/dataset", tmp_path / "again", ["dim"], seed=0, workers=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": [TASK, "PickRedCube"]}, "a dataset is of one robot"),
        ({"tasks": ["PickRedCube"], "domain": "randomised"}, "domain: randomised is of bimanual tasks"),
        ({"domain": "randomised", "styles": ["dim"]}, "domain: randomised is of bimanual tasks"),
        ({"tasks": ["BimanualOpenDraw"]}, "BimanualOpenDrawer"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_recorded(settings, message, tmp_path):
    with pytest.raises(SettingError, match=message):
        collect(tmp_path / "run", **settings)
    assert not (tmp_path / "run/dataset/data").exists()


def test_a_policy_of_another_robot_is_refused(tiny_policy, tmp_path):
    tiny_policy().save(tmp_path / "policy")
    with pytest.raises(SettingError, match=r"acts with dx, dy.*the robot of these tasks with left_joint1"):
        collect(tmp_path / "run", policy=str(tmp_path / "policy"), policy_episodes=1)


def test_two_armed_tasks_are_asked_for_by_name_or_kind():
    from worldrl.recipes.run import choose_tasks

    assert TASK in choose_tasks([], "bimanual")
    assert choose_tasks([TASK], None) == [TASK]
    assert not any(name.startswith("Bimanual") for name in choose_tasks([], None))
