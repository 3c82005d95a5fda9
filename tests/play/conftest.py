"""A tiny world model of 16 pixels beside MuJoCo; a server on a free port, where its packages are installed."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from worldrl.play.recording import Recorder
from worldrl.play.server import HOST, PlayServer
from worldrl.play.session import Session, Worlds
from worldrl.recipes.listening import listen
from worldrl.rollout.real.embedded import embedded_options

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
def serve(worlds, tmp_path):
    """Run a server in a thread; gives its port."""
    for package in ("starlette", "uvicorn", "websockets"):
        pytest.importorskip(package, reason="the extra play brings it")

    @contextmanager
    def run(*, most=2, recorder=None):
        recorder = recorder or Recorder(tmp_path / "run", worlds, "hash")
        server = PlayServer(worlds, recorder, most, {"world_model": "tiny", "policy": ""})
        with listen(HOST, 0) as listening:
            made = server.make(listening)
            thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            try:
                yield listening.getsockname()[1]
            finally:
                made.should_exit = True
                thread.join(timeout=60)
                server.close()
        assert not thread.is_alive()

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
