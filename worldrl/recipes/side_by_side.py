"""Stages side by side, each in a spawned process with one thread, which is enough for small networks."""

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


def run_tasks(
    name: str, tasks: Mapping[str, Task], workers: int, *, on_result: Callable[[str, dict[str, Any]], None]
) -> None:
    """Compute tasks by folder, ``workers`` at a time, 0 in this process; WorkerError where a process died."""
    queue, running = list(tasks.items()), dict[int, tuple[str, SpawnProcess]]()
    with Progress(name, total=len(tasks), unit="stages") as progress:
        try:
            while queue or running:
                if not workers:
                    folder, task = queue.pop(0)
                    on_result(folder, task.compute(Path(folder)))
                    progress.advance()
                    continue
                while queue and len(running) < workers:
                    folder, task = queue.pop(0)
                    process = start_child(_work, folder, task)
                    running[process.sentinel] = (folder, process)
                for sentinel in wait(list(running)):
                    folder, process = running.pop(int(sentinel))  # pyright: ignore[reportArgumentType]
                    on_result(folder, _collect(name, folder, process, tasks[folder]))
                    progress.advance(note=tasks[folder].label)
        finally:
            for _, process in running.values():
                process.terminate()
                process.join()


def _collect(name: str, folder: str, process: SpawnProcess, task: Task) -> dict[str, Any]:
    process.join()
    if process.exitcode != 0:
        raise WorkerError(
            f"{name}: the process of {task.label} ended with code {process.exitcode}; its message is above; "
            "workers=0 computes in one process"
        )
    return read_json(Path(folder) / RESULT)


def _work(folder: str, task: Task) -> None:
    set_threads(1)
    write_json(Path(folder) / RESULT, task.compute(Path(folder)))
    write_json(
        Path(folder) / COST, {"cpu_s": time.process_time()}
    )  # of this start; in its own file, since it never repeats
