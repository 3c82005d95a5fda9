"""Unit under test: ``worldrl/play/server.py``, over real sockets."""

import json
import re
import urllib.error
import urllib.request
from contextlib import ExitStack

import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.play import server as module
from worldrl.recipes.local_server import LARGEST

LEFT = [0, -0.5, 0, 0, 0, 0, -1]


def greeted(client):
    head, _ = client.take()
    assert head["kind"] == "hello"
    return head


def started(client, index=0):
    hello = greeted(client)
    assert client.ask(do="start", task="PickRedCube", index=index)[0]["kind"] == "start"
    return hello


def fetch(port, path="/", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode(), dict(answer.headers)


def test_the_page_is_served_and_may_ask_nobody_else(serve):
    with serve() as port:
        for path in module.FILES:
            text, headers = fetch(port, path)
            assert len(text) > 1000
            assert not re.search("https?:|//[a-z]", text)
            assert headers["content-security-policy"].startswith("default-src 'none'")
        for path in ("/other", "/../server.py", "/drive"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                fetch(port, path)


def test_other_hosts_and_other_pages_are_refused(serve, connect):
    from websockets.exceptions import InvalidStatus

    with serve() as port:
        with pytest.raises(urllib.error.HTTPError, match="400"):
            fetch(port, Host="evil.example")
        for origin in ("http://evil.example", f"http://127.0.0.1:{port + 1}", "null", f"https://127.0.0.1:{port}"):
            with pytest.raises(InvalidStatus, match="403"), connect(port, additional_headers={"Origin": origin}):
                pass
        with connect(port, additional_headers={"Origin": f"http://127.0.0.1:{port}"}) as client:
            greeted(client)


def test_a_drive_over_the_socket(serve, connect, worlds, tmp_path):
    with serve() as port, connect(port) as client:
        hello = started(client)
        assert [task["name"] for task in hello["tasks"]] == list(worlds.tasks)
        assert (hello["started"], hello["kept"], hello["chunkFrames"]) == (False, 0, 2)
        chunks = [client.ask(do="drive", action=LEFT) for _ in range(3)]
        assert [head["number"] for head, _ in chunks] == [0, 1, 2]
        assert all(len(images) == 2 * 2 * 16 * 16 * 3 for _, images in chunks)
        assert client.ask(do="undo", keep=1)[0] == {"kind": "undo", "keep": 1}
        assert client.ask(do="drive", action=LEFT) == chunks[1]
        saved, _ = client.ask(do="save")
        assert (saved["steps"], saved["folder"]) == (8, str(tmp_path / "run"))
    assert [len(episode) for episode in EpisodeDataset.open(tmp_path / "run" / "imagined")] == [8]


def test_malformed_messages_are_answered_and_the_drive_continues(serve, connect):
    with serve() as port, connect(port) as client:
        greeted(client)
        for wrong in ("", "{", "[]", '{"do": "fly"}', '{"do": "drive", "action": [9]}', b"\x00\xff", '{"do": "save"}'):
            client.socket.send(wrong)
            assert client.take()[0]["kind"] == "error"
        assert "start first" in client.ask(do="drive", action=LEFT)[0]["message"]
        client.ask(do="start", task="PickRedCube", index=0)
        assert "finite" in client.ask(do="drive", action=[float("nan")] * 7)[0]["message"]
        assert client.ask(do="drive", action=LEFT)[0]["number"] == 0


def test_an_oversized_message_ends_the_socket_and_not_the_session(serve, connect):
    from websockets.exceptions import ConnectionClosed

    with serve() as port:
        with connect(port) as client:
            token = started(client)["token"]
            client.ask(do="drive", action=LEFT)
            client.socket.send("x" * (LARGEST + 1))
            with pytest.raises(ConnectionClosed, match="1009"):
                client.take()
        with connect(port, token) as client:
            assert greeted(client)["kept"] == 1


def test_a_dropped_socket_loses_nothing(serve, connect):
    with serve(most=1) as port:
        with connect(port) as client:
            token = started(client)["token"]
            shown = [client.ask(do="drive", action=LEFT)]
            client.socket.send(json.dumps({"do": "drive", "action": LEFT}))
            client.socket.socket.close()  # in the middle of a chunk, without a goodbye
        with connect(port, token) as client:
            hello = greeted(client)
            assert (hello["token"], hello["started"]) == (token, True)
            assert client.take()[0]["kind"] == "start"
            kept = [client.take() for _ in range(hello["kept"])]
            assert kept[0] == shown[0]
            assert hello["kept"] in (1, 2)  # as the drop was noticed before or after the request
            assert client.ask(do="drive", action=LEFT)[0]["number"] == hello["kept"]


def test_a_second_tab_takes_the_session_over_and_the_first_is_notified(serve, connect):
    from websockets.exceptions import ConnectionClosed

    with serve(most=1) as port, connect(port) as first:
        token = started(first)["token"]
        first.ask(do="drive", action=LEFT)
        with connect(port, token) as second:
            with pytest.raises(ConnectionClosed, match=str(module.TAKEN_OVER)):
                first.take()
            assert greeted(second)["kept"] == 1
            assert [second.take()[0]["kind"] for _ in range(2)] == ["start", "chunk"]
            assert second.ask(do="drive", action=LEFT)[0]["number"] == 1


def test_tabs_drive_apart_and_one_too_many_is_refused(serve, connect, monkeypatch):
    from websockets.exceptions import ConnectionClosed

    with serve(most=2) as port, connect(port) as first:
        started(first, index=0)
        with connect(port) as second:
            started(second, index=1)
            one, other = (client.ask(do="drive", action=LEFT) for client in (first, second))
            assert one[0]["number"] == other[0]["number"] == 0
            assert one[1] != other[1]
            with connect(port) as third:
                assert "as many are open as tabs=2 allows" in third.take()[0]["message"]
                with pytest.raises(ConnectionClosed, match=str(module.FULL)):
                    third.take()
        with connect(port) as third:
            assert third.take()[0]["kind"] == "error"  # the second tab may come back
        monkeypatch.setattr(module, "KEPT_S", -1.0)
        with connect(port) as third:
            greeted(third)
        assert first.ask(do="drive", action=LEFT)[0]["number"] == 1


def test_a_full_disk_is_a_message_and_the_drive_is_kept(serve, connect):
    class Full:
        saved = 0

        def save(self, session):
            raise ArtefactError("run: the disk is full; free some space")

    with serve(recorder=Full()) as port, connect(port) as client:
        started(client)
        client.ask(do="drive", action=LEFT)
        assert client.ask(do="save")[0] == {"kind": "error", "message": "run: the disk is full; free some space"}
        assert client.ask(do="drive", action=LEFT)[0]["number"] == 1


def test_the_server_ends_while_tabs_are_open(serve, connect):
    from websockets.exceptions import ConnectionClosed

    with ExitStack() as stack:
        with serve() as port:
            client = stack.enter_context(connect(port))
            started(client)
        with pytest.raises(ConnectionClosed, match="1012"):
            client.take()
