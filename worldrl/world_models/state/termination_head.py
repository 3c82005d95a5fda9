"""A learned termination rule, for tasks without a known one: logistic regression by a small network.

Terminals are rare, so half of each batch is terminals. Bayes' rule corrects the logit for that:
ℓ = f(s, a, s') + ln(π/(1 - π)), with π the dataset's share of terminals. A step ends the task where ℓ > 0.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import fit
from worldrl.core.training.optimizer import adamw, warmup_cosine
from worldrl.core.transitions import Transitions
from worldrl.nn.blocks import Mlp
from worldrl.nn.stored import StoredModule


@dataclass
class TerminationTraining:
    """How the head learns."""

    width: int = 128  # of its hidden layer.
    steps: int = 2000  # optimizer steps.
    batch_size: int = 256  # rows per step, half of them terminals.
    learning_rate: float = 3e-3  # highest, of a cosine.


class TerminationHead(StoredModule):
    """Predicts the end of the task; a :data:`~worldrl.world_models.state.terminations.Termination`."""

    kind = "termination-head"
    mean: Tensor
    std: Tensor
    prior: Tensor

    def __init__(self, obs_size: int, action_size: int, width: int):
        super().__init__()
        self.sizes = {"obs_size": obs_size, "action_size": action_size, "width": width}
        inputs = 2 * obs_size + action_size
        self.net = Mlp(inputs, width, 1)
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))
        self.register_buffer("prior", torch.zeros(()))

    def balanced_logit(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Return f(s, a, s') ``[B]``, as if half of all steps were terminals."""
        inputs = torch.cat([obs, action, next_obs], dim=1)
        return self.net((inputs - self.mean) / self.std)[:, 0]

    def forward(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Return bool ``[B]``."""
        with torch.no_grad():
            return self.balanced_logit(obs, action, next_obs) + self.prior > 0


def fit_termination(
    name: str,
    rows: Transitions,
    training: TerminationTraining | None = None,
    *,
    seed: int,
    folder: Path | None = None,
    log: MetricLog | None = None,
) -> TerminationHead:
    """Fit a head to a dataset's terminals; SettingError: it has none, or nothing else."""
    training = training or TerminationTraining()
    ended, others = rows.terminated.nonzero()[:, 0], (~rows.terminated).nonzero()[:, 0]
    if not len(ended) or not len(others):
        raise SettingError(
            f"{name}: {len(ended)} of {len(rows)} rows are terminals; a head needs both kinds. Where only the time limit "
            "ends an episode, give termination=never"
        )
    with initial_weights(seed, name, "weights"):
        head = TerminationHead(rows.obs.shape[1], rows.action.shape[1], training.width).to(rows.obs.device)
    inputs = torch.cat([rows.obs, rows.action, rows.next_obs], dim=1).double()
    head.mean.copy_(inputs.mean(dim=0))
    head.std.copy_(inputs.std(dim=0, correction=0).clamp_min(1e-6))
    head.prior.fill_(torch.tensor(len(ended) / len(others)).log())
    half = training.batch_size // 2
    target = torch.cat([torch.ones(half), torch.zeros(half)]).to(rows.obs.device)

    def loss(step: int) -> tuple[Tensor, Logs]:
        generator = stream(seed, name, step)
        drawn = [
            kind[torch.randint(len(kind), (half,), generator=generator).to(kind.device)] for kind in (ended, others)
        ]
        batch = rows.select(torch.cat(drawn))
        logit = head.balanced_logit(batch.obs, batch.action, batch.next_obs)
        return F.binary_cross_entropy_with_logits(logit, target), {}

    fit(
        name,
        modules={"head": head},
        optimizer=adamw(head, training.learning_rate, 1e-4),
        loss=loss,
        steps=training.steps,
        folder=folder,
        schedule=warmup_cosine(training.steps, training.steps // 20),
        log=log,
        every_log=max(1, training.steps // 200),
    )
    return head.eval()
