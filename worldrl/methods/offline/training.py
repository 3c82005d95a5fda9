"""Training of all offline agents: recorded and imagined batches, refreshed imagination, evaluation, resume.

Step ``k`` draws everything from ``rng.stream(seed, name, k)``: first the imagined generation where one is due, then the
batch, then the agent's own noise. The checkpoint holds the agent's state and the buffer, so a killed run resumes bit for
bit on the same machine with the same number of threads.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from worldrl.core.errors import NonFiniteError, require_value
from worldrl.core.interfaces import Imagination, Logs
from worldrl.core.rng import on_device, stream
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.loop import Training, every, repeat
from worldrl.core.transitions import Transitions, concat
from worldrl.methods.offline.agent import require_rules
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.updates import EAGER, UPDATES, Update, updates_of

Evaluate = Callable[[Any, int], Mapping[str, float]]
"""Maps the agent and the number of updates taken to numbers; must not draw from any stream of the training."""


@dataclass(frozen=True)
class OfflineTraining:
    """Settings of :func:`train_offline`."""

    steps: int = 100_000  # gradient steps in all.
    batch_size: int = 256  # rows per step, recorded and imagined together.
    evaluate_every: int = 10_000  # steps between evaluations; one more is made at the end.
    checkpoint_every: int = 10_000  # steps between checkpoints; one more is saved at the end.
    log_every: int = 100  # steps between log lines.
    # eager, compiled (``torch.compile``) or graphed (CUDA graphs); see :mod:`worldrl.methods.offline.updates`.
    updates: str = EAGER

    def __post_init__(self) -> None:
        require_rules(self, "training", {"at least 1": "steps batch_size evaluate_every checkpoint_every log_every"})
        require_value(self.updates in UPDATES, "training.updates", f"one of {', '.join(UPDATES)}", self.updates)


@dataclass(frozen=True)
class OfflineReport:
    """Result of :func:`train_offline`."""

    steps: int  # gradient steps in all.
    resumed_from: int  # first step of this session.
    wall_s: float  # seconds of this session.
    evaluations: list[dict[str, Any]]  # one entry per evaluation: ``step`` and the callback's numbers.
    # the last logged scalars; an earlier session's where no step was left.
    logs: dict[str, float] = field(default_factory=dict[str, float])


def draw(data: Transitions, rows: int, *, generator: torch.Generator) -> Transitions:
    """Draw rows uniformly with replacement."""
    index = torch.randint(len(data), (rows,), generator=generator, device=generator.device)
    return data.select(index.to(data.obs.device))


def mixed(
    data: Transitions, imagined: TransitionBuffer | None, batch_size: int, real: int, *, generator: torch.Generator
) -> Transitions:
    """Draw a batch: ``real`` recorded rows, then imagined ones; all recorded where nothing is imagined."""
    if imagined is None:
        return draw(data, batch_size, generator=generator)
    parts = [draw(data, real, generator=generator)] if real else []
    parts += [imagined.sample(batch_size - real, generator=generator)] if batch_size > real else []
    return concat(parts)


def train_offline(
    name: str,
    agent: Any,
    data: Transitions,
    training: OfflineTraining,
    *,
    seed: int,
    imagination: Imagination | None = None,
    imagining: Imagining | None = None,
    evaluate: Evaluate | None = None,
    folder: Path | None = None,
    log: MetricLog | None = None,
) -> OfflineReport:
    """Train an agent in place until ``training.steps`` steps are taken, resuming from ``folder`` (None saves nothing).

    ``name``: of the series in the log and of the random streams; ``evaluate``: called every ``evaluate_every`` steps
    and at the end, logged as ``name/evaluation``. Raises NonFiniteError: a logged scalar is not finite; ArtefactError:
    checkpoints are damaged or of another agent, or the disk refuses; SettingError: ``imagination`` without
    ``imagining``, or the reverse; or updates that the agent does not support. Ctrl-C raises once the step is saved.
    """
    together = (imagination is None) == (imagining is None)
    require_value(together, "imagining", "given where there is an imagination, and only there", imagining)
    buffer = None if imagining is None else TransitionBuffer(imagining.capacity, data.obs.device)
    state = _Run(name, agent, buffer, log)
    update = updates_of(agent, training.updates)
    step_of = _Step(name, agent, data, training, seed, imagination, imagining, buffer, update)

    def take(step: int, progress: Progress) -> int:
        logs = step_of(step)
        last = step + 1 == training.steps
        if last or (step + 1) % training.log_every == 0 or step_of.refreshed:
            state.write(step, logs)
        if evaluate is not None and (last or (step + 1) % training.evaluate_every == 0):
            state.note_evaluation(step + 1, evaluate(agent, step + 1))
        progress.advance(note=state.note)
        return step + 1

    stored = Training(name, folder, log, extra=state)
    session = repeat(stored, take, training.steps, due=every(training.checkpoint_every))
    return OfflineReport(session.last, session.first, session.wall_s, state.evaluations, state.logs)


@dataclass
class _Step:
    name: str
    agent: Any
    data: Transitions
    training: OfflineTraining
    seed: int
    imagination: Imagination | None
    imagining: Imagining | None
    buffer: TransitionBuffer | None
    update: Update
    refreshed: bool = False

    def refresh(self, step: int, generator: torch.Generator) -> Logs:
        """Imagine a generation where one is due: every ``refresh_every`` steps, and when the agent first reads them."""
        self.refreshed = False
        if self.imagination is None or self.imagining is None or self.buffer is None or not _imagines(self.agent):
            return {}
        if step % self.imagining.refresh_every and len(self.buffer):
            return {}
        rows, logs = self.imagination.generate(self.agent, generator=generator)
        self.buffer.add(rows)
        self.refreshed = True
        return logs

    def __call__(self, step: int) -> Logs:
        generator = on_device(stream(self.seed, self.name, step), self.data.obs.device)
        logs = self.refresh(step, generator)
        size, buffer = self.training.batch_size, self.buffer if _imagines(self.agent) else None
        real = size if buffer is None or self.imagining is None else self.imagining.real_rows(size)
        batch = mixed(self.data, buffer, size, real, generator=generator)
        return logs | self.update(batch, generator=generator, real=real)


def _imagines(agent: Any) -> bool:
    return getattr(agent, "imagines", True)


@dataclass
class _Run:
    name: str
    agent: Any
    buffer: TransitionBuffer | None
    log: MetricLog | None
    evaluations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    logs: dict[str, float] = field(default_factory=dict[str, float])
    note: str = ""

    def state_dict(self) -> dict[str, Any]:
        buffer = None if self.buffer is None else self.buffer.state_dict()
        agent = self.agent.state_dict()
        return {"agent": agent, "buffer": buffer, "evaluations": self.evaluations, "logs": self.logs}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.agent.load_state_dict(state_dict["agent"])
        self.evaluations, self.logs = state_dict["evaluations"], state_dict["logs"]
        if self.buffer is not None:
            self.buffer.load_state_dict(state_dict["buffer"])

    def write(self, step: int, logs: Logs) -> None:
        self.logs = {key: float(value) for key, value in logs.items()}
        wrong = [key for key, value in self.logs.items() if not math.isfinite(value)]
        if wrong:
            raise NonFiniteError(
                f"{self.name}: {wrong[0]} is {self.logs[wrong[0]]} at step {step}; lower the learning rates, or check "
                "critic/q in the log: it grows without bound where values are bootstrapped from states never trained on"
            )
        if self.log is not None:
            self.log.write(self.name, step, self.logs)

    def note_evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
        self.evaluations.append({"step": step, **numbers})
        self.note = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
        if self.log is not None:
            self.log.write(f"{self.name}/evaluation", step - 1, numbers)  # beside the update it follows
