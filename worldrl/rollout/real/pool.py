"""Supervised worker processes: started by spawn, restarted a limited number of times, always ended."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from worldrl.core.errors import WorkerError
from worldrl.core.types import Episode
from worldrl.rollout.real.specs import EpisodeOutcome
from worldrl.rollout.real.worker import decode_result, worker_main
from worldrl.rollout.real.worker_task import Assignment, WorkerTask
from worldrl.simulators.process import JOIN_S, STARTUP_S, describe_exit
from worldrl.workers.link.wire import WireError, decode

Result = tuple[int, Episode | EpisodeOutcome]

NO_EPISODE = -1
"""In place of an episode's position: a worker that is lost before it begins one."""

logger = logging.getLogger(__name__)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start a process with Ctrl-C blocked: a worker inherits that, and ignores the signal once it can.

    Otherwise Ctrl-C would end a worker that still imports with a traceback on the terminal.
    """
    resource_tracker.ensure_running()  # its own start would unblock the signal half-way
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Worker:
    """One worker process, its remaining episodes and its last call; settings as of :class:`WorkerPool`."""

    def __init__(
        self, number: int, share: WorkerTask, *, timeout_s: float, restarts: int, recycle_after: int | None
    ) -> None:
        self.number = number
        self.finished = False
        self._share, self._timeout_s, self._restarts, self._most = share, timeout_s, restarts, recycle_after
        self._remaining: dict[int, Assignment] = {item.position: item for item in share.episodes}
        self._started: set[int] = set()
        self._restarted = set(share.restarted)
        self._losses: Counter[int] = Counter()
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        self._given = list(self._remaining)[: self._most]
        episodes = [self._remaining[position] for position in self._given]
        share = replace(self._share, episodes=episodes, restarted=self._restarted)
        self.process: SpawnProcess = context.Process(
            target=worker_main,
            args=(theirs, json.dumps(share.to_json())),
            name=f"worldrl-worker-{self.number}",
            daemon=True,
        )
        with _interrupts_held():
            self.process.start()
        theirs.close()  # only the worker may hold this end, or its death would not end the pipe
        self._call, self._position = "start", -1
        self._started.clear()
        self._last_s = time.monotonic() + max(0.0, STARTUP_S - self._timeout_s)

    def _continue(self) -> None:
        """Begin the remaining episodes in a fresh process after the last one's end; without any, be finished."""
        self.finished = not self._remaining
        if not self.finished:
            self.stop()
            self._start()

    def restart_deadline(self) -> None:
        """Restart the count of its silence."""
        self._last_s = time.monotonic()

    def extend_deadline(self, seconds: float) -> None:
        """Add the time in which nobody listened (s)."""
        self._last_s += seconds

    @property
    def patience_s(self) -> float:
        """Seconds until its silence is too long."""
        return self._last_s + self._timeout_s - time.monotonic()

    def receive(self) -> Result | None:
        """Read one message; return a result where it is one.

        Raises EOFError (the worker is gone). Raises WorkerError (it reports an exception, or sent something that is not
        a message).
        """
        try:
            header, arrays = decode(self.connection.recv_bytes())
        except WireError as error:
            raise WorkerError(f"{self._place()} sent something that is not a message ({error})") from error
        self.restart_deadline()
        if header["kind"] == "finished":
            self._continue()
        elif header["kind"] == "failed":
            raise WorkerError(f"{self._place()} failed: {header['error']}\n{header['traceback']}")
        elif header["kind"] == "pulse":
            self._call, self._position = header["call"], header["position"]
            self._started.add(self._position)
        else:
            result = decode_result(header, arrays)
            del self._remaining[result[0]]
            del self._losses[NO_EPISODE]
            return result
        return None

    def _place(self) -> str:
        item = self._remaining.get(self._position)
        return f"worker {self.number} ({item.spec.describe() if item else 'no episode'}, at {self._call!r})"

    def restart(self) -> None:
        """Replace a worker that is dead or silent.

        Raises WorkerError (one of its episodes has lost it too often, or it dies before any begins).
        """
        silent = self.process.is_alive() and self.patience_s <= 0
        if silent:
            self.process.kill()
        self.process.join(JOIN_S)
        end = f"was silent for {self._timeout_s:g} s and killed" if silent else describe_exit(self.process.exitcode)
        report = f"{self._place()} {end}"
        self.connection.close()
        if not self._remaining.keys() & self._given:  # it died after its last result: nothing is lost
            self._continue()
            return
        lost = self._started & self._remaining.keys()
        self._losses.update(lost or {NO_EPISODE})
        if max(self._losses[position] for position in lost or {NO_EPISODE}) > self._restarts:
            raise WorkerError(
                f"{report}, and was restarted {self._restarts} times before; run that episode alone with workers=0 to see why"
            )
        self._restarted |= lost
        logger.warning("%s; restarting it, %d episodes run again", report, len(lost))
        self._start()

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(JOIN_S)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


class WorkerPool:
    """Workers that share a list of episodes; a context manager that ends all processes.

    ``shares`` are one per worker, ``timeout_s`` is the longest silence of a worker (s). The same episode may lose its
    worker ``restarts`` times before that is an error. A worker is replaced after ``recycle_after`` episodes; None
    never.
    """

    def __init__(
        self, shares: Sequence[WorkerTask], *, timeout_s: float, restarts: int, recycle_after: int | None = None
    ) -> None:
        self._shares = shares
        self._rules: dict[str, Any] = {"timeout_s": timeout_s, "restarts": restarts, "recycle_after": recycle_after}
        self._workers: list[Worker] = []

    def __enter__(self) -> WorkerPool:
        """Start every worker."""
        try:
            for number, share in enumerate(self._shares):
                self._workers.append(Worker(number, share, **self._rules))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every worker."""
        self._stop()

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    @property
    def finished(self) -> bool:
        """Whether every worker has delivered its share."""
        return all(worker.finished for worker in self._workers)

    def extend_deadline(self, seconds: float) -> None:
        """Add the time in which nobody listened (s)."""
        for worker in self._workers:
            worker.extend_deadline(seconds)

    def poll(self, paused: Collection[int] = ()) -> list[Result]:
        """Wait for messages and return the results among them; a full pipe makes ``paused`` workers wait.

        Raises WorkerError (a worker failed, or died more often than allowed).
        """
        listening = [worker for worker in self._workers if not worker.finished and worker.number not in paused]
        for number in paused:
            self._workers[number].restart_deadline()
        patience_s = max(0.0, min(worker.patience_s for worker in listening))
        handles = [handle for worker in listening for handle in (worker.connection, worker.process.sentinel)]
        ready = set(wait(handles, patience_s))
        results = [_attend(worker, ready) for worker in listening]
        return [result for result in results if result is not None]


def _attend(worker: Worker, ready: Collection[object]) -> Result | None:
    """Read one message of a worker, or handle its end or its silence."""
    try:
        if worker.connection in ready or worker.connection.poll():
            return worker.receive()
    except (EOFError, OSError):  # the pipe ended, perhaps in the middle of a message
        worker.restart()
        return None
    if worker.process.sentinel in ready or worker.patience_s <= 0:
        worker.restart()
    return None
