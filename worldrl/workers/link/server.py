"""The loop of a simulator worker: batched requests in, batched observations out, one process per worker.

Requests (parent → worker), each answered by ``ready``, ``rows`` or ``failed``::

    hello    protocol, options                                    first message
    reset    episodes: [[slot, task, init_id, seed, render], ...]; array start_SLOT [D] where that slot begins at a given
             state of the simulator instead of a stored one
    step     slots, render: [bool, ...]; array action [N, n, A], n actions of each slot with no answer in between: a slot ends
             behind a step that fulfils its task, and is drawn at its n-th step alone
    expert   slots                                                what the suite's scripted expert would do now
    probe                                                         the suite's own check of its physics
    stop

Answers (worker → parent)::

    ready    protocol, suite: what the suite says about itself, the worker's Python, and several_steps: whether n may be above 1
    rows     slots, one for each step that was taken; pictured: slots whose cameras were rendered; arrays by name, a row per
             step (images: per pictured, of its last step)
             instructions: after a reset, an instruction per slot where the suite words each episode, else null
    pulse    call, slot                                           before each row; before fast calls at most every PULSE_S
    failed   error, traceback                                     an exception; the process ends
    refused  error                                                a :class:`Refusal`, whose message says all; the process ends

A class with a method ``serve(pulse)`` brings an object that answers requests of its own, with ``answer`` and ``close`` like
:class:`Server`: lerobot's policies do (``worldrl.policies.lerobot.service``).

A worker writes nothing but these messages into the connection; what the simulator prints goes to its log file.
"""

from __future__ import annotations

import importlib
import os
import platform
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.link.boot import load_file
from worldrl.workers.link.channel import Channel
from worldrl.workers.link.wire import PROTOCOL, Arrays

Answer = tuple[dict[str, Any], Arrays]  # A header and its arrays
PULSE_S = 0.5
FAST_CALLS = ("step", "act", "expert")
IMAGE = "image"  # The main camera's image; another camera's is called `<camera>_image`
_PARENT_CHECK_S = 1.0


class Refusal(Exception):  # noqa: N818  (suites' errors are made of it)
    """Why a suite cannot do what it is asked for: something is missing, or not what it must be. The message is for users."""


class Simulation(Protocol):
    """One environment of one task; made, stepped and rendered in this process only."""

    def reset(self, init_id: int, seed: int, *, render: bool) -> Arrays:
        """Start an episode from a stored initial state; returns its first observation."""
        ...

    def reset_to(self, state: NDArray[np.float64], *, render: bool) -> Arrays:
        """Start from a state of the simulator that was recorded elsewhere; only LIBERO's can."""
        ...

    def step(self, action: NDArray[np.float32], *, render: bool) -> Arrays:
        """Take one action; returns ``state``, ``command``, ``success``, ``contact``, and images where rendered."""
        ...

    def expert(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action; it may remember the episode since ``reset``."""
        ...

    def close(self) -> None:
        """Release the environment and its GL context."""


class Suite(Protocol):
    """A benchmark's tasks, built from the options of ``hello``; see :class:`BatchedSuite` for those that step together.

    Optional: ``pulse``, set to a function of (call, slot) to be called during calls of minutes; and of simulations
    ``instruction``, where episodes are worded one by one.
    """

    def describe(self) -> dict[str, Any]:
        """Say what there is, in JSON values: tasks, their instructions, stored states, conventions, packages."""
        ...

    def make(self, task: str) -> Simulation:
        """Make an environment of one task."""
        ...

    def probe(self) -> dict[str, Any]:
        """Check the physics; an error where it is not the one that the protocol names."""
        ...


class BatchedSuite(Protocol):
    """A suite whose simulator moves every environment in one call, as GPU simulators do."""

    def describe(self) -> dict[str, Any]:
        """As of :class:`Suite`."""
        ...

    def reset_rows(self, episodes: Sequence[Sequence[Any]]) -> list[Arrays]:
        """Start episodes ``[slot, task, init_id, seed, render]``; the other slots continue."""
        ...

    def step_rows(self, slots: Sequence[int], actions: NDArray[np.float32], render: Sequence[bool]) -> list[Arrays]:
        """Take one action in each of these slots; what the others do meanwhile is not read."""
        ...

    def probe(self) -> dict[str, Any]:
        """As of :class:`Suite`."""
        ...

    def close(self) -> None:
        """Release the simulator."""


def installed(package: str) -> str:
    """Version of a package in this Python, "none" without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def is_image(name: str) -> bool:
    """Whether an array of an observation is a camera's image."""
    return name == IMAGE or name.endswith(f"_{IMAGE}")


def start_name(slot: int) -> str:
    """Name of the array that holds the state a slot is to begin at."""
    return f"start_{slot}"


def find_suite(target: str) -> Any:
    """Return the suite's class of ``module:Class``, or ``/path/to/file.py:Class``."""
    where, _, name = target.rpartition(":")
    path = Path(where)
    module = load_file(path.stem, path) if path.suffix == ".py" else importlib.import_module(where)
    return getattr(module, name)


class Server:
    """The slots of one worker; ``pulse`` is called before each row."""

    def __init__(self, suite: Suite, pulse: Any) -> None:
        self._suite, self._pulse = suite, pulse
        self._slots: dict[int, tuple[str, Simulation]] = {}

    def answer(self, header: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Serve one request."""
        kind = header["kind"]
        if kind == "probe":
            self._pulse("probe", -1)
            return {"kind": "ready", "protocol": PROTOCOL, "suite": self._suite.probe()}, {}
        if kind == "reset":
            return self._reset(header["episodes"], arrays)
        slots: list[int] = header["slots"]
        if kind == "expert":
            return pack(slots, [{"action": self._call("expert", slot).expert()} for slot in slots])
        if kind != "step":
            raise ValueError(f"unknown request {kind!r}")
        taken: list[tuple[int, Arrays]] = []
        for slot, actions, render in zip(slots, arrays["action"], header["render"], strict=True):
            taken += [(slot, row) for row in self._steps(slot, actions, render)]
        return pack([slot for slot, _ in taken], [row for _, row in taken])

    def _steps(self, slot: int, actions: NDArray[np.float32], render: bool) -> Iterator[Arrays]:
        """Take actions ``[n, A]`` until the task is fulfilled: the core decides whether the episode continues."""
        for place, action in enumerate(actions, 1):
            row = self._call("step", slot).step(action, render=render and place == len(actions))
            yield row
            if row["success"]:
                return

    def _call(self, call: str, slot: int) -> Simulation:
        self._pulse(call, slot)
        return self._slots[slot][1]

    def _reset(self, episodes: Sequence[Sequence[Any]], given: Arrays) -> Answer:
        rows, sentences = [], []
        for slot, task, init_id, seed, render in episodes:
            self._pulse("make and reset the environment", slot)
            simulation = self._simulation(slot, task)
            if (name := start_name(slot)) in given:
                rows.append(simulation.reset_to(given[name], render=render))
            else:
                rows.append(simulation.reset(init_id, seed, render=render))
            sentences.append(getattr(simulation, "instruction", None))
        return pack([episode[0] for episode in episodes], rows, sentences)

    def _simulation(self, slot: int, task: str) -> Simulation:
        if slot in self._slots and self._slots[slot][0] == task:
            return self._slots[slot][1]
        if slot in self._slots:
            self._slots.pop(slot)[1].close()
        self._slots[slot] = (task, self._suite.make(task))
        return self._slots[slot][1]

    def close(self) -> None:
        """Release every environment."""
        for _, simulation in self._slots.values():
            simulation.close()


class BatchServer:
    """Serves a :class:`BatchedSuite`; ``pulse`` is called before each call."""

    def __init__(self, suite: BatchedSuite, pulse: Any) -> None:
        self._suite, self._pulse = suite, pulse

    def answer(self, header: Mapping[str, Any], arrays: Arrays) -> Answer:
        """Serve one request."""
        kind = header["kind"]
        self._pulse(kind, -1)
        if kind == "probe":
            return {"kind": "ready", "protocol": PROTOCOL, "suite": self._suite.probe()}, {}
        if kind == "reset":
            episodes = header["episodes"]
            if arrays:
                raise ValueError("this suite begins at its own initial states only; a given state cannot be taken up")
            return pack([episode[0] for episode in episodes], self._suite.reset_rows(episodes))
        if kind != "step":
            raise ValueError(f"this suite does not serve {kind!r}: it has no scripted expert")
        slots, actions = header["slots"], arrays["action"]
        if actions.shape[1] != 1:
            raise ValueError(f"this suite moves its environments together, one step at a time, not {actions.shape[1]}")
        return pack(slots, self._suite.step_rows(slots, actions[:, 0], header["render"]))

    def close(self) -> None:
        """Release the simulator."""
        self._suite.close()


def pack(slots: Sequence[int], rows: Sequence[Arrays], instructions: Sequence[str | None] = ()) -> Answer:
    """Stack rows into one answer; images are stacked over the rows that have them."""
    pictured = [slot for slot, row in zip(slots, rows, strict=True) if IMAGE in row]
    names = {name: None for row in rows for name in row}
    stacked = {name: _stack([np.asarray(row[name]) for row in rows if name in row]) for name in names}
    texts = {"instructions": list(instructions)} if any(instructions) else {}
    return {"kind": "rows", "slots": list(slots), "pictured": pictured, **texts}, stacked


def unpack(header: Mapping[str, Any], arrays: Arrays) -> dict[int, list[Arrays]]:
    """Undo :func:`pack`: the rows of each slot, in the order of its steps; images are of the last."""
    rows: dict[int, list[Arrays]] = {}
    for place, slot in enumerate(header["slots"]):
        row = {name: values[place] for name, values in arrays.items() if not is_image(name)}
        if "instructions" in header:
            row["instruction"] = np.array(header["instructions"][place])
        rows.setdefault(slot, []).append(row)
    for place, slot in enumerate(header["pictured"]):
        rows[slot][-1] |= {name: values[place] for name, values in arrays.items() if is_image(name)}
    return rows


def _stack(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return values[0][None] if len(values) == 1 else np.stack(values)  # a worker often holds one slot: no copy


def main(descriptor: str, target: str) -> None:
    """Serve the class ``target`` on an inherited socket's ``descriptor`` until ``stop`` or the parent's end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        _serve(channel, target)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody listens any more
    except Refusal as refusal:
        channel.send({"kind": "refused", "error": str(refusal)})
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        channel.send({"kind": "failed", "error": text, "traceback": traceback.format_exc()})
    finally:
        channel.close()


def server_of(suite: Any, pulse: Any) -> Any:
    """Return what answers a core: the service a target makes itself, else one for rows that step together or singly."""
    if hasattr(suite, "serve"):
        return suite.serve(pulse)
    return (BatchServer if hasattr(suite, "step_rows") else Server)(suite, pulse)


def _serve(channel: Channel, target: str) -> None:
    header, _ = channel.receive()
    if header.get("kind") != "hello" or header.get("protocol") != PROTOCOL:
        raise ValueError(f"this worker speaks protocol {PROTOCOL}, the core says {header}")
    last_s = -PULSE_S

    def pulse(call: str, slot: int) -> None:
        nonlocal last_s
        if call not in FAST_CALLS or time.monotonic() - last_s >= PULSE_S:
            last_s = time.monotonic()
            channel.send({"kind": "pulse", "call": call, "slot": slot})

    suite = find_suite(target)(**header["options"])
    several = not hasattr(suite, "step_rows")
    said = {"python": platform.python_version(), "several_steps": several, **suite.describe()}
    channel.send({"kind": "ready", "protocol": PROTOCOL, "suite": said})
    if hasattr(suite, "pulse"):
        suite.pulse = pulse
    server = server_of(suite, pulse)
    try:
        while (message := channel.receive())[0]["kind"] != "stop":
            channel.send(*server.answer(*message))
    finally:
        server.close()


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)
