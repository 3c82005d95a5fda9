"""Unit under test: ``worldrl.methods.offline.training``: mixing, refreshing, resuming bit for bit."""

import copy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from worldrl.core.errors import ArtefactError, NonFiniteError, SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.methods.offline.combo import Combo
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.iql import Iql
from worldrl.methods.offline.ravl import Ravl
from worldrl.methods.offline.training import OfflineTraining, mixed, train_offline

SMALL = OfflineTraining(steps=12, batch_size=8, evaluate_every=4, checkpoint_every=5, log_every=3)
IMAGINING = Imagining(horizon=2, real_ratio=0.25, rollouts=6, refresh_every=4, generations=2)


@pytest.fixture
def train(facts: Facts, make_rows: Callable[..., Transitions], line_world: Any) -> Callable[..., Any]:
    """Train a small agent in a closed-form world; returns agent and report."""
    rows = make_rows()

    def run(agent_class: Any = Ravl, *, world: bool = True, **over: Any) -> Any:
        with initial_weights(0, "agent"):
            agent = agent_class(agent_class.config_class(hidden=(8, 8)), facts)
        if world:
            branches = Branches(line_world, len(rows), BranchConfig(starts=6, horizon=2))
            over = {"imagination": branches, "imagining": IMAGINING} | over
        report = train_offline("agent", agent, rows, over.pop("training", SMALL), seed=0, **over)
        return agent, report

    return run


class KilledError(Exception):
    """Stands for a kill."""


def stop_at(step: int) -> Callable[[Any, int], dict[str, float]]:
    def evaluate(agent: Any, now: int) -> dict[str, float]:
        if now == step:
            raise KilledError
        return measure(agent, now)

    return evaluate


def measure(agent: Any, step: int) -> dict[str, float]:
    return {"weight": float(next(agent.actor.parameters()).detach().sum()), "step_seen": float(step)}


def test_batch_holds_recorded_rows_first(make_rows: Any) -> None:
    data, imagined = make_rows(16), TransitionBuffer(8)
    imagined.add(make_rows(8, seed=1))
    batch = mixed(data, imagined, 10, 4, generator=stream(0, "b"))
    known = {tuple(row) for row in data.obs.tolist()}
    assert [tuple(row) in known for row in batch.obs.tolist()] == [True] * 4 + [False] * 6
    assert len(mixed(data, imagined, 10, 0, generator=stream(0, "b"))) == 10
    assert len(mixed(data, imagined, 10, 10, generator=stream(0, "b"))) == 10
    assert len(mixed(data, None, 10, 4, generator=stream(0, "b"))) == 10


@pytest.mark.parametrize(("agent_class", "world"), [(Ravl, True), (Combo, True), (Iql, False)])
def test_resume_equals_an_uninterrupted_run(
    agent_class: Any, world: bool, train: Callable[..., Any], tmp_path: Path, same_tree: Callable[..., None]
) -> None:
    with MetricLog(tmp_path / "whole", tracker=TrackerName.none) as log:
        whole, first = train(agent_class, world=world, evaluate=measure, folder=tmp_path / "a", log=log)
    with MetricLog(tmp_path / "parts", tracker=TrackerName.none) as log:
        with pytest.raises(KilledError):  # killed at step 8, three steps after its checkpoint
            train(agent_class, world=world, evaluate=stop_at(8), folder=tmp_path / "b", log=log)
        again, second = train(agent_class, world=world, evaluate=measure, folder=tmp_path / "b", log=log)
    assert second.resumed_from == 5
    same_tree(again.state_dict(), whole.state_dict())
    assert second.evaluations == first.evaluations
    assert read_metrics(tmp_path / "parts") == read_metrics(tmp_path / "whole")
    a, b = (torch_state(tmp_path / name) for name in "ab")
    same_tree(a, b)


def torch_state(folder: Path) -> Any:
    from worldrl.core.storage.checkpoint import load_checkpoint

    found = load_checkpoint(folder, modules={}, optimizers={})
    assert found is not None
    return found.extra


def test_finished_run_takes_no_step(train: Callable[..., Any], tmp_path: Path, same_tree: Callable[..., None]) -> None:
    first, whole = train(folder=tmp_path)
    again, report = train(folder=tmp_path)
    assert report.resumed_from == 12
    assert report.logs == whole.logs != {}
    same_tree(first.state_dict(), again.state_dict())


def test_interrupt_completes_the_step_and_saves_it(train: Callable[..., Any], tmp_path: Path) -> None:
    def interrupt(agent: Any, step: int) -> dict[str, float]:
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return measure(agent, step)

    with pytest.raises(KeyboardInterrupt):
        train(evaluate=interrupt, folder=tmp_path)
    _, report = train(evaluate=measure, folder=tmp_path)
    assert report.resumed_from == 4
    assert [entry["step"] for entry in report.evaluations] == [4, 8, 12]


def test_generations_are_imagined_on_schedule_by_the_present_agent(train: Callable[..., Any], make_rows: Any) -> None:
    seen: list[tuple[int, int]] = []

    class Counting:
        def generate(self, agent: Any, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
            seen.append((agent.updates, len(seen)))
            return make_rows(12, seed=len(seen)), {}

    train(imagination=Counting())
    assert [updates for updates, _ in seen] == [0, 4, 8]


def test_step_depends_on_seed_and_number_alone(train: Callable[..., Any], same_tree: Callable[..., None]) -> None:
    same_tree(train()[0].state_dict(), train(evaluate=measure)[0].state_dict())
    other = copy.deepcopy(train()[0].state_dict())
    assert other["updates"] == 12


def test_combo_is_given_which_rows_are_recorded(train: Callable[..., Any]) -> None:
    assert train(Combo)[0].real == IMAGINING.real_rows(SMALL.batch_size) == 2


def test_non_finite_number_stops_the_training(train: Callable[..., Any], make_rows: Any) -> None:
    class Broken:
        def generate(self, agent: Any, *, generator: torch.Generator) -> tuple[Transitions, Logs]:
            rows = make_rows(12)
            rows.reward[:] = torch.inf
            return rows, {}

    with pytest.raises(NonFiniteError, match=r"agent: critic/.* is .* at step 0"):
        train(imagination=Broken())


def test_checkpoint_of_another_agent_is_refused(train: Callable[..., Any], tmp_path: Path) -> None:
    train(world=False, folder=tmp_path)
    with pytest.raises(ArtefactError, match="agent iql"):
        train(Iql, world=False, folder=tmp_path, training=OfflineTraining(steps=20, batch_size=8))


def test_imagination_needs_its_settings(train: Callable[..., Any]) -> None:
    with pytest.raises(SettingError, match="imagining"):
        train(imagining=None)
    with pytest.raises(SettingError, match=r"training\.steps"):
        OfflineTraining(steps=0)
    with pytest.raises(SettingError, match=r"imagining\.real_ratio"):
        Imagining(real_ratio=1.5)
