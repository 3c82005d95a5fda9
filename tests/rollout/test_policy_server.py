"""Frames, refusals, and a conversation over a real websocket; lerobot's policies with a double of the network.

Units under test: ``rollout/policy_server.py``, ``rollout/policy_frames.py``, ``jobs/serve_policy.py``.

The frames are those of XPolicyLab's client at commit 7198143e890ee73bee241c6cf2521f748ab91427, which is not installed here.
"""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.image_fit import WAYS, Fit, fit_image
from worldrl.jobs.policy.serve_policy import ServePolicySettings, open_server
from worldrl.policies.remote.packing import FrameError, numbers
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.serving.server import Turn, make_handler
from worldrl.rollout.suites.policy_frames import decode_frame, images_of, named_actions, state_of
from worldrl.rollout.suites.policy_server import Conversation, robotwin_conversations
from worldrl.rollout.suites.robotwin import RoboTwinSuite
from worldrl.simulators.process import Launch
from worldrl.workers.link.boot import load_file

FAKE = Path(__file__).parents[1] / "policies" / "fake_network.py"
fake = load_file("fake_network", FAKE)
msgpack = pytest.importorskip("msgpack", reason="the extra serve brings it")
SIDE = RobotSide(RoboTwinSuite.spec.actions, None, "as they are", (8, 8), Fit.stretch)
LEFT, RIGHT = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32) + 10


def packed(array):
    """An array as msgpack-numpy sends it."""
    return {
        b"nd": True,
        b"type": array.dtype.str,
        b"kind": b"",
        b"shape": list(array.shape),
        b"data": array.tobytes(),
    }


def frame(kind, payload=None, **fields):
    head = {"message_type": kind, "message_id": "m1", "evaluation_id": "e1", "trial_id": "t1", "step": 3, **fields}
    return msgpack.packb({**head, "payload": payload or {}}, use_bin_type=True)


def observation(level=100, instruction="beat the block", cameras=("head", "left_wrist")):
    pictures = {f"cam_{name}": {"color": packed(np.full((24, 32, 3), level, np.uint8))} for name in cameras}
    state = {"left_arm_joint_state": packed(LEFT), "left_ee_joint_state": packed(np.ones(1, np.float32))}
    state |= {"right_arm_joint_state": packed(RIGHT), "right_ee_joint_state": packed(np.zeros(1, np.float32))}
    return {"instruction": instruction, "vision": pictures, "state": state}


class Echo:
    """Answers two actions: the command that it was shown, and that plus one."""

    def __init__(self, size=14):
        self.rows, self.size = [], size

    def begin(self, row):
        self.rows.append(row)

    def act(self, rows):
        command = np.zeros(self.size, np.float32) if self.size != 14 else rows[0].obs["command"]
        return np.stack([command, command + 1])[None]


def ask(talk, *request, **fields):
    return msgpack.unpackb(talk.answer(frame(*request, **fields)), raw=False)


def test_an_episode_is_served_and_the_command_follows_the_chunk():
    actor = Echo()
    talk = Conversation(actor, SIDE, Turn())
    hello = ask(talk, "hello")
    assert (hello["message_type"], hello["message_id"], hello["step"], hello["trial_id"]) == (
        "hello_ack",
        "m1",
        3,
        "t1",
    )
    assert ask(talk, "prepare_case")["message_type"] == "prepare_case_ack"
    given = {"task_name": "beat_block_hammer", "seed": 100003, "instruction": "hit it", "action_type": "joint"}
    assert ask(talk, "reset", given)["payload"] == {"ok": True}
    answer = ask(talk, "infer", {"observation": observation()})
    assert answer["message_type"] == "infer_result"
    first, second = answer["payload"]["actions"]
    assert first["left_arm_joint_state"] == LEFT.tolist()
    assert (first["left_ee_joint_state"], first["right_ee_joint_state"]) == ([1.0], [0.0])
    assert second["right_arm_joint_state"] == (RIGHT + 1).tolist()
    row = actor.rows[0]
    assert (row.spec.task, row.spec.seed, row.instruction) == ("beat_block_hammer", 100003, "beat the block")
    assert row.obs["image"].shape == row.obs["left_wrist_image"].shape == (8, 8, 3)
    again = ask(talk, "infer", {"observation": observation()})["payload"]["actions"]
    assert (
        again[0]["left_arm_joint_state"] == (LEFT + 1).tolist()
    )  # the last action of the chunk, not the measured joints
    assert ask(talk, "trial_end", {"success": True})["message_type"] == "trial_end_ack"
    ask(talk, "reset", given)
    assert [episode.spec.index for episode in actor.rows] == [0, 1]
    assert (
        ask(talk, "infer", {"observation": observation()})["payload"]["actions"][0]["left_arm_joint_state"]
        == LEFT.tolist()
    )
    assert talk.answer(frame("close")) is None


def test_images_have_the_policys_rows_and_columns():
    shown = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    for fit in map(Fit, WAYS):
        side = replace(SIDE, image_size=(12, 20), fit=fit)
        found = images_of({"vision": {"cam_head": {"color": shown}}}, side.image)
        np.testing.assert_array_equal(found["image"], fit_image(shown, (12, 20), fit))


def test_what_leaves_the_server_is_in_the_robots_units():
    """A robot whose grippers are 8 closed and 42 open, and whose cameras hang upside down."""
    side, actor = replace(SIDE, ends=((42.0, 8.0), (42.0, 8.0)), pictures="turned", image_size=(24, 32)), Echo()
    talk, seen = Conversation(actor, side, Turn()), observation()
    image = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    seen["vision"]["cam_head"]["color"] = packed(image)
    seen["state"] |= {"left_ee_joint_state": packed(np.float32([25])), "right_ee_joint_state": packed(np.float32([8]))}
    ask(talk, "reset", {})
    first, second = ask(talk, "infer", {"observation": seen})["payload"]["actions"]
    row = actor.rows[0]
    np.testing.assert_allclose(row.obs["state"][[6, 13]], [0.5, 0.0])  # 0 closed, 1 open
    np.testing.assert_array_equal(row.obs["image"], image[::-1, ::-1])
    np.testing.assert_allclose([first["left_ee_joint_state"], first["right_ee_joint_state"]], [[25], [8]])
    np.testing.assert_allclose(second["right_ee_joint_state"], [42])
    assert first["left_arm_joint_state"] == LEFT.tolist()
    ask(talk, "infer", {"observation": seen})
    np.testing.assert_allclose(row.obs["command"][[6, 13]], [1.5, 1.0])  # the policy's own last action


@pytest.mark.parametrize(
    ("size", "request_", "code", "words"),
    [
        (14, ("infer", {"observation": {}}), "infer_failed", "infer before reset"),
        (14, ("reset", {"action_type": "ee"}), "reset_failed", "the client wants 'ee'"),
        (14, ("dance", {}), "invalid_frame", "unknown message_type 'dance'"),
        (7, ("reset", {}), None, ""),
    ],
)
def test_refusals_are_answers(size, request_, code, words):
    talk = Conversation(Echo(size), SIDE, Turn())
    answer = ask(talk, *request_)
    if code is None:
        answer, code, words = ask(talk, "infer", {"observation": observation()}), "infer_failed", "have 7 numbers"
    assert answer["message_type"] == "error"
    assert answer["payload"]["code"] == code
    assert words in answer["payload"]["message"]


def test_only_numbers_are_taken():
    np.testing.assert_array_equal(numbers(packed(np.arange(6.0).reshape(2, 3))), np.arange(6.0).reshape(2, 3))
    assert numbers({b"nd": False, b"type": "<i8", b"data": np.int64(7).tobytes()}) == 7
    assert numbers({"plain": 1}) == {"plain": 1}
    for bad in ({b"type": "|O"}, {b"kind": b"O"}, {b"type": "<U3"}, {b"shape": [5]}):
        with pytest.raises(FrameError):
            numbers({**packed(np.arange(3)), **bad})
    for message in (b"", b"\xc1", msgpack.packb([1, 2]), msgpack.packb({"message_type": "hello"})):
        with pytest.raises(FrameError):
            decode_frame(message)
    with pytest.raises(FrameError, match=r"left_ee_joint_state.*: 0"):
        state_of({"state": {"left_arm_joint_state": LEFT}})
    with pytest.raises(FrameError, match=r"cam_head\.color: must be uint8"):
        images_of({"vision": {"cam_head": {"color": np.zeros((4, 4, 3))}}}, SIDE.image)
    assert len(named_actions(np.zeros((5, 14), np.float32))) == 5


def test_a_websocket_serves_several_clients():
    server_module = pytest.importorskip("websockets.sync.server")
    client_module = pytest.importorskip("websockets.sync.client")
    with server_module.serve(make_handler(robotwin_conversations(Echo(), SIDE), Turn()), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        with client_module.connect(url) as one, client_module.connect(url) as two:
            for client in (one, two):
                client.send(frame("reset", {}))
                assert msgpack.unpackb(client.recv())["message_type"] == "reset_result"
            two.send(b"not a frame")
            one.send(frame("infer", {"observation": observation()}))
            assert len(msgpack.unpackb(one.recv())["payload"]["actions"]) == 2
        server.shutdown()
        thread.join()


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Write a policy in lerobot's layout: RoboTwin's arms and three cameras, its network the double."""

    def write(**changes):
        cameras = {f"observation.images.cam_{name}": {"type": "VISUAL", "shape": [3, 240, 320]} for name in CAMERAS}
        state = {"observation.state": {"type": "STATE", "shape": [14]}}
        given = {"action": 14, "input_features": cameras | state, **changes}
        folder = fake.publish(tmp_path / "policy", **given)
        worker = Launch("fake policy", sys.executable, f"{FAKE}:Fake", {"folder": str(folder)})
        monkeypatch.setattr("worldrl.policies.lerobot.policy.lerobot_launch", lambda folder, device: worker)
        return ServePolicySettings(policy=str(folder), port=0)

    return write


CAMERAS = ("high", "left_wrist", "right_wrist")


def test_a_policy_of_lerobots_is_served(publish):
    connect = pytest.importorskip("websockets.sync.client").connect
    with open_server(publish()) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        answers = []
        with connect(f"ws://127.0.0.1:{server.socket.getsockname()[1]}") as client:
            for cameras in (("head", "left_wrist", "right_wrist"), ("head",)):
                for request in (("reset", {"seed": 3}), ("infer", {"observation": observation(cameras=cameras)})):
                    client.send(frame(*request))
                    answers.append(msgpack.unpackb(client.recv(), raw=False))
        server.shutdown()
        thread.join()
    began, served, _, lacking = answers
    assert began["message_type"] == "reset_result"
    actions = np.array([np.concatenate(list(action.values())) for action in served["payload"]["actions"]])
    assert actions.shape == (fake.EXECUTED, 14)
    assert np.ptp(actions) > 0
    assert "left_wrist_image: the policy needs it" in lacking["payload"]["message"]


def test_other_machines_reach_a_server_only_where_that_was_said():
    """A host is easily set to what a tutorial has."""
    for host in ("0.0.0.0", "::", "", "192.168.1.5", "robot.local"):
        with pytest.raises(SettingError, match=r"other machines(?s:.)*exposed=true"):
            ServePolicySettings(policy="p", host=host)
        with pytest.raises(SettingError, match=r"without a token(?s:.)*token_file=FILE"):
            ServePolicySettings(policy="p", host=host, exposed=True)
        assert ServePolicySettings(policy="p", host=host, exposed=True, token_file="t").host == host
    for host in ("127.0.0.1", "::1", "localhost"):
        assert ServePolicySettings(policy="p", host=host).host == host


def test_policies_that_the_client_cannot_feed_are_refused_before_they_are_loaded(publish, tmp_path):
    with pytest.raises(SettingError, match="needs 2 observations, one per control step"):
        open_server(publish(type="diffusion", n_obs_steps=2))
    one_arm = fake.publish(tmp_path / "one")
    with pytest.raises(SettingError, match=r"gives 7 numbers, RoboTwin takes 14(?s:.)*kind=bimanual"):
        open_server(ServePolicySettings(policy=str(one_arm), port=0))


def test_a_policy_of_other_images_is_refused(publish):
    states = {"observation.state": {"type": "STATE", "shape": [14]}}
    tall = {f"observation.images.cam_{name}": {"type": "VISUAL", "shape": [3, 320, 240]} for name in CAMERAS}
    with pytest.raises(SettingError, match="does not fit RoboTwin's client"):
        open_server(publish(input_features=tall | states))
