"""A video model's imagination by itself: videos as experience, in the form that all alignment methods share.

Shapes legend: ``B`` videos, ``N`` prompts, ``T`` denoising steps of a video, ``K`` reward terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from worldrl.core.interfaces import Logs
from worldrl.core.rng import stream
from worldrl.diffusion.sde import Schedule
from worldrl.methods.alignment.task import AlignmentTask, judge, reward_logs
from worldrl.methods.alignment.videos import Layer, VideoTree, grow
from worldrl.methods.rl.advantages import batch_std, group_std
from worldrl.methods.rl.budgets import uniform
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.control import Unchecked
from worldrl.methods.rl.interfaces import (
    AdvantageEstimator,
    Collected,
    LogProb,
    Node,
    PolicyLoss,
    Request,
    SampleSelector,
    Trace,
    UpdateController,
)
from worldrl.methods.rl.method import Method
from worldrl.methods.rl.records import StartRecords
from worldrl.methods.rl.selection import everything
from worldrl.methods.rl.starts import permuted
from worldrl.world_models.video.flow_transformer import FlowTransformer


def paths(tree: Sequence[Node]) -> list[Tensor]:
    """Return the node that each leaf descends from, by time: int64 ``[B]`` each."""
    nodes, found = torch.arange(len(tree[-1].group)), list[Tensor]()
    for node in reversed(tree):
        found.append(nodes)
        nodes = node.parent[nodes]
    return found[::-1]


@dataclass(frozen=True)
class VideoImagination:
    """Videos of an alignment task."""

    task: AlignmentTask  # model, starts, reward.
    schedule: Schedule  # of the denoising steps.
    reduce: str = "mean"  # how log-probabilities are reduced.
    splits: Mapping[int, int] | None = None  # denoising step to the number of children that each row then has.
    shared_noise: bool = False  # all rows of a prompt begin with the same noise.
    dynamics: FlowTransformer | None = None  # imagines in place of the task's own.

    @cached_property
    def records(self) -> StartRecords:
        """The task's starts; videos have rewards and do not succeed or fail."""
        tasks = [record.task for record in self.task.starts.records]
        return StartRecords(tasks, [False] * len(tasks))

    def stream(self, iteration: int, what: str, *more: int) -> torch.Generator:
        """Name a random stream of an iteration."""
        return stream(self.task.seed, what, iteration, *more)

    def imagine(self, request: Request) -> Any:
        """Imagine videos, as a tree."""
        return grow(
            self.task,
            self.schedule,
            request.starts,
            request.keys,
            request.group,
            reduce=self.reduce,
            splits=self.splits,
            shared_noise=self.shared_noise,
            dynamics=self.dynamics,
        )

    def score(self, experience: VideoTree) -> Tensor:
        """Return the reward's terms of every video ``[B, K]``."""
        return judge(self.task, experience.latent, experience.start)

    def reported(self, collected: Collected[Any]) -> Logs:
        """Say what the videos are worth, and what they cost."""
        made = collected.experience
        rewards = reward_logs(self.task, collected.terms, made.group)
        return {**rewards, "cost/evaluations": torch.tensor(float(made.evaluations))}

    def learned(self, starts: Tensor, collected: Collected[Any]) -> None:
        """Keep nothing: no video succeeds or fails."""

    def learnable(self, layer: Layer) -> bool:
        """Whether a denoising step is a decision that is learned from."""
        return layer.step in self.schedule.noisy

    def trace(self, request: Request, collected: Collected[Any]) -> Trace:
        """Return prompts, learnable steps and the tree."""
        tree = collected.experience
        valid = torch.tensor([self.learnable(layer) for layer in tree.layers])
        return Trace(request.iteration, tree.group, valid[:, None].expand(-1, len(tree.group)), tree=tree.layers)


def task_scale(task: AlignmentTask) -> AdvantageEstimator:
    """Return the estimator that fits the task's mix: one that is scaled already is divided by the batch's deviation (GDPO)."""
    return batch_std if task.batch_scale else group_std


def video_method(
    source: Any,
    log_prob: LogProb[Any],
    loss: PolicyLoss,
    parts: Parts,
    *,
    kl: float = 0.0,
    rows: int | None = None,
    advantage: AdvantageEstimator | None = None,
    selection: SampleSelector | None = None,
    control: UpdateController | None = None,
    **modules: FlowTransformer,
) -> Method:
    """Make an alignment method of its parts and the task's shared settings.

    ``rows`` per iteration default to the group size for each prompt, ``advantage`` to what fits the task's mix,
    ``selection`` to everything. ``kl`` is β; a checkpoint also holds ``modules``.
    """
    task: AlignmentTask = source.task
    config = task.config
    return Method(
        source=source,
        prompts=config.prompts,
        rows=config.prompts * config.group_size if rows is None else rows,
        mix=task.mix,
        advantage=parts.advantage or advantage or task_scale(task),
        selection=parts.selection or selection or everything,
        starts=parts.starts or permuted,
        budget=parts.budget or uniform,
        log_prob=log_prob,
        loss=loss,
        control=control or (parts.control or Unchecked)(),
        kl=kl,
        epochs=config.epochs,
        minibatch=config.minibatch,
        advantage_clip=config.advantage_clip,
        modules=dict(modules),
    )
