"""BranchGRPO (2509.06040): videos of a group share their first denoising steps, as a tree.

At some steps every row splits; the children share one network evaluation and differ by their noise. Rewards of the leaves
are fused upward, and every edge gets the advantage of the node it leads to, normalised over the nodes of its depth::

    V(node) = Σ_leaf w_leaf R_leaf,    w ∝ exp(α Σ log p of the edges from the node to the leaf)      (α = 0: the mean)
    A(node) = (V - mean of its depth) / std of its depth

One terminal reward so becomes a dense credit: an early edge is judged by all that followed from it. Over a video of several
chunks the tree spans denoising steps and chunks alike; a split at the beginning of chunk ``u`` is at step ``u S``.

The objective is GRPO's over the leaves' videos, each with all of its steps; that they share early edges saves evaluations and
changes no weight. An edge therefore counts once for each leaf below it, and every layer as much as any other::

    J = 1/B Σ_leaf 1/T Σ_t min(ρ_t A(node_t), clip(ρ_t) A(node_t)) = 1/T Σ_t Σ_{node of t} (leaves below / B) min(...)

The mean over edges would count the first chunk of three, from which all follows, a quarter as much as the last.

Pruning leaves nodes out of the backward pass only. In width: the best child of each last split (``parent_best``), or each
prompt's best and worst leaves (``extremes``). In depth: a window of layers that slides down as training goes on.
The published code multiplies the noise at splits by 4 and keeps the log-probability of the plain noise; here both agree.

Shapes legend: ``R`` nodes of a layer, ``B`` leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import Logs
from worldrl.diffusion.sde import Denoising, RatioRule, Schedule, make_schedule
from worldrl.methods.alignment.ratio import noisy_steps, ratio_losses
from worldrl.methods.alignment.task import AlignmentTask, clipped_advantage, judge, reward_logs
from worldrl.methods.alignment.videos import VideoTree, group_keys, grow

WIDTHS = ("none", "parent_best", "extremes")


def _ratio() -> RatioRule:
    return RatioRule(clip=1e-3)


@dataclass
class BranchGrpoConfig:
    """Settings of BranchGRPO.

    Attributes:
        denoising: steps and noise.
        ratio: reduction of the log-probability and the range that goes with it.
        splits: noisy denoising steps at which every row splits, counted through all chunks; by default the first of each of
            three chunks.
        children: of each row at a split; the group has ``children`` to the power of the number of splits.
        fusion: α, how much more the likelier leaves count in their ancestors' values.
        prune_width: ``none``, ``parent_best`` or ``extremes``.
        extremes_share: of a prompt's leaves that ``extremes`` keeps, best and worst together.
        prune_depth: layers in the sliding window of layers without gradient; 0 keeps all.
        prune_interval: iterations after which the window moves one layer down, beginning at the root.
        prune_stop: layer at which the window stops.
    """

    denoising: Denoising = field(default_factory=Denoising)
    ratio: RatioRule = field(default_factory=_ratio)
    splits: list[int] = field(default_factory=lambda: [0, 4, 8])
    children: int = 2
    fusion: float = 0.0
    prune_width: str = "none"
    extremes_share: float = 0.5
    prune_depth: int = 0
    prune_interval: int = 30
    prune_stop: int = 9

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.prune_width not in WIDTHS:
            raise SettingError(
                f"branch_grpo.prune_width: unknown {self.prune_width!r}{nearest(self.prune_width, WIDTHS)}"
            )
        if not self.splits or len(set(self.splits)) < len(self.splits):
            raise SettingError(f"branch_grpo.splits must name different steps, got {self.splits}")
        if self.children < 2 or self.prune_interval < 1 or self.prune_depth < 0 or self.fusion < 0:
            raise SettingError("branch_grpo needs children >= 2, prune_interval >= 1, prune_depth >= 0, fusion >= 0")
        if not 0 < self.extremes_share <= 1:
            raise SettingError(f"branch_grpo.extremes_share must be in (0, 1], got {self.extremes_share}")


def fused_values(tree: VideoTree, value: Tensor, alpha: float) -> list[Tensor]:
    """Fuse the leaves' rewards ``[B]`` upward: per layer the value of the node that each edge leads to, ``[R]``.

    Goes from the leaves to the root with the logarithm of each node's weight Z = Σ_leaf exp(α Σ log p).
    """
    weight, values = torch.zeros_like(value), [value]
    for above, below in zip(reversed(tree.layers[:-1]), reversed(tree.layers[1:]), strict=True):
        rows = len(above.group)
        edge = weight + alpha * below.logp.to(value)
        weight = _scatter_logsumexp(edge, below.parent, rows)
        share = torch.exp(edge - weight[below.parent])
        values.append(torch.zeros(rows, dtype=value.dtype).scatter_add_(0, below.parent, share * values[-1]))
    return values[::-1]


def _scatter_logsumexp(value: Tensor, index: Tensor, size: int) -> Tensor:
    most = torch.full((size,), -torch.inf, dtype=value.dtype).scatter_reduce_(0, index, value, "amax")
    total = torch.zeros(size, dtype=value.dtype).scatter_add_(0, index, (value - most[index]).exp())
    return most + total.log()


def depth_advantages(task: AlignmentTask, tree: VideoTree, values: Sequence[Tensor]) -> list[Tensor]:
    """Normalise each layer's values within its prompts, clipped; a prompt's only node there gets 0.

    What scales them is the layer's deviation in each prompt, or over all prompts (``AlignmentTask.batch_scale``).
    """
    return [clipped_advantage(task, value, layer.group) for value, layer in zip(values, tree.layers, strict=True)]


def kept_leaves(tree: VideoTree, value: Tensor, config: BranchGrpoConfig) -> Tensor:
    """Choose the leaves that width pruning keeps, bool ``[B]``."""
    if config.prune_width == "none":
        return torch.ones_like(value, dtype=torch.bool)
    if config.prune_width == "parent_best":
        return _best_of(value, _last_split_parent(tree))
    keep = torch.zeros_like(value, dtype=torch.bool)
    for prompt in tree.group.unique():
        leaves = (tree.group == prompt).nonzero()[:, 0]
        ordered = leaves[value[leaves].argsort(stable=True)]
        each = max(1, round(config.extremes_share * len(leaves) / 2))
        keep[torch.cat([ordered[:each], ordered[-each:]])] = True
    return keep


def _last_split_parent(tree: VideoTree) -> Tensor:
    """Return the node before the last split that each leaf descends from, int64 ``[B]``."""
    origin = torch.arange(len(tree.group))
    for layer in reversed(tree.layers):
        origin = layer.parent[origin]
        if len(layer.parent) > len(layer.parent.unique()):
            break
    return origin


def _best_of(value: Tensor, family: Tensor) -> Tensor:
    """Mark the first best member of each family, bool ``[B]``."""
    keep = torch.zeros_like(value, dtype=torch.bool)
    for number in family.unique():
        members = (family == number).nonzero()[:, 0]
        keep[members[value[members].argmax()]] = True
    return keep


def leaves_below(tree: VideoTree, leaves: Tensor) -> list[Tensor]:
    """Count the kept leaves ``[B]`` that each node leads to: per layer int64 ``[R]``; 0 prunes it.

    So often its step counts in the loss, which is that of the kept videos with all of their steps.
    """
    below = [leaves.long()]
    for above, layer in zip(reversed(tree.layers[:-1]), reversed(tree.layers[1:]), strict=True):
        below.append(torch.zeros(len(above.group), dtype=torch.int64).scatter_add_(0, layer.parent, below[-1]))
    return below[::-1]


def pruned_layers(iteration: int, config: BranchGrpoConfig) -> range:
    """Layers without gradient in this iteration: a window that has moved ``iteration // prune_interval`` layers down."""
    first = min(iteration // config.prune_interval, config.prune_stop)
    return range(first, first + config.prune_depth)


def check_splits(config: BranchGrpoConfig, schedule: Schedule, chunks: int) -> dict[int, int]:
    """Return the splits as :func:`~worldrl.methods.alignment.videos.grow` takes them; SettingError where one cannot be."""
    possible = [chunk * schedule.steps + step for chunk in range(chunks) for step in schedule.noisy]
    if wrong := sorted(set(config.splits) - set(possible)):
        raise SettingError(
            f"branch_grpo.splits: step {wrong[0]} adds no noise, its children would be one; noisy steps are {possible}"
        )
    return dict.fromkeys(config.splits, config.children)


class BranchGrpo:
    """BranchGRPO on an alignment task; the size of its groups follows from the splits.

    Args:
        task: model, starts, reward.
        config: settings.
    """

    def __init__(self, task: AlignmentTask, config: BranchGrpoConfig) -> None:
        self.task, self.config = task, config
        self.schedule = make_schedule(config.denoising, task.model.config.dynamics.shift)
        self.splits = check_splits(config, self.schedule, task.config.chunks)
        self.modules: dict[str, nn.Module] = {}

    def losses(self, iteration: int, logs: Logs) -> Iterator[Tensor]:
        """Imagine, judge, and yield one loss per gradient step."""
        task, config, schedule = self.task, self.config, self.schedule
        keys, roots = group_keys(iteration, task.config.prompts, 1)
        start = task.draw_starts(iteration)
        tree = grow(task, schedule, start, keys, roots, reduce=config.ratio.reduce, splits=self.splits)
        terms = judge(task, tree.latent, tree.start)
        value = task.mix(terms, tree.group)
        logs.update(reward_logs(task, terms, tree.group), **{"cost/evaluations": torch.tensor(float(tree.evaluations))})
        values = fused_values(tree, value, config.fusion)
        advantage = depth_advantages(task, tree, values)
        counted = leaves_below(tree, kept_leaves(tree, value, config))
        for layer in pruned_layers(iteration, config):
            if layer < len(counted):
                counted[layer] = torch.zeros_like(counted[layer])
        steps = noisy_steps(tree.layers, schedule, advantage, counted)
        yield from ratio_losses(task, schedule, steps, config.ratio, iteration, logs)
