"""BranchGRPO on a tree made by hand, as plain GRPO where it splits once, and what it costs."""

import math

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.diffusion.sde import Denoising, make_schedule
from worldrl.methods.alignment.branch_grpo import (
    BranchGrpoConfig,
    branch_grpo,
    by_depth,
    fork_relative,
    fused_values,
    parent_best,
    pruned,
    pruned_layers,
)
from worldrl.methods.alignment.flow_grpo import FlowGrpoConfig, flow_grpo
from worldrl.methods.alignment.imagination import paths
from worldrl.methods.alignment.ratio import noisy_steps
from worldrl.methods.alignment.videos import Layer, Surroundings, VideoTree
from worldrl.methods.rl.advantages import batch_std, group_advantage, group_std
from worldrl.methods.rl.interfaces import Trace

NOTHING = Surroundings(*[torch.zeros(0)] * 3)


def layer(parent, group, logp=None, step=0):
    rows = len(parent)
    x = torch.arange(rows, dtype=torch.float32).view(-1, 1, 1, 1, 1)
    around = Surroundings(x[:, 0], x, x[:, 0, :, 0])
    logp = torch.zeros(rows) if logp is None else torch.tensor(logp)
    return Layer(step, torch.tensor(parent), torch.tensor(group), x, x + 1, logp, around, False)


@pytest.fixture
def hand_made():
    """Two prompts; the first splits into two and these into two and three, the second into two at the end::

          a             b
         / \\            |
        c   d           e
       /|  /|\\         / \\
      2 6 1 2 3        5 7
    """
    layers = [
        layer([0, 1], [0, 1]),
        layer([0, 0, 1], [0, 0, 1], [0.0, 0.0, 0.0]),
        layer([0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1, 1], [math.log(3), 0.0, 0.0, 0.0, 0.0, 0.0, math.log(4)]),
    ]
    leaves = torch.tensor([2.0, 6, 1, 2, 3, 5, 7])
    tree = VideoTree(layers, torch.zeros(7, 1), layers[-1].group, layers[-1].group, [], 0)
    return tree, leaves


def seen(tree, iteration=0):
    """A trace of all steps of a tree."""
    return Trace(
        iteration, tree.group, torch.ones(len(tree.layers), len(tree.group), dtype=torch.bool), tree=tree.layers
    )


def weights(tree, value, config, iteration=0):
    """How often each leaf's steps count ``[T, B]``."""
    return pruned(torch.zeros(0), value, seen(tree, iteration), torch.Generator(), config=config)


def test_a_fork_compares_its_own_children(hand_made):
    """V of c, d = 4, 2 around 3 and e alone; then 2, 6 around 4 and 1, 2, 3 around 2, and 5, 7 around 6."""
    tree, leaves = hand_made
    found = fork_relative(leaves, seen(tree)) - group_std(leaves, seen(tree))
    wanted = [[0] * 7, [1, 1, -1, -1, -1, 0, 0], [-2, 2, -1, 0, 1, -1, 1]]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float32), atol=1e-5, rtol=0)
    alone = Trace(0, tree.group, torch.ones(3, 7, dtype=torch.bool))
    with pytest.raises(SettingError, match="rollouts that share their beginnings"):
        fork_relative(leaves, alone)


def test_values_are_means_of_descendants_and_advantages_are_by_depth(hand_made):
    tree, leaves = hand_made
    values = fused_values(tree.layers, leaves, 0.0)
    assert values[2].tolist() == leaves.tolist()
    assert values[1].tolist() == pytest.approx([4, 2, 6])
    assert values[0].tolist() == pytest.approx([14 / 5, 6])  # of leaves, not of children: c and d are 4 and 2
    advantage = by_depth(leaves, seen(tree))
    assert advantage[0].tolist() == [0] * 7  # one node of each prompt
    half = math.sqrt(0.5)
    assert advantage[1].tolist() == pytest.approx([half] * 2 + [-half] * 3 + [0, 0], abs=1e-5)
    sigma = math.sqrt(((leaves[:5] - 2.8) ** 2).sum().item() / 4)
    assert advantage[2][:5].tolist() == pytest.approx(((leaves[:5] - 2.8) / sigma).tolist(), abs=1e-5)
    everyones = by_depth(leaves, seen(tree), scale=batch_std)
    assert everyones[2].tolist() == pytest.approx(batch_std(leaves, seen(tree))[0].tolist())
    alone = Trace(0, tree.group, torch.ones(2, 7, dtype=torch.bool))
    assert torch.equal(by_depth(leaves, alone), group_std(leaves, alone))  # rollouts that share nothing


def test_likelier_leaves_count_more_if_asked(hand_made):
    tree, leaves = hand_made
    values = fused_values(tree.layers, leaves, 1.0)
    assert values[1].tolist() == pytest.approx([(3 * 2 + 6) / 4, 2, (5 + 4 * 7) / 5])
    assert values[0].tolist() == pytest.approx([(3 * 2 + 6 + 1 + 2 + 3) / 7, (5 + 4 * 7) / 5])


def test_width_pruning_keeps_the_extremes_and_those_who_lead_to_them(hand_made):
    tree, leaves = hand_made

    def kept(**over):
        """Nodes by time that any kept leaf descends from."""
        weight, found = weights(tree, leaves, BranchGrpoConfig(**over)), []
        for layer, path, often in zip(tree.layers, paths(tree.layers), weight, strict=True):
            below = torch.zeros(len(layer.group)).scatter_add_(0, path, often)
            found.append((below > 0).int().tolist())
        return found

    assert kept() == [[1, 1], [1, 1, 1], [1] * 7]
    assert kept(prune_width="parent_best") == [[1, 1], [1, 1, 1], [0, 1, 0, 0, 1, 0, 1]]
    assert kept(prune_width="extremes", extremes_share=0.4) == [[1, 1], [1, 1, 1], [0, 1, 1, 0, 0, 1, 1]]
    alone = Trace(0, tree.group, torch.ones(2, 7, dtype=torch.bool))
    with pytest.raises(SettingError, match="give method=branch_grpo"):
        parent_best(torch.zeros(0), leaves, alone, torch.Generator())


def test_depth_pruning_slides_down_and_stops():
    config = BranchGrpoConfig(prune_depth=2, prune_interval=10, prune_stop=3)
    assert [list(pruned_layers(k, config)) for k in (0, 9, 10, 25, 900)] == [[0, 1], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert list(pruned_layers(5, BranchGrpoConfig())) == []


def test_pruned_layers_weigh_nothing(hand_made):
    tree, leaves = hand_made
    config = BranchGrpoConfig(prune_depth=1, prune_interval=1, prune_stop=9)
    for iteration, expected in ((0, [0, 7, 7]), (2, [7, 7, 0]), (9, [7, 7, 7])):
        assert weights(tree, leaves, config, iteration).sum(dim=1).tolist() == expected


def test_pruned_nodes_are_never_shown_to_the_network(hand_made):
    """What is left out has no gradient: the loss does not contain it."""
    tree, leaves = hand_made
    schedule = make_schedule(Denoising(steps=2, noise="constant"))
    advantage = by_depth(leaves, seen(tree))
    keep = weights(tree, leaves, BranchGrpoConfig(prune_width="parent_best"))
    keep[0] = 0
    steps = noisy_steps(tree, schedule, advantage, keep)
    assert steps.x.flatten().tolist() == [0, 1, 2, 1, 4, 6]  # the layer's rows: all of the second, three leaves
    assert steps.advantage.tolist() == pytest.approx(
        [*advantage[1][[0, 2, 5]].tolist(), *advantage[2][[1, 4, 6]].tolist()]
    )
    assert steps.around.memory.flatten().tolist() == [0, 1, 2, 1, 4, 6]
    assert noisy_steps(tree, schedule, advantage, torch.zeros_like(keep)) is None


def run(method, iteration=0):
    logs = {}
    losses = [loss.detach() for loss in method.losses(iteration, logs)]
    return losses, logs


def test_one_split_at_the_root_is_plain_grpo_over_the_leaves(make_task):
    """Every edge below the root carries its leaf's group advantage; the loss is the plain one's on the same videos."""
    task = make_task(chunks=2)
    denoising = Denoising(steps=3, noise="constant", eta=0.5)
    method = branch_grpo(task, BranchGrpoConfig(denoising=denoising, splits=[0], children=4))
    request = method.request(0)
    assert request.group.tolist() == [0, 1]  # one root of each prompt
    tree = method.source.imagine(request)
    value = method.source.score(tree)[:, 0]
    plain = group_advantage(value, tree.group)
    for found in by_depth(value, seen(tree)):
        torch.testing.assert_close(found, plain)
    assert plain.abs().min() > 0


@pytest.mark.parametrize(("splits", "evaluations", "trained"), [([0, 1], 2 * (1 + 2 + 4 + 3 * 4), 2 * (2 + 4 + 4 + 4))])
def test_a_tree_costs_less_than_as_many_videos_alone(make_task, splits, evaluations, trained):
    """Network evaluations for four leaves per prompt, two chunks of three steps: 38 against 48; two steps of three noisy."""
    denoising = Denoising(steps=3, noise="constant", eta=0.5)
    branch = branch_grpo(make_task(), BranchGrpoConfig(denoising=denoising, splits=splits))
    plain = flow_grpo(make_task(), FlowGrpoConfig(denoising=denoising))
    costs = [run(method)[1] for method in (branch, plain)]
    assert costs[0]["cost/evaluations"] == evaluations
    assert costs[1]["cost/evaluations"] == 2 * 4 * 6
    assert costs[0]["cost/trained_steps"] == trained
    assert costs[1]["cost/trained_steps"] == 2 * 4 * 4
    half = BranchGrpoConfig(denoising=denoising, splits=splits, prune_width="parent_best")
    assert run(branch_grpo(make_task(), half))[1]["cost/trained_steps"] == 2 * (2 + 2 + 2 + 2)


def test_splits_must_be_where_noise_is(make_task):
    with pytest.raises(SettingError, match=r"step 2 adds no noise.*\[0, 1, 3, 4\]"):
        branch_grpo(make_task(), BranchGrpoConfig(denoising=Denoising(steps=3), splits=[0, 2]))
    for over in ({"splits": []}, {"splits": [1, 1]}, {"children": 1}, {"prune_width": "best"}, {"extremes_share": 0}):
        with pytest.raises(SettingError, match="branch_grpo"):
            BranchGrpoConfig(**over)
