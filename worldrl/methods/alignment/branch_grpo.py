"""BranchGRPO (2509.06040): videos of a group share their first denoising steps, as a tree.

At some steps every row splits; the children share one network evaluation and differ by their noise. Rewards of the
leaves are fused upward, and every edge gets the advantage of the node it leads to, normalised over the nodes of its
depth::

    V(node) = Σ_leaf w_leaf R_leaf,    w ∝ exp(α Σ log p of the edges from the node to the leaf)      (α = 0: the mean)
    A(node) = (V - mean of its depth) / std of its depth
    J = 1/B Σ_leaf 1/T Σ_t min(ρ_t A(node_t), clip(ρ_t) A(node_t))

A split at the beginning of chunk ``u`` is at step ``u S``. In J an edge counts once for each leaf below it; the mean
over edges would count the first chunk of three, from which all follows, a quarter as much as the last.

Pruning leaves nodes out of the backward pass only: in width the best child of each last split (``parent_best``), or
each prompt's best and worst leaves (``extremes``); in depth a window of layers that slides down as training continues.
The published code multiplies the noise at splits by 4 and keeps the log-probability of the plain noise; here both
agree.

Shapes legend: ``R`` nodes of a layer, ``B`` leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, nearest
from worldrl.diffusion.sde import Denoising, RatioRule, Schedule, make_schedule
from worldrl.methods.alignment.imagination import paths, task_scale
from worldrl.methods.alignment.ratio import NoisyVideos, ratio_method
from worldrl.methods.alignment.task import AlignmentTask
from worldrl.methods.rl.advantages import group_std
from worldrl.methods.rl.config import Parts
from worldrl.methods.rl.groups import group_mean
from worldrl.methods.rl.interfaces import MATES, TREE, AdvantageEstimator, Node, Trace, needs
from worldrl.methods.rl.method import Method, fitted
from worldrl.methods.rl.selection import everything, extremes

WIDTHS = ("none", "parent_best", "extremes")


def _ratio() -> RatioRule:
    return RatioRule(clip=1e-3)


@dataclass
class BranchGrpoConfig:
    """Settings of BranchGRPO."""

    denoising: Denoising = field(default_factory=Denoising)  # steps and noise.
    # reduction of the log-probability and the range that goes with it.
    ratio: RatioRule = field(default_factory=_ratio)
    # noisy denoising steps at which every row splits, counted through all chunks; by default the first of each of three
    # chunks.
    splits: list[int] = field(default_factory=lambda: [0, 4, 8])
    children: int = 2  # of each row at a split; the group has ``children`` to the power of the number of splits.
    fusion: float = 0.0  # α, how much more the likelier leaves count in their ancestors' values.
    prune_width: str = "none"  # ``none``, ``parent_best`` or ``extremes``.
    extremes_share: float = 0.5  # of a prompt's leaves that ``extremes`` keeps, best and worst together.
    prune_depth: int = 0  # layers in the sliding window of layers without gradient; 0 keeps all.
    prune_interval: int = 30  # iterations after which the window moves one layer down, beginning at the root.
    prune_stop: int = 9  # layer at which the window stops.

    def __post_init__(self) -> None:
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


def fused_values(tree: Sequence[Node], value: Tensor, alpha: float) -> list[Tensor]:
    """Fuse the leaves' rewards ``[B]`` upward: by time the value of the node that each edge leads to, ``[R]``."""
    weight, values = torch.zeros_like(value), [value]
    for above, below in zip(reversed(tree[:-1]), reversed(tree[1:]), strict=True):
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


@needs(MATES)
def by_depth(value: Tensor, trace: Trace, *, fusion: float = 0.0, scale: AdvantageEstimator = group_std) -> Tensor:
    """Value each decision by all that followed from it, normalised over the nodes of its depth in each prompt.

    Equation: V(node) = Σ_leaf w_leaf R_leaf, w ∝ exp(α Σ log p); A(node) = (V - mean of its depth) / std of its depth
    Paper: BranchGRPO (2509.06040)

    A prompt's only node at a depth gets 0. Without a tree, rollouts share nothing and this is ``scale``.
    """
    if trace.tree is None:
        return scale(value, trace)
    advantage = list[Tensor]()
    for node, path, fused in zip(trace.tree, paths(trace.tree), fused_values(trace.tree, value, fusion), strict=True):
        depth = Trace(trace.iteration, node.group, torch.ones(1, len(node.group), dtype=torch.bool))
        advantage.append(scale(fused, depth)[0][path])
    return torch.stack(advantage)


@needs(TREE)
def fork_relative(value: Tensor, trace: Trace, *, fork_weight: float = 1.0) -> Tensor:
    """Compare each decision with those that left the same fork, beside the comparison of whole rollouts.

    Equation: A_t = A^E + ω (V(node_t) - mean of V over its parent's children), A^E as group_std, V = mean R of its leaves
    Paper: PORTool (2510.26020), without its rewards for formats and calls, ω = 1 (ours)
    """
    if trace.tree is None:
        raise SettingError(
            "parts.advantage=fork_relative needs rollouts that share their beginnings; give method=branch_grpo"
        )
    apart = list[Tensor]()
    for node, path, fused in zip(trace.tree, paths(trace.tree), fused_values(trace.tree, value, 0.0), strict=True):
        apart.append((fused - group_mean(fused, node.parent)[node.parent])[path])
    return group_std(value, trace) + fork_weight * torch.stack(apart)


@needs(TREE)
def parent_best(advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator) -> Tensor:
    """Keep the best child of each last split.

    Equation: w = 1 for the first best leaf below each node that splits last
    Paper: BranchGRPO's width pruning (2509.06040)
    """
    if trace.tree is None:
        raise SettingError(
            "parts.selection=parent_best needs rollouts that share their beginnings; give method=branch_grpo"
        )
    family, keep = _last_split_parent(trace.tree), torch.zeros_like(value)
    for number in family.unique():
        members = (family == number).nonzero()[:, 0]
        keep[members[value[members].argmax()]] = 1
    return keep.expand(trace.valid.shape)


def _last_split_parent(tree: Sequence[Node]) -> Tensor:
    origin = torch.arange(len(tree[-1].group))
    for layer in reversed(tree):
        origin = layer.parent[origin]
        if len(layer.parent) > len(layer.parent.unique()):
            break
    return origin


def pruned(
    advantage: Tensor, value: Tensor, trace: Trace, generator: torch.Generator, *, config: BranchGrpoConfig
) -> Tensor:
    """Prune a tree in width and in depth, as its settings say: weights ``[T, B]``."""
    width = {"none": everything, "parent_best": parent_best, "extremes": extremes}[config.prune_width]
    weight = fitted(width, extremes_share=config.extremes_share)(advantage, value, trace, generator).clone()
    window = pruned_layers(trace.iteration, config)
    weight[window.start : window.stop] = 0
    return weight


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


def branch_grpo(task: AlignmentTask, config: BranchGrpoConfig, parts: Parts | None = None) -> Method:
    """Videos that share their first denoising steps, as a tree; the size of its groups follows from the splits.

    Equation: J = 1/B Σ_leaf 1/T Σ_t min(ρ_t A(node_t), clip(ρ_t) A(node_t))
    Paper: BranchGRPO (2509.06040)
    """
    schedule = make_schedule(config.denoising, task.model.config.dynamics.shift)
    splits = check_splits(config, schedule, task.config.chunks)
    return ratio_method(
        NoisyVideos(task, schedule, config.ratio.reduce, splits),
        config.ratio,
        parts,
        rows=task.config.prompts,
        advantage=partial(by_depth, fusion=config.fusion, scale=task_scale(task)),
        selection=partial(pruned, config=config),
    )
