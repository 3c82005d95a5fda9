"""One worker in a process of its own: its connection, and the detection of its end.

::

    core process ──socket pair──► python -I workers/link/boot.py: the suite's own packages, numpy, no torch
                 └─socket pair──► python -P workers/link/boot.py: this environment, for the embedded suite

An :class:`Engine` decides where the process is started: :data:`LOCAL` on this machine, ``ray_engine`` on a node of a
Ray cluster. The local pair has no name and no port, so no other process can reach it. A worker's output goes to a log
file whose last lines an error quotes; its standard input is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from worldrl.core.errors import WorkerError
from worldrl.core.storage.log import WORKER_VARIABLE
from worldrl.simulators.renderer import given_backend
from worldrl.workers.link import boot
from worldrl.workers.link.channel import Channel
from worldrl.workers.link.wire import PROTOCOL, Arrays, WireError

Reply = tuple[dict[str, Any], Arrays]
_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "DISPLAY")
JOIN_S = 5.0
"""Time for a worker to end after it was asked to (s), before it is killed."""
MOST_NODE_LOSSES = 100
"""Nodes that the same episode may lose, which are not counted as its own fault, before that is an error."""
STARTUP_S = 120.0
"""Least time limit of a worker's first message (s): it imports torch and the simulator, slowly on a busy machine."""


@dataclass(frozen=True)
class Launch:
    """How the worker of suite ``name`` is started.

    ``python`` is the interpreter of its environment, ``target`` its class, ``module:Class`` or
    ``/path/to/file.py:Class``, with JSON values ``options`` as keyword arguments. ``variables`` are environment
    variables. A ``shared`` worker is of this environment, with its packages and variables. ``reads`` are the folders
    and files among the options that it reads; an engine may give it copies of them.
    """

    name: str
    python: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    shared: bool = False
    startup_s: float = STARTUP_S  # time limit of its first message, where it is longer than the pool's
    reads: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The interpreter's option: which packages the worker sees."""
        return "-P" if self.shared else "-I"

    @property
    def hidden(self) -> tuple[str, ...]:
        """Variables of the core that the worker does not receive."""
        return () if self.shared else (*_HIDDEN, "MUJOCO_GL")

    @property
    def own_variables(self) -> dict[str, str]:
        """Variables that the worker receives besides the core's."""
        if self.shared:
            path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
            return {"PYTHONPATH": path, WORKER_VARIABLE: "1", **self.variables}
        given = given_backend()
        # One thread per worker.
        own = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **self.variables}
        return {"MUJOCO_GL": given, **own} if given else own


def describe_exit(code: int | None) -> str:
    """Describe how a process ended: a signal's name or an exit code."""
    if code is None:
        return "is still running"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended early with exit code {code}"


class WorkerDied(Exception):  # noqa: N818  (the pool decides whether it is an error)
    """The process died or fell silent; the text says how.

    ``node_lost``: its node went away, so no episode caused it.
    """

    def __init__(self, text: str, *, node_lost: bool = False) -> None:
        super().__init__(text)
        self.node_lost = node_lost


@dataclass
class Losses:
    """How often one episode lost its worker: ``own`` by a worker's end, ``nodes`` by a node's."""

    own: int = 0
    nodes: int = 0

    def add(self, end: WorkerDied) -> None:
        """Count one."""
        self.own, self.nodes = self.own + (not end.node_lost), self.nodes + end.node_lost

    def too_many(self, restarts: int) -> bool:
        """Whether the worker may not be restarted again, where an episode may lose it ``restarts`` times."""
        return self.own > restarts or self.nodes > MOST_NODE_LOSSES

    @property
    def limit(self) -> str:
        """What was exceeded, as an error ends."""
        return f"was restarted {self.own - 1} times before" if self.own else f"lost its node {self.nodes} times"


class Connection(Protocol):
    """What a core uses of a :class:`~worldrl.workers.link.channel.Channel`."""

    def fileno(self) -> int:
        """As of a channel."""
        ...

    def send(self, header: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """As of a channel."""
        ...

    def receive(self) -> Reply:
        """As of a channel."""
        ...

    def poll(self, timeout_s: float) -> bool:
        """As of a channel."""
        ...

    def close(self) -> None:
        """As of a channel."""


class Started(Protocol):
    """A worker that an engine has started."""

    @property
    def connection(self) -> Connection:
        """To the worker."""
        ...

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def end(self, timeout_s: float) -> WorkerDied | None:
        """How it ended, within this time (s); None while it is running."""
        ...

    def printed(self) -> str:
        """All of its output that is known."""
        ...

    def kill(self) -> None:
        """End it at once."""

    def stop(self) -> None:
        """End it, whatever it is doing, and release what was opened for it."""


class Engine(Protocol):
    """Where worker processes are started."""

    def start(self, launch: Launch) -> Started:
        """Start one; WorkerError where that cannot succeed."""
        ...


class _LocalWorker:
    """A child process at the other end of a socket pair."""

    def __init__(self, launch: Launch) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        ours, theirs = socket.socketpair()
        kept = {name: value for name, value in os.environ.items() if name not in launch.hidden}
        try:
            self.process = subprocess.Popen(
                [launch.python, launch.flag, boot.__file__, "link.server", str(theirs.fileno()), launch.target],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**kept, **launch.own_variables},
            )
        except OSError as error:
            ours.close()
            self._log.close()
            raise WorkerError(f"{launch.name}: {launch.python} cannot be started ({error.strerror})") from error
        finally:
            theirs.close()  # only the worker may hold this end, or its death would not end the pipe
        self.connection = Channel(ours)

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self, timeout_s: float) -> WorkerDied | None:
        try:
            return WorkerDied(describe_exit(self.process.wait(timeout_s)))
        except subprocess.TimeoutExpired:
            return None

    def printed(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            if self.end(JOIN_S) is None:
                self.kill()
        self.connection.close()
        self._log.close()


class LocalEngine:
    """Starts workers as child processes."""

    def start(self, launch: Launch) -> Started:
        """As of :class:`Engine`."""
        return _LocalWorker(launch)


LOCAL: Engine = LocalEngine()
_LOG_LINES = 6


class SimulatorProcess:
    """One worker process, ``number`` in its pool, started by ``engine``.

    ``timeout_s`` is the longest silence while an answer is expected (s); the start may take the launch's ``startup_s``.
    """

    def __init__(self, launch: Launch, *, number: int, timeout_s: float, engine: Engine = LOCAL) -> None:
        self.number, self._launch, self._timeout_s = number, launch, timeout_s
        self.suite: dict[str, Any] = {}
        self.call, self.slot = "start", -1
        self.started = engine.start(launch)
        self.connection = self.started.connection
        self._starts()
        self.send({"kind": "hello", "protocol": PROTOCOL, "options": dict(launch.options)})

    def _starts(self) -> None:
        self._heard_s = time.monotonic() + max(0.0, self._launch.startup_s - self._timeout_s)

    def send(self, header: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Send a request; a dead worker is noticed by :meth:`receive`."""
        self._heard_s = max(self._heard_s, time.monotonic())
        self.call = header["kind"]
        try:
            self.connection.send(header, arrays)
        except OSError:
            return

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.started.pid

    @property
    def patience_s(self) -> float:
        """Seconds until its silence is too long."""
        return self._heard_s + self._timeout_s - time.monotonic()

    def extend_deadline(self, seconds: float) -> None:
        """Add the time in which nobody listened (s)."""
        self._heard_s += seconds

    def receive(self) -> Reply | None:
        """Read one message; return it where it is an answer.

        Raises WorkerDied (the worker is gone, or sent an invalid message). Raises WorkerError (it reports an exception
        or refuses to serve; the same request would fail again).
        """
        try:
            header, arrays = self.connection.receive()
        except (EOFError, OSError, WireError) as error:
            raise self._end(error) from error
        if header["kind"] == "connected":  # its node had no room before; only now its start begins
            self._starts()
            return None
        self._heard_s = time.monotonic()
        if header["kind"] == "pulse":
            self.call, self.slot = header["call"], header["slot"]
            return None
        if header["kind"] == "failed":
            raise WorkerError(f"{self._launch.name}: {header['error']}\n{header['traceback']}")
        if header["kind"] == "refused":
            raise WorkerError(f"{self._launch.name}: {header['error']}")
        if header["kind"] == "ready" and header["protocol"] != PROTOCOL:
            raise WorkerError(
                f"{self._launch.name}: the worker speaks protocol {header['protocol']}, the core {PROTOCOL}"
            )
        return header, arrays

    def answer(self) -> Reply:
        """Wait for one answer; WorkerDied where the worker died or fell silent, else as :meth:`receive`."""
        while True:
            if not self.connection.poll(max(0.0, self.patience_s)):
                raise self.silence()
            reply = self.receive()
            if reply is not None:
                return reply

    def silence(self) -> WorkerDied:
        """Kill a silent worker and describe its end."""
        tail = self._tail()
        self.started.kill()
        return WorkerDied(f"was silent for {self._timeout_s:g} s and killed{tail}")

    def _end(self, error: Exception) -> WorkerDied:
        if isinstance(error, WireError):
            self.started.kill()
            return WorkerDied(f"sent something that is not a message ({error}){self._tail()}")
        end = self.started.end(JOIN_S)
        if end is None:
            self.started.kill()
            return WorkerDied(f"closed its connection{self._tail()}")
        return WorkerDied(f"{end}{self._tail()}", node_lost=end.node_lost)

    def _tail(self) -> str:
        """The last lines of its output."""
        lines = self.started.printed().strip().splitlines()[-_LOG_LINES:]
        return "; it printed last: " + " | ".join(lines) if lines else ""

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.started.stop()
