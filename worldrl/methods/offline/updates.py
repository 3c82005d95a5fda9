"""An agent's updates: eager, with compiled mathematics, or recorded as CUDA graphs; equal up to rounding.

``compiled``: ``torch.compile`` takes the computation between random numbers and optimizer steps, each part as one
whole graph. ``graphed`` records a whole update on the GPU once per phase and replays it in one launch. A graph reads
and writes fixed memory: rows are copied into one batch, the generator's state into one generator, and learning rates
into tensors; counters and schedules stay on the host.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol

import torch

from worldrl.core.errors import SettingError, require_value
from worldrl.core.interfaces import Logs
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Agent

EAGER, COMPILED, GRAPHED = UPDATES = ("eager", "compiled", "graphed")
SAC_PARTS = ("policy", "worth", "target_of")
PARTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sac", "sac_n", "mbpo", "mopo"), (*SAC_PARTS, "td_terms")),
    **dict.fromkeys(("edac", "ravl"), (*SAC_PARTS, "critic_gradients")),
    "td3_bc": ("critic_terms", "actor_terms"),
}
"""Algorithm to the methods that hold its update's mathematics; of no other are updates compiled or recorded."""
WARM_UP = 3  # updates of each phase before it is recorded: they make the optimizers' state and choose the kernels

Replay = Callable[[], Logs]
Update = Callable[..., Logs]
"""Takes a batch and ``generator=`` as :meth:`~worldrl.methods.offline.agent.Agent.update` does."""


def check_updates(kind: str, algorithm: str, config: Any, device: torch.device) -> None:
    """SettingError for updates that this algorithm, its settings, the device or the machine do not allow."""
    require_value(kind in UPDATES, "training.updates", f"one of {', '.join(UPDATES)}", kind)
    if kind == EAGER:
        return
    if algorithm not in PARTS:
        raise SettingError(
            f"training.updates={kind}: {algorithm}'s update is not made for it, those of {', '.join(PARTS)} are; give "
            "training.updates=eager"
        )
    if algorithm in ("edac", "ravl") and config.layer_norm and config.diversity:
        raise SettingError(
            f"training.updates={kind}: {algorithm} with agent.layer_norm differentiates twice, which does not compile; give "
            "agent.layer_norm=false or training.updates=eager"
        )
    if kind == GRAPHED and device.type != "cuda":
        raise SettingError(
            f"training.updates=graphed: CUDA graphs need a GPU, and the device is {device}; give device=cuda, or "
            "training.updates=compiled"
        )
    if kind == COMPILED and device.type == "cpu" and cpp_compiler() is None:
        raise SettingError(
            f"training.updates=compiled: on a CPU it needs a C++ compiler, and PATH has not {compiler_names()}; install g++, or "
            "give training.updates=eager"
        )


def compiler_names() -> str:
    """Return the names of the C++ compilers that are searched."""
    return os.environ.get("CXX") or "g++ or clang++"


def cpp_compiler() -> str | None:
    """Return the path of the C++ compiler, or None."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else shutil.which("g++") or shutil.which("clang++")


def updates_of(agent: Any, kind: str) -> Update:
    """Return the function that takes updates of ``kind``; call it after the agent's state was restored."""
    if kind == EAGER:
        return agent.update
    check_updates(kind, agent.name, agent.config, agent.device)
    if kind == COMPILED:
        compile_parts(agent)
        return agent.update
    return Graphed(agent, CudaRecorder())


def compile_parts(agent: Agent, backend: str = "inductor") -> None:
    """Replace the methods of an update's mathematics by compiled ones, in this agent alone."""
    for name in PARTS[agent.name]:
        setattr(agent, name, torch.compile(getattr(agent, name), fullgraph=True, dynamic=False, backend=backend))


# --- recorded updates -----------------------------------------------------------------------------------------------


class Recorder(Protocol):
    """Interface of a recorder of steps."""

    def warm(self, step: Replay) -> Logs:
        """Take a step that is not recorded."""
        ...

    def record(self, step: Replay, generator: torch.Generator) -> Replay:
        """Record a step without taking it; return the function that takes it."""
        ...


class CudaRecorder:
    """Records steps as CUDA graphs."""

    def warm(self, step: Replay) -> Logs:
        """Take a step on a stream of its own, as PyTorch requires before a recording."""
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            logs = step()
        current.wait_stream(side)
        return logs

    def record(self, step: Replay, generator: torch.Generator) -> Replay:
        """Record; a replay draws from the generator's state at that time and overwrites the previous logs."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            logs = step()

        def replay() -> Logs:
            graph.replay()
            return logs

        return replay


class Graphed:
    """Updates of one agent, recorded per phase after a few ordinary ones and replayed."""

    def __init__(self, agent: Agent, recorder: Recorder) -> None:
        self.agent, self.recorder = agent, recorder
        self.replays: dict[int, Replay] = {}
        self.taken: Counter[int] = Counter()
        self.batch: Transitions | None = None
        self.generator: torch.Generator | None = None
        make_capturable(agent)

    def __call__(self, batch: Transitions, *, generator: torch.Generator, real: int | None = None) -> Logs:
        """Take one update; its logs hold until the next."""
        agent, phase = self.agent, self.agent.phase
        agent.real = len(batch) if real is None else real
        rows, own = self.fill(batch, agent.draws(generator))
        agent.schedule()
        self.taken[phase] += 1
        if self.taken[phase] <= WARM_UP:
            logs = self.recorder.warm(lambda: agent.take_step(rows, own))
        else:
            if phase not in self.replays:
                self.replays[phase] = self.recorder.record(lambda: agent.take_step(rows, own), own)
            logs = self.replays[phase]()
        agent.updates += 1
        return logs

    def fill(self, batch: Transitions, draws: torch.Generator) -> tuple[Transitions, torch.Generator]:
        """Copy rows and generator to the memory that graphs read, and return them."""
        if self.batch is None or self.generator is None:
            self.batch = batch.select(torch.arange(len(batch), device=batch.obs.device))
            self.generator = torch.Generator(device=draws.device)
        require_value(len(batch) == len(self.batch), "training.batch_size", "the same in every update", len(batch))
        for item in fields(batch):
            getattr(self.batch, item.name).copy_(getattr(batch, item.name))
        self.generator.set_state(draws.get_state())
        return self.batch, self.generator


def make_capturable(agent: Agent) -> None:
    """Keep the optimizers' learning rates on the agent's device, where a graph reads them at each replay."""
    for optimizer in agent.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=agent.device)
            group["capturable"] = True
