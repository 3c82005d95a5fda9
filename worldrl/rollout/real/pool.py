"""Worker processes of the embedded suite, each with a share of the episodes; restarted a limited number of times."""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from worldrl.core.errors import WorkerError
from worldrl.rollout.real.episodes import Result
from worldrl.rollout.real.worker import Assignment, WorkerTask, decode_result
from worldrl.simulators.process import LOCAL, Engine, Launch, Losses, SimulatorProcess, WorkerDied

TARGET = "worldrl.rollout.real.worker:Share"
NO_EPISODE = -1
"""In place of an episode's position: a worker that is lost before it begins one."""

logger = logging.getLogger(__name__)


class Worker:
    """One worker process, its remaining episodes and its last call; settings as of :class:`WorkerPool`."""

    def __init__(
        self,
        number: int,
        share: WorkerTask,
        *,
        timeout_s: float,
        restarts: int,
        recycle_after: int | None,
        engine: Engine,
    ) -> None:
        self.number = number
        self.finished = False
        self._share, self._timeout_s, self._restarts, self._most = share, timeout_s, restarts, recycle_after
        self._engine = engine
        self._remaining: dict[int, Assignment] = {item.position: item for item in share.episodes}
        self._started: set[int] = set()
        self._losses: defaultdict[int, Losses] = defaultdict(Losses)
        self._start()

    def _start(self) -> None:
        self._given = list(self._remaining)[: self._most]
        share = replace(self._share, episodes=[self._remaining[position] for position in self._given])
        options = {"share": share.to_json()}
        launch = Launch("worldrl", sys.executable, TARGET, options, shared=True, reads=share.reads)
        self.process = SimulatorProcess(launch, number=self.number, timeout_s=self._timeout_s, engine=self._engine)
        self._started.clear()

    def _continue(self) -> None:
        """Begin the remaining episodes in a fresh process after the last one's end; without any, be finished."""
        self.finished = not self._remaining
        if self.finished:
            self.process.send({"kind": "stop"})
        else:
            self.process.stop()
            self._start()

    def receive(self) -> tuple[int, Result] | None:
        """Read one message; return a result where it is one. The next one is asked for at once.

        Raises WorkerDied (the worker is gone, or sent something that is not a message). Raises WorkerError (it reports
        an exception).
        """
        try:
            reply = self.process.receive()
        except WorkerError as error:
            raise WorkerError(f"{self._place()} failed: {error}") from error
        self._started.add(self.process.slot)
        if reply is None:
            return None
        header, arrays = reply
        if header["kind"] == "finished":
            self._continue()
            return None
        self.process.send({"kind": "next"})
        if header["kind"] == "ready":
            return None
        result = decode_result(header, arrays)
        del self._remaining[result[0]]
        self._losses.pop(NO_EPISODE, None)
        return result

    def _place(self) -> str:
        item = self._remaining.get(self.process.slot)
        return f"worker {self.number} ({item.spec.describe() if item else 'no episode'}, at {self.process.call!r})"

    def restart(self, end: WorkerDied) -> None:
        """Replace a worker that is dead or was silent.

        Raises WorkerError (one of its episodes has lost it too often, or it dies before any begins).
        """
        report = f"{self._place()} {end}"
        if not self._remaining.keys() & self._given:  # it died after its last result: nothing is lost
            self._continue()
            return
        lost = self._started & self._remaining.keys()
        for losses in (counts := [self._losses[position] for position in lost or {NO_EPISODE}]):
            losses.add(end)
        worst = max(counts, key=lambda losses: losses.own)
        if worst.too_many(self._restarts):
            raise WorkerError(f"{report}, and {worst.limit}; run that episode alone with workers=0 to see why")
        if not end.node_lost:  # no episode made the node go: it says nothing about the rate
            self._remaining |= {position: replace(self._remaining[position], restarted=True) for position in lost}
        logger.warning("%s; restarting it, %d episodes run again", report, len(lost))
        self.process.stop()
        self._start()


class WorkerPool:
    """Workers that share a list of episodes; a context manager that ends all processes.

    ``shares`` are one per worker, ``timeout_s`` is the longest silence of a worker (s). The same episode may lose its
    worker ``restarts`` times before that is an error. A worker is replaced after ``recycle_after`` episodes; None
    never. ``engine`` starts the processes.
    """

    def __init__(
        self,
        shares: Sequence[WorkerTask],
        *,
        timeout_s: float,
        restarts: int,
        recycle_after: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._shares = shares
        self._rules: dict[str, Any] = {
            "timeout_s": timeout_s,
            "restarts": restarts,
            "recycle_after": recycle_after,
            "engine": engine or LOCAL,
        }
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
            worker.process.stop()

    @property
    def finished(self) -> bool:
        """Whether every worker has delivered its share."""
        return all(worker.finished for worker in self._workers)

    def extend_deadline(self, seconds: float) -> None:
        """Add the time in which nobody listened (s)."""
        for worker in self._workers:
            worker.process.extend_deadline(seconds)

    def poll(self, paused: Collection[int] = ()) -> list[tuple[int, Result]]:
        """Wait for messages and return the results among them; a full pipe makes ``paused`` workers wait.

        Raises WorkerError (a worker failed, or died more often than allowed).
        """
        listening = [worker for worker in self._workers if not worker.finished and worker.number not in paused]
        handles: list[Any] = [worker.process.connection for worker in listening]  # wait takes all with a fileno()
        began_s = time.monotonic()
        wait(handles, max(0.0, min(worker.process.patience_s for worker in listening)))
        for number in paused:
            self._workers[number].process.extend_deadline(time.monotonic() - began_s)
        results = [_attend(worker) for worker in listening]
        return [result for result in results if result is not None]


def _attend(worker: Worker) -> tuple[int, Result] | None:
    """Read one message of a worker, or handle its end or its silence."""
    try:
        if worker.process.connection.poll(0):
            return worker.receive()
        if worker.process.patience_s <= 0:
            raise worker.process.silence()
    except WorkerDied as end:
        worker.restart(end)
    return None
