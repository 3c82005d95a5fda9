"""BranchGRPO's loss is that of its videos, each with all of its steps; that they share evaluations changes no weight."""

from dataclasses import fields

import pytest
import torch

from worldrl.core.rng import stream
from worldrl.diffusion.sde import Denoising, RatioRule
from worldrl.methods.alignment.branch_grpo import (
    BranchGrpo,
    BranchGrpoConfig,
    depth_advantages,
    fused_values,
    kept_leaves,
    leaves_below,
)
from worldrl.methods.alignment.ratio import noisy_steps, ratio_loss
from worldrl.methods.alignment.task import judge
from worldrl.methods.alignment.videos import group_keys, grow

RULE = RatioRule("mean", 1e-2)


def whole_paths(tree, leaves):
    """For each layer the node on the way to every kept leaf, int64 ``[kept leaves]``."""
    nodes, path = leaves.nonzero()[:, 0], []
    for layer in reversed(tree.layers):
        path.append(nodes)
        nodes = layer.parent[nodes]
    return path[::-1]


def gradient(dynamics, loss):
    dynamics.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in dynamics.parameters() if p.grad is not None])


@pytest.mark.parametrize("width", ["none", "extremes", "parent_best"])
def test_the_loss_of_a_tree_is_that_of_its_videos_step_by_step(make_task, width):
    """(1 / leaves) Σ_leaf (1 / T) Σ_t min(ρ A, ...), with the advantage of the node that the leaf's step t leads to."""
    task = make_task(chunks=2, group_size=4)
    config = BranchGrpoConfig(
        Denoising(steps=3, noise="constant", eta=0.5), RULE, splits=[0, 3], children=3, prune_width=width
    )
    method = BranchGrpo(task, config)
    (loss,) = method.losses(0, {})
    found = gradient(task.dynamics, loss)

    keys, roots = group_keys(0, task.config.prompts, 1)
    tree = grow(task, method.schedule, task.draw_starts(0), keys, roots, splits=method.splits)
    value = task.mix(judge(task, tree.latent, tree.start), tree.group)
    advantage, leaves = depth_advantages(task, tree, fused_values(tree, value, 0.0)), kept_leaves(tree, value, config)
    every = [torch.ones(len(layer.group), dtype=torch.bool) for layer in tree.layers]
    steps = noisy_steps(tree.layers, method.schedule, advantage, every)
    row, index = 0, []
    for layer, nodes in zip(tree.layers, whole_paths(tree, leaves), strict=True):
        if layer.step in method.schedule.noisy:
            index.append(row + nodes)
            row += len(layer.group)
    videos = steps.select(torch.cat(index))
    shared = len(videos) - len(torch.cat(index).unique())
    assert (shared > 0) == (width != "parent_best")  # told once for each video
    wanted = gradient(task.dynamics, ratio_loss(task.dynamics, method.schedule, videos, RULE)[0])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-7)
    assert found.norm() > 0


def test_every_layer_of_a_tree_counts_alike(make_task):
    """As every step of a video does: two nodes of the first chunk weigh as much as the eight of the last."""
    task = make_task(chunks=3)
    config = BranchGrpoConfig(Denoising(steps=2, noise="constant", eta=0.5), RULE, splits=[0, 2, 4])
    method = BranchGrpo(task, config)
    keys, roots = group_keys(0, task.config.prompts, 1)
    tree = grow(task, method.schedule, task.draw_starts(0), keys, roots, splits=method.splits)
    value = torch.randn(len(tree.group), generator=stream(0, "value"))
    for width, leaves in (("none", 16), ("extremes", 8)):
        chosen = kept_leaves(tree, value, BranchGrpoConfig(config.denoising, prune_width=width))
        below = leaves_below(tree, chosen)
        assert [int(each.sum()) for each in below] == [leaves] * 6
        advantage = [torch.ones(len(layer.group)) for layer in tree.layers]
        steps = noisy_steps(tree.layers, method.schedule, advantage, below)
        assert steps.weight.mean().item() == pytest.approx(1)
        rows = [int((each > 0).sum()) for each, layer in zip(below, tree.layers, strict=True) if layer.step == 0]
        shares = [float(part.sum()) for part in steps.weight.split(rows)]
        assert shares == pytest.approx([len(steps) / 3] * 3)
    assert {field.name for field in fields(steps)} >= {"advantage", "weight"}
