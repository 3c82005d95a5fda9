"""A policy behind an address: what is sent, what is refused, and every way in which a server fails.

Units under test: ``policies/remote``. The servers are real ones on this machine, in threads.
"""

import pickle
import socket
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import MissingExtraError, RemoteError, SettingError
from worldrl.core.types import PolicyObs
from worldrl.policies.exploration import Exploration
from worldrl.rollout.agents.policy_actor import PolicyActor
from worldrl.rollout.agents.policy_folder import is_agent, load_policy, policy_facts, policy_place, require_policy_fits
from worldrl.workers.link.boot import load_file

pytest.importorskip("websockets", reason="the extra serve brings it")
msgpack = pytest.importorskip("msgpack", reason="the extra serve brings it")
fake = load_file("fake_openpi", Path(__file__).parents[1] / "fake_openpi.py")

from worldrl.policies.remote import link  # noqa: E402
from worldrl.policies.remote.address import NAMES, Address, is_remote  # noqa: E402
from worldrl.policies.remote.packing import FrameError, pack, unpack  # noqa: E402
from worldrl.policies.remote.policy import RemotePolicy, contract  # noqa: E402
from worldrl.policies.remote.token import read_token  # noqa: E402


@pytest.fixture(autouse=True)
def _hasty(monkeypatch):
    monkeypatch.setattr(link, "PAUSE_S", 0.01)


def observed(rows=2, size=224, state=8):
    images = {name: torch.full((rows, size, size, 3), 7, dtype=torch.uint8) for name in ("image", "wrist_image")}
    more = {"wrist_image": images["wrist_image"], "state": torch.arange(rows * state).reshape(rows, state).float()}
    return PolicyObs(images["image"], torch.zeros(rows, 7), ["go", "stop"][:rows], more)


def act(policy, obs=None):
    try:
        return policy.act(obs or observed(), generators=None)
    finally:
        policy.close()


# -- what is sent and answered ---------------------------------------------------------------------------------------


def test_a_policy_of_openpis_libero_example_is_asked_row_by_row():
    server = fake.FakePolicy(lambda number, _: {"actions": np.full((5, 7), number, np.float64)})
    with server.listening() as url:
        policy = RemotePolicy.load(f"{url}?chunk=3")
        chunk = act(policy)
    probe, first, second = server.seen
    assert list(first) == list(NAMES["libero"].keys)
    assert first["observation/image"].shape == (224, 224, 3)
    assert first["observation/image"].dtype == np.uint8
    np.testing.assert_array_equal(second["observation/state"], np.arange(8, 16))
    assert [one["prompt"] for one in (first, second)] == ["go", "stop"]
    assert probe["observation/state"].shape == (8,)
    assert (policy.chunk_length, policy.actions, list(policy.more)) == (3, TOOL_ACTIONS, ["wrist_image", "state"])
    assert chunk.decided[:, 0, 0].tolist() == [2.0, 3.0]
    assert chunk.action.shape == (2, 3, 7)
    assert chunk.action.max() == 1  # within the robot's range


def test_droids_names_take_parts_of_the_state_and_its_actions_are_eight():
    server = fake.FakePolicy(lambda *_: {"actions": np.zeros((10, 8)).tolist()})
    with server.listening() as url:
        policy = RemotePolicy.load(f"{url}?keys=droid&key.prompt=&key.observation/again=state[1:3]")
        act(policy)
    last = server.seen[-1]
    np.testing.assert_array_equal(last["observation/joint_position"], np.arange(8, 15))
    np.testing.assert_array_equal(last["observation/gripper_position"], [15])
    np.testing.assert_array_equal(last["observation/again"], [9, 10])
    assert "prompt" not in last
    assert policy.actions.size == 8


def test_facts_are_asked_for_once_and_fit_a_suite_as_any_policys():
    server = fake.FakePolicy(fake.still)
    with server.listening() as url:
        folder = Path(f"{url}?size=64")  # a Path joins the slashes
        assert is_remote(folder)
        assert not is_agent(folder)
        facts = policy_facts(folder)
        assert policy_facts(folder) == facts
        assert (facts.picture, facts.chunk_length, facts.cameras, facts.more) == ((64, 64), 5, ("scene", "wrist"), ("wrist_image", "state"))  # fmt: skip
        require_policy_fits(folder, TOOL_ACTIONS, "a suite", cameras=("scene", "wrist"))
        with pytest.raises(
            SettingError, match=r"the policy takes(?s:.)*wrist_image \(64, 64, 3\) *\| wrist_image not shown"
        ):
            require_policy_fits(folder, TOOL_ACTIONS, "a suite", cameras=("scene",))
        with pytest.raises(SettingError, match="is an address; a policy in a folder is needed"):
            load_policy(folder, "cpu")
    assert server.connections == 1


def test_another_policy_at_the_same_address_has_another_identity():
    hashes = set()
    for name in ("a", "b"):
        with fake.FakePolicy(fake.still, {"weights": name}).listening() as url:
            hashes.add(policy_facts(Path(url)).hash)
    assert len(hashes) == 2


def test_what_is_shown_otherwise_prints_both_sides():
    with fake.FakePolicy(fake.still).listening() as url:
        with pytest.raises(SettingError, match=r"observation/image .*\[224, 224, 3\] \| uint8 \[64, 64, 3\]"):
            act(RemotePolicy.load(url), observed(size=64))
        with pytest.raises(SettingError, match=r"observation/state .*state .*\[8\] \| float32 \[14\]"):
            act(RemotePolicy.load(url), observed(state=14))


def test_a_temperature_is_the_servers_business():
    with pytest.raises(SettingError, match="decides how it draws; leave temperature out"):
        PolicyActor("ws://127.0.0.1:1", exploration=Exploration(0.5))


# -- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ws://user:secret@h:1", "without user or password"),
        ("ws://h:1/a b", "is no address"),
        ("ws://h:123456", "is no address"),
        ("ws://h:1?kez=libero", "'kez' .*did you mean 'keys'"),
        ("ws://h:1?token=abc", "'token' .*did you mean 'token_file'"),
        ("ws://h:1?keys=bridge", "keys: unknown 'bridge'"),
        ("ws://h:1?chunk=0", "chunk: must be a whole number from 1 to 4096"),
        ("ws://h:1?size=12.5", "size: must be a whole number"),
        ("ws://h:1?timeout_s=nan", "timeout_s: must be above 0"),
        ("ws://h:1?chunk=1&chunk=2", "'chunk' .*is given twice"),
        ("ws://h:1?key.a=depth", "key.a.*is no observation|a: 'depth' is no observation"),
        ("ws://h:1?key.a=image[0:3]", "is no observation"),
        ("ws://h:1?token_file=", "needs the path of a file"),
    ],
)
def test_addresses_that_are_none_are_named(text, words):
    with pytest.raises(SettingError, match=words) as error:
        Address.parse(text)
    assert "secret" not in str(error.value)


def test_an_address_in_place_of_a_folder_is_shown_with_both_slashes():
    place = policy_place("ws://127.0.0.1:1?chunk=2")
    assert [f"{place}", str(pickle.loads(pickle.dumps(place)))] == ["ws://127.0.0.1:1?chunk=2"] * 2
    assert Address.parse(place) == Address("ws://127.0.0.1:1", chunk=2)
    with pytest.raises(SettingError, match=r"policy: ws://127\.0\.0\.1:1\?chunk=2 is an address"):
        load_policy(place, "cpu")
    assert (policy_place("runs/x"), type(policy_place("runs/x"))) == (Path("runs/x"), type(Path()))


@pytest.mark.parametrize("text", ["ws://h", "wss://h.example:443/path", "ws://[::1]:8000", "ws:/h:1?"])
def test_addresses(text):
    assert Address.parse(text).url == text.removesuffix("?").replace("ws:/h", "ws://h")


@pytest.mark.parametrize("folder", ["runs/policy", "/tmp/ws", "ws", "ws:", "C:/ws"])
def test_folders_are_no_addresses(folder):
    assert not is_remote(folder)


# -- servers that fail -----------------------------------------------------------------------------------------------

WRONG = {
    "nan": ({"actions": np.full((5, 7), np.nan)}, "not finite"),
    "another robot": ({"actions": np.zeros((5, 8))}, r"actions are \[5, 8\], wanted are \[H, 7\] \(dx, .*gripper\)"),
    "flat": ({"actions": np.zeros(7)}, r"actions are \[7\]"),
    "none": ({"actions": np.zeros((0, 7))}, r"actions are \[0, 7\]"),
    "text": ({"actions": "stop"}, "'actions' must be numbers"),
    "no actions": ({"action": np.zeros((5, 7))}, "must hold 'actions', it holds action"),
    "a traceback": ("Traceback\n  File x\nKeyError: 'observation/foo'\n", r"refuses: KeyError: 'observation/foo'\n  sent were observation/image uint8"),
    "no map": (msgpack.packb([1]), "a frame is a map"),
    "no frame": (b"\xc1", "not a MessagePack frame"),
    "objects": (msgpack.packb({"actions": {b"__ndarray__": True, b"data": b"x" * 8, b"dtype": "|O", b"shape": [1]}}), "only numbers and bools"),
    "huge": (msgpack.packb({"actions": {b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [2**40, 2**40]}}), "too large"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_answer_is_one_error_without_a_reconnect(name):
    reply, words = WRONG[name]
    server = fake.FakePolicy(lambda number, observation: fake.still(number, observation) if number == 1 else reply)
    with server.listening() as url:
        policy = RemotePolicy.load(url)
        with pytest.raises(RemoteError, match=words) as error:
            act(policy)
        assert server.connections == 2  # the probe's and the policy's
    assert str(error.value).startswith(url)


def test_fewer_actions_than_at_the_start_are_an_error():
    server = fake.FakePolicy(lambda number, _: {"actions": np.zeros((5 if number == 1 else 4, 7))})
    with server.listening() as url, pytest.raises(RemoteError, match="answers 4 actions, 5 were"):
        act(RemotePolicy.load(url))


def test_more_actions_than_are_answered_cannot_be_taken():
    with (
        fake.FakePolicy(fake.still).listening() as url,
        pytest.raises(SettingError, match=r"chunk=6, and .* answers 5"),
    ):
        contract(Address.parse(f"{url}?chunk=6"))


def test_a_server_that_drops_the_connection_is_asked_again_a_bounded_number_of_times():
    server = fake.FakePolicy(lambda number, observation: None if number in (2, 3) else fake.still(number, observation))
    with server.listening() as url:
        act(RemotePolicy.load(url), observed(rows=1))
    assert len(server.seen) == 4  # probe, two lost, one answered
    server = fake.FakePolicy(lambda number, observation: None if number > 1 else fake.still(number, observation))
    with (
        server.listening() as url,
        pytest.raises(RemoteError, match=f"the server left.*; {link.RECONNECTS} reconnects failed"),
    ):
        act(RemotePolicy.load(url), observed(rows=1))
    assert len(server.seen) == 2 + link.RECONNECTS


def test_a_server_that_is_gone_is_one_line():
    with fake.FakePolicy(fake.still).listening() as url:
        policy = RemotePolicy.load(url)
    with pytest.raises(RemoteError, match=r"cannot connect.*is the server running\?; 2 reconnects failed"):
        act(policy)
    with pytest.raises(RemoteError, match=r"cannot connect: \[Errno 111\]"):
        RemotePolicy.load(f"{url}?chunk=1")


def test_a_slow_server_is_left_after_its_time():
    never = threading.Event()
    server = fake.FakePolicy(lambda number, observation: never if number > 1 else fake.still(number, observation))
    with server.listening() as url:
        with pytest.raises(RemoteError, match=r"no answer within timeout_s=2 s"):
            act(RemotePolicy.load(f"{url}?timeout_s=2"))
        never.set()
    assert server.connections == 2


def test_another_policy_after_a_reconnect_is_refused():
    server = fake.FakePolicy(lambda number, observation: None if number == 2 else fake.still(number, observation), metadata=lambda number: {"number": max(2, number)})  # fmt: skip
    with server.listening() as url, pytest.raises(RemoteError, match="another policy answers than at the start"):
        act(RemotePolicy.load(url), observed(rows=1))
    assert len(server.seen) == 2  # it is asked nothing


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ("hello", "must be metadata, it is text: hello"),
        (b"\xc1", "its metadata: not a MessagePack frame"),
        ({"worldrl": {"kind": "policy"}}, r"metadata\.worldrl"),
        ({"worldrl": np.zeros(3)}, r"metadata\.worldrl"),
    ],
)
def test_metadata_that_are_none_are_named(metadata, words):
    with fake.FakePolicy(fake.still, metadata).listening() as url, pytest.raises(RemoteError, match=words):
        RemotePolicy.load(url)


def test_what_is_no_websocket_is_one_line(monkeypatch):
    monkeypatch.setattr(link, "OPEN_S", 0.3)
    with pytest.raises(RemoteError, match=r"no handshake and metadata within 0\.3 s"), silent() as port:
        RemotePolicy.load(f"ws://127.0.0.1:{port}")


class silent:  # noqa: N801
    """A port that accepts and says nothing."""

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        return self.socket.getsockname()[1]

    def __exit__(self, *_):
        self.socket.close()


def test_without_the_extra_one_line_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "websockets.exceptions", None)
    with pytest.raises(MissingExtraError, match="the extra 'serve' brings it"):
        RemotePolicy.load("ws://127.0.0.1:1")


# -- frames and tokens -----------------------------------------------------------------------------------------------


def test_arrays_travel_in_openpis_form_bit_by_bit():
    values = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.uint8(3),
        "c": "text",
        "d": np.zeros((0, 3), bool),
    }
    for packs, unpacks in ((pack, fake.unpack), (fake.pack, unpack)):
        found = unpacks(packs(values))
        np.testing.assert_array_equal(found["a"], values["a"])
        assert found["a"].dtype == np.float32
        assert found["d"].shape == (0, 3)
        assert found["c"] == "text"
    assert unpack(fake.pack(values))["b"] == 3


def test_pickles_and_objects_are_refused():
    class Planted:
        def __reduce__(self):
            return Path.touch, (Path("planted"),)

    for data, dtype in (
        (pickle.dumps(Planted()), "|O"),
        (b"abc", "|S3"),
        (b"\0" * 8, "<M8[s]"),
        (b"\0" * 16, "<c16"),
        (b"\0" * 4, "V4"),
    ):
        array = {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": [1]}
        with pytest.raises(FrameError, match="only numbers and bools"):
            unpack(msgpack.packb({"a": array}))
    with pytest.raises(FrameError, match="only numbers"):
        unpack(msgpack.packb({"a": {b"__npgeneric__": True, b"data": b"x", b"dtype": "|O"}}))
    with pytest.raises(TypeError, match="does not travel"):
        pack({"a": np.array([Planted()], object)})
    assert not Path("planted").exists()


def test_tokens_are_files_of_their_owner_only(tmp_path):
    file = tmp_path / "token"
    for text, mode, words in (("short", 0o600, "at least 16"), ("x" * 20 + " y", 0o600, "without spaces"), ("x" * 20, 0o644, "other users can read"), ("é" * 20, 0o600, "cannot be read as text")):  # fmt: skip
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)
        with pytest.raises(SettingError, match=words) as error:
            read_token(file)
        assert text not in str(error.value)
    file.write_text("x" * 20 + "\n")
    file.chmod(stat.S_IRUSR)
    assert read_token(file) == "x" * 20
    with pytest.raises(SettingError, match="cannot be read as text"):
        read_token(tmp_path / "none")
