"""Units under test: whole agents on a real task, Gymnasium's pendulum: what is learned in seconds, against what it was learned from.

Thresholds lie between what was measured (beside each) and what agents with a wrong sign before the values earn: -839 and -1,061.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.iql import Iql, IqlConfig
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.td3_bc import Td3Bc, Td3BcConfig
from worldrl.reproductions.neubay.pendulum import REWARD_SCALE, STEPS, hang, observe, play, record, swing

COMMON = {"hidden": (64, 64), "discount": 0.97, "polyak": 0.02}
BATCH = 128


def played(agent):
    """Mean return of greedy episodes, in Gymnasium's rewards."""
    return float(play(partial(agent.act, generator=None), 50, generator=stream(7, "played")).mean())


@pytest.fixture(scope="module")
def recorded():
    """10,000 rows of a noisy controller, which earns -472 to -451 (three seeds)."""
    rows, _ = record(50, generator=stream(100, "recorded"))
    return replace(rows, reward=rows.reward / REWARD_SCALE)


def offline(made, config, rows, updates, seed=100):
    """An agent after that many updates on the rows."""
    facts = Facts.of(rows, rows.reward.reshape(-1, STEPS).sum(dim=1).numpy(), updates=updates)
    with initial_weights(seed, "agent"):
        agent = made(config, facts)
    draws = stream(seed, "batches")
    for _ in range(updates):
        agent.update(rows.select(torch.randint(len(rows), (BATCH,), generator=draws)), generator=draws)
    return agent


def test_td3_bc_earns_far_more_than_the_data(recorded):
    agent = offline(Td3Bc, Td3BcConfig(**COMMON, learning_rate=1e-3), recorded, 2000)
    assert played(agent) > -300  # three seeds: -208 to -191


def test_iql_earns_far_more_than_the_data(recorded):
    agent = offline(Iql, IqlConfig(**COMMON, learning_rate=1e-3, temperature=0.5), recorded, 3000)
    assert played(agent) > -300  # three seeds: -192 to -179


def test_sac_learns_to_swing_up_from_nothing():
    """Ten pendulums step side by side, an update per step, from 1,000 random steps on."""
    rates = {f"{part}_rate": 1e-3 for part in ("actor", "critic", "temperature")}
    start = Facts(torch.zeros(3), torch.ones(3), action_size=1, updates=1)
    with initial_weights(1, "agent"):
        agent = Sac(SacConfig(**COMMON, **rates, actor_cosine=False), start)
    draws, parts = stream(1, "online"), []
    angle, speed = hang(10, generator=draws)
    for step in range(600):
        obs = observe(angle, speed)
        action = agent.act(obs, generator=draws) if step >= 100 else 2 * torch.rand(10, 1, generator=draws) - 1
        angle, speed, reward = swing(angle, speed, action)
        no = torch.zeros(10, dtype=torch.bool)
        parts.append((obs, action, reward / REWARD_SCALE, observe(angle, speed), no, no))
        if (step + 1) % STEPS == 0:
            angle, speed = hang(10, generator=draws)
        if step >= 100:
            learn(agent, Transitions(*map(torch.cat, zip(*parts, strict=True))), draws)
    assert played(agent) > -400  # two other seeds: -179, -160; without torque some -1,200


def learn(agent, rows, draws, updates=10):
    for _ in range(updates):
        agent.update(rows.select(torch.randint(len(rows), (BATCH,), generator=draws)), generator=draws)
