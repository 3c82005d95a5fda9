"""Units under test: the equations of COMBO, MOBILE and RAMBO, and their agents in a small ensemble."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.methods.offline import rambo
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.buffer import TransitionBuffer
from worldrl.methods.offline.combo import Combo, split_rows
from worldrl.methods.offline.cql import Cql, conservative_gap
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.mbpo import Mbpo
from worldrl.methods.offline.mobile import Mobile, bellman_inconsistency, sample_next
from worldrl.methods.offline.online.online_world import OnlineWorld
from worldrl.methods.offline.rambo import Rambo, adversarial_loss, mixture_log_prob
from worldrl.methods.offline.training import OfflineTraining, train_offline
from worldrl.recipes.offline.online_phase import PlannerConfig, rollouts_in
from worldrl.recipes.offline.settings import settings_for
from worldrl.recipes.offline.worlds import world_config
from worldrl.settings import compose
from worldrl.world_models.state.config import EnsembleConfig, EnsembleTraining
from worldrl.world_models.state.ensemble import Ensemble, max_sigma
from worldrl.world_models.state.ensemble_world import EnsembleWorld
from worldrl.world_models.state.terminations import never


@pytest.fixture
def world(make_rows: Any) -> EnsembleWorld:
    """Four small members, of which 1 and 3 are the elites."""
    rows = make_rows()
    with initial_weights(0, "world"):
        ensemble = Ensemble(EnsembleConfig(members=4, elites=2, width=8, depth=1), 3, 2)
    ensemble.fit_statistics(rows)
    ensemble.elites.copy_(torch.tensor([1, 3]))
    return EnsembleWorld(ensemble.eval(), rows.obs, never)


def make(agent_class: Any, facts: Facts, parts: dict[str, Any] | None = None, **over: Any) -> Any:
    with initial_weights(0, "agent"):
        return agent_class(agent_class.config_class(**({"hidden": (8, 8)} | over)), facts, **(parts or {}))


# --- MOBILE ---------------------------------------------------------------------------------------------------------


def test_inconsistency_is_the_std_over_elites_of_the_mean_over_samples() -> None:
    value = torch.tensor([[[1.0], [4.0]], [[3.0], [10.0]]])  # n = 2, m = 2, B = 1
    assert bellman_inconsistency(value).tolist() == pytest.approx([math.sqrt(((2 - 4.5) ** 2 + (7 - 4.5) ** 2) / 1)])


def test_samples_are_the_elites_gaussians(world: EnsembleWorld, make_rows: Any) -> None:
    rows = make_rows(2)
    next_obs = sample_next(world.ensemble, rows.obs, rows.action, 4000, generator=stream(0, "s"))
    assert next_obs.shape == (4000, 2, 2, 3)
    mean, logvar = world.ensemble.predict(rows.obs, rows.action)
    for place, member in enumerate([1, 3]):
        expected, std = rows.obs + mean[member, :, :-1], (0.5 * logvar[member, :, :-1]).exp()
        assert bool(((next_obs[:, place].mean(dim=0) - expected).abs() < 5 * std / 4000**0.5).all())
        torch.testing.assert_close(next_obs[:, place].std(dim=0), std, rtol=0.06, atol=1e-6)


def test_mobile_penalises_imagined_rows_alone(world: EnsembleWorld, facts: Facts, make_rows: Any) -> None:
    batch = make_rows(6)
    plain = make(Mobile, facts, {"world": world}, inconsistency=0.0, floor=None)
    penal = make(Mobile, facts, {"world": world}, inconsistency=2.0, floor=None, samples=3)
    plain.real = penal.real = 4
    difference = plain.target(batch, stream(0, "t")) - penal.target(batch, stream(0, "t"))
    draws = stream(0, "t")
    penal.sample(batch.next_obs, draws)  # the target's own draw of a'
    expected = 2 * penal.penalty(batch.obs[4:], batch.action[4:], draws)
    torch.testing.assert_close(difference, torch.cat([torch.zeros(4), expected]))
    assert float(expected.min()) > 0


def test_mobile_floor(world: EnsembleWorld, facts: Facts, make_rows: Any) -> None:
    agent = make(Mobile, facts, {"world": world})
    assert float(agent.target(make_rows(), stream(0, "t")).min()) == 0


def test_mobile_without_a_world_acts_and_does_not_learn(facts: Facts, make_rows: Any) -> None:
    agent = make(Mobile, facts)
    assert agent.act(make_rows().obs, generator=None).shape == (32, 2)
    with pytest.raises(SettingError, match="world=ensemble"):
        agent.update(make_rows(), generator=stream(0, "x"), real=1)


# --- COMBO ----------------------------------------------------------------------------------------------------------


def test_mobile_refuses_a_floor_above_all_returns(world: EnsembleWorld, facts: Facts) -> None:
    losing = replace(facts, return_min=-300.0, return_max=-20.0)
    with pytest.raises(
        SettingError, match=r"agent.floor=0 lies above every recorded return \(at most -20\).*floor=null"
    ):
        make(Mobile, losing, {"world": world})
    make(Mobile, losing, {"world": world}, floor=None)


def test_combo_pushes_the_mixture_and_lifts_recorded_rows(facts: Facts, make_rows: Any) -> None:
    batch, target = make_rows(6), torch.zeros(6)
    for kind in ("mix", "model"):
        agent = make(Combo, facts, pushed_states=kind, conservatism=2.0, actions=2)
        agent.real = 4
        loss, logs = agent.critic_loss(batch, target, stream(0, "c"))
        recorded, imagined = split_rows(batch, 4)
        pushed = batch if kind == "mix" else imagined
        action, logq = agent.asked_actions(pushed, stream(0, "c"))
        q_asked = torch.stack([agent.critic(pushed.obs, each) for each in action], dim=1)
        gap = conservative_gap(q_asked, logq, agent.critic(recorded.obs, recorded.action), 1.0)
        torch.testing.assert_close(logs["critic/gap"], gap.detach())
        td = (agent.critic(batch.obs, batch.action) - target).square().mean(dim=1).sum()
        torch.testing.assert_close(loss, td + 2 * gap)


def test_combo_on_recorded_rows_alone_is_cql(facts: Facts, make_rows: Any, same_tree: Any) -> None:
    batch = make_rows()
    combo, cql = make(Combo, facts, conservatism=5.0), make(Cql, facts)
    combo.update(batch, generator=stream(0, "x"), real=32)
    cql.update(batch, generator=stream(0, "x"))
    same_tree(combo.state_dict(), cql.state_dict())
    with pytest.raises(SettingError, match=r"real_ratio > 0"):
        combo.update(batch, generator=stream(0, "x"), real=0)


def test_cql_lowers_values_of_actions_the_data_lack(facts: Facts, make_rows: Any) -> None:
    batch = make_rows(16)
    agent = make(Cql, facts, critic_rate=3e-3)
    for step in range(60):
        agent.update(batch, generator=stream(0, step))
    other = -batch.action.sign()
    gap = agent.critic(batch.obs, batch.action) - agent.critic(batch.obs, other)
    assert float(gap.detach().mean()) > 0.1


# --- RAMBO ----------------------------------------------------------------------------------------------------------


def test_mixture_density_by_hand() -> None:
    mean, logvar = torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[[0.0]], [[math.log(4.0)]]])
    normal = torch.distributions.Normal
    expected = (
        0.5 * normal(0.0, 1.0).log_prob(torch.tensor(1.0)).exp()
        + 0.5 * normal(2.0, 2.0).log_prob(torch.tensor(1.0)).exp()
    )
    assert float(mixture_log_prob(mean, logvar, torch.tensor([[1.0]]))) == pytest.approx(float(expected.log()))


def test_adversary_makes_good_steps_less_likely() -> None:
    log_prob = torch.zeros(3, requires_grad=True)
    loss = adversarial_loss(log_prob, torch.tensor([-1.0, 0.0, 1.0]))
    (slope,) = torch.autograd.grad(loss, log_prob)
    assert slope.tolist() == pytest.approx([-1 / 3, 0, 1 / 3], abs=1e-5)  # descent lowers the third


def test_rambo_clones_first_then_trains_the_world(
    world: EnsembleWorld, facts: Facts, make_rows: Any, same_tree: Any
) -> None:
    rows = make_rows()
    sizes: dict[str, Any] = {"clone_steps": 2, "world_every": 2, "world_steps": 3, "world_batch": 4, "adversary": 0.1}
    agent = make(Rambo, facts, {"world": world, "data": rows}, **sizes)
    before = [p.clone() for p in world.ensemble.parameters()]
    critic = [p.clone() for p in agent.critic.parameters()]
    for step in range(2):
        assert set(agent.update(rows, generator=stream(0, step))) == {"actor/clone"}
    assert all(torch.equal(a, b) for a, b in zip(before, world.ensemble.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(critic, agent.critic.parameters(), strict=True))
    assert "world/likelihood" in agent.update(rows, generator=stream(0, 2))
    assert not torch.equal(before[0], next(world.ensemble.parameters()))
    state = copy.deepcopy(agent.state_dict())
    assert "world/likelihood" not in agent.update(rows, generator=stream(0, 3))
    after = copy.deepcopy(agent.state_dict())
    agent.load_state_dict(state)
    agent.update(rows, generator=stream(0, 3))
    same_tree(agent.state_dict(), after)


def test_rambo_imagines_nothing_while_it_clones(world: EnsembleWorld, facts: Facts, make_rows: Any) -> None:
    seen: list[int] = []

    class Counted:
        def generate(self, agent: Any, *, generator: torch.Generator) -> Any:
            seen.append(agent.updates)
            return make_rows(4), {}

    agent = make(Rambo, facts, {"world": world, "data": make_rows()}, clone_steps=3, world_steps=1)
    plan, training = Imagining(horizon=1, rollouts=4, refresh_every=2), OfflineTraining(steps=7, batch_size=8)
    train_offline("r", agent, make_rows(), training, seed=0, imagination=Counted(), imagining=plan)
    assert seen == [3, 4, 6]  # as soon as rows are read, then every second update


def test_rambo_clones_recorded_rows_whatever_the_batch_holds(
    world: EnsembleWorld, facts: Facts, make_rows: Any
) -> None:
    rows = make_rows()
    recorded, imagined = (replace(rows, action=torch.full_like(rows.action, value)) for value in (0.8, -0.8))
    agent = make(Rambo, facts, {"world": world, "data": recorded}, clone_steps=200, clone_rate=1e-2)
    for step in range(150):
        agent.update(imagined, generator=stream(0, step))
    assert bool((agent.act(rows.obs, generator=None) > 0.5).all())


def test_rambo_world_step_descends_likelihood_plus_weighted_adversary(
    world: EnsembleWorld, facts: Facts, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    descended: list[float] = []
    monkeypatch.setattr(rambo, "gradient_step", lambda optimizer, loss: descended.append(float(loss.detach())))
    agent = make(Rambo, facts, {"world": world, "data": make_rows()}, adversary=0.5)
    _, logs = agent.world_step(make_rows().obs, stream(0, "w"))
    against = float(logs["world/adversarial"])
    assert abs(against) > 1e-3
    assert descended == [pytest.approx(float(logs["world/likelihood"]) + 0.5 * against)]


def test_rambo_world_without_an_adversary_learns_the_data(world: EnsembleWorld, facts: Facts, make_rows: Any) -> None:
    rows = make_rows()
    agent = make(Rambo, facts, {"world": world, "data": rows}, adversary=0.0, world_steps=60, world_batch=32)
    first = float(agent.train_world(stream(0, "w"))["world/likelihood"])
    second = float(agent.train_world(stream(0, "w"))["world/likelihood"])
    assert second < first


# --- COPlanner's online phase -------------------------------------------------------------------------------------


def test_the_world_learns_from_what_was_met_online_and_imagines_from_there(
    world: EnsembleWorld, facts: Facts, make_rows: Any
) -> None:
    recorded, news = make_rows(20), make_rows(12, seed=5)
    met = TransitionBuffer(100)
    met.add(news)
    plan, training = (
        Imagining(horizon=1, real_ratio=0.25, rollouts=300),
        EnsembleTraining(max_epochs=2, weight_decay=()),
    )
    along = OnlineWorld(
        world, recorded, plan, training, refit_every=5, seed=0,
        rollouts=lambda there, rows: rollouts_in(there, rows, plan, PlannerConfig()),
    )  # fmt: skip
    agent, before = make(Mbpo, facts), next(world.ensemble.parameters()).clone()
    assert "world/refit_error" in along.refresh(0, met, agent, stream(0, "r"))
    assert not torch.equal(before, next(world.ensemble.parameters()))
    starts = {tuple(row) for row in along.buffer.rows().obs.tolist()}
    assert starts == {tuple(row) for row in torch.cat([recorded.obs, news.obs]).tolist()}
    assert along.refresh(4, met, agent, stream(0, "r")) == {}
    batch = along.batch(met, 8, stream(0, "b"))
    known = {tuple(row) for row in news.next_obs.tolist()}
    assert [tuple(row) in known for row in batch.next_obs.tolist()] == [True] * 2 + [False] * 6


# --- MBPO and MOPO --------------------------------------------------------------------------------------------------


def test_mopo_pays_less_than_mbpo_by_its_share_of_the_uncertainty(
    world: EnsembleWorld, facts: Facts, make_rows: Any
) -> None:
    """Everything as ``train-offline`` composes it, up to the rows that the agent is given."""

    def imagined(name: str) -> Any:
        given = {"data": "x", "algorithm": name, "preset": "tiny"}
        settings = compose("train-offline", settings_for(given), given)
        there = EnsembleWorld(world.ensemble, make_rows().obs, never, world_config(settings))
        rollouts = rollouts_in(there, 32, replace(settings.imagining, horizon=1, rollouts=64), settings.planner)
        return rollouts.generate(make(Mbpo, facts), generator=stream(0, "g"))[0]

    plain, lowered = imagined("mbpo"), imagined("mopo")
    assert torch.equal(plain.action, lowered.action)
    expected = 0.5 * max_sigma(*world.ensemble(world.ensemble.inputs(plain.obs, plain.action).expand(4, -1, -1)))
    means = [float((each.next_obs - each.obs).mean()) for each in (plain, lowered)]
    assert means[0] == pytest.approx(means[1], abs=1e-5)
    torch.testing.assert_close(plain.reward - lowered.reward, expected.detach(), rtol=1e-4, atol=1e-4)
