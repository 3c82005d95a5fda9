"""Training of the state ensemble: maximum likelihood in epochs, until no member improves.

Each member gets the rows in its own order. A member whose squared error on held-out rows improved by more than 1 % is
copied into the best snapshot; after five epochs without one, training ends with it, and its best members are the
elites. Epoch ``k`` draws from ``rng.stream(seed, name, "order", k)`` alone, so a killed run resumes bit for bit.

Shapes legend: ``M`` members, ``N`` training rows, ``H`` held-out rows, ``B`` rows of a batch, ``D`` targets.
"""

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.capacity import require_model_memory
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.training.loop import Training, every, repeat
from worldrl.core.transitions import Transitions
from worldrl.world_models.state.config import EnsembleConfig, EnsembleTraining
from worldrl.world_models.state.ensemble import Ensemble

SLOWED = 0.3  # factor of the learning rate once patience ends before ``min_epochs`` (RAVL)


@dataclass(frozen=True)
class EnsembleReport:
    """Result of :func:`fit_ensemble`."""

    epochs: int  # passes over the data, all sessions.
    resumed_from: int  # first epoch of this session; 0 for a fresh start.
    # best mean squared error of each member on the held-out rows, in units of the targets.
    holdout_error: tuple[float, ...]
    elites: tuple[int, ...]  # members in order of that error.
    stopped: str  # ``"patience"`` or ``"max_epochs"``.
    wall_s: float  # seconds of this session.
    skipped: tuple[str, ...] = ()  # damaged checkpoints, with reasons.

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        errors, elites = list(self.holdout_error), list(self.elites)
        return {"epochs": self.epochs, "holdout_error": errors, "elites": elites, "stopped": self.stopped}


def fit_ensemble(
    name: str,
    rows: Transitions,
    config: EnsembleConfig,
    training: EnsembleTraining,
    *,
    seed: int,
    folder: Path | None = None,
    log: MetricLog | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Ensemble, EnsembleReport]:
    """Train an ensemble on recorded rows; return every member's best epoch, in evaluation mode, and a report.

    ``name``: of the series in the log, messages and random streams. Without ``folder`` there are no checkpoints.
    Raises SettingError: fewer than two rows, or weight decays that do not fit the depth; NonFiniteError: the loss is
    not finite; ArtefactError: checkpoints are damaged, of another ensemble, or cannot be written. Ctrl-C raises once
    the epoch is saved.
    """
    began = time.monotonic()
    train, held = split_rows(rows, training, seed, name)
    sizes = rows.obs.shape[1], rows.action.shape[1]
    require_model_memory(lambda: Ensemble(config, *sizes), torch.device(device), "ensemble")
    with initial_weights(seed, name, "weights"):
        ensemble = Ensemble(config, *sizes)
    ensemble.fit_statistics(train)
    ensemble.to(device)
    data = MemberRows(ensemble, train.to(device), held.to(device), training, seed, name)
    state = _State(name, training, ensemble, copy.deepcopy(ensemble), make_optimizer(ensemble, training), log)

    def take(epoch: int, progress: Progress) -> int:
        state.take_epoch(data)
        progress.advance(note=f"hold-out {min(state.errors):.4g}")
        return state.epoch

    modules, optimizers = {"ensemble": ensemble, "best": state.best}, {"optimizer": state.optimizer}
    session = repeat(
        Training(name, folder, log, modules, optimizers, state),
        take,
        training.max_epochs or 1,
        due=every(training.checkpoint_epochs),
        unit="epoch",
        over=state.over,
    )
    elites, errors, seconds = state.finish(), tuple(state.errors), time.monotonic() - began
    report = EnsembleReport(state.epoch, session.first, errors, elites, state.stopped, seconds, session.skipped)
    return state.best.eval(), report


def refit_ensemble(
    name: str, ensemble: Ensemble, rows: Transitions, training: EnsembleTraining, *, seed: int
) -> EnsembleReport:
    """Continue training ``ensemble`` in place, by the same rule, on all rows; its statistics and units stay."""
    began = time.monotonic()
    train, held = split_rows(rows, training, seed, name)
    data = MemberRows(ensemble, train.to(ensemble.device), held.to(ensemble.device), training, seed, name)
    optimizer = make_optimizer(ensemble, training)
    state = _State(name, training, ensemble, copy.deepcopy(ensemble), optimizer, None)
    while not state.stopped:
        state.take_epoch(data)
    elites = state.finish()
    ensemble.load_state_dict(state.best.state_dict())
    return EnsembleReport(state.epoch, 0, tuple(state.errors), elites, state.stopped, time.monotonic() - began)


# --- parts ---------------------------------------------------------------------------------------------------------


def split_rows(rows: Transitions, training: EnsembleTraining, seed: int, name: str) -> tuple[Transitions, Transitions]:
    """Split rows at random: training rows, and min(``holdout_share``·N, ``holdout_most``) held-out rows."""
    held = min(int(len(rows) * training.holdout_share), training.holdout_most)
    if held < 1:
        raise SettingError(
            f"{name}: {len(rows)} rows leave none to hold out at holdout_share={training.holdout_share}; "
            "give more rows or a larger share"
        )
    order = torch.randperm(len(rows), generator=stream(seed, name, "split")).to(rows.obs.device)
    return rows.select(order[held:]), rows.select(order[:held])


def make_optimizer(ensemble: Ensemble, training: EnsembleTraining) -> Optimizer:
    """Make Adam with one weight decay per layer's weights (½·wd·‖W‖²), or AdamW on all parameters (``decoupled``)."""
    decay = training.decay_of_layers(len(ensemble.layers))
    trained = [parameter for parameter in ensemble.parameters() if parameter.requires_grad]
    if training.decoupled:
        return torch.optim.AdamW(trained, lr=training.learning_rate, weight_decay=decay[0], fused=True)
    weights = [layer.weight for layer in ensemble.layers]
    groups = [{"params": [w], "weight_decay": d} for w, d in zip(weights, decay, strict=True)]
    others = [parameter for parameter in trained if all(parameter is not w for w in weights)]
    return torch.optim.Adam([*groups, {"params": others}], lr=training.learning_rate, fused=True)


def train_step(
    ensemble: Ensemble, optimizer: Optimizer, inputs: Tensor, targets: Tensor, bound_weight: float
) -> Tensor:
    """Take one step on standardised inputs ``[M, B, S + A]`` and targets ``[M, B, D]``; return the loss, detached."""
    mean, logvar = ensemble(inputs)
    loss = ensemble.loss(mean, logvar, targets, bound_weight)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def holdout_error(ensemble: Ensemble, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return each member's mean squared error ``[M]`` on standardised rows ``[H, S + A]`` with targets ``[H, D]``."""
    mean, _ = ensemble(inputs.expand(ensemble.config.members, -1, -1))
    return (mean - targets).square().mean(dim=(1, 2))


class MemberRows:
    """Standardised rows on the training device, and each member's order of them."""

    def __init__(
        self,
        ensemble: Ensemble,
        train: Transitions,
        held: Transitions,
        training: EnsembleTraining,
        seed: int,
        name: str,
    ):
        self.inputs, self.targets = ensemble.inputs(train.obs, train.action), ensemble.targets(train)
        self.held_inputs, self.held_targets = ensemble.inputs(held.obs, held.action), ensemble.targets(held)
        self.training, self.seed, self.name, self.members = training, seed, name, ensemble.config.members
        self.drawn: Tensor | None = None
        if training.bootstrap:
            shape, generator = (self.members, len(train)), stream(seed, name, "bootstrap")
            self.drawn = torch.randint(len(train), shape, generator=generator, dtype=torch.int32)

    def order(self, epoch: int) -> Tensor:
        """Return the rows of each member in the order of an epoch: int32 ``[M, N]``."""
        generator, count = stream(self.seed, self.name, "order", epoch), len(self.inputs)
        orders = [torch.randperm(count, generator=generator, dtype=torch.int32) for _ in range(self.members)]
        if self.drawn is not None:
            orders = [drawn[order] for drawn, order in zip(self.drawn, orders, strict=True)]
        return torch.stack(orders).to(self.inputs.device)


def train_epoch(ensemble: Ensemble, optimizer: Optimizer, data: MemberRows, epoch: int) -> float:
    """Take one step per batch of each member's rows in ``epoch``'s order; mean loss, or NonFiniteError."""
    losses = []
    for index in data.order(epoch).split(data.training.batch_size, dim=1):
        batch = data.inputs[index], data.targets[index]
        losses.append(train_step(ensemble, optimizer, *batch, data.training.bound_weight))
    loss = float(torch.stack(losses).mean())
    if not math.isfinite(loss):
        raise NonFiniteError(
            f"{data.name}: loss is {loss} in epoch {epoch}; lower the learning rate or search for outliers in the data; "
            "the last checkpoint is intact"
        )
    return loss


@dataclass
class _State:
    """A checkpoint: ``ensemble``, ``best`` epoch by member with its ``errors``, ``dry`` epochs without improvement."""

    name: str
    training: EnsembleTraining
    ensemble: Ensemble
    best: Ensemble
    optimizer: Optimizer
    log: MetricLog | None
    errors: list[float] = field(init=False)
    epoch: int = 0
    dry: int = 0

    def __post_init__(self) -> None:
        self.errors = [math.inf] * self.ensemble.config.members

    @property
    def impatient(self) -> bool:
        return self.dry >= self.training.patience

    @property
    def stopped(self) -> str:
        if self.impatient and self.epoch > self.training.min_epochs:
            return "patience"
        return "max_epochs" if self.training.max_epochs and self.epoch >= self.training.max_epochs else ""

    def over(self, epoch: int) -> bool:
        self.epoch = epoch
        return bool(self.stopped)

    def take_epoch(self, data: MemberRows) -> None:
        loss = train_epoch(self.ensemble, self.optimizer, data, self.epoch)
        improved = self.keep_improved(holdout_error(self.ensemble, data.held_inputs, data.held_targets).tolist())
        self.dry = 0 if improved else self.dry + 1
        if self.log is not None:
            best = sorted(self.errors)[: self.ensemble.config.elites]
            values = {"loss": loss, "holdout_error": sum(best) / len(best), "improved": float(len(improved))}
            self.log.write(self.name, self.epoch, values)
        self.epoch += 1
        if self.impatient and self.epoch < self.training.min_epochs:
            self.slow_down()

    def slow_down(self) -> None:
        """Lower the learning rate, once; the optimizer's state shows whether it was lowered."""
        groups = self.optimizer.param_groups
        if groups[0]["lr"] < self.training.learning_rate:
            return
        for group in groups:
            group["lr"] = SLOWED * self.training.learning_rate
        self.dry = 0

    @torch.no_grad()
    def keep_improved(self, errors: list[float]) -> list[int]:
        """Copy members that improved by more than ``improvement`` into the snapshot; return them."""
        share = 1 - self.training.improvement
        improved = [index for index, error in enumerate(errors) if error < share * self.errors[index]]
        for best, new in zip(self.best.stacked(), self.ensemble.stacked(), strict=True):
            best[improved] = new[improved]
        for index in improved:
            self.errors[index] = errors[index]
        return improved

    @torch.no_grad()
    def finish(self) -> tuple[int, ...]:
        """Give the snapshot the present shared bounds and its elites; return these."""
        self.best.logvar_low.copy_(self.ensemble.logvar_low)
        self.best.logvar_high.copy_(self.ensemble.logvar_high)
        order = sorted(range(len(self.errors)), key=self.errors.__getitem__)[: self.ensemble.config.elites]
        self.best.elites.copy_(torch.tensor(order))
        return tuple(order)

    def state_dict(self) -> dict[str, Any]:
        return {"errors": self.errors, "dry": self.dry}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.errors, self.dry = state_dict["errors"], state_dict["dry"]
