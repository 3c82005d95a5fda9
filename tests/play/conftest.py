"""A tiny world model of 16 pixels beside MuJoCo; servers on a free port; a page of headless Chromium. Skips without them."""

import json
import shutil
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from worldrl.play.recording import Recorder
from worldrl.play.server import PlayServer
from worldrl.play.session import Session, Worlds
from worldrl.rollout.real.embedded import embedded_options

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_S = 180
TASKS = ("PickRedCube", "PushCubeToTarget")


@dataclass
class Client:
    """Talks as the page does."""

    socket: Any

    def take(self):
        """Receive one message: its head, and the bytes of its images."""
        message = self.socket.recv(timeout=120)
        if isinstance(message, str):
            return json.loads(message), b""
        length = int.from_bytes(message[:4], "little")
        return json.loads(message[4 : 4 + length]), message[4 + length :]

    def ask(self, **request):
        self.socket.send(json.dumps(request))
        return self.take()


@pytest.fixture
def make_worlds(world_model):
    """Make what sessions share; the thread of the simulator ends with the test."""
    with ThreadPoolExecutor(1) as simulator:

        def make(model=world_model, policy=None):
            size = model.config.codec.image_size
            return Worlds(model, model.embodiment, policy, TASKS, embedded_options(TASKS, size), 3, simulator)

        yield make


@pytest.fixture
def worlds(make_worlds):
    return make_worlds()


@pytest.fixture
def make_session(worlds):
    """Make sessions that release the simulator at the end."""
    made = []

    def make(of=worlds):
        made.append(Session(of))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def session(make_session):
    return make_session()


@pytest.fixture
def serve(worlds, tmp_path, serve_app):
    """Run the server of ``play``; gives its port."""

    @contextmanager
    def run(*, most=2, recorder=None):
        recorder = recorder or Recorder(tmp_path / "run", worlds, "hash")
        server = PlayServer(worlds, recorder, most, {"world_model": "tiny", "policy": ""})
        try:
            with serve_app(server.app()) as port:
                yield port
        finally:
            server.close()

    return run


@pytest.fixture
def connect():
    """Connect to a server as its page does; every wait has a limit."""
    websockets = pytest.importorskip("websockets.sync.client", reason="the extra play brings it")

    @contextmanager
    def connected(port, token="", **options):
        address = f"ws://127.0.0.1:{port}/drive?session={token}"
        with websockets.connect(address, max_size=None, open_timeout=60, close_timeout=5, **options) as socket:
            yield Client(socket)

    return connected


class Page:
    """One page of a browser, over the Chrome DevTools protocol."""

    def __init__(self, socket):
        self._socket, self._number, self.events = socket, 0, []

    def call(self, method, **parameters):
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(timeout=WAIT_S))).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def js(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def until(self, expression):
        end_s = time.monotonic() + WAIT_S
        while self.js(expression) is not True:
            assert time.monotonic() < end_s, f"{expression} never came true: {self.js('document.body.innerText')}"
            time.sleep(0.1)

    def key(self, code, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", code=code, key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", code=code, key=key)

    def named(self, *methods):
        return [event["params"] for event in self.events if event["method"] in methods]


@pytest.fixture
def page(tmp_path):
    """An empty page of a browser that ends with the test."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium on the path")
    connect = pytest.importorskip("websockets.sync.client", reason="the extra play brings it").connect
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
    words = [CHROMIUM, *words, f"--user-data-dir={tmp_path / 'browser'}", "about:blank"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            told, end_s = tmp_path / "browser" / "DevToolsActivePort", time.monotonic() + WAIT_S
            while not told.is_file() or "\n" not in told.read_text():
                assert time.monotonic() < end_s
                time.sleep(0.1)
            port = told.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=WAIT_S) as listed:
                (target,) = [one for one in json.load(listed) if one["type"] == "page"]
            with connect(target["webSocketDebuggerUrl"], max_size=None, close_timeout=5) as socket:
                found = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    found.call(f"{domain}.enable")
                yield found
        finally:
            process.kill()
