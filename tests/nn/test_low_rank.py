"""Low-rank additions: nothing at first, the sum by hand, only they move, and after merging the network is what it was."""

import copy

import pytest
import torch
from torch import nn

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights
from worldrl.core.training.optimizer import adamw
from worldrl.nn.blocks import Block
from worldrl.nn.low_rank import LowRankConfig, add_low_rank, merge_low_rank, trained_share

TOKENS = torch.linspace(-1, 1, 48).view(1, 6, 8).sin()


@pytest.fixture
def network():
    with initial_weights(0, "network"):
        return nn.ModuleList([nn.Linear(8, 8), Block(8, 2)])


def run(network):
    return network[1](network[0](TOKENS))


def train(network, steps=2):
    optimizer = adamw(network, 0.1, 0.5)  # a weight decay that would show
    for _ in range(steps):
        optimizer.zero_grad()
        run(network).square().sum().backward()
        optimizer.step()


def test_only_the_additions_move_and_merged_they_are_the_weights(network):
    before = copy.deepcopy(network.state_dict())
    at_first = run(network)
    add_low_rank(network, network[1], LowRankConfig(rank=2, alpha=6.0), seed=3)
    assert torch.equal(run(network), at_first)
    linear = [(8, 8), (16, 8), (8, 8), (32, 8), (8, 32)]  # q, k and v, out, and the two of the MLP
    added = sum(2 * (rows + columns) for rows, columns in linear)
    assert trained_share(network) == pytest.approx(added / (added + sum(v.numel() for v in before.values())))
    train(network)
    addition = network[1].mlp[0].parametrizations.weight[0]
    by_hand = before["1.mlp.0.weight"] + 6 / 2 * addition.up @ addition.down
    learned = run(network)
    merge_low_rank(network)
    assert network.state_dict().keys() == before.keys()
    assert torch.equal(run(network), learned)
    torch.testing.assert_close(network[1].mlp[0].weight.data, by_hand.data)
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    names = ("attention.to_query", "attention.to_key_value", "attention.out", "mlp.0", "mlp.2")
    assert changed == {f"1.{name}.weight" for name in names}
    assert trained_share(network) == 1
    assert torch.linalg.matrix_rank(network[1].mlp[0].weight - before["1.mlp.0.weight"], atol=1e-4) == 2


def test_the_seed_decides_and_the_process_wide_generator_does_not(network):
    def down(seed, process_seed):
        copied = copy.deepcopy(network)
        with torch.random.fork_rng():
            torch.manual_seed(process_seed)
            add_low_rank(copied, copied, LowRankConfig(rank=1), seed=seed)
        return copied[0].parametrizations.weight[0].down.detach()

    assert torch.equal(down(1, 0), down(1, 9))
    assert not torch.equal(down(1, 0), down(2, 0))


def test_rank_0_leaves_everything_and_impossible_ranks_are_refused(network):
    add_low_rank(network, network, LowRankConfig(), seed=0)
    assert trained_share(network) == 1
    with pytest.raises(SettingError, match=r"lora.rank: 9 is above a side of 0 \(8, 8\)"):
        add_low_rank(network, network, LowRankConfig(rank=9), seed=0)
    assert trained_share(network) == 1
    for over in ({"rank": -1}, {"alpha": 0.0}):
        with pytest.raises(SettingError, match=f"lora.{next(iter(over))}"):
            LowRankConfig(**over)
