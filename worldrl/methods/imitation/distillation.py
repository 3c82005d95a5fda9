"""Policy distillation: one policy learns the distributions of several teachers, each on the frames of its own tasks.

    min_θ E_task E_{s | task} [ KL(π_teacher(task)(· | s) ‖ π_θ(· | s)) + h(w_θ(s) - w_teacher(task)(s)) ]

with w the waypoint of policies that have one, and h the Huber error. Every task weighs alike.

Source: Rusu et al., Policy Distillation (1511.06295), with the KL of action distributions at temperature 1.

Shapes legend: ``M`` samples, ``B`` rows, ``L`` chunk, ``A`` numbers of an action.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.interfaces import Logs
from worldrl.core.rng import stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.fit import fit_module
from worldrl.methods.imitation.behaviour_cloning import Source
from worldrl.methods.imitation.config import Distillation
from worldrl.policies.samples import Samples
from worldrl.policies.token.policy import TokenPolicy
from worldrl.policies.token.tokens import still_dimensions
from worldrl.policies.token.waypoint import ROBUST

SERIES = "distillation"
WARMUP, CHECKPOINT_EVERY = 20, 100


def distil(
    policy: TokenPolicy,
    teachers: Mapping[str, TokenPolicy],
    samples: Samples,
    *,
    config: Distillation,
    seed: int,
    folder: Path | None,
    log: MetricLog | None,
    series: str = SERIES,
) -> None:
    """Train ``policy`` in place on frames of ``samples``, each with its task's teacher; resumes from ``folder``.

    Raises SettingError: a task of the samples has no teacher.
    """
    if lost := sorted(set(samples.task) - set(teachers)):
        raise SettingError(f"distillation: no teacher for the tasks {lost}")
    source = Source(samples, config.batch_size, balanced(samples.task))

    def loss(step: int) -> tuple[Tensor, Logs]:
        batch = source.draw(stream(seed, SERIES, step))
        divergence, away = distillation_loss(policy, teachers, batch)
        return divergence + away, {"policy/kl": divergence.detach(), "policy/waypoint": away.detach()}

    fit_module(
        series,
        policy,
        loss,
        part="policy",
        optimizer=policy.make_optimizer(config.learning_rate, 0.0),
        steps=config.steps,
        warmup=WARMUP,
        every_checkpoint=CHECKPOINT_EVERY,
        every_log=1,
        folder=folder,
        log=log,
    )


def balanced(task: Sequence[str]) -> Tensor:
    """Weights ``[M]`` with which every task is drawn alike."""
    frames = Counter(task)
    return torch.tensor([1 / frames[name] for name in task])


def distillation_loss(
    policy: TokenPolicy, teachers: Mapping[str, TokenPolicy], batch: Samples
) -> tuple[Tensor, Tensor]:
    """KL to each row's teacher, a mean over ``[B, L]`` and the numbers that move, and the Huber error of waypoints."""
    logits, waypoint = policy.predict(batch.observed)
    target, pose = _shown(teachers, batch, policy.device)
    divergence = F.kl_div(logits.log_softmax(-1), target, log_target=True, reduction="none").sum(dim=-1)
    moving = ~still_dimensions(policy.action_low, policy.action_high)
    away = logits.new_zeros(()) if waypoint is None or pose is None else F.smooth_l1_loss(waypoint.pose, pose, beta=ROBUST)  # fmt: skip
    return divergence[..., moving].mean(), away


@torch.no_grad()
def _shown(teachers: Mapping[str, TokenPolicy], batch: Samples, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities ``[B, L, A, bins]`` of each row's teacher, and its waypoints ``[B, A]``; None without any."""
    of_row = [teachers[task] for task in batch.task]
    rows = {own: torch.tensor([k for k, of in enumerate(of_row) if of is own]) for own in dict.fromkeys(of_row)}
    found = [teacher.predict(batch.select(index).observed) for teacher, index in rows.items()]
    order = torch.cat(list(rows.values())).argsort().to(device)
    logp = torch.cat([logits.log_softmax(-1) for logits, _ in found])[order]
    poses = [waypoint.pose for _, waypoint in found if waypoint is not None]
    return logp, torch.cat(poses)[order] if poses else None
