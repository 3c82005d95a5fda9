"""Stages side by side, each in a process of its own with one thread, which is enough for small networks."""

import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

from worldrl.core.device import set_threads
from worldrl.core.errors import WorkerError
from worldrl.core.storage.jsonfile import read_json, write_json
from worldrl.core.storage.log import Progress
from worldrl.core.training.child import start_child

RESULT, COST = "result.json", "cost.json"


class Task(Protocol):
    """Computation of one stage: a frozen dataclass of plain values, passed to a new process."""

    @property
    def label(self) -> str:
        """Name for progress and errors."""
        ...

    def compute(self, folder: Path) -> dict[str, Any]:
        """Do the work of a stage in its folder; return JSON-ready values."""
        ...


class Crew(Protocol):
    """Computes tasks elsewhere, several at once."""

    def start(self, folder: str, task: Task) -> None:
        """Begin a task."""
        ...

    def ended(self) -> list[tuple[str, dict[str, Any]]]:
        """Wait for at least one task's end; folders and results. WorkerError where a task's process died."""
        ...

    def stop(self) -> None:
        """End what still runs."""
        ...


def run_tasks(
    name: str,
    tasks: Mapping[str, Task],
    workers: int,
    *,
    on_result: Callable[[str, dict[str, Any]], None],
    crew: Crew | None = None,
) -> None:
    """Compute tasks by folder, ``workers`` at a time: 0 in this process, else by ``crew`` (None: processes of this machine).

    Raises WorkerError where a process died.
    """
    queue, running = list(tasks), 0
    crew = crew or Spawned(name)
    with Progress(name, total=len(tasks), unit="stages") as progress:
        try:
            while queue or running:
                if not workers:
                    folder = queue.pop(0)
                    on_result(folder, tasks[folder].compute(Path(folder)))
                    progress.advance()
                    continue
                while queue and running < workers:
                    crew.start(queue[0], tasks[queue[0]])
                    queue, running = queue[1:], running + 1
                for folder, result in crew.ended():
                    running -= 1
                    on_result(folder, result)
                    progress.advance(note=tasks[folder].label)
        finally:
            crew.stop()


class Spawned:
    """A new process of this machine for each task."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: dict[int, tuple[str, Task, SpawnProcess]] = {}

    def start(self, folder: str, task: Task) -> None:
        """As of a crew."""
        process = start_child(_work, folder, task)
        self._running[process.sentinel] = (folder, task, process)

    def ended(self) -> list[tuple[str, dict[str, Any]]]:
        """As of a crew."""
        sentinels = [int(sentinel) for sentinel in wait(list(self._running))]  # pyright: ignore[reportArgumentType]
        return [self._collect(*self._running.pop(sentinel)) for sentinel in sentinels]

    def _collect(self, folder: str, task: Task, process: SpawnProcess) -> tuple[str, dict[str, Any]]:
        process.join()
        if process.exitcode != 0:
            raise WorkerError(
                f"{self._name}: the process of {task.label} ended with code {process.exitcode}; its message is above; "
                "workers=0 computes in one process"
            )
        return folder, read_json(Path(folder) / RESULT)

    def stop(self) -> None:
        """As of a crew."""
        for _, _, process in self._running.values():
            process.terminate()
            process.join()


def computed(folder: str, task: Task) -> dict[str, Any]:
    """Compute a task with one thread in this process, which does nothing else; its processor time goes to its own file."""
    set_threads(1)
    result = task.compute(Path(folder))
    write_json(Path(folder) / COST, {"cpu_s": time.process_time()})  # of this start; it never repeats
    return result


def _work(folder: str, task: Task) -> None:
    write_json(Path(folder) / RESULT, computed(folder, task))
