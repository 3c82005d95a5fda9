"""The loop of RL in imagination: imagine, weigh, update, again. Resumable, and counter-based like every loop.

Iteration ``k`` draws its starts and every row's noise from streams named by ``k``, so a killed run continues bit for bit from its
newest checkpoint.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from worldrl.core.errors import NonFiniteError
from worldrl.core.interfaces import Logs, Stateful
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.loop import Training, every, repeat
from worldrl.methods.rl.method import Method

Numbers = dict[str, float]


@dataclass(frozen=True)
class Learner:
    """The weights that a method trains, and how."""

    modules: Mapping[str, nn.Module | Stateful]  # those weights, by their name in checkpoints.
    optimizer: Optimizer  # of them.
    parameters: Callable[[], Iterable[nn.Parameter]]  # what a backward pass leaves gradients in.
    clip_norm: float  # largest gradient norm.
    iterations: int  # in all.
    checkpoint_every: int  # iterations between checkpoints.
    name: str  # of the group of settings, for messages.
    note: Callable[[Numbers], str]  # the progress bar's words about them.
    kept: Callable[[Numbers], Any] = dict  # what the history keeps of an iteration's numbers.
    timed: bool = False  # how long each iteration took is logged, too.


def train(learner: Learner, method: Method, *, folder: Path | None, log: MetricLog | None, series: str) -> list[Any]:
    """Train in place and return what is kept of each iteration's numbers; without ``folder`` nothing is saved.

    Raises NonFiniteError where a loss, gradient or reward is not finite; the weights are those before that step.
    Ctrl-C raises once the running iteration is saved.
    """
    history = _History()
    modules = {**learner.modules, **method.modules}
    training = Training(series, folder, log, modules, {"optimizer": learner.optimizer}, history)

    def take(iteration: int, progress: Progress) -> int:
        numbers, seconds = iterate(learner, method, iteration)
        history.kept.append(learner.kept(numbers))
        if log is not None:
            log.write(series, iteration, {**numbers, **seconds} if learner.timed else numbers)
        progress.advance(note=learner.note(numbers))
        return iteration + 1

    repeat(training, take, learner.iterations, due=every(learner.checkpoint_every), unit="iteration")
    return history.kept


@dataclass
class _History:
    kept: list[Any] = field(default_factory=list[Any])

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.kept[:] = state_dict["history"]


def iterate(learner: Learner, method: Method, iteration: int) -> tuple[Numbers, Numbers]:
    """Take an iteration's gradient steps; return its numbers, and the seconds until the first loss and in all."""
    began, logs = _clocks(), Logs()
    imagined = None
    for loss in method.losses(iteration, logs):
        imagined = imagined or _clocks()
        norm = _step(learner, method, loss, iteration, logs)
        logs[f"{method.prefix}/gradient_norm"] = norm
    ended = _clocks()
    numbers = {name: float(value) for name, value in logs.items()}
    spent = {"imagining": imagined or ended, "iteration": ended}
    return numbers, {f"{clock}/{name}": now[clock] - began[clock] for name, now in spent.items() for clock in began}


def _step(learner: Learner, method: Method, loss: torch.Tensor, iteration: int, logs: Logs) -> torch.Tensor:
    """Take one gradient step as far as the method's controller lets it go; return the gradient's norm."""
    learner.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(learner.parameters(), learner.clip_norm)
    if not bool(torch.isfinite(loss)) or not bool(torch.isfinite(norm)):
        raise NonFiniteError(
            f"{learner.name}: loss {loss.item()}, gradient norm {norm.item()} in iteration {iteration}; the model was not "
            f"updated; lower {learner.name}.learning_rate"
        )
    own = f"{method.prefix}/"
    factor = method.control.before({k.removeprefix(own): v for k, v in logs.items() if k.startswith(own)})
    if factor == 1:
        learner.optimizer.step()
    elif factor > 0:
        rates = [group["lr"] for group in learner.optimizer.param_groups]
        for group in learner.optimizer.param_groups:
            group["lr"] *= factor
        learner.optimizer.step()
        for group, rate in zip(learner.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    return norm


def _clocks() -> Numbers:
    """Seconds on the wall, and of this process's processors: which other jobs on the machine lengthen far less."""
    return {"seconds": time.monotonic(), "cpu_seconds": time.process_time()}
