"""The loop under every training: where it saves, where it ends, and what a resume restores."""

from pathlib import Path

from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.core.training.loop import Training, every, repeat


class Counter:
    """Counts what was taken; all there is to store."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state_dict):
        self.taken = list(state_dict["taken"])


def run(folder: Path, counter: Counter, total: int = 10, step: int = 1, log: MetricLog | None = None, **over):
    def take(position, progress):
        counter.taken.append(position)
        if log is not None:
            log.write("toy", position, {"x": float(position)})
        return position + step

    training = Training("toy", folder, log, extra=counter)
    return repeat(training, take, total, **({"due": every(4)} | over))


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


def test_it_saves_where_due_and_at_the_end_and_resumes_there(tmp_path):
    whole = run(tmp_path / "whole", Counter())
    assert (whole.first, whole.last, steps(tmp_path / "whole")) == (0, 10, [8, 10])
    run(tmp_path / "cut", Counter(), total=6)
    counter = Counter()
    resumed = run(tmp_path / "cut", counter)
    assert (resumed.first, resumed.last) == (6, 10)
    assert counter.taken == list(range(10))
    finished = run(tmp_path / "cut", counter)
    assert (finished.first, finished.last) == (10, 10)
    assert counter.taken == list(range(10))


def test_nothing_is_saved_where_it_may_not_stop(tmp_path):
    counter, saved = Counter(), []
    training_due = lambda position, last: saved.append((position, last)) or position - last >= 2  # noqa: E731
    run(tmp_path, counter, due=training_due, may_stop=lambda: len(counter.taken) % 3 == 0)
    assert saved == [(3, 0), (6, 3), (9, 6)]
    assert steps(tmp_path) == [9, 10]


def test_it_may_end_elsewhere_and_take_several_positions_at_once(tmp_path):
    session = run(tmp_path, Counter(), step=3, over=lambda position: position > 4)
    assert (session.last, steps(tmp_path)) == (6, [6])


def test_lines_after_the_checkpoint_are_forgotten(tmp_path):
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        run(tmp_path / "checkpoints", Counter(), total=3, log=log)
        log.write("toy", 3, {"x": -1.0})
        run(tmp_path / "checkpoints", Counter(), total=5, log=log)
    assert [line["values"]["x"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
