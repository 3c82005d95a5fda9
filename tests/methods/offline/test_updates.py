"""Unit under test: ``worldrl.methods.offline.updates``. CUDA graphs themselves are in ``test_cuda.py``; all around them is here."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline.agent import Agent, Facts
from worldrl.methods.offline.iql import Iql
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.td3_bc import Td3Bc, Td3BcConfig
from worldrl.methods.offline.training import OfflineTraining, train_offline
from worldrl.methods.offline.updates import COMPILED, GRAPHED, Graphed, check_updates, compile_parts

AGENTS = [
    (Sac, SacConfig(hidden=(8,), actor_cosine=True, target_critics=1)),
    (Ravl, RavlConfig(hidden=(8, 8), critics=4)),  # as many as make a loop over members, which has no graph
    (Td3Bc, Td3BcConfig(hidden=(8,))),
]
UPDATES = 9

each_agent = pytest.mark.parametrize(("agent_class", "config"), AGENTS, ids=lambda x: getattr(x, "name", ""))


def made(agent_class: Any, config: Any, facts: Facts) -> Any:
    with initial_weights(0, "updates"):
        return agent_class(config, facts)


def updated(agent: Agent, update: Any, make_rows: Callable[..., Any], updates: int = UPDATES) -> list[dict[str, float]]:
    logs = []
    for step in range(updates):
        found = update(make_rows(seed=step), generator=stream(1, step))
        logs.append({name: float(value) for name, value in found.items()})
    assert agent.updates == updates
    return logs


def assert_near(one: Agent, other: Agent) -> None:
    for name, module in one.modules.items():
        for key, value in module.state_dict().items():
            torch.testing.assert_close(
                other.modules[name].state_dict()[key], value, rtol=1e-4, atol=1e-5, msg=f"{name}.{key}"
            )


@each_agent
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile reads an action's
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_updates_are_the_eager_ones(
    agent_class: Any, config: Any, backend: str, facts: Facts, make_rows: Any
) -> None:
    eager, compiled = made(agent_class, config, facts), made(agent_class, config, facts)
    compile_parts(compiled, backend)
    expected = updated(eager, eager.update, make_rows, 4)
    for one, other in zip(expected, updated(compiled, compiled.update, make_rows, 4), strict=True):
        assert other == pytest.approx(one, rel=1e-3, abs=1e-5)
    assert_near(eager, compiled)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


class CallingRecorder:
    """Replays by calling; a recording is not a step, as with CUDA graphs."""

    def __init__(self) -> None:
        self.warmed = self.recorded = 0

    def warm(self, step: Callable[[], Any]) -> Any:
        self.warmed += 1
        return step()

    def record(self, step: Callable[[], Any], generator: torch.Generator) -> Callable[[], Any]:
        self.recorded += 1
        return step


@each_agent
def test_recorded_updates_read_rows_noise_and_rates_from_fixed_places(
    agent_class: Any, config: Any, facts: Facts, make_rows: Any
) -> None:
    eager, graphed = made(agent_class, config, facts), made(agent_class, config, facts)
    recorder = CallingRecorder()
    update = Graphed(graphed, recorder)
    expected = updated(eager, eager.update, make_rows)
    for one, other in zip(expected, updated(graphed, update, make_rows), strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    assert_near(eager, graphed)
    phases = 2 if agent_class is Td3Bc else 1  # with and without the actor
    assert (recorder.warmed, recorder.recorded) == (3 * phases, phases)
    rates = [group["lr"] for optimizer in graphed.optimizers.values() for group in optimizer.param_groups]
    assert all(isinstance(rate, torch.Tensor) for rate in rates)
    if agent_class is Sac:
        assert float(graphed.optimizers["actor"].param_groups[0]["lr"]) < config.actor_rate  # along its cosine
    with pytest.raises(SettingError, match=r"training.batch_size must be the same in every update, got 7"):
        update(make_rows(7), generator=stream(1, 0))


CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("kind", "algorithm", "config", "device", "message"),
    [
        (GRAPHED, "sac", SacConfig(), CPU, "CUDA graphs need a GPU, and the device is cpu; give device=cuda"),
        (COMPILED, "cql", None, CPU, "cql's update is not made for it, those of sac, sac_n"),
        (GRAPHED, "neubay", None, GPU, "neubay's update is not made for it"),
        (COMPILED, "ravl", RavlConfig(layer_norm=True), CPU, "ravl with agent.layer_norm differentiates twice"),
        ("fast", "sac", SacConfig(), CPU, "training.updates must be one of eager, compiled, graphed, got 'fast'"),
    ],
)
def test_updates_that_do_not_exist_are_refused(
    kind: str, algorithm: str, config: Any, device: torch.device, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        check_updates(kind, algorithm, config, device)


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_updates(COMPILED, "sac", SacConfig(), GPU)  # there kernels are Triton's
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingError, match=r"needs a C\+\+ compiler, and PATH has not g\+\+ or clang\+\+"):
        check_updates(COMPILED, "sac", SacConfig(), CPU)


def test_training_takes_the_updates_it_is_given(facts: Facts, make_rows: Any) -> None:
    for updates, message in (("compiled", "iql's update is not made"), ("fast", "one of eager, compiled")):
        with pytest.raises(SettingError, match=message):
            train_offline(
                "t", made(Iql, Iql.config_class(), facts), make_rows(), OfflineTraining(1, updates=updates), seed=0
            )
