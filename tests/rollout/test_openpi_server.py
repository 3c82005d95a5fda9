"""OpenPI's protocol, served: by a client written out as ``openpi-client`` 0.1.2, over real sockets, hostile ones too.

Units under test: ``rollout/serving``, ``jobs/serve_policy.py``, ``recipes/listening.py``.
"""

import contextlib
import logging
import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import RemoteError, SettingError
from worldrl.core.image_fit import Fit
from worldrl.jobs.policy.serve_policy import ServePolicySettings, open_server
from worldrl.recipes.listening import listen
from worldrl.rollout.agents.policy_folder import acting_policy, policy_facts
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.workers.link.boot import load_file

pytest.importorskip("websockets", reason="the extra serve brings it")
msgpack = pytest.importorskip("msgpack", reason="the extra serve brings it")
fake = load_file("fake_openpi", Path(__file__).parents[1] / "fake_openpi.py")
hostile = load_file("hostile", Path(__file__).parents[1] / "hostile.py")

from worldrl.policies.remote.policy import Served  # noqa: E402
from worldrl.rollout.serving.openpi import Conversation  # noqa: E402
from worldrl.rollout.serving.server import Limits, SocketServer, Turn, shows  # noqa: E402

KEYS = {
    "observation/image": "image",
    "observation/state": "state",
    "observation/command": "command",
    "prompt": "prompt",
}
SERVED = Served("policy", KEYS, (8, 8), TOOL_ACTIONS, "hash")
SIDE = RobotSide(TOOL_ACTIONS, None, "as they are", (8, 8), Fit.stretch)
TOKEN = "a-token-of-more-than-16-characters"


class Echo:
    """Answers two actions: the command that it was shown, and half of it."""

    def __init__(self):
        self.rows = []

    def begin(self, row):
        self.rows.append(row)

    def act(self, rows):
        command = rows[0].obs["command"]
        return np.stack([command, command / 2])[None]


def conversations(actor, side=SIDE, served=SERVED):
    numbers = iter(range(10**6))
    return lambda turn: Conversation(actor, side, served, turn, next(numbers))


def server(actor=None, token=None, **limits):
    return SocketServer(conversations(actor or Echo()), listen("127.0.0.1", 0), token=token, limits=Limits(**limits))


def observation(**changes):
    shown = {"observation/image": np.full((24, 32, 3), 9, np.uint8), "observation/state": np.zeros(8), "observation/command": np.full(7, 0.5), "prompt": "go"}  # fmt: skip
    return {**shown, **changes}


# -- what is said ----------------------------------------------------------------------------------------------------


def test_metadata_come_first_and_an_observation_is_answered_with_actions():
    actor = Echo()
    with fake.running(server(actor)) as url, fake.Client(url) as client:
        said = client.metadata["worldrl"]
        assert (said["kind"], said["keys"], said["image"], said["hash"]) == ("policy", KEYS, [8, 8], "hash")
        first, second = (client.infer(observation(extra=1)) for _ in range(2))
    assert first["actions"].dtype == np.float32
    np.testing.assert_allclose(first["actions"], np.stack([np.full(7, 0.5), np.full(7, 0.25)]))
    assert set(first["server_timing"]) == {"infer_ms"}
    assert set(second["server_timing"]) == {"infer_ms", "prev_total_ms"}
    (row,) = actor.rows  # a connection is one episode
    assert (row.obs["image"].shape, row.obs["state"].shape, row.instruction) == ((8, 8, 3), (8,), "go")


def test_numbers_and_images_are_mapped_for_the_robot_and_back():
    actor = Echo()
    side = replace(SIDE, ends=((42.0, 8.0),), pictures="turned", image_size=(24, 32))
    image = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    talk = Conversation(actor, side, replace(SERVED, keys={name: KEYS[name] for name in KEYS if KEYS[name] != "state"}), Turn(), 0)  # fmt: skip
    found = fake.unpack(talk.answer(fake.pack(observation(**{"observation/image": image, "observation/command": np.array([0, 0, 0, 0, 0, 0, 42.0])}))))  # fmt: skip
    assert actor.rows[0].obs["command"][6] == TOOL_ACTIONS.gripper_open
    np.testing.assert_array_equal(actor.rows[0].obs["image"], image[::-1, ::-1])
    assert found["actions"][0, 6] == 42


WRONG = {
    "a text": ("hello", "binary MessagePack, this message is text"),
    "no frame": (b"\xc1", "not a MessagePack frame"),
    "a list": (msgpack.packb([1]), "a frame is a map"),
    "nothing": (fake.pack({}), "observation/image: missing; the policy takes observation/image, .*; sent were none"),
    "other names": (fake.pack({"image": np.zeros((4, 4, 3), np.uint8)}), r"missing; the policy takes .*; sent were image uint8 \[4, 4, 3\]"),
    "a small state": (fake.pack(observation(**{"observation/state": np.zeros(7)})), "observation/state: the policy takes 8 numbers, 7 were sent"),
    "nan": (fake.pack(observation(**{"observation/command": np.full(7, np.nan)})), "observation/command: must be finite"),
    "floats for an image": (fake.pack(observation(**{"observation/image": np.zeros((4, 4, 3))})), "must be uint8"),
    "no text": (fake.pack(observation(prompt=3)), "prompt: must be text"),
    "a long text": (fake.pack(observation(prompt="x" * 2000)), "at most 1024 characters"),
    "an object": (msgpack.packb({"observation/image": {b"__ndarray__": True, b"data": b"cos\nsystem", b"dtype": "|O", b"shape": []}}), "only numbers and bools"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_what_is_no_observation_is_answered_in_a_text_and_the_connection_stays(name, caplog):
    message, words = WRONG[name]
    with fake.running(server()) as url, fake.Client(url) as client:
        client.socket.send(message)
        answer = client.socket.recv(timeout=fake.WAIT_S)
        assert isinstance(answer, str)
        assert answer.count("\n") == 0
        with pytest.raises(RuntimeError, match=words):
            raise RuntimeError(answer)
        assert client.infer(observation())["actions"].shape == (2, 7)
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (line,) = [record for record in said if not record.getMessage().startswith("a client left")]
    assert not line.exc_info


def test_actions_that_are_not_finite_are_no_answer():
    class Broken(Echo):
        def act(self, rows):
            return np.full((1, 2, 7), np.nan)

    with fake.running(server(Broken())) as url, fake.Client(url) as client, pytest.raises(RuntimeError, match="finite"):
        client.infer(observation())


def test_thousands_of_damaged_observations_leave_only_texts():
    draw, talk = np.random.default_rng(0), conversations(Echo())(Turn())
    whole, answers = fake.pack(observation()), []
    for _ in range(3000):
        answers.append(talk.answer(hostile.damaged(draw, whole)))  # any error that leaves it fails the test
    assert sum(isinstance(answer, str) for answer in answers) > 1000
    assert any(isinstance(answer, bytes) for answer in answers)


# -- the door --------------------------------------------------------------------------------------------------------


def asked(url, request, wait_s=fake.WAIT_S):
    """Send bytes, and read until the server closes."""
    host, _, port = url.removeprefix("ws://").partition(":")
    with socket.create_connection((host, int(port)), timeout=wait_s) as raw:
        raw.sendall(request)
        found = b""
        while part := raw.recv(65536):
            found += part
        return found


def test_a_health_check_needs_no_token_and_no_websocket():
    with fake.running(server(token=TOKEN)) as url:
        answer = asked(url, b"GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")  # fmt: skip
        plain = asked(url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    for found in (answer, plain):
        assert found.startswith(b"HTTP/1.1 200")
        assert found.endswith(b"OK\n")


@pytest.mark.parametrize(
    "header", [None, "Api-Key", f"Api-Key {TOKEN}x", f"Api-Key {TOKEN[:-1]}", f"Basic {TOKEN}", "Api-Key é", TOKEN]
)
def test_a_client_without_the_token_is_refused(header, caplog):
    with fake.running(server(token=TOKEN)) as url, pytest.raises(Exception, match="HTTP 401") as error:
        fake.Client(url, **({} if header is None else {"Authorization": header}))
    assert type(error.value).__name__ == "InvalidStatus"
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("kind", ["Api-Key", "Bearer"])
def test_a_client_with_the_token_is_served(kind):
    with fake.running(server(token=TOKEN)) as url, fake.Client(url, Authorization=f"{kind} {TOKEN}") as client:
        assert client.infer(observation())["actions"].shape == (2, 7)
    assert not shows([], TOKEN)


def test_a_page_in_a_browser_is_refused():
    with fake.running(server()) as url, pytest.raises(Exception, match="HTTP 403"):
        fake.Client(url, Origin="http://example.org")


def test_a_message_beyond_the_limit_ends_its_connection_only():
    with fake.running(server(message_bytes=100_000)) as url, fake.Client(url) as other:
        with fake.Client(url) as client, pytest.raises(Exception, match=r"1009|too big"):
            client.infer(observation(**{"observation/image": np.zeros((500, 500, 3), np.uint8)}))
        assert other.infer(observation())["actions"].shape == (2, 7)


def test_more_clients_than_allowed_are_refused_and_a_place_becomes_free():
    with fake.running(server(clients=2)) as url:
        with fake.Client(url) as one, fake.Client(url):
            with pytest.raises(Exception, match="HTTP 503"):
                fake.Client(url)
            assert asked(url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"OK\n")
            assert one.infer(observation())["actions"].shape == (2, 7)
        for _ in range(3000):
            with contextlib.suppress(Exception), fake.Client(url) as again:
                assert again.infer(observation())["actions"].shape == (2, 7)
                return
            threading.Event().wait(0.01)
        pytest.fail("no place became free")


def test_half_a_handshake_is_cut_after_its_time_and_holds_no_place():
    with fake.running(server(clients=1, handshake_s=2)) as url:
        assert b"101" not in asked(url, fake.HANDSHAKE[:30])  # returns: the server has closed
        with slow(url, fake.HANDSHAKE, 0.05) as ended, fake.Client(url) as client:
            assert client.infer(observation())["actions"].shape == (2, 7)
            assert ended.wait(fake.WAIT_S)


def test_a_message_byte_by_byte_is_cut_after_its_time_and_others_are_served():
    message = b"\x82\xfe\x40\x00\0\0\0\0" + b"x" * 0x4000
    with fake.running(server(message_s=2)) as url, slow(url, message, 0.02, first=fake.HANDSHAKE) as ended:
        with fake.Client(url) as client:
            assert client.infer(observation())["actions"].shape == (2, 7)
        assert ended.wait(fake.WAIT_S)  # long before the last byte


def test_a_client_that_takes_no_answer_is_cut_and_others_are_served():
    class Large(Echo):
        def act(self, rows):
            return np.zeros((1, 200_000, 7), np.float32)

    masked = fake.pack(observation())
    frame = b"\x82\xfe" + len(masked).to_bytes(2, "big") + b"\0\0\0\0" + masked
    with fake.running(server(Large(), message_s=2)) as url:
        host, _, port = url.removeprefix("ws://").partition(":")
        with socket.create_connection((host, int(port)), timeout=fake.WAIT_S) as raw:
            raw.sendall(fake.HANDSHAKE + 4 * frame)
            with fake.Client(url) as client:
                assert client.infer(observation())["actions"].shape == (200_000, 7)
            assert until_cut(raw)


def until_cut(raw):
    """Send pongs until the server has cut the connection; whether it has."""
    for _ in range(3000):
        try:
            raw.sendall(b"\x8a\x80\0\0\0\0")
        except OSError:
            return True
        threading.Event().wait(0.01)
    return False


def test_many_silent_connections_do_not_hold_a_place():
    with fake.running(server(clients=1)) as url, contextlib.ExitStack() as stack:
        host, _, port = url.removeprefix("ws://").partition(":")
        for _ in range(100):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=fake.WAIT_S))
        # As many as the server allows wait in their handshake, and the others are cut; one ends, and a client comes in.
        stack.close()
        for _ in range(3000):
            with contextlib.suppress(Exception), fake.Client(url) as client:
                assert client.infer(observation())["actions"].shape == (2, 7)
                return
            threading.Event().wait(0.01)
        pytest.fail("no client comes in")


@contextlib.contextmanager
def slow(url, data, pause_s, first=b""):
    """Send data one byte at a time from a thread; yields an event that is set once the server has cut it."""
    host, _, port = url.removeprefix("ws://").partition(":")
    ended, over = threading.Event(), threading.Event()

    def drip(raw):
        with contextlib.suppress(OSError):
            raw.sendall(first)
            for byte in data:
                if over.wait(pause_s):
                    return
                raw.sendall(bytes([byte]))
            return
        ended.set()

    with socket.create_connection((host, int(port)), timeout=fake.WAIT_S) as raw:
        thread = threading.Thread(target=drip, args=(raw,), daemon=True)
        thread.start()
        try:
            yield ended
        finally:
            over.set()
            thread.join(fake.WAIT_S)


# -- the command, and worldrl's own client ---------------------------------------------------------------------------


@pytest.fixture
def folder(tiny_policy, tmp_path):
    tiny_policy(seed=3).save(tmp_path / "policy")
    return tmp_path / "policy"


def test_a_policy_that_is_served_acts_as_the_one_in_its_folder(folder):
    import torch

    from worldrl.core.types import PolicyObs

    own, size = acting_policy(folder, "cpu"), policy_facts(folder).image_size
    image = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    obs = PolicyObs(image, torch.linspace(-1, 1, 21).reshape(3, 7), ["pick up the red cube"] * 3)
    with fake.running(open_server(ServePolicySettings(policy=str(folder), protocol="openpi", port=0))) as url:
        facts = policy_facts(Path(url))
        remote = acting_policy(Path(url), "cpu")
        found = remote.act(obs, generators=None)
        remote.close()
    torch.testing.assert_close(found.action, own.act(obs, generators=None).action)
    same = ("chunk_length", "picture", "cameras", "actions", "more")
    assert [getattr(facts, name) for name in same] == [getattr(policy_facts(folder), name) for name in same]


def test_an_exposed_server_wants_the_token_of_its_file(folder, tmp_path):
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    given = ServePolicySettings(policy=str(folder), protocol="openpi", port=0, exposed=True, token_file=str(file))
    with fake.running(open_server(given)) as url:
        with pytest.raises(RemoteError, match=r"wants a token; give \?token_file=FILE"):
            policy_facts(Path(url))
        assert policy_facts(Path(f"{url}?token_file={file}")).kind == "remote"
    file.chmod(0o644)
    with pytest.raises(SettingError, match="other users can read"):
        open_server(given)


def test_a_policy_of_one_arm_is_for_the_other_protocol(folder):
    with pytest.raises(SettingError, match="give protocol=openpi"):
        open_server(ServePolicySettings(policy=str(folder), port=0))
    with pytest.raises(SettingError, match="is served already"):
        open_server(ServePolicySettings(policy="ws://127.0.0.1:1", port=0))
