"""Simulators in several processes, stepped together: slots with running episodes, of which none is lost.

Slot ``s`` belongs to worker ``s % workers``. A slot's episode depends on its requests, never on the number of workers.
The pool stores each running episode's start and actions. When a worker dies or falls silent, a new one plays its
episodes again up to the same step, and the states must be equal; the caller sees only the mark in ``restarted``.
Recycling uses the same: simulators leak memory, so a worker is replaced after some episodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ActionError, SettingError, WorkerError
from worldrl.core.image_fit import ImageFit, fit_image
from worldrl.simulators.process import LOCAL, Engine, Launch, Losses, Reply, SimulatorProcess, WorkerDied
from worldrl.workers.link.server import is_image, start_name, unpack
from worldrl.workers.link.wire import Arrays

Row = dict[str, NDArray[Any]]
Request = tuple[dict[str, Any], Arrays]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """How an episode begins: at the stored initial state ``init_id``, or at a ``given`` state of the simulator.

    ``seed`` is for the suite's own draws.
    """

    task: str
    init_id: int
    seed: int
    given: tuple[float, ...] | None = None

    def describe(self) -> str:
        """Name the episode for an error message."""
        if self.given is not None:
            return f"{self.task} from a given state"
        return f"{self.task} initial state {self.init_id}, seed {self.seed}"


def _reset_request(starts: Mapping[int, Start], *, render: bool) -> Request:
    rows = [[slot, start.task, start.init_id, start.seed, render] for slot, start in starts.items()]
    given = {start_name(slot): start.given for slot, start in starts.items() if start.given is not None}
    return {"kind": "reset", "episodes": rows}, {name: np.array(state, np.float64) for name, state in given.items()}


@dataclass
class _Journal:
    """A running episode: enough to play it again, with requests to the expert, which may have a memory."""

    start: Start
    actions: list[tuple[NDArray[np.float32], bool]] = field(default_factory=list[tuple[NDArray[np.float32], bool]])
    asked: bool = False
    state: NDArray[Any] | None = None
    losses: Losses = field(default_factory=Losses)


class SimulatorPool:
    """Several workers of one suite; a context manager that ends all processes.

    ``slots`` counts environments in all, ``timeout_s`` is the longest silence of a worker (s). The same episode may
    lose its worker ``restarts`` times before that is an error. A worker is replaced after ``recycle_after`` episodes;
    None never. ``images`` is how a simulator's own images get another size; None keeps it. ``engine`` starts the
    processes. Raises SettingError (a number is out of range).
    """

    def __init__(
        self,
        launch: Launch,
        *,
        workers: int = 1,
        slots: int | None = None,
        timeout_s: float = 300.0,
        restarts: int = 2,
        recycle_after: int | None = 50,
        images: ImageFit | None = None,
        engine: Engine = LOCAL,
    ) -> None:
        self.slots = workers if slots is None else slots
        given = {"workers": workers, "slots": self.slots, "recycle_after": recycle_after}
        for name, value in given.items():
            if value is not None and value < 1:
                raise SettingError(f"{name}: must be >= 1, got {value}")
        if timeout_s <= 0 or restarts < 0:
            raise SettingError(f"timeout_s must be > 0 and restarts >= 0, got {timeout_s} and {restarts}")
        self.launch, self.workers = launch, min(workers, self.slots)
        self._timeout_s, self._restarts, self._recycle_after = timeout_s, restarts, recycle_after
        self._images, self._engine = images, engine
        self._idle_losses = Losses()  # of workers that held no episode
        self._processes: dict[int, SimulatorProcess] = {}
        self._played = dict.fromkeys(range(self.workers), 0)
        self._journals: dict[int, _Journal] = {}
        self.suite: dict[str, Any] = {}
        self._described: dict[str, Any] = {}  # by the newest worker
        self.probed: dict[str, Any] = {}

    def __enter__(self) -> SimulatorPool:
        """Start every worker, and read the suite's description.

        Raises WorkerError (one cannot be started, or refuses to serve).
        """
        try:
            for number in range(self.workers):
                self._processes[number] = self._process(number)
            for number in range(self.workers):
                self.suite = self._introduced(number)
            if self._images is not None:
                self.suite |= {"picture": list(self._images.size), "fit": self._images.fit.value}
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every worker."""
        self.close()

    def close(self) -> None:
        """Stop every worker."""
        while self._processes:
            self._processes.popitem()[1].stop()

    def reset(self, starts: Mapping[int, Start], *, render: bool = True) -> dict[int, Row]:
        """Begin episodes by slot, rendering the cameras on request; returns the first observation by slot."""
        self._journals = {slot: journal for slot, journal in self._journals.items() if slot not in starts}
        for number in {self.owner(slot) for slot in starts}:
            if self._recycle_after is not None and self._played[number] >= self._recycle_after:
                self._recycle(number)
        requests: dict[int, Request] = {}
        for number, mine in self._by_owner(starts).items():
            requests[number] = _reset_request({slot: starts[slot] for slot in mine}, render=render)
            self._played[number] += len(mine)
        self._journals |= {slot: _Journal(start) for slot, start in starts.items()}
        return {slot: rows[-1] for slot, rows in self._rows(self._exchange(requests)).items()}

    def step(
        self, actions: Mapping[int, NDArray[np.float32]], *, render: Collection[int] | None = None
    ) -> dict[int, Row]:
        """Take one action ``[A]`` in each of the slots, as :meth:`steps`; returns the next observation by slot."""
        stepped = self.steps({slot: action[None] for slot, action in actions.items()}, render=render)
        return {slot: rows[-1] for slot, rows in stepped.items()}

    def steps(
        self, actions: Mapping[int, NDArray[np.float32]], *, render: Collection[int] | None = None
    ) -> dict[int, list[Row]]:
        """Take the same number of actions in each of the slots, in one message to each worker.

        A slot ends early after a step that fulfils its task; its other actions are not taken. ``actions``: float32
        ``[n, A]`` by slot; n is 1 in suites without ``several_steps``; ``render``: slots whose cameras are rendered
        at the last of their actions; None renders all. Returns the observation after each step that was taken, by
        slot. Raises ActionError: a number is not finite; no state was changed.
        """
        for slot, given in actions.items():
            if not np.isfinite(given).all():
                start = self._journals[slot].start
                bad = given[~np.isfinite(given).all(axis=-1)][0]
                raise ActionError(f"{start.describe()}: action {bad} is not finite; check the policy's statistics")
        requests: dict[int, Request] = {}
        for number, mine in self._by_owner(actions).items():
            rendered = [render is None or slot in render for slot in mine]
            batch = np.stack([actions[slot] for slot in mine]).astype(np.float32)
            requests[number] = ({"kind": "step", "slots": mine, "render": rendered}, {"action": batch})
        stepped = self._rows(self._exchange(requests))
        for slot, rows in stepped.items():
            journal = self._journals[slot]
            for action in actions[slot][: len(rows)]:
                journal.actions.append((np.array(action, np.float32), journal.asked))
                journal.asked = False
        return stepped

    def expert(self, slots: Collection[int]) -> dict[int, NDArray[np.float32]]:
        """Ask the suite's scripted expert for its actions, float32 ``[A]`` by slot."""
        requests: dict[int, Request] = {
            number: ({"kind": "expert", "slots": mine}, {}) for number, mine in self._by_owner(slots).items()
        }
        found: dict[int, NDArray[np.float32]] = {}
        for header, arrays in self._exchange(requests).values():
            found.update(zip(header["slots"], arrays["action"], strict=True))
        for slot in found:
            self._journals[slot].asked = True
        return found

    def probe(self) -> dict[str, Any]:
        """Run the suite's check of its physics, in worker 0."""
        self.probed = self._exchange({0: ({"kind": "probe"}, {})})[0][0]["suite"]
        return self.probed

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [process.pid for process in self._processes.values()]

    def restarted(self, slot: int) -> bool:
        """Whether a slot's running episode lost its worker while the node stayed."""
        return slot in self._journals and self._journals[slot].losses.own > 0

    def finish(self, slot: int) -> bool:
        """Forget a slot's ended episode; returns :meth:`restarted`."""
        return self._journals.pop(slot).losses.own > 0

    def owner(self, slot: int) -> int:
        """Number of the worker that holds a slot."""
        return slot % self.workers

    def _by_owner(self, slots: Collection[int]) -> dict[int, list[int]]:
        grouped: dict[int, list[int]] = {}
        for slot in sorted(slots):
            grouped.setdefault(self.owner(slot), []).append(slot)
        return grouped

    def _process(self, number: int) -> SimulatorProcess:
        return SimulatorProcess(self.launch, number=number, timeout_s=self._timeout_s, engine=self._engine)

    def _introduced(self, number: int) -> dict[str, Any]:
        try:
            return self._processes[number].answer()[0]["suite"]
        except WorkerDied as loss:
            if not loss.node_lost:
                raise WorkerError(f"{self.launch.name}: worker {number} {loss} before it was ready") from loss
            self._replace_worker(number, loss)
            return self._described

    def _recycle(self, number: int) -> None:
        try:
            self._renew(number)
        except WorkerDied as loss:
            self._replace_worker(number, loss)

    def _renew(self, number: int) -> None:
        """Replace a worker's process, and play its episodes up to the same step."""
        self._processes.pop(number).stop()
        self._processes[number] = self._process(number)
        self._described = self._processes[number].answer()[0]["suite"]
        self._played[number] = 0
        for slot, journal in self._journals.items():
            # An episode lost during its reset has no state yet: its request is sent again.
            if self.owner(slot) == number and journal.state is not None:
                self._replay(self._processes[number], slot, journal)

    def _replay(self, process: SimulatorProcess, slot: int, journal: _Journal) -> None:
        start = journal.start
        process.send(*_reset_request({slot: start}, render=False))
        arrays = process.answer()[1]
        for action, asked in journal.actions:
            if asked:
                self._ask_again(process, slot)
            process.send({"kind": "step", "slots": [slot], "render": [False]}, {"action": action[None, None]})
            arrays = process.answer()[1]
        if journal.asked:
            self._ask_again(process, slot)
        if journal.state is None or not np.array_equal(arrays["state"][0], journal.state):
            raise WorkerError(
                f"{self.launch.name}: {start.describe()} cannot be played again after its worker was lost: the same "
                f"{len(journal.actions)} actions end in another state; the simulator is not deterministic"
            )

    def _ask_again(self, process: SimulatorProcess, slot: int) -> None:
        process.send({"kind": "expert", "slots": [slot]})
        process.answer()

    def _replace_worker(self, number: int, loss: WorkerDied) -> None:
        """Replace a lost worker, or raise where an episode has lost too many."""
        while True:
            process = self._processes[number]
            mine = {slot: journal for slot, journal in self._journals.items() if self.owner(slot) == number}
            place = self._journals.get(process.slot) or next(iter(mine.values()), None)
            report = f"{self.launch.name}: worker {number} ({place.start.describe() if place else 'no episode'}, at "
            report += f"{process.call!r}) {loss}"
            counts = [journal.losses for journal in mine.values()] or [self._idle_losses]
            for losses in counts:
                losses.add(loss)
            worst = max(counts, key=lambda losses: losses.own)
            if worst.too_many(self._restarts if mine else 0):
                raise WorkerError(f"{report}, and {worst.limit}")
            logger.warning("%s; restarting it, %d episodes are played again", report, len(mine))
            try:
                self._renew(number)
                return
            except WorkerDied as again:
                loss = again

    def _exchange(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """Ask several workers at once and wait for all; lost ones are replaced and asked again."""
        replies: dict[int, Reply] = {}
        for number, request in requests.items():
            self._processes[number].send(*request)
        while len(replies) < len(requests):
            waiting = {self._processes[n].connection: n for n in requests if n not in replies}
            patience_s = min(self._processes[n].patience_s for n in waiting.values())
            channels: list[Any] = list(waiting)  # wait takes all with a fileno()
            ready: list[Any] = wait(channels, max(0.0, patience_s))
            silent = [c for c, n in waiting.items() if c not in ready and self._processes[n].patience_s <= 0]
            for connection in [*ready, *silent]:
                self._attend(waiting[connection], connection in silent, requests, replies)
        return replies

    def _attend(self, number: int, silent: bool, requests: Mapping[int, Request], replies: dict[int, Reply]) -> None:
        process = self._processes[number]
        try:
            if silent:
                raise process.silence()
            reply = process.receive()
        except WorkerDied as loss:
            left_s = time.monotonic()
            self._replace_worker(number, loss)
            self._processes[number].send(*requests[number])
            for other in self._processes.values():
                other.extend_deadline(time.monotonic() - left_s)  # their messages waited meanwhile
            return
        if reply is not None:
            replies[number] = reply

    def _rows(self, replies: Mapping[int, Reply]) -> dict[int, list[Row]]:
        rows = {slot: taken for reply in replies.values() for slot, taken in unpack(*reply).items()}
        if (images := self._images) is not None:
            for row in (row for taken in rows.values() for row in taken):
                row |= {name: fit_image(row[name], images.size, images.fit) for name in filter(is_image, row)}
        for slot, taken in rows.items():
            self._journals[slot].state = taken[-1]["state"]
        return rows
