"""One worker in a process of its own: its pipe, and the detection of its end.

::

    core process ──socket pair──► python -I workers/link/boot.py: the suite's own packages, numpy, no torch
                 └─socket pair──► python -P workers/link/boot.py: this environment, for the embedded suite

The pair has no name and no port, so no other process can reach it. A worker's output goes to a log file whose last
lines an error quotes; its standard input is closed.
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
from typing import Any

from worldrl.core.errors import WorkerError
from worldrl.core.storage.log import WORKER_VARIABLE
from worldrl.simulators.renderer import given_backend
from worldrl.workers.link import boot
from worldrl.workers.link.channel import Channel
from worldrl.workers.link.wire import PROTOCOL, Arrays, WireError

Reply = tuple[dict[str, Any], Arrays]
_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "DISPLAY")
_LOG_LINES = 6
JOIN_S = 5.0
"""Time for a worker to end after it was asked to (s), before it is killed."""
STARTUP_S = 120.0
"""Least time limit of a worker's first message (s): it imports torch and the simulator, slowly on a busy machine."""


@dataclass(frozen=True)
class Launch:
    """How the worker of suite ``name`` is started.

    ``python`` is the interpreter of its environment, ``target`` its class, ``module:Class`` or
    ``/path/to/file.py:Class``, with JSON values ``options`` as keyword arguments. ``variables`` are environment
    variables. A ``shared`` worker is of this environment, with its packages and variables.
    """

    name: str
    python: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    shared: bool = False
    startup_s: float = STARTUP_S  # time limit of its first message, where it is longer than the pool's

    @property
    def environment(self) -> dict[str, str]:
        """All environment variables: the core's, unless ``shared`` without its own packages and its renderer."""
        if self.shared:
            path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
            return {**os.environ, "PYTHONPATH": path, WORKER_VARIABLE: "1", **self.variables}
        kept = {name: value for name, value in os.environ.items() if name not in (*_HIDDEN, "MUJOCO_GL")}
        if given := given_backend():
            kept["MUJOCO_GL"] = given
        # One thread per worker.
        return {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **self.variables}


def describe_exit(code: int | None) -> str:
    """Describe how a process ended: a signal's name or an exit code."""
    if code is None:
        return "is still running"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended early with exit code {code}"


class WorkerDied(Exception):  # noqa: N818  (the pool decides whether it is an error)
    """The process died or fell silent; the text says how."""


class SimulatorProcess:
    """One worker process, ``number`` in its pool.

    ``timeout_s`` is the longest silence while an answer is expected (s); the start may take the launch's ``startup_s``.
    """

    def __init__(self, launch: Launch, *, number: int, timeout_s: float) -> None:
        self.number, self._launch, self._timeout_s = number, launch, timeout_s
        self.suite: dict[str, Any] = {}
        self.call, self.slot = "start", -1
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        ours, theirs = socket.socketpair()
        flag = "-P" if launch.shared else "-I"
        command = [launch.python, flag, boot.__file__, "link.server", str(theirs.fileno()), launch.target]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=launch.environment,
            )
        except OSError as error:
            ours.close()
            self._log.close()
            raise WorkerError(f"{launch.name}: {launch.python} cannot be started ({error.strerror})") from error
        finally:
            theirs.close()  # only the worker may hold this end, or its death would not end the pipe
        self.connection = Channel(ours)
        self._heard_s = time.monotonic() + max(0.0, launch.startup_s - timeout_s)
        self.send({"kind": "hello", "protocol": PROTOCOL, "options": dict(launch.options)})

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
        return self._process.pid

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
            raise WorkerDied(self._end(error)) from error
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
                raise WorkerDied(self.silence())
            reply = self.receive()
            if reply is not None:
                return reply

    def silence(self) -> str:
        """Kill a silent worker and describe its end."""
        self._process.kill()
        self._process.wait()
        return f"was silent for {self._timeout_s:g} s and killed{self._tail()}"

    def _end(self, error: Exception) -> str:
        if isinstance(error, WireError):
            self._process.kill()
            return f"sent something that is not a message ({error}){self._tail()}"
        try:
            self._process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"closed its connection{self._tail()}"
        return f"{describe_exit(self._process.returncode)}{self._tail()}"

    def _tail(self) -> str:
        """The last lines of its output."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()[-_LOG_LINES:]
        return "; it printed last: " + " | ".join(lines) if lines else ""

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(JOIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.connection.close()
        self._log.close()
