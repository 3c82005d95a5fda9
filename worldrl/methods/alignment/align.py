"""The loop that aligns a video model: imagine, judge, update, again. Resumable, and counter-based like every loop.

Iteration ``k`` draws its starts and every row's noise from streams named by ``k``, so a killed run continues bit for bit
from its newest checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.errors import NonFiniteError, SettingError, nearest
from worldrl.core.interfaces import Logs
from worldrl.core.storage.checkpoint import load_checkpoint, save_checkpoint
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.optimizer import adamw
from worldrl.methods.alignment.branch_grpo import BranchGrpo, BranchGrpoConfig
from worldrl.methods.alignment.dance_grpo import DanceGrpo, DanceGrpoConfig
from worldrl.methods.alignment.diffusion_nft import DiffusionNft, DiffusionNftConfig
from worldrl.methods.alignment.flow_grpo import FlowGrpo, FlowGrpoConfig
from worldrl.methods.alignment.sol_rl import SolRl, SolRlConfig
from worldrl.methods.alignment.step_aware_preference import StepAwarePreference, StepAwarePreferenceConfig
from worldrl.methods.alignment.task import AlignmentTask

METHODS = ("flow_grpo", "dance_grpo", "branch_grpo", "diffusion_nft", "sol_rl", "step_aware_preference")


class AlignmentMethod(Protocol):
    """How one iteration becomes gradient steps.

    Attributes:
        modules: weights besides the trained ones that a checkpoint must hold.
    """

    modules: dict[str, nn.Module]

    def losses(self, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Imagine and judge, then yield one loss per gradient step, computed with the weights of that moment.

        ``logs`` receives ``reward/<term>``, ``cost/<count>`` and ``align/<quantity>``, detached.
        """
        ...


@dataclass
class MethodConfigs:
    """Settings of every method; only those of the chosen one have an effect.

    Attributes:
        flow_grpo: Flow-GRPO, and EVA's variant of it.
        dance_grpo: DanceGRPO.
        branch_grpo: BranchGRPO.
        diffusion_nft: DiffusionNFT.
        sol_rl: Sol-RL.
        step_aware_preference: step-aware preference optimisation.
    """

    flow_grpo: FlowGrpoConfig = field(default_factory=FlowGrpoConfig)
    dance_grpo: DanceGrpoConfig = field(default_factory=DanceGrpoConfig)
    branch_grpo: BranchGrpoConfig = field(default_factory=BranchGrpoConfig)
    diffusion_nft: DiffusionNftConfig = field(default_factory=DiffusionNftConfig)
    sol_rl: SolRlConfig = field(default_factory=SolRlConfig)
    step_aware_preference: StepAwarePreferenceConfig = field(default_factory=StepAwarePreferenceConfig)


def make_method(name: str, task: AlignmentTask, configs: MethodConfigs) -> AlignmentMethod:
    """Make the method called ``name``; SettingError with the nearest name where there is none."""
    makers: dict[str, Any] = {
        "flow_grpo": FlowGrpo,
        "dance_grpo": DanceGrpo,
        "branch_grpo": BranchGrpo,
        "diffusion_nft": DiffusionNft,
        "sol_rl": SolRl,
        "step_aware_preference": StepAwarePreference,
    }
    if name not in makers:
        raise SettingError(f"method: unknown {name!r}{nearest(name, METHODS)}")
    return makers[name](task, getattr(configs, name))


def align(
    task: AlignmentTask,
    method: AlignmentMethod,
    *,
    folder: Path | None,
    log: MetricLog | None,
    series: str = "align",
) -> list[dict[str, float]]:
    """Align the task's model in place.

    Args:
        task: model, starts, reward and shared settings.
        method: made for this task while its weights are those that training starts with.
        folder: checkpoints; None trains without.
        log: receives each iteration's numbers, and how long it took.
        series: name in the log.

    Returns:
        Each iteration's numbers, without times.

    Raises:
        NonFiniteError: a loss, gradient or reward is not finite; the weights are those before that step.
    """
    optimizer = adamw(task.dynamics, task.config.learning_rate, task.config.weight_decay)
    state: dict[str, Any] = {
        "modules": {"dynamics": task.dynamics, **method.modules},
        "optimizers": {"optimizer": optimizer},
    }
    found = load_checkpoint(folder, **state) if folder is not None else None
    first, history = (found.step, list(found.extra["history"])) if found else (0, list[dict[str, float]]())
    if log is not None:
        log.truncate(series, first)
    with Progress(series, task.config.iterations, start=first, unit="iterations") as progress:
        for k in range(first, task.config.iterations):
            numbers, seconds = _iterate(task, method, optimizer, k)
            history.append(numbers)
            if log is not None:
                log.write(series, k, {**numbers, **seconds})
            finished = k + 1
            if folder is not None and (
                finished % task.config.checkpoint_every == 0 or finished == task.config.iterations
            ):
                if log is not None:
                    log.flush()
                save_checkpoint(folder, finished, **state, extra={"history": history})
            progress.advance(note=_note(task, numbers))
    return history


def _iterate(
    task: AlignmentTask, method: AlignmentMethod, optimizer: Optimizer, iteration: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Take an iteration's gradient steps; return its numbers, and the seconds until the first loss and in all."""
    began, logs = _clocks(), Logs()
    imagined, norm = None, None
    for loss in method.losses(iteration, logs):
        imagined = imagined or _clocks()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(task.dynamics.parameters(), task.config.clip_norm)
        if not bool(torch.isfinite(loss)) or not bool(torch.isfinite(norm)):
            raise NonFiniteError(
                f"alignment: loss {loss.item()}, gradient norm {norm.item()} in iteration {iteration}; the model was not "
                "updated; lower alignment.learning_rate"
            )
        optimizer.step()
    if norm is not None:
        logs["align/gradient_norm"] = norm
    ended = _clocks()
    numbers = {name: float(value) for name, value in logs.items()}
    spent = {"imagining": imagined or ended, "iteration": ended}
    return numbers, {f"{clock}/{name}": now[clock] - began[clock] for name, now in spent.items() for clock in began}


def _clocks() -> dict[str, float]:
    """Seconds on the wall, and of this process's processors: which other jobs on the machine lengthen far less."""
    return {"seconds": time.monotonic(), "cpu_seconds": time.process_time()}


def _note(task: AlignmentTask, numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {numbers[f'reward/{name}']:.3g}" for name in task.reward.names)
