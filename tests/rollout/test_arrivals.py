"""Workers that another engine starts: real processes that connect back over TCP, without Ray.

Units under test: ``simulators/arrivals.py``, ``workers/link/node.py``, and the pools when a node is lost.
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from worldrl.core.errors import WorkerError
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.simulators.arrivals import Arrivals
from worldrl.simulators.pool import SimulatorPool
from worldrl.simulators.process import JOIN_S, MOST_NODE_LOSSES, Launch, SimulatorProcess, WorkerDied, describe_exit
from worldrl.simulators.ray_engine import RayEngine
from worldrl.workers.link import node

TARGET = f"{Path(__file__).parents[1] / 'workers' / 'fake_suite.py'}:Fake"
HORIZON = {"reach_right": 40, "reach_up": 40}
SPECS = [EpisodeSpec(task, index, 5, init_id=index) for task in HORIZON for index in range(3)]


class Placed:
    """A worker that a thread of this process has started; ``nodes_die`` makes each of its ends a lost node."""

    def __init__(self, order, copies, channel, nodes_die):
        self.connection, self.nodes_die, self.outcome = channel, nodes_die, {}
        self.starter = node.Starter()
        self.thread = threading.Thread(target=self._run, args=(order, copies), daemon=True)
        self.thread.start()

    def _run(self, order, copies):
        self.outcome = self.starter.run(order, lambda reference: reference, copies)
        if not self.connection.connected:
            self.connection.abandon()

    @property
    def pid(self):
        return self.connection.head.get("pid", 0)

    def end(self, timeout_s):
        self.thread.join(timeout_s)
        if self.thread.is_alive():
            return None
        if "refused" in self.outcome:
            raise WorkerError(self.outcome["refused"])
        return WorkerDied(describe_exit(self.outcome["code"]), node_lost=self.nodes_die)

    def printed(self):
        return self.starter.printed()

    def kill(self):
        if self.pid and self.thread.is_alive():
            os.kill(self.pid, signal.SIGKILL)

    def stop(self):
        self.kill()
        self.connection.close()
        self.thread.join(JOIN_S)
        self.starter._log.close()


class Loopback:
    """Places every worker on this machine, as Ray would on a node; counts them."""

    def __init__(self, *, nodes_die=False, copies=(), change=None):
        self.arrivals, self.nodes_die, self.copies, self.change = Arrivals("127.0.0.1"), nodes_die, copies, change or {}
        self.placed = []

    def start(self, launch):
        token, channel = self.arrivals.expect()
        order = RayEngine._order(self, launch)
        order |= {"token": token, "host": self.arrivals.host, "port": self.arrivals.port, **self.change}
        self.placed.append(Placed(order, self.copies, channel, self.nodes_die))
        return self.placed[-1]


@pytest.fixture
def loopback():
    made = []

    def make(**options):
        made.append(Loopback(**options))
        return made[-1]

    yield make
    for engine in made:
        engine.arrivals.close()
        assert [placed.thread.is_alive() for placed in engine.placed] == [False] * len(engine.placed)


def play(engine=None, *, fault=None, **settings):
    settings |= {"engine": engine} if engine else {}
    launch = Launch("fake", sys.executable, TARGET, {"image_size": 0, "fault": fault})
    with SimulatorPool(launch, workers=2, slots=2, **settings) as pool:
        found = list(play_episodes(pool, SPECS, ExpertActor(), Rules(HORIZON, (), 2, frozenset())))
    return {item.spec.key: item.to_json() for item in found}


# -- the same workers elsewhere --------------------------------------------------------------------------------------


def test_episodes_of_another_engine_equal_the_local_ones(loopback):
    assert play(loopback()) == play()


def test_a_share_of_the_embedded_suite_reads_a_copy_of_its_policy(loopback, specs, options, policy_folder, tmp_path):
    from worldrl.rollout.agents.policy_actor import PolicyActor

    elsewhere = tmp_path / "not" / "there"
    files = {
        file.relative_to(policy_folder).as_posix(): file.read_bytes()
        for file in policy_folder.rglob("*")
        if file.is_file()
    }
    copies = [(str(elsewhere), node.content_digest(policy_folder), [files])]
    engine = loopback(copies=copies, change={"store": str(tmp_path)})
    local = list(
        EmbeddedPlayer(options, workers=1).play([(s, PolicyActor(str(policy_folder))) for s in specs[:2]], record=False)
    )
    found = EmbeddedPlayer(options, workers=1, engine=engine).play(
        [(s, PolicyActor(str(elsewhere))) for s in specs[:2]], record=False
    )
    assert [outcome.to_json() for outcome in found] == [outcome.to_json() for outcome in local]


def test_lost_nodes_do_not_count_as_an_episodes_fault(loopback, tmp_path):
    """One kill is certain and each step may bring another; with restarts=0 the first own end would be an error."""
    fault = {"kind": "kill", "share": 0.02, "task": "reach_up", "init_id": 1, "at": 2, "marker": str(tmp_path / "once")}
    engine = loopback(nodes_die=True)
    assert play(engine, fault=fault, restarts=0) == play()
    assert len(engine.placed) > 2


def test_a_lost_node_is_no_failure_of_an_embedded_episode(loopback, specs, options, faulty):
    """More than 1 % of restarted episodes make an evaluation invalid; nodes come and go for other reasons."""
    asked = [(spec, ExpertActor()) for spec in specs]
    engine = loopback(nodes_die=True)
    found = list(EmbeddedPlayer(faulty("kill", times=1), workers=1, engine=engine).play(asked, record=False))
    assert len(engine.placed) == 2
    assert found == list(EmbeddedPlayer(options, workers=1).play(asked, record=False))


def test_an_episode_that_ends_its_worker_is_an_error_wherever_it_runs(loopback):
    fault = {"task": "reach_up", "init_id": 1, "at": 2, "kind": "kill", "marker": None}
    with pytest.raises(
        WorkerError, match=r"reach_up initial state 1.*was killed by SIGKILL.*, and was restarted 2 times"
    ):
        play(loopback(), fault=fault, restarts=2)


def test_an_episode_that_takes_every_node_along_is_an_error(loopback, monkeypatch):
    assert MOST_NODE_LOSSES >= 20
    monkeypatch.setattr("worldrl.simulators.process.MOST_NODE_LOSSES", 3)
    fault = {"task": "reach_up", "init_id": 1, "at": 2, "kind": "kill", "marker": None}
    with pytest.raises(WorkerError, match="lost its node 4 times"):
        play(loopback(nodes_die=True), fault=fault)


def test_a_worker_that_its_node_refuses_is_an_error_and_not_a_silence(loopback):
    with pytest.raises(WorkerError, match=r"lacks /no/such/place; put it there"):
        play(loopback(change={"paths": ["/no/such/place"], "mend": "put it there"}))


def test_the_start_has_its_time_from_the_connection_on(loopback):
    """Waiting for a node takes nothing from the time in which a worker loads."""
    engine, launch = loopback(), Launch("fake", sys.executable, TARGET, {"image_size": 0}, startup_s=50.0)
    process = SimulatorProcess(launch, number=0, timeout_s=1.0, engine=engine)
    process._heard_s -= 30.0
    while not engine.placed[0].connection.connected:
        process.connection.poll(0.1)
    assert process.receive() is None
    assert 40 < process.patience_s <= 50
    process.stop()


# -- who may connect -------------------------------------------------------------------------------------------------


@pytest.fixture
def arrivals():
    made = Arrivals("127.0.0.1")
    yield made
    made.close()


def connect(arrivals, data):
    end = socket.create_connection((arrivals.host, arrivals.port), 10)
    end.sendall(data)
    return end


def closed_without_a_word(end):
    try:
        return end.recv(1) == b""
    except ConnectionResetError:  # what it had sent was never read
        return True


HEAD = (2).to_bytes(4, "little") + b"{}"


def test_without_the_token_nothing_is_read(arrivals):
    token, channel = arrivals.expect()
    wrong = bytes(node.TOKEN_BYTES)
    for data in (wrong + HEAD, wrong + b"\xff" * 64, bytes.fromhex(token)[:-1] + b"\0" + HEAD):
        with connect(arrivals, data) as stranger:
            assert closed_without_a_word(stranger)
    assert not channel.poll(0)
    assert not channel.connected
    with connect(arrivals, bytes.fromhex(token) + HEAD):
        assert channel.poll(10)
        assert channel.connected
    channel.close()


def test_a_token_is_valid_once(arrivals):
    token, channel = arrivals.expect()
    with connect(arrivals, bytes.fromhex(token) + HEAD):
        assert channel.poll(10)
        with connect(arrivals, bytes.fromhex(token) + HEAD) as second:
            assert closed_without_a_word(second)
    channel.close()


def test_a_silent_stranger_holds_nobody_back(arrivals):
    silent = [connect(arrivals, b"") for _ in range(8)]
    token, channel = arrivals.expect()
    with connect(arrivals, bytes.fromhex(token) + HEAD):
        assert channel.poll(10)
    for end in silent:
        end.close()
    channel.close()


def test_the_socket_listens_on_the_given_address_only(arrivals):
    assert arrivals._listener.getsockname()[0] == "127.0.0.1"


# -- on the node -----------------------------------------------------------------------------------------------------


def test_a_copy_is_made_once_and_again_where_it_is_damaged(tmp_path):
    source, fetched = tmp_path / "policy", []
    (source / "part").mkdir(parents=True)
    (source / "part" / "weights").write_bytes(b"12")
    digest = node.content_digest(source)

    def fetch():
        fetched.append(1)
        return {"part/weights": b"12"}

    assert node.take_copy(str(source), digest, fetch, tmp_path / "store") == str(source)
    (source / "part" / "weights").write_bytes(b"other")
    copy = node.take_copy(str(source), digest, fetch, tmp_path / "store")
    assert node.take_copy(str(source), digest, fetch, tmp_path / "store") == copy != str(source)
    assert len(fetched) == 1
    (Path(copy) / "part" / "weights").write_bytes(b"13")
    assert node.content_digest(Path(node.take_copy(str(source), digest, fetch, tmp_path / "store"))) == digest
    assert len(fetched) == 2


@pytest.mark.parametrize(
    ("part", "mend"),
    [("Python", "start its `ray start` with Python 9"), ("worldrl", "git pull"), ("numpy", "pip install numpy==9")],
)
def test_what_a_node_has_otherwise_is_named_with_its_mend(part, mend):
    order = {"shared": True, "versions": node.describe(), "paths": [], "mend": ""}
    assert node.lacks(order) == []
    order["versions"] = {**order["versions"], part: "9"}
    (line,) = node.lacks(order)
    assert line.startswith(f"node {socket.gethostname()} has {part} ")
    assert mend in line
