"""Self-training whose batches several real processes imagine.

Units under test: ``methods.rl.filtered_cloning``, ``methods.rl.imagining``.
"""

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldrl.core.errors import SettingError, WorkerError
from worldrl.core.storage.log import read_metrics
from worldrl.methods.rl import imagining_on_ray
from worldrl.methods.rl.config import FilteredCloning, PartNames
from worldrl.methods.rl.imagining import ImaginingProcess, in_order
from worldrl.workers.link.boot import load_file

script = load_file("improve_script", Path(__file__).parents[1] / "improve_script.py")


def improved(folder, processes):
    """Weights, history and log of a run."""
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # as in each of the processes: threads change sums
    learner, history = script.improved("self_training", folder, processes=processes)
    lines = [(line["series"], line["step"], line["values"]) for line in read_metrics(folder)]
    return SimpleNamespace(weights=learner.state_dict(), history=history, lines=lines)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return improved(tmp_path_factory.mktemp("alone") / "run", 1)


def require_equal(found, alone):
    assert found.history == alone.history
    assert found.lines == alone.lines
    assert all(torch.equal(found.weights[name], value) for name, value in alone.weights.items())


def test_several_processes_change_no_bit_and_a_stopped_run_resumes(tmp_path, monkeypatch, alone):
    assert len(set(alone.history)) > 2  # batches can be distinguished
    take, taken, processes = ImaginingProcess.take, [], []

    def stopped(self):
        processes.append(self._process)
        taken.append(self)
        if len(taken) == 3:
            raise WorkerError("stopped")
        return take(self)

    with monkeypatch.context() as patch:
        patch.setattr(ImaginingProcess, "take", stopped)
        with pytest.raises(WorkerError, match=r"^stopped$"):
            improved(tmp_path / "run", 2)
    assert len(set(map(id, taken))) == 2
    assert not any(process.is_alive() for process in processes)
    saved = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [file.name for file in saved] == ["batch-00000", "batch-00001"]
    require_equal(improved(tmp_path / "run", 2), alone)
    assert len(list((tmp_path / "run" / "checkpoints").glob("imagining-*"))) == 0


class Noted:
    """An actor that answers with what it was asked."""

    def __init__(self):
        self.asked, self.most = deque(), 0

    def ask(self, request, version, weights):
        self.asked.append((request, version, weights))
        self.most = max(self.most, len(self.asked))

    def take(self):
        return self.asked.popleft()


def test_batches_keep_the_order_of_requests_and_two_wait_at_each_process():
    actors = [Noted(), Noted(), Noted()]
    found = list(in_order(actors, range(11), 4, {"w": 1}))
    assert found == [(number, 4, {"w": 1}) for number in range(11)]
    assert [one.most for one in actors] == [2, 2, 2]


def test_a_process_of_a_node_loads_what_it_has_not_yet(monkeypatch):
    monkeypatch.setattr(imagining_on_ray, "_loaded", {"source": "", "weights": ""})
    stored = {"source": SimpleNamespace(policy=torch.nn.Linear(1, 1))}
    stored |= {name: torch.nn.Linear(1, 1).state_dict() for name in ("old", "new")}
    fetched, held = [], []

    def fetch(name):
        fetched.append(name)
        return stored[name]

    for weights in ("old", "old", "new", "new"):
        names = [("source", "source"), (weights, weights)]
        source = imagining_on_ray.loaded({"shared": False, "paths": []}, fetch, names, torch.get_num_threads())
        held.append(source.policy.weight.item())

    assert fetched == ["source", "old", "new"]
    assert held == [stored[name]["weight"].item() for name in ("old", "old", "new", "new")]


def test_an_object_enters_the_store_once():
    put = []
    store, first = imagining_on_ray.Stored(lambda value: put.append(value) or len(put)), {}
    assert store(first) == store(first)
    assert store({}) != store(first)
    assert len(put) == 3  # the last one only is known


@pytest.mark.parametrize("part", ["starts", "budget"])
def test_parts_that_learn_from_batch_to_batch_are_refused(part):
    with pytest.raises(SettingError, match=rf"processes=2: parts.{part}=known draws each batch .*; give processes=1"):
        FilteredCloning(processes=2, parts=PartNames(**{part: "known"}))
