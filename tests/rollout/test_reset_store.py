from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.rollout.imagined.reset_store import ResetStore, initial_record, keyframe_records, record_at


def test_memory_ends_now_and_repeats_the_first_frame_before_the_start(push_episode):
    episode = push_episode(0, 16)
    record = record_at(episode, 5, memory_frames=4, frame_stride=2, source="x")
    np.testing.assert_array_equal(record.memory, episode.frames[[0, 1, 3, 5], 0])
    np.testing.assert_array_equal(record.reference, episode.frames[0, 0])
    np.testing.assert_array_equal(record.command, episode.command[5])
    assert (record.step, record.task, record.instruction) == (5, episode.task, episode.instruction)
    first = record_at(episode, 0, memory_frames=3, frame_stride=2, source="x")
    np.testing.assert_array_equal(first.memory, np.stack([episode.frames[0, 0]] * 3))


def test_a_record_of_two_cameras_keeps_its_own_frames_alone(push_episode):
    episode = push_episode(0, 16)
    both = np.concatenate([episode.frames, 255 - episode.frames], axis=1)
    episode = replace(episode, frames=both, cameras=(episode.cameras[0], "wrist"))
    record = record_at(episode, 5, memory_frames=4, frame_stride=2, source="x", more=("wrist_image",))
    sheets = episode.sheet(("image", "wrist_image"))
    np.testing.assert_array_equal(record.reference, sheets[0])
    np.testing.assert_array_equal(record.memory, sheets[[0, 1, 3, 5]])
    # a view into the sheet of the whole episode would keep it in memory: gigabytes over all keyframes
    kept = [array if array.base is None else array.base for array in (record.reference, record.memory)]
    assert sum(array.nbytes for array in kept) <= 5 * sheets[0].nbytes


def test_an_initial_record_equals_an_episodes_first(push_episode):
    episode = push_episode(1)
    made = initial_record(
        episode.frames[0, 0], episode.command[0], instruction="i", task="t", memory_frames=3, source="s"
    )
    there = record_at(episode, 0, memory_frames=3, frame_stride=2, source="s")
    for name in ("reference", "memory", "command", "step"):
        np.testing.assert_array_equal(getattr(made, name), getattr(there, name))


def test_keyframes_at_their_margin_and_before_success(push_episode):
    reward = np.zeros(16, np.float32)
    reward[12:] = 1  # success at frame 13
    contact = np.zeros(17, bool)
    contact[14:] = True
    episode = push_episode(0, 16, close_at=9, reward=reward, contact=contact)

    def steps(margin, *episodes):
        records = keyframe_records(list(episodes), margin=margin, memory_frames=2, frame_stride=2)
        return [record.step for record in records]

    assert steps(3, episode) == [6, 11]  # the gripper closes at 9, contact begins at 14
    assert steps(1, episode) == [8]  # 13 is the frame of success: nothing is left to do there
    assert steps(8, episode) == [1, 6]
    assert steps(9, episode) == [5]  # frame 0 is an initial state, not a keyframe
    assert steps(20, episode) == []
    failure = push_episode(0, 16, close_at=9, reward=0 * reward, contact=contact)
    assert steps(1, failure, episode) == [8, 13, 8]
    record = keyframe_records([failure], margin=3, memory_frames=2, frame_stride=2)[0]
    np.testing.assert_array_equal(record.memory, failure.frames[[4, 6], 0])
    assert record.source == "episode 0, 3 steps before gripper at 9"


def test_tasks_take_turns_and_keyframes_have_their_share(make_record):
    tasks = ("PickRedCube", "PickGreenCylinder")
    initial = [make_record(1, task=tasks[0])] * 9 + [make_record(1, task=tasks[1])]
    store = ResetStore(initial, [make_record(2, task=tasks[0], step=5)])
    assert len(store) == 11
    drawn = store.sample(1000, 0.3, generator=stream(0, "sample"))
    assert [record.task for record in drawn[:4:2]] == [drawn[0].task] * 2
    turns = drawn[::2], drawn[1::2]
    red, green = turns if drawn[0].task == tasks[0] else turns[::-1]
    assert {record.task for record in red} == {tasks[0]}
    assert {record.task for record in green} == {tasks[1]}
    assert 0.2 < np.mean([record.step == 5 for record in red]) < 0.4
    assert {record.step for record in green} == {0}  # no keyframe of its own
    for p, step in ((0.0, 0), (1.0, 5)):
        assert {r.step for r in store.sample(50, p, generator=stream(1, "s")) if r.task == tasks[0]} == {step}


def test_draws_follow_the_generator(make_record):
    store = ResetStore([make_record(grey) for grey in range(50)])
    a, b, c = ([r.source for r in store.sample(20, 0.5, generator=stream(s, "x"))] for s in (0, 0, 1))
    assert a == b
    assert a != c


def test_a_store_needs_an_initial_state(make_record):
    with pytest.raises(SettingError, match="initial state"):
        ResetStore([], [make_record()])
