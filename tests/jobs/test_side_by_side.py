"""Unit under test: ``recipes/side_by_side.py``, with tasks that are computed by hand."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from worldrl.core.errors import WorkerError
from worldrl.recipes.side_by_side import Spawned, run_tasks


@dataclass(frozen=True)
class Count:
    """Returns its number; a negative one ends its process."""

    number: int

    @property
    def label(self) -> str:
        return f"count {self.number}"

    def compute(self, folder: Path) -> dict[str, int]:
        if self.number < 0:
            raise SystemExit(3)
        return {"number": self.number}


class ByHand:
    """A crew that ends the newest task first, and notes how many were under way."""

    def __init__(self):
        self.running, self.most, self.stopped = [], 0, False

    def start(self, folder, task):
        self.running.append((folder, task.compute(Path(folder))))
        self.most = max(self.most, len(self.running))

    def ended(self):
        return [self.running.pop()]

    def stop(self):
        self.stopped = True


@pytest.fixture
def tasks(tmp_path):
    return {str(tmp_path / str(number)): Count(number) for number in range(5)}


def results(tasks, workers, crew=None):
    found = {}
    run_tasks("test", tasks, workers, on_result=found.__setitem__, crew=crew)
    return found


def test_every_task_is_computed_once_and_never_more_at_once_than_asked(tasks):
    crew = ByHand()
    assert results(tasks, 2, crew) == {folder: {"number": task.number} for folder, task in tasks.items()}
    assert (crew.most, crew.running, crew.stopped) == (2, [], True)


def test_without_workers_no_crew_is_asked(tasks):
    crew = ByHand()
    assert results(tasks, 0, crew) == results(tasks, 3, ByHand())
    assert crew.most == 0


def test_an_error_stops_what_still_runs(tasks):
    crew = ByHand()

    def refuse(folder, result):
        raise WorkerError("no")

    with pytest.raises(WorkerError, match=r"^no$"):
        run_tasks("test", tasks, 3, on_result=refuse, crew=crew)
    assert (len(crew.running), crew.stopped) == (2, True)


def test_a_process_that_ends_with_an_error_is_named(tmp_path):
    crew = Spawned("test")
    crew.start(str(tmp_path), Count(-1))
    with pytest.raises(WorkerError, match=r"^test: the process of count -1 ended with code 3; [^\n]*workers=0"):
        crew.ended()
