"""Units under test: the equations of the offline agents, and what every agent must do."""

import copy
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions, concat
from worldrl.methods.offline.agent import Agent, Facts, cosine, load_agent, longest_episode, saved_algorithm
from worldrl.methods.offline.bc import Bc, unit_log_prob
from worldrl.methods.offline.cql import Cql, conservative_gap
from worldrl.methods.offline.edac import Edac
from worldrl.methods.offline.iql import Iql, advantage_weight, expectile_loss
from worldrl.methods.offline.mopo import Mopo
from worldrl.methods.offline.ravl import Ravl
from worldrl.methods.offline.sac import Sac, SacConfig, actor_loss, effective_penalty, soft_target, temperature_loss
from worldrl.methods.offline.sac_n import SacN
from worldrl.methods.offline.targets import td_loss, td_target
from worldrl.methods.offline.td3_bc import Td3Bc, smoothed, value_weight

MODEL_FREE = [Bc, Td3Bc, Iql, Sac, SacN, Edac, Ravl, Cql]


def make(agent_class: Any, facts: Facts, **over: Any) -> Any:
    with initial_weights(0, "agent"):
        return agent_class(agent_class.config_class(**({"hidden": (16, 16)} | over)), facts)


# --- equations ------------------------------------------------------------------------------------------------------


def test_target_stops_at_terminals_and_bootstraps_across_truncation() -> None:
    reward, terminated = torch.tensor([1.0, 2.0]), torch.tensor([False, True])
    assert td_target(reward, terminated, torch.tensor([10.0, torch.inf]), 0.9).tolist() == [10.0, 2.0]


def test_soft_target_by_hand() -> None:
    next_q = torch.tensor([[4.0, 7.0], [5.0, 6.0]])
    y = soft_target(
        torch.tensor([1.0, 1.0]),
        torch.tensor([False, False]),
        next_q,
        torch.tensor([-2.0, 0.5]),
        alpha=0.5,
        discount=0.9,
    )
    torch.testing.assert_close(y, torch.tensor([1 + 0.9 * (4 + 1), 1 + 0.9 * (6 - 0.25)]))


def test_losses_by_hand() -> None:
    q = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert float(td_loss(q, torch.tensor([0.0, 1.0]))) == pytest.approx((1 + 4) / 2 + (0 + 1) / 2)
    logp = torch.tensor([1.0, -3.0])
    assert float(actor_loss(logp, torch.tensor([2.0, 4.0]), torch.tensor(0.5))) == pytest.approx(-0.5 - 3)
    log_alpha = torch.tensor(0.2, requires_grad=True)
    loss = temperature_loss(log_alpha, logp, -2.0)
    loss.backward()
    assert loss.item() == pytest.approx(-0.2 * (-1 - 2))
    assert float(log_alpha.grad) == pytest.approx(3)  # pyright: ignore[reportArgumentType]


def test_expectile_of_samples_minimises_the_expectile_loss() -> None:
    values = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    assert expectile_loss(torch.tensor([2.0, -2.0]), 0.7).tolist() == pytest.approx([2.8, 1.2])
    level = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        (slope,) = torch.autograd.grad(expectile_loss(values - level, 0.7).mean(), level)
        level = (level - 0.3 * slope).detach().requires_grad_(True)
    # τ Σ (x − m)₊ = (1 − τ) Σ (m − x)₊ with 1 < m < 5: 0.7 (5 − m) = 0.3 (2 m − 1)
    assert level.item() == pytest.approx((0.7 * 5 + 0.3) / (0.7 + 0.6), rel=1e-6)


def test_advantage_weight_is_clipped_and_constant() -> None:
    advantage = torch.tensor([0.0, 1.0, 50.0], requires_grad=True)
    weight = advantage_weight(advantage, 3.0, 100.0)
    assert weight.tolist() == pytest.approx([1, math.exp(3), 100])
    assert not weight.requires_grad


def test_td3_bc_weight_and_smoothing() -> None:
    q = torch.tensor([1.0, -3.0], requires_grad=True)
    weight = value_weight(q, 2.5)
    assert float(weight) == pytest.approx(2.5 / 2)
    assert not weight.requires_grad
    action = smoothed(torch.tensor([[0.0], [0.9]]), torch.tensor([[10.0], [1.0]]), std=0.2, clip=0.5)
    assert action.flatten().tolist() == pytest.approx([0.5, 1.0])


def test_td3_bc_actor_descends_its_equation(facts: Facts, make_rows: Callable[..., Transitions]) -> None:
    agent, batch = make(Td3Bc, facts, actor_every=1, learning_rate=1e-9), make_rows()
    logs = agent.update(batch, generator=stream(0, "x"))
    chosen = agent.act(batch.obs, generator=None)
    q = agent.critic.member(0, batch.obs, chosen)
    clone = (chosen - batch.action).square().mean()
    torch.testing.assert_close(logs["actor/lambda"], 2.5 / q.abs().mean(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logs["actor/loss"], clone - logs["actor/lambda"] * q.mean(), rtol=1e-4, atol=1e-5)


def test_conservative_gap_by_hand() -> None:
    q_asked = torch.tensor([[[0.0, 1.0], [1.0, 1.0]]])  # N = 1, K = 2, B = 2
    logq = torch.log(torch.tensor([[0.5, 0.5], [0.25, 1.0]]))
    q_data = torch.tensor([[0.5, 1.5]])
    first, second = 2 * 1 + 4 * math.e, 2 * math.e + math.e
    expected = (math.log(first) + math.log(second)) / 2 - 1
    assert float(conservative_gap(q_asked, logq, q_data, 1.0)) == pytest.approx(expected, rel=1e-6)


def test_conservative_gap_of_a_constant_critic_estimates_the_log_volume(facts: Facts) -> None:
    """Two uniform actions in [-1, 1]² alone: log Σ_K exp(q − log ¼) = q + log 4 K."""
    q = torch.full((1, 6, 3), 2.0)
    logq = torch.full((6, 3), -2 * math.log(2))
    assert float(conservative_gap(q, logq, q[:, 0], 1.0)) == pytest.approx(math.log(24), rel=1e-6)


def test_effective_penalty_by_hand() -> None:
    assert effective_penalty(torch.tensor([[1.0, 4.0], [3.0, 4.0]])).tolist() == [1.0, 0.0]


def test_unit_log_prob_is_a_unit_gaussians() -> None:
    mean, action = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 1.0]])
    expected = torch.distributions.Normal(mean, 1.0).log_prob(action).sum(dim=1)
    torch.testing.assert_close(unit_log_prob(mean, action), expected)


def test_cosine_falls_to_zero() -> None:
    assert [cosine(step, 10) for step in (0, 5, 10, 20)] == pytest.approx([1, 0.5, 0, 0])


def test_longest_episode_counts_the_rows_between_ends(make_rows: Callable[..., Transitions]) -> None:
    rows = make_rows(12, terminated=0.0)
    assert longest_episode(rows) == 12
    rows.terminated[2], rows.truncated[9] = True, True
    assert longest_episode(rows) == 7  # rows 3 to 9; 10 and 11 were cut off
    assert Facts.of(rows, [0.0, 14.0]).reward_scale == 0.5


def test_facts(make_rows: Callable[..., Transitions]) -> None:
    rows = make_rows()
    found = Facts.of(rows, [-100.0, 300.0], updates=7, limit=1000)
    assert (found.obs_size, found.action_size, found.updates, found.reward_scale) == (3, 2, 7, 2.5)
    assert Facts.of(rows, [-100.0, 300.0], limit=200).reward_scale == 0.5
    torch.testing.assert_close(found.obs_mean, rows.obs.mean(dim=0))
    back = Facts.from_json(found.to_json())
    assert torch.equal(back.obs_std, found.obs_std)
    assert back.return_max == 300


# --- every agent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent_class", MODEL_FREE, ids=lambda c: c.name)
def test_agent_is_deterministic_and_its_state_comes_back(
    agent_class: type[Agent], facts: Facts, make_rows: Callable[..., Transitions], same_tree: Callable[..., None]
) -> None:
    batch = make_rows()
    first, second = make(agent_class, facts), make(agent_class, facts)
    for step in range(3):
        first.update(batch, generator=stream(0, step))
        if step == 1:
            second.load_state_dict(copy.deepcopy(first.state_dict()))
    logs = second.update(batch, generator=stream(0, 2))
    same_tree(first.state_dict(), second.state_dict())
    assert all(not value.requires_grad and bool(value.isfinite()) for value in logs.values())
    actions = first.act(batch.obs, generator=stream(1, "a"))
    assert actions.shape == batch.action.shape
    assert actions.dtype == torch.float32
    assert float(actions.abs().max()) <= 1
    assert torch.equal(first.act(batch.obs, generator=None), first.act(batch.obs, generator=None))


@pytest.mark.parametrize("agent_class", MODEL_FREE, ids=lambda c: c.name)
def test_saved_agent_acts_as_before(agent_class: type[Agent], facts: Facts, make_rows: Any, tmp_path: Any) -> None:
    agent, batch = make(agent_class, facts), make_rows()
    agent.update(batch, generator=stream(0, "x"))
    agent.save(tmp_path / "agent")
    assert saved_algorithm(tmp_path / "agent") == agent_class.name
    again = load_agent(tmp_path / "agent", agent_class)
    assert again.config == agent.config
    assert torch.equal(again.act(batch.obs, generator=None), agent.act(batch.obs, generator=None))
    other = Sac if agent_class is not Sac else Bc
    with pytest.raises(ArtefactError, match=agent_class.name):
        load_agent(tmp_path / "agent", other)


@pytest.mark.parametrize("agent_class", [Td3Bc, Iql, Sac, SacN, Edac, Ravl, Cql], ids=lambda c: c.name)
def test_target_critics_follow_at_rate_tau(agent_class: type[Agent], facts: Facts, make_rows: Any) -> None:
    agent = make(agent_class, facts, polyak=0.25, **({"actor_every": 1} if agent_class is Td3Bc else {}))
    before = [p.clone() for p in agent.target_critic.parameters()]
    agent.update(make_rows(), generator=stream(0, "x"))
    for old, new, online in zip(before, agent.target_critic.parameters(), agent.critic.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)


@pytest.mark.parametrize("agent_class", MODEL_FREE, ids=lambda c: c.name)
def test_density_has_gradients_in_both_arguments(agent_class: type[Agent], facts: Facts, make_rows: Any) -> None:
    agent, batch = make(agent_class, facts), make_rows()
    obs, action = batch.obs.requires_grad_(True), (0.5 * batch.action).requires_grad_(True)
    density = agent.log_prob(obs, action)
    gradients = torch.autograd.grad(density.sum(), (obs, action))
    assert density.shape == (len(batch),)
    assert all(bool(g.isfinite().all()) and float(g.abs().sum()) > 0 for g in gradients)


def test_edac_update_is_the_gradient_of_its_loss(facts: Facts, make_rows: Any) -> None:
    agent, batch = make(Edac, facts, diversity=0.5), make_rows()
    target = torch.randn(len(batch), generator=stream(0, "y"))
    loss, logs = agent.critic_loss(batch, target, stream(0, "d"))
    expected = torch.autograd.grad(loss, list(agent.critic.parameters()))
    found = agent.update_critic(batch, target, stream(0, "d"))
    for parameter, gradient in zip(agent.critic.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found["critic/diversity"], logs["critic/diversity"], rtol=1e-3, atol=1e-5)


def test_ravl_begins_with_the_published_numbers() -> None:
    config = Ravl.config_class()
    assert (config.critics, config.diversity, config.hidden, config.actor_rate) == (10, 1.0, (256, 256, 256), 3e-4)
    assert (config.temperature_rate, config.temperature, config.largest_temperature) == (3e-4, 1.0, None)
    assert (Ravl.imagining.horizon, Ravl.imagining.real_ratio, Ravl.imagining.penalty) == (5, 0.05, 0.0)
    assert Ravl.imagining.capacity == 50_000 * 5 * 5


def test_target_may_take_the_least_of_a_drawn_subset(facts: Facts, make_rows: Any) -> None:
    batch = replace(make_rows(), reward=torch.zeros(32), terminated=torch.zeros(32, dtype=torch.bool))
    agent = make(Sac, facts, critics=3, target_critics=1, entropy_backup=False, discount=1.0)
    with torch.no_grad():
        for linear in agent.target_critic.linears:
            linear.weight.zero_()
        agent.target_critic.linears[-1].bias.copy_(torch.tensor([1.0, 2.0, 3.0])[:, None, None])
    seen = {float(agent.target(batch, stream(0, step)).mean()) for step in range(30)}
    assert seen == {1.0, 2.0, 3.0}
    everything = make(Sac, facts, critics=3, entropy_backup=False, discount=1.0)
    everything.target_critic.load_state_dict(agent.target_critic.state_dict())
    assert float(everything.target(batch, stream(0, 0)).mean()) == 1.0


def test_temperature_may_be_fixed(facts: Facts, make_rows: Any) -> None:
    agent = make(Sac, facts, temperature_rate=0.0, temperature=0.2)
    agent.update(make_rows(), generator=stream(0, "x"))
    assert float(agent.temperature.alpha) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("agent_class", "over", "message"),
    [
        (Sac, {"critics": 0}, "agent.critics"),
        (Sac, {"discount": 1.5}, "agent.discount"),
        (Sac, {"target_critics": 5}, "agent.target_critics"),
        (Edac, {"critics": 1}, "agent.critics must be at least 2"),
        (Cql, {"actions": 0}, "agent.actions"),
        (Iql, {"expectile": 1.0}, "agent.expectile"),
        (Td3Bc, {"polyak": 0.0}, "agent.polyak"),
    ],
)
def test_setting_out_of_range_is_refused(agent_class: type[Agent], over: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        agent_class.config_class(**over)


# --- a process whose values are known -------------------------------------------------------------------------------


def two_states(repeat: int = 64) -> Transitions:
    """s0 chooses by the sign of its action: left pays 0 and stays, right pays 1 and goes to s1; s1 pays 2 and ends.

    With γ = 0.5 the optimum is Q(s1, ·) = 2, Q(s0, right) = 1 + 0.5·2 = 2, Q(s0, left) = 0.5·V(s0) = 1.
    """
    obs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    action = torch.tensor([[-0.8], [0.8], [-0.8], [0.8]])
    reward, next_obs = (
        torch.tensor([0.0, 1.0, 2.0, 2.0]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]),
    )
    terminated = torch.tensor([False, False, True, True])
    rows = Transitions(obs, action, reward, next_obs, terminated, torch.zeros(4, dtype=torch.bool))
    return concat([rows] * repeat)


OPTIMUM = [1.0, 2.0, 2.0, 2.0]
FAST = {"hidden": (32, 32), "discount": 0.5, "polyak": 0.05}


def learned(agent_class: Any, steps: int, **over: Any) -> Any:
    facts = Facts(torch.zeros(2), torch.ones(2), 1, 0.0, 1000.0, updates=10**9)
    agent, batch = make(agent_class, facts, **(FAST | over)), two_states(4)
    for step in range(steps):
        agent.update(batch, generator=stream(0, step))
    return agent, agent.critic(batch.obs[:4], batch.action[:4]).min(dim=0).values.tolist()


def test_iql_finds_the_optimum_of_two_states() -> None:
    agent, values = learned(Iql, 500, learning_rate=5e-3, expectile=0.98, temperature=10.0)
    assert values == pytest.approx(OPTIMUM, abs=0.1)
    best = agent.act(torch.tensor([[1.0, 0.0]]), generator=None)
    assert float(best) > 0.5


def test_td3_bc_finds_the_optimum_of_two_states() -> None:
    agent, values = learned(Td3Bc, 500, learning_rate=5e-3, policy_noise=0.0)
    assert values == pytest.approx(OPTIMUM, abs=0.2)
    assert float(agent.act(torch.tensor([[1.0, 0.0]]), generator=None)) > 0.3


SOFT = {"critic_rate": 5e-3, "actor_rate": 5e-3, "temperature_rate": 0.0, "temperature": 1e-6, "actor_cosine": False}


@pytest.mark.parametrize(
    ("agent_class", "own"),
    [
        (Mopo, {}),  # what it subtracts is subtracted where rows are imagined
        (Edac, {"critics": 3, "diversity": 0.05}),
        (Ravl, {"critics": 3, "diversity": 0.05}),
        (Cql, {"conservatism": 0.02}),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_built_on_sac_finds_the_optimum_of_two_states(agent_class: Any, own: dict[str, Any]) -> None:
    agent, values = learned(agent_class, 400, **SOFT, **own)
    assert values == pytest.approx(OPTIMUM, abs=0.25)
    assert float(agent.act(torch.tensor([[1.0, 0.0]]), generator=None)) > 0.5


def test_bc_repeats_the_mean_action() -> None:
    facts = Facts(torch.zeros(2), torch.ones(2), 1)
    agent = make(Bc, facts, learning_rate=1e-2)
    for step in range(200):
        agent.update(two_states(4), generator=stream(0, step))
    assert agent.act(torch.eye(2), generator=None).flatten().tolist() == pytest.approx([0, 0], abs=0.05)


def test_sac_values_of_a_frozen_policy_are_its_returns() -> None:
    """The actor stays where its weights began, near action 0, which the critics value between left and right."""
    agent, (left, right, *last) = learned(
        Sac, 400, critic_rate=5e-3, actor_rate=1e-9, temperature_rate=0.0, temperature=1e-6, actor_cosine=False
    )
    start = torch.tensor([[1.0, 0.0]]).expand(256, -1)
    follow = agent.critic(start, agent.act(start, generator=stream(0, "a"))).min(dim=0).values.mean()
    assert [right, *last] == pytest.approx([2, 2, 2], abs=0.1)
    assert left == pytest.approx(0.5 * follow.item(), abs=0.1)


def test_every_setting_says_what_it_means() -> None:
    from worldrl.usage import describe

    for agent_class in MODEL_FREE:
        rows = describe(agent_class.config_class)
        assert {row.key for row in rows} == {item.name for item in fields(agent_class.config_class)}
        assert [row.key for row in rows if not row.meaning] == [], agent_class.name
    assert describe(SacConfig)[0].key == "hidden"
