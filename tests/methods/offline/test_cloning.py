"""Units under test: ``worldrl.methods.offline.cloning`` in the agents that begin so, and targets that are bounded."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.cloning import CLONED_MOST, CLONING, LEARNING, cloning_loss
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.mobile import Mobile
from worldrl.methods.offline.networks import Gaussian
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import Neubay, NeubayConfig
from worldrl.methods.offline.neubay.packed_sequences import COLUMNS, PackedSequences, segment
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.targets import bounded
from worldrl.methods.offline.training import OfflineTraining, train_offline
from worldrl.methods.offline.updates import Graphed

SMALL = NeubayConfig(memory=MemoryConfig(8, 4, 1), hidden=(8, 8), critics=4, encoder_rate=1e-3, head_rate=1e-3)


def make(agent_class: Any, facts: Facts, **over: Any) -> Any:
    with initial_weights(0, "agent"):
        return agent_class(agent_class.config_class(**({"hidden": (16, 16)} | over)), facts)


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- equations ------------------------------------------------------------------------------------------------------


def test_targets_are_kept_between_floor_and_ceiling() -> None:
    y = torch.tensor([-2.0, 0.5, 3.0])
    assert bounded(y, 0.0, 1.0).tolist() == [0.0, 0.5, 1.0]
    assert bounded(y, None, 1.0).tolist() == [-2.0, 0.5, 1.0]
    assert bounded(y, 0.0, None).tolist() == [0.0, 0.5, 3.0]
    assert bounded(y, None, None) is y


def test_cloning_finds_the_likeliest_gaussian() -> None:
    action = torch.tensor([[0.2, -0.5], [0.6, -0.1], [-0.3, 1.0]], dtype=torch.float64)
    raw = action.clamp(max=CLONED_MOST).atanh()
    gaussian = Gaussian(
        torch.zeros(2, dtype=torch.float64, requires_grad=True), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    )
    optimizer = torch.optim.Adam(gaussian, lr=0.02)
    for _ in range(4000):
        optimizer.zero_grad()
        cloning_loss(Gaussian(*(part.expand(3, 2) for part in gaussian)), action).backward()
        optimizer.step()
    torch.testing.assert_close(gaussian.mean.detach(), raw.mean(dim=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gaussian.log_std.detach().exp(), raw.std(dim=0, correction=0), rtol=1e-4, atol=1e-4)


# --- agents of rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent_class", [Sac, Ravl])
def test_actor_clones_then_learns(agent_class: Any, facts: Facts, make_rows: Any, same_tree: Any) -> None:
    agent, rows, phases = make(agent_class, facts, clone_steps=2), make_rows(), []
    for step in range(4):
        phase, actor, critic = agent.phase, weights(agent.actor), weights(agent.critic)
        alpha, state = float(agent.temperature.alpha), copy.deepcopy(agent.state_dict())
        logs = agent.update(rows, generator=stream(0, step), real=8)
        phases.append(phase)
        assert not equal(critic, weights(agent.critic))
        assert not equal(actor, weights(agent.actor))
        assert ("actor/clone" in logs, "actor/alpha" in logs) == (phase == CLONING, phase == LEARNING)
        assert (float(agent.temperature.alpha) == alpha) == (phase == CLONING)
        after = copy.deepcopy(agent.state_dict())
        agent.load_state_dict(state)
        agent.update(rows, generator=stream(0, step), real=8)
        same_tree(agent.state_dict(), after)
    assert phases == [CLONING] * 2 + [LEARNING] * 2


def test_cloned_actor_does_what_the_data_did_at_its_own_rate(facts: Facts, make_rows: Any) -> None:
    rows = make_rows()
    rows = replace(rows, action=0.6 + 0.2 * rows.action)  # 0.42 to 0.78
    agent = make(Sac, facts, clone_steps=400, clone_rate=2e-3, actor_rate=1e-12)
    for step in range(400):
        agent.update(rows, generator=stream(0, step))
    cloned = agent.act(rows.obs, generator=None)
    assert bool(((cloned - 0.6).abs() < 0.2).all())
    agent.update(rows, generator=stream(0, 400))
    torch.testing.assert_close(agent.act(rows.obs, generator=None), cloned)  # the rate is actor_rate again


def test_recorded_rows_alone_are_cloned(facts: Facts, make_rows: Any) -> None:
    rows = make_rows()
    other = replace(rows, action=torch.cat([rows.action[:8], -rows.action[8:]]))
    one, two = (make(Sac, facts, clone_steps=5) for _ in range(2))
    one.update(rows, generator=stream(0), real=8)
    two.update(other, generator=stream(0), real=8)
    assert equal(weights(one.actor), weights(two.actor))
    assert not equal(weights(one.critic), weights(two.critic))
    with pytest.raises(SettingError, match=r"imagining\.real_ratio must be above 0 with agent\.clone_steps"):
        one.update(rows, generator=stream(0), real=0)


def test_the_loop_tells_how_many_rows_are_recorded(facts: Facts, make_rows: Any) -> None:
    """RAMBO imagines nothing while it clones, so all of its batch is recorded then."""
    told: list[int | None] = []

    class Told(Sac):
        imagines = False

        def update(self, batch: Any, *, generator: torch.Generator, real: int | None = None) -> Any:
            told.append(real)
            self.imagines = self.updates >= 1
            return super().update(batch, generator=generator, real=real)

    class Rows:
        def generate(self, agent: Any, *, generator: torch.Generator) -> Any:
            return make_rows(4), {}

    plan, training = Imagining(1, 0.5, 4, 1), OfflineTraining(steps=4, batch_size=8)
    train_offline("c", make(Told, facts), make_rows(), training, seed=0, imagination=Rows(), imagining=plan)
    train_offline("d", make(Told, facts), make_rows(), replace(training, steps=1), seed=0)
    assert told == [8, 8, 4, 4, 8]


@pytest.mark.parametrize("agent_class", [Sac, Ravl])
def test_no_target_lies_beyond_its_bounds(agent_class: Any, facts: Facts, make_rows: Any) -> None:
    rows = replace(make_rows(), reward=torch.linspace(-3, 3, 32))
    free, held = (
        make(agent_class, facts, **over).target(rows, stream(0)) for over in ({}, {"floor": 0.0, "ceiling": 1.0})
    )
    assert float(free.min()) < 0
    assert float(free.max()) > 1
    torch.testing.assert_close(held, free.clamp(0, 1))


def test_graphs_are_recorded_for_each_phase(facts: Facts, make_rows: Any) -> None:
    taken: list[int] = []

    class Calling:
        def warm(self, step: Any) -> Any:
            return step()

        def record(self, step: Any, generator: torch.Generator) -> Any:
            taken.append(agent.phase)
            return step

    agent, eager = (make(Sac, facts, clone_steps=5) for _ in range(2))
    update = Graphed(agent, Calling())
    for step in range(10):
        update(make_rows(8, seed=step), generator=stream(0, step), real=4)
        eager.update(make_rows(8, seed=step), generator=stream(0, step), real=4)
    assert taken == [CLONING, LEARNING]
    for one, other in zip(weights(agent.actor), weights(eager.actor), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


# --- NEUBAY ---------------------------------------------------------------------------------------------------------


def packed_rows(real: float, imagined: float) -> PackedSequences:
    """Six recorded steps that took one action, six imagined ones that took another."""
    parts = [
        segment(
            torch.randn(7, 3, generator=stream(number)),
            torch.full((6, 2), action),
            torch.full((6,), 5.0),
            terminated=False,
            real=torch.full((6,), number == 0),
        )
        for number, action in enumerate((real, imagined))
    ]
    return PackedSequences(*(torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS))


def recurrent(facts: Facts, **over: Any) -> Neubay:
    with initial_weights(0, "neubay"):
        return Neubay(replace(SMALL, **over), facts)


def test_recurrent_actor_clones_recorded_steps_alone(facts: Facts) -> None:
    agent, packed = recurrent(facts, clone_steps=200, clone_rate=1e-2, actor_rate=1e-12), packed_rows(0.8, -0.8)
    for step in range(200):
        assert "actor/clone" in agent.learn(packed, generator=stream(0, step))
    action, _ = agent.step(packed.obs[:1], packed.action[:1], packed.reward[:1], agent.begin(1), generator=None)
    assert bool(((action - 0.8).abs() < 0.1).all())
    assert "actor/alpha" in agent.learn(packed, generator=stream(0, 200))
    assert agent.learn(packed_rows(0.8, -0.8), generator=stream(0, 201)).keys().isdisjoint({"actor/clone"})


def test_a_tape_without_recorded_steps_teaches_a_clone_nothing(facts: Facts) -> None:
    agent, packed = recurrent(facts, clone_steps=3), packed_rows(0.5, -0.5)
    before = weights(agent.actor)
    imagined = replace(packed, real=torch.zeros_like(packed.real))
    assert "actor/clone" not in agent.learn(imagined, generator=stream(0))
    assert equal(before, weights(agent.actor))


def test_recurrent_targets_are_bounded(facts: Facts) -> None:
    packed, targets = packed_rows(0.5, -0.5), []
    for over in ({}, {"floor": 0.0, "ceiling": 1.0}):
        agent = recurrent(facts, **over)
        policy = agent.actor.head(agent.actor.encoder(packed.obs, packed.action, packed.reward, packed.reset)[0])
        targets.append(agent.target(packed, policy, stream(0)))
    assert float(targets[0].max()) > 1
    torch.testing.assert_close(targets[1], targets[0].clamp(0, 1))


def test_actor_rate_is_the_heads_and_its_encoder_keeps_its_distance(facts: Facts) -> None:
    agent = recurrent(facts, encoder_rate=1e-4, head_rate=1e-3, actor_rate=1e-5)
    agent.learn(packed_rows(0.5, -0.5), generator=stream(0))
    slow, fast = (group["lr"] for group in agent.optimizers["actor"].param_groups)
    assert (slow, fast) == (pytest.approx(1e-6), pytest.approx(1e-5))  # the cosine has just begun
    assert [group["lr"] for group in agent.optimizers["critic"].param_groups] == [1e-4, 1e-3]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config_class", [SacConfig, RavlConfig, NeubayConfig])
@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"floor": 1.0, "ceiling": 1.0}, r"agent\.ceiling must be above agent\.floor=1\.0, got 1\.0"),
        ({"clone_steps": -1}, r"agent\.clone_steps must be zero or more, got -1"),
        ({"clone_rate": 0.0}, r"agent\.clone_rate must be positive, got 0\.0"),
    ],
)
def test_beginning_out_of_range_is_refused(config_class: Any, over: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        config_class(**over)


@pytest.mark.parametrize("agent_class", [Sac, Mobile, Neubay])
def test_training_that_would_only_clone_is_refused(agent_class: Any, facts: Facts) -> None:
    config = agent_class.config_class(clone_steps=100)
    message = r"agent\.clone_steps must be below training\.steps=100, .* got 100"
    with pytest.raises(SettingError, match=message):
        agent_class.check(config, facts)
    agent_class.check(replace(config, clone_steps=99), facts)


def test_actor_rate_of_none_or_more_is_refused() -> None:
    with pytest.raises(SettingError, match=r"agent\.actor_rate must be positive, got 0\.0"):
        NeubayConfig(actor_rate=0.0)
