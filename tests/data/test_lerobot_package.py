"""The real lerobot package opens what worldrl writes.

Set ``WORLDRL_LEROBOT_PYTHON`` to the interpreter of an environment with lerobot 0.4.4, and run ``pytest -m sim``.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.writer import finalize_dataset

HERE = Path(__file__).parent
pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def run_lerobot(tmp_path_factory):
    interpreter = os.environ.get("WORLDRL_LEROBOT_PYTHON")
    if not interpreter:
        pytest.skip("WORLDRL_LEROBOT_PYTHON is not set")
    cache = tmp_path_factory.mktemp("huggingface")
    environment = {**os.environ, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}

    def run(script, *arguments):
        command = [interpreter, str(HERE / script), *map(str, arguments)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.fixture(scope="module")
def ask_lerobot(run_lerobot):
    def ask(folder, indices):
        return json.loads(run_lerobot("lerobot_probe.py", folder, *indices).rpartition("ANSWER ")[2])

    return ask


def image_hash(frame):
    return hashlib.sha256(np.ascontiguousarray(frame).tobytes()).hexdigest()


def assert_item(item, episodes, index):
    """Compare lerobot's row ``index`` with the episodes; return its episode and frame."""
    starts = np.cumsum([0, *(len(episode) + 1 for episode in episodes)])
    number = int(np.searchsorted(starts, index, side="right") - 1)
    episode, frame = episodes[number], index - int(starts[number])
    last = frame == len(episode)
    hold = np.array([0, 0, 0, 0, 0, 0, episode.command[-1, 6]], np.float32)
    action = hold if last else episode.action[frame]
    assert item["action"] == action.tolist()
    assert item["observation.state"] == episode.state[frame].tolist()
    assert item["observation.command"] == episode.command[frame].tolist()
    assert item["contact"] == bool(episode.contact[frame])
    assert item["next.reward"] == (0 if last else episode.reward[frame])
    assert item["is_last"] == last
    assert item["timestamp"] == np.float32(frame / 20)
    assert (item["index"], item["episode_index"], item["frame_index"]) == (index, number, frame)
    assert item["task"] == episode.instruction
    for view, camera in enumerate(episode.cameras):
        assert item["images"][f"observation.images.{camera}"] == image_hash(episode.frames[frame, view])
    return episode, frame


def assert_window(window, episode, frame):
    """A window of one earlier frame and four actions, clamped to the episode's rows."""
    hold = np.array([0, 0, 0, 0, 0, 0, episode.command[-1, 6]], np.float32)
    rows = np.concatenate([episode.action, hold[None]])
    steps = [min(frame + k, len(episode)) for k in range(4)]
    assert window["action"] == rows[steps].tolist()
    assert window["action_is_pad"] == [frame + k > len(episode) for k in range(4)]
    assert window["images"] == [image_hash(episode.frames[max(frame - 1, 0), 0]), image_hash(episode.frames[frame, 0])]


def test_lerobot_reads_the_same(ask_lerobot, tmp_path, make_episode, record):
    cameras, size = ("scene", "wrist"), {"size": (64, 48)}
    episodes = [
        make_episode(0, 7, cameras=cameras, close_at=3, **size),
        make_episode(1, 1, cameras=cameras, instruction="hebe den „Würfel“ auf 🧊", **size),
        make_episode(2, 12, cameras=cameras, contact_at=4, **size),
    ]
    folder = record(tmp_path / "d", episodes)
    indices = [0, 3, 7, 8, 9, 10, 16, 22]
    answer = ask_lerobot(folder, indices)
    assert answer["version"] == "0.4.4"
    assert (answer["frames"], answer["episodes"], answer["fps"]) == (23, 3, 20)
    assert answer["lengths"] == [8, 2, 13]
    assert answer["tasks"] == [episode.instruction for episode in episodes]
    assert answer["cameras"] == ["observation.images.scene", "observation.images.wrist"]
    assert answer["last_episode_frames"] == 13
    for index in indices:
        episode, frame = assert_item(answer["items"][str(index)], episodes, index)
        assert_window(answer["windows"][str(index)], episode, frame)
    assert answer["batch"]["observation.images.scene"] == [3, 2, 3, 64, 48]
    assert answer["batch"]["action"] == [3, 4, 7]
    action = np.concatenate([episode.action for episode in episodes]).astype(np.float64)
    np.testing.assert_allclose(answer["stats"]["action"]["mean"], action.mean(0))
    assert np.shape(answer["stats"]["observation.images.wrist"]["std"]) == (3, 1, 1)
    assert np.isfinite(answer["act"]["loss"])
    assert answer["act"]["outputs"] == ["action"]
    assert answer["act"]["inputs"] == sorted([*answer["cameras"], "observation.command", "observation.state"])


def test_lerobot_reads_what_a_killed_writer_left(ask_lerobot, tmp_path):
    folder = tmp_path / "d"
    command = [sys.executable, str(HERE / "collect_forever.py"), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finalize_dataset(folder)
    episodes = list(EpisodeDataset.open(folder))
    rows = sum(len(episode) + 1 for episode in episodes)
    answer = ask_lerobot(folder, [0, rows - 1])
    assert (answer["episodes"], answer["frames"]) == (len(episodes), rows)
    for index in (0, rows - 1):
        assert_item(answer["items"][str(index)], episodes, index)


def test_what_lerobots_tools_made_of_a_recording_is_still_a_recording_of_worldrl(
    run_lerobot, tmp_path, make_episode, record, embodiment
):
    episodes = [make_episode(n, 5 + n, cameras=("wrist", "scene"), success=n == 1, contact_at=2) for n in range(3)]
    run_lerobot("lerobot_tools.py", record(tmp_path / "d", episodes), tmp_path)
    kept = {"deleted": [0, 2], "split/a": [0], "split/b": [1, 2], "removed": [0, 1, 2], "merged": [0, 1, 2]}
    for name, numbers in kept.items():
        assert "worldrl" not in json.loads((tmp_path / name / "meta/info.json").read_text()), name
        data = EpisodeDataset.open(tmp_path / name)
        assert (data.embodiment, data.cameras) == (embodiment, ("scene", "wrist")), name
        assert [record.success for record in data.records] == [number == 1 for number in numbers], name
        for number, episode in zip(numbers, data, strict=True):
            for array in ("state", "command", "action", "reward", "contact"):
                np.testing.assert_array_equal(getattr(episode, array), getattr(episodes[number], array), err_msg=name)
            np.testing.assert_array_equal(episode.frames[:, 0], episodes[number].view("scene"))
