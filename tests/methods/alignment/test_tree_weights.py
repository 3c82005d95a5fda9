"""BranchGRPO's loss is that of its videos, each with all of its steps; that they share evaluations changes no weight."""

from dataclasses import replace

import pytest
import torch

from worldrl.core.rng import stream
from worldrl.diffusion.sde import Denoising, RatioRule
from worldrl.methods.alignment.branch_grpo import BranchGrpoConfig, branch_grpo, by_depth, pruned
from worldrl.methods.alignment.imagination import paths
from worldrl.methods.alignment.ratio import DenoisingLogProb, noisy_steps
from worldrl.methods.rl.interfaces import Collected
from worldrl.methods.rl.losses import clipped

RULE = RatioRule("mean", 1e-2)


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
    method = branch_grpo(task, config)
    (loss,) = method.losses(0, {})
    found = gradient(task.dynamics, loss)

    tree = method.source.imagine(method.request(0))
    trace = method.source.trace(method.request(0), Collected(tree, method.source.score(tree)))
    value = method.source.score(tree)[:, 0]
    advantage = by_depth(value, trace)
    leaves = pruned(advantage, value, trace, torch.Generator(), config=config)[0].nonzero()[:, 0]
    steps = noisy_steps(tree, method.source.schedule, advantage, torch.ones_like(advantage))
    row, index = 0, []
    for layer, nodes in zip(tree.layers, paths(tree.layers), strict=True):
        if layer.step in method.source.schedule.noisy:
            index.append(row + nodes[leaves])
            row += len(layer.group)
    videos = replace(steps.select(torch.cat(index)), weight=torch.ones(len(torch.cat(index))))
    shared = len(videos) - len(torch.cat(index).unique())
    assert (shared > 0) == (width != "parent_best")  # printed once for each video
    again = DenoisingLogProb(task.dynamics, method.source.schedule, RULE.reduce)(videos, torch.Generator())
    wanted = gradient(task.dynamics, clipped(again, clip_low=RULE.range, clip_high=RULE.range)[0])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-7)
    assert found.norm() > 0


def test_every_layer_of_a_tree_counts_alike(make_task):
    """As every step of a video does: two nodes of the first chunk weigh as much as the eight of the last."""
    task = make_task(chunks=3)
    config = BranchGrpoConfig(Denoising(steps=2, noise="constant", eta=0.5), RULE, splits=[0, 2, 4])
    method = branch_grpo(task, config)
    tree = method.source.imagine(method.request(0))
    value = torch.randn(len(tree.group), generator=stream(0, "value"))
    trace = method.source.trace(method.request(0), Collected(tree, value[:, None]))
    for width, leaves in (("none", 16), ("extremes", 8)):
        weight = pruned(torch.zeros(0), value, trace, torch.Generator(), config=replace(config, prune_width=width))
        assert weight.sum(dim=1).tolist() == [leaves] * 6
        steps = noisy_steps(tree, method.source.schedule, torch.ones_like(weight), weight)
        assert steps.weight.mean().item() == pytest.approx(1)
        rows = [
            len(path[weight[n] > 0].unique())
            for n, (layer, path) in enumerate(zip(tree.layers, paths(tree.layers), strict=True))
            if layer.step == 0
        ]
        shares = [float(part.sum()) for part in steps.weight.split(rows)]
        assert shares == pytest.approx([len(steps) / 3] * 3)
