"""Processes of their own that imagine a learner's batches in order, each with the weights that it is asked with.

::

    learner                                                          this process
    carry ── {file} ─────────────────────────────────────────────►   continues the rollouts under way of a checkpoint
    ask   ── {iteration, version, starts, group, mate} ──────────►   loads weights-V.safetensors of a new version
    take  ◄─ {file} or {failed: one line} ───────────────────────    writes rollouts-T.safetensors

Messages are short lines of JSON, so that neither side waits for the other one to read; weights and rollouts are files.
Policy, world model and start states are copied once, when the process starts; no weights are shared with the learner.
"""

import copy
import json
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import cycle
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from worldrl.core.device import set_threads
from worldrl.core.errors import WorkerError, WorldrlError
from worldrl.core.interfaces import TrainablePolicy
from worldrl.core.storage.tensorfile import load_tensors, save_tensors
from worldrl.core.storage.tree import flatten, unflatten
from worldrl.core.training.child import start_child
from worldrl.methods.rl.imagination import PolicyImagination
from worldrl.methods.rl.interfaces import Request
from worldrl.methods.rl.trust import FilterResult
from worldrl.rollout.imagined.rollouts import ImaginedRollouts, observation
from worldrl.simulators.process import describe_exit

ROWS = ("starts", "group", "mate")
UNDER_WAY = "under_way.safetensors"
SPEC = "spec"  # name of the tensor that holds the structure of a file, as JSON
MEND = "the same command resumes"


class Imaginer(Protocol):
    """Imagines batches in the order in which they are asked for, elsewhere than in this process."""

    def carry_on(self, under_way: Mapping[str, Any]) -> None:
        """Continue with the rollouts that a checkpoint's last batch left under way, before anything is asked for."""
        ...

    def ask(self, request: Request, version: int, weights: Mapping[str, Any]) -> None:
        """Ask for a batch with the policy's ``weights`` of this ``version``."""
        ...

    def take(self) -> FilterResult:
        """Wait for the oldest batch that was asked for; WorkerError where it failed."""
        ...

    def close(self) -> None:
        """End what is under way."""
        ...


class Imaginers(Protocol):
    """Makes an imaginer: as :class:`ImaginingProcess` of this machine, or on the nodes of a cluster."""

    def __call__(
        self, source: PolicyImagination, folder: Path, setting: str, *, threads: int | None = None, mend: str = MEND
    ) -> Imaginer:
        """Prepare for ``source``; the first request starts the work."""
        ...


class ImaginingProcess:
    """Imagines for ``source`` in another process, which starts with the first request; ``folder`` holds what travels.

    ``setting`` asked for it, and is named in errors; ``threads`` None takes as many as this process.
    """

    def __init__(
        self, source: PolicyImagination, folder: Path, setting: str, *, threads: int | None = None, mend: str = MEND
    ) -> None:
        self.source, self.folder = source, folder
        self._name, self._mend = f"{setting}: the process that imagines", mend
        self._threads = torch.get_num_threads() if threads is None else threads
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._copied: PolicyImagination | None = None
        self._version = -1  # of the weights that were written last

    def carry_on(self, under_way: Mapping[str, Any]) -> None:
        """Start the process with the rollouts under way; WorkerError where it cannot be started."""
        self._start()
        pack(self.folder / UNDER_WAY, under_way)
        self._send({"under_way": UNDER_WAY})

    def ask(self, request: Request, version: int, weights: Mapping[str, Any]) -> None:
        """Ask for a batch; WorkerError where the process cannot be started. Its end is noticed by :meth:`take`."""
        if self._connection is None:
            self._start()
        if version != self._version:
            pack(self.folder / weights_file(version), {"version": version, "policy": dict(weights)})
            self._version = version
        rows = {name: getattr(request, name).tolist() for name in ROWS}
        self._send({"iteration": request.iteration, "version": version, **rows})

    def _send(self, order: Mapping[str, Any]) -> None:
        try:
            _tell(self._connected(), order)
        except OSError:
            return

    def take(self) -> FilterResult:
        """Wait for the oldest batch that was asked for; WorkerError where it failed, or the process is gone."""
        try:
            answer = json.loads(self._connected().recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerError(f"{self._name} {self._ended()}; {self._mend}") from error
        if "failed" in answer:
            raise WorkerError(f"{self._name} failed: {answer['failed']}; {self._mend}")
        return restored(unpack(self.folder / answer["file"]))

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = self._copied = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # of a process that was killed
        self.folder.mkdir(parents=True)
        # What travels to a process lies in shared memory from then on: the learner keeps memory of its own.
        copied = copy.deepcopy(self.source)
        self._connection, theirs = Pipe()
        try:
            self._process = start_child(serve, theirs, copied, self._threads, self.folder)
        except Exception as error:
            raise WorkerError(f"{self._name} cannot be started ({one_line(error)}); {self._mend}") from error
        finally:
            theirs.close()
        self._copied = copied if _on_gpu(self.source) else None  # whose memory the other process then uses

    def _connected(self) -> Connection:
        if self._connection is None:
            raise WorkerError(f"{self._name} was not started; ask for a batch first")
        return self._connection

    def _ended(self) -> str:
        if self._process is None:
            return "was closed"
        self._process.join()
        return describe_exit(self._process.exitcode)


def in_order(
    processes: Sequence[Imaginer], requests: Iterable[Request], version: int, weights: Mapping[str, Any]
) -> Iterator[FilterResult]:
    """Share requests out in turn, two to each process at once; yield the batches in the order of the requests."""
    asked = deque[Imaginer]()
    for request, process in zip(requests, cycle(processes), strict=False):
        if len(asked) == 2 * len(processes):
            yield asked.popleft().take()
        process.ask(request, version, weights)
        asked.append(process)
    while asked:
        yield asked.popleft().take()


def policy_weights(policy: TrainablePolicy) -> dict[str, Any]:
    """Copy a policy's weights to the CPU."""
    return {
        name: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
        for name, value in policy.state_dict().items()
    }


def serve(connection: Connection, source: PolicyImagination, threads: int, folder: Path) -> None:
    """Imagine what is asked for until the learner closes the connection; an error becomes one line of the answer."""
    set_threads(threads)
    held = -1
    try:
        while True:
            order = json.loads(connection.recv_bytes())
            if "under_way" in order:
                source.carry_on(unpack(folder / order["under_way"]))
                continue
            if order["version"] != held:
                held = load_weights(source.policy, folder / weights_file(order["version"]))
            found = source.imagine(Request(order["iteration"], *(torch.tensor(order[name]) for name in ROWS)))
            found = found._replace(rollouts=replace(found.rollouts, version=held), under_way=source.under_way())
            file = f"rollouts-{order['iteration']:08d}.safetensors"
            pack(folder / file, plain(found))
            _tell(connection, {"file": file})
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        _tell(connection, {"failed": one_line(error)})


def load_weights(policy: Any, file: Path) -> int:
    """Load the weights of a file into a policy; return their version, as the file states it."""
    found = unpack(file)
    trained: TrainablePolicy = policy
    trained.load_state_dict(found["policy"])
    return found["version"]


def weights_file(version: int) -> str:
    """Name the file of a version's weights."""
    return f"weights-{version:08d}.safetensors"


def plain(found: FilterResult) -> dict[str, Any]:
    """Take a batch apart into nested values and tensors."""
    return {**found._asdict(), "rollouts": asdict(found.rollouts), "came": found.came and asdict(found.came)}


def restored(found: Mapping[str, Any]) -> FilterResult:
    """Undo :func:`plain`."""
    rollouts, came = dict(found["rollouts"]), found["came"]
    rollouts["end"] = rollouts["end"] and observation(rollouts["end"])
    rollouts["past"] = tuple(observation(before) for before in rollouts["past"])
    return FilterResult(**{**found, "rollouts": ImaginedRollouts(**rollouts), "came": came and Request(**came)})


def pack(file: Path, value: Mapping[str, Any]) -> None:
    """Write nested values and tensors into one file."""
    tensors = dict[str, torch.Tensor]()
    spec = json.dumps(flatten(value, "", tensors)).encode()
    save_tensors(file, {**tensors, SPEC: torch.frombuffer(bytearray(spec), dtype=torch.uint8)})


def unpack(file: Path) -> dict[str, Any]:
    """Read what :func:`pack` wrote, and remove the file."""
    tensors = load_tensors(file)
    file.unlink()
    return unflatten(json.loads(bytes(tensors.pop(SPEC).numpy())), tensors)


def one_line(error: BaseException) -> str:
    """First line of an error, with its kind where nobody raised it on purpose."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(":")
    return text if isinstance(error, WorldrlError) else f"{type(error).__name__}: {text}"


def _tell(connection: Connection, message: Mapping[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _on_gpu(source: PolicyImagination) -> bool:
    policy: Any = source.policy
    return policy.device.type != "cpu"
