"""Unit under test: ``worldrl.methods.offline.neubay.recurrent_q``."""

import copy
from dataclasses import replace

import pytest
import torch

from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.packed_sequences import COLUMNS, PackedSequences, segment
from worldrl.methods.offline.neubay.recurrent_q import RecurrentQAgent, RecurrentQConfig, double_q_target

SMALL = RecurrentQConfig(memory=MemoryConfig(8, 4, 1), hidden=8, hidden_layers=1, encoder_lr=3e-3, head_lr=3e-3)


def laid_together(parts: list[PackedSequences]) -> PackedSequences:
    """Put tapes behind one another."""
    return PackedSequences(*(torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS))


def agent(config: RecurrentQConfig = SMALL) -> RecurrentQAgent:
    with initial_weights(0, "q"):
        return RecurrentQAgent(1, 2, config)


def packed(seed: int, *lengths: int, gain: tuple[float, float] = (0.0, 0.0)) -> PackedSequences:
    generator, parts = stream(seed, "q", "tape"), []
    for steps in lengths:
        arm = torch.randint(2, (steps,), generator=generator)
        obs = torch.randn(steps + 1, 1, generator=generator)
        action = torch.nn.functional.one_hot(arm, 2).float()
        parts.append(segment(obs, action, torch.tensor(gain)[arm], terminated=False, real=False))
    return laid_together(parts)


def test_target_takes_the_online_choice_and_the_target_value() -> None:
    y = double_q_target(
        torch.tensor([[1.0, 2.0], [5.0, 0.0]]),
        torch.tensor([[7.0, 3.0], [4.0, 9.0]]),
        torch.tensor([1.0, 1.0]),
        torch.tensor([False, True]),
        0.5,
    )
    assert y.tolist() == [1 + 0.5 * 3, 1.0]


def test_borders_between_episodes_teach_nothing() -> None:
    line = packed(0, 3, 4)
    wild = replace(line, reward=torch.where(line.reset, 1e6, line.reward))
    losses = [float(agent().update(rows)["recurrent_q/loss"]) for rows in (line, wild)]
    assert losses[0] == losses[1]


def test_better_arm_is_learned() -> None:
    made = agent(replace(SMALL, gamma=0.0))
    for step in range(80):
        made.update(packed(step, 20, 20, gain=(0.2, 0.8)))
    q, _ = made.network(torch.zeros(1, 1, 1), torch.zeros(1, 1, 2), torch.ones(1, 1, dtype=torch.bool))
    assert q.flatten().tolist() == pytest.approx([0.2, 0.8], abs=0.1)
    arm, _ = made.act(torch.zeros(50, 1), torch.zeros(50, 2), None, epsilon=0.0, generator=stream(0, "act"))
    assert bool((arm == 1).all())


def test_epsilon_is_the_share_of_uniform_choices() -> None:
    made = agent()
    draws = stream(0, "act")
    arm, _ = made.act(torch.zeros(4000, 1), torch.zeros(4000, 2), None, epsilon=1.0, generator=draws)
    assert float(arm.float().mean()) == pytest.approx(0.5, abs=0.03)


def test_resume_is_exact() -> None:
    made, again = agent(), agent()
    made.update(packed(0, 5))
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    for one in (made, again):
        one.update(packed(1, 6))
    for one, two in zip(made.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, two)
