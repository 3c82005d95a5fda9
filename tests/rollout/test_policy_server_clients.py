"""What clients may do to the policy server: leave, send anything, stay silent; over real sockets and processes.

Units under test: ``rollout/policy_server.py``, ``rollout/policy_frames.py``, ``jobs/serve_policy.py``.
"""

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from worldrl import cli
from worldrl.core.image_fit import Fit
from worldrl.core.instructions import MAX_CHARACTERS
from worldrl.jobs.policy import serve_policy
from worldrl.nn.text import instruction_pieces
from worldrl.policies.remote.packing import MAX_ITEMS, FrameError
from worldrl.recipes.listening import listen
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.serving.server import SocketServer, Turn
from worldrl.rollout.suites.policy_frames import decode_frame
from worldrl.rollout.suites.policy_server import Conversation, robotwin_conversations
from worldrl.rollout.suites.robotwin import RoboTwinSuite
from worldrl.workers.link.boot import load_file

hostile = load_file("hostile", Path(__file__).parents[1] / "hostile.py")
SIDE = RobotSide(RoboTwinSuite.spec.actions, None, "as they are", (8, 8), Fit.stretch)
msgpack = pytest.importorskip("msgpack", reason="the extra serve brings it")
connect = pytest.importorskip("websockets.sync.client").connect
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def packed(array, **changes):
    """An array as msgpack-numpy sends it."""
    data = {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": list(array.shape), b"data": array.tobytes()}
    return data | {name.encode(): value for name, value in changes.items()}


def observation():
    arm, end = packed(np.arange(6, dtype=np.float32)), packed(np.ones(1, np.float32))
    state = {
        f"{side}_{part}_joint_state": value
        for side in ("left", "right")
        for part, value in zip(("arm", "ee"), (arm, end), strict=True)
    }
    return {
        "instruction": "go",
        "vision": {"cam_head": {"color": packed(np.zeros((4, 4, 3), np.uint8))}},
        "state": state,
    }


def request(kind="hello", payload=None, **fields):
    return {
        "message_type": kind,
        "message_id": "m1",
        "evaluation_id": "e1",
        "step": 3,
        "payload": payload or {},
        **fields,
    }


def frame(*args, **fields):
    return msgpack.packb(request(*args, **fields), use_bin_type=True)


class Echo:
    """Answers two actions: the command that it was shown, and that plus one."""

    def begin(self, row):
        self.row = row

    def act(self, rows):
        return np.stack([rows[0].obs["command"], rows[0].obs["command"] + 1])[None]


@pytest.fixture
def server():
    with SocketServer(robotwin_conversations(Echo(), SIDE), listen("127.0.0.1", 0)) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
    thread.join()


@pytest.fixture
def client(server):
    with connect(url_of(server)) as found:
        yield found


def url_of(server):
    return f"ws://127.0.0.1:{server.socket.getsockname()[1]}"


def ask(client, message):
    client.send(message)
    return msgpack.unpackb(client.recv(), raw=False)


def lines(caplog):
    assert not [record for record in caplog.records if record.exc_info]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(len(line) < 700 and line.isprintable() for line in said)
    return said


def until(condition):
    """Wait until the server's threads have come to it."""
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("the server has not come to it")


MALFORMED = {
    "no MessagePack": b"not a frame",
    "a list": msgpack.packb([1]),
    "no type": msgpack.packb({"message_id": 1}),
    "no id": msgpack.packb({"message_type": "hello"}),
    "step of text": frame(step="abc"),
    "step of 1.5": frame(step=1.5),
    "id a list": frame(message_id=[1]),
    "id an array": frame(message_id=packed(np.zeros(3))),
    "id of 300 characters": frame(message_id="x" * 300),
    "type an array": frame(packed(np.zeros(3))),
    "type deep": frame(hostile.DEEP),
    "unknown type with a colour": frame("dance\n\x1b[31m"),
    "payload a list": frame("infer", [1]),
    "shape 1e308": frame("infer", {"x": packed(np.zeros(3), shape=[1e308, 1e308])}),
    "shape beyond numpy": frame("infer", {"x": packed(np.zeros(0), shape=[0, 2**62, 2**62])}),
    "nd an array": frame("infer", {"x": packed(np.zeros(3), nd=packed(np.zeros(2)))}),
    "too little data": frame("infer", {"x": packed(np.zeros(3), shape=[4])}),
    "too much data": frame("infer", {"x": packed(np.zeros(3), shape=[2])}),
    "data of text": frame("infer", {"x": packed(np.zeros(3), data="text")}),
    "many values": frame("infer", {"x": [[]] * MAX_ITEMS}),
    "observation a list": frame("infer", {"observation": [1]}),
    "seed of text": frame("reset", {"seed": "x"}),
    "instruction a number": frame("reset", {"instruction": 5}),
    "task of 300 characters": frame("reset", {"task_name": "x" * 300}),
}
MALFORMED |= {
    f"dtype {text!r}": frame("infer", {"x": packed(np.zeros(3), type=text)})
    for text in hostile.VALUES
    if isinstance(text, str)
}


def test_every_malformed_frame_gets_an_error_and_one_line_and_the_connection_continues(client, caplog):
    for number, (name, message) in enumerate(MALFORMED.items(), 1):
        answer = ask(client, message)
        assert answer["message_type"] == "error", name
        assert len(answer["payload"]["message"]) <= 300, name
        assert len(lines(caplog)) == number, name
    assert ask(client, frame())["message_type"] == "hello_ack"


def test_an_error_carries_the_identifiers_that_could_be_read(client):
    answer = ask(client, frame(step="abc", trial_id=[1]))
    assert (answer["message_id"], answer["evaluation_id"], answer["trial_id"], answer["step"]) == ("m1", "e1", None, 0)
    assert "trial_id: must be a whole number, it is list" in answer["payload"]["message"]
    assert ask(client, frame(message_id=packed(np.array(7))))["message_id"] == 7  # a numpy scalar of the client's


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": {}}, "wanted are"),
        ({"state": {"left_arm_joint_state": "abc"}}, "left_arm_joint_state: must be numbers"),
        ({"state": {"left_arm_joint_state": packed(np.full(6, np.nan))}}, "must be finite"),
        ({"state": {"left_arm_joint_state": packed(np.full(6, 1e300))}}, "must be finite"),
        ({"vision": {}}, "cam_head.color: must be uint8"),
        ({"vision": {"cam_head": 5}}, "cam_head: must be a map"),
        ({"vision": {"cam_head": {"color": packed(np.zeros((0, 4, 3), np.uint8))}}}, "it is uint8 [0, 4, 3]"),
        ({"vision": {"cam_head": {"color": packed(np.zeros((1, 5000, 3), np.uint8))}}}, "1 to 4096 pixels"),
        ({"instruction": "x" * (MAX_CHARACTERS + 1)}, f"instruction: at most {MAX_CHARACTERS} characters, got 1025; shorten"),
        ({"instruction": ["go"]}, "instruction: must be text"),
    ],
)  # fmt: skip
def test_observations_that_are_none_are_named(client, caplog, change, words):
    assert ask(client, frame("reset"))["message_type"] == "reset_result"
    answer = ask(client, frame("infer", {"observation": {**observation(), **change}}))
    assert answer["payload"]["code"] == "infer_failed"
    assert words in answer["payload"]["message"]
    assert len(lines(caplog)) == 1
    assert ask(client, frame("infer", {"observation": observation()}))["message_type"] == "infer_result"


def test_a_camera_that_is_there_and_wrong_is_not_passed_over(client):
    ask(client, frame("reset"))
    given = observation()
    given["vision"]["cam_left_wrist"] = {"color": packed(np.zeros((4, 4), np.uint8))}
    assert (
        "cam_left_wrist.color: must be uint8"
        in ask(client, frame("infer", {"observation": given}))["payload"]["message"]
    )


def test_a_text_frame_is_answered_with_what_is_expected(client, caplog):
    client.send("hello")
    answer = json.loads(client.recv())
    assert answer["message_type"] == "error"
    assert "binary MessagePack" in answer["payload"]["message"]
    assert len(lines(caplog)) == 1
    assert ask(client, frame())["message_type"] == "hello_ack"


def test_clients_that_leave_are_one_line_each(server, caplog):
    for number in range(1, 4):
        with connect(url_of(server)) as leaving:
            ask(leaving, frame())
            if number == 3:
                leaving.send(b"x" * (2**26 + 1))  # more than is taken: the server ends this connection
            else:
                leaving.socket.shutdown(socket.SHUT_RDWR)
            until(lambda number=number: len(lines(caplog)) >= number)
    assert all("a client left" in line for line in lines(caplog))
    with connect(url_of(server)) as polite:
        ask(polite, frame())
    with connect(url_of(server)) as another:
        assert ask(another, frame())["message_type"] == "hello_ack"
    assert len(lines(caplog)) == 3


def test_what_is_no_websocket_leaves_no_traceback(server, caplog):
    for start in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", HANDSHAKE + b"\x82\x05hello"):
        with socket.create_connection(server.socket.getsockname()[:2]) as raw:
            raw.sendall(start)
    with connect(url_of(server)) as another:
        assert ask(another, frame())["message_type"] == "hello_ack"
    lines(caplog)


def test_a_bug_of_ours_keeps_its_traceback(caplog):
    class Broken(Echo):
        def act(self, rows):
            raise ZeroDivisionError("a bug")

    talk = Conversation(Broken(), SIDE, Turn())
    talk.answer(frame("reset"))
    answer = msgpack.unpackb(talk.answer(frame("infer", {"observation": observation()})))
    assert answer["payload"]["message"] == "ZeroDivisionError: a bug"
    assert caplog.records[0].exc_info


def test_thousands_of_mutated_frames_leave_only_the_typed_error():
    draw, talk = np.random.default_rng(0), Conversation(Echo(), SIDE, Turn())
    kinds = {
        "reset": {"seed": 1, "instruction": "go", "task_name": "t"},
        "infer": {"observation": observation()},
        "hello": {},
    }
    whole = {kind: request(kind, payload) for kind, payload in kinds.items()}
    answers = []
    for number in range(6000):
        message = whole[list(whole)[number % 3]]
        if number % 2:
            message = hostile.mutated(draw, message)
        try:
            sent = msgpack.packb(message, use_bin_type=True)
        except (ValueError, OverflowError):  # deeper or larger than MessagePack goes
            continue
        sent = sent if number % 4 == 1 else hostile.damaged(draw, sent)
        with contextlib.suppress(FrameError):
            decode_frame(sent)
        answers.append(talk.answer(sent))  # any error that leaves it fails the test
    kinds = [msgpack.unpackb(answer)["message_type"] for answer in answers if answer is not None]
    assert kinds.count("error") > 2000
    assert "infer_result" in kinds


def test_what_is_kept_of_instructions_is_bounded():
    assert instruction_pieces("x" * MAX_CHARACTERS, 64)
    with pytest.raises(ValueError, match="at most 1024 characters, got 1025; shorten it"):
        instruction_pieces("x" * (MAX_CHARACTERS + 1), 64)
    assert instruction_pieces.cache_info().maxsize <= 8192


# -- the command ----------------------------------------------------------------------------------------------------

SERVER = """
import functools, sys, threading
from types import SimpleNamespace
import numpy as np
import websockets.sync.server as server
from worldrl import cli
from worldrl.jobs.policy import serve_policy as job

class Actor:
    def begin(self, row): pass
    def act(self, rows):
        threading.Event().wait()

server.serve = functools.partial(server.serve, close_timeout=None, open_timeout=None, ping_interval=None)
same = lambda values: values
job.side_for_client = lambda folder, fit, protocol: SimpleNamespace(numbers=same, targets=same, image=same)
job.PolicyActor = lambda **settings: SimpleNamespace(build=Actor)
sys.exit(cli.main(["serve-policy", "policy=p", "port=0"]))
"""


@pytest.fixture
def process():
    """The command in a process of its own, which waits for every client without limit; its actor never answers."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'envs'}"}
    with subprocess.Popen([sys.executable, "-c", SERVER], stderr=subprocess.PIPE, text=True, env=env) as found:
        yield found
        found.kill()


def test_ctrl_c_ends_the_server_whatever_clients_do(process):
    port = int(re.search(r"ws://127\.0\.0\.1:(\d+)", process.stderr.readline())[1])
    with contextlib.ExitStack() as stack:
        raw = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(4)]
        raw[0].sendall(HANDSHAKE[:30])  # half a handshake; another sends nothing at all
        for silent in raw[1:3]:
            silent.sendall(HANDSHAKE)
            assert silent.recv(4096).startswith(b"HTTP/1.1 101")
        raw[1].sendall(b"\x82\xfe\x10\x00\0\0\0\0half a frame")
        waiting = stack.enter_context(connect(f"ws://127.0.0.1:{port}", close_timeout=0))
        assert ask(waiting, frame("reset"))["message_type"] == "reset_result"
        waiting.send(frame("infer", {"observation": observation()}))  # a decision that takes for ever
        idle = stack.enter_context(connect(f"ws://127.0.0.1:{port}", close_timeout=0))
        assert ask(idle, frame())["message_type"] == "hello_ack"
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=120)  # runs out where the server waits for a client
    assert process.returncode == 0
    assert rest == "closed\n"


def serve(monkeypatch, *settings, build=Echo):
    monkeypatch.setattr(serve_policy, "side_for_client", lambda folder, fit, protocol: SIDE)
    monkeypatch.setattr(serve_policy, "PolicyActor", lambda **given: SimpleNamespace(build=build))
    return cli.main(["serve-policy", "policy=p", *settings])


def test_a_port_in_use_is_one_line_that_says_how_to_choose_another(monkeypatch, capsys):
    def never():
        raise AssertionError("the policy is loaded for a port that is in use")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(monkeypatch, f"port={port}", build=never) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"worldrl: port: {port} on 127.0.0.1 is in use")
    assert "port=0 takes a free one" in said
    assert said.count("\n") == 1


def test_an_address_that_this_machine_does_not_have_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("x" * 16)
    for host in ("203.0.113.7", "x..y", "2001:db8::7"):
        assert serve(monkeypatch, f"host={host}", "exposed=true", f"token_file={tmp_path}/token") == 2
        said = capsys.readouterr().err
        assert said.startswith(f"worldrl: host, port: cannot listen on '{host}'")
        assert said.count("\n") == 1


def test_ctrl_c_while_the_policy_is_loaded(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert serve(monkeypatch, "port=0", build=interrupted) == 130
    assert "interrupted; start again with: worldrl serve-policy policy=p port=0" in capsys.readouterr().err
