"""The state ensemble against per-member networks, hand-computed numbers and scripted members.

Units under test: the density and uncertainty functions, who computes which row, ``Ensemble`` and ``EnsembleWorld``.
"""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import ActionError, ArtefactError, NonFiniteError, SettingError
from worldrl.core.interfaces import StateWorld
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.world_models.state import ensemble_world
from worldrl.world_models.state.config import EnsembleConfig, MemberChoice, Uncertainty, Variant, neubay_ensemble
from worldrl.world_models.state.ensemble import (
    MEASURES,
    Ensemble,
    balanced_members,
    disagreement,
    epistemic_mean,
    gaussian_nll,
    group_rows,
    max_sigma,
    measure,
    member_loss,
    soft_clamp,
    total_sigma,
)
from worldrl.world_models.state.ensemble_world import (
    EnsembleWorld,
    EnsembleWorldConfig,
    dataset_uncertainty,
    uncertainty_threshold,
)
from worldrl.world_models.state.terminations import never

S, A = 3, 2


def make(variant: Variant = Variant.plain, *, members: int = 4, elites: int = 3, seed: int = 0, **over) -> Ensemble:
    config = EnsembleConfig(variant=variant, members=members, elites=elites, width=16, depth=2, **over)
    with initial_weights(seed, "ensemble"):
        return Ensemble(config, S, A).eval()


def rows(count: int, seed: int = 0) -> Transitions:
    generator = stream(seed, "rows")
    obs = 2 * torch.randn(count, S, generator=generator) + 1
    action = torch.rand(count, A, generator=generator) * 2 - 1
    change = torch.randn(count, S, generator=generator)
    no = torch.zeros(count, dtype=torch.bool)
    return Transitions(obs, action, obs[:, 0] - 5, obs + change, no, no)


def constant_members(change: Tensor, *, elites: int) -> Ensemble:
    """Member i always predicts change[i] [D], with next to no noise."""
    ensemble = make(members=len(change), elites=elites)
    with torch.no_grad():
        for parameter in ensemble.layers.parameters():
            parameter.zero_()
        ensemble.layers[-1].bias[:, 0, : S + 1] = change
        ensemble.logvar_low.fill_(-60.0)
        ensemble.logvar_high.fill_(-59.0)
    return ensemble


# --- the density ---------------------------------------------------------------------------------------------------


def test_member_loss_by_hand() -> None:
    mean = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]])
    logvar = torch.tensor([[[0.0, math.log(4)]], [[0.0, 0.0]]])
    target = torch.tensor([[3.0, 0.0]])
    # member 0: (4·1 + 0 + 4/4 + ln 4)/2, member 1: (9 + 0)/2
    torch.testing.assert_close(member_loss(mean, logvar, target), torch.tensor([(5 + math.log(4)) / 2, 4.5]))


def test_nll_is_the_normal_distributions() -> None:
    mean, logvar, target = (torch.randn(3, 7, 2, generator=stream(0, name)) for name in ("mean", "logvar", "target"))
    expected = -torch.distributions.Normal(mean, (0.5 * logvar).exp()).log_prob(target).mean(dim=(1, 2))
    torch.testing.assert_close(gaussian_nll(mean, logvar, target), expected)


def test_soft_clamp_stays_within_its_bounds_and_keeps_gradient() -> None:
    x = torch.tensor([-100.0, -9.0, -3.0, 0.0, 100.0], requires_grad=True)
    y = soft_clamp(x, -10.0, 0.5)
    assert ((y > -10.0 - 1e-5) & (y < 0.5 + 1e-4)).all()
    assert y[2].item() == pytest.approx(-3.0, abs=0.04)
    y[1:4].sum().backward()
    assert (x.grad[1:4] > 0.1).all()


def test_loss_adds_the_bounds_only_where_they_are_learned() -> None:
    mean, logvar, target = torch.zeros(4, 5, S + 1), torch.zeros(4, 5, S + 1), torch.ones(4, 5, S + 1)
    assert make().loss(mean, logvar, target, 0.01).item() == pytest.approx(4 * 1.0 + 0.01 * (S + 1) * 10.5)
    nll = 0.5 * (1 + math.log(2 * math.pi))
    assert make(Variant.layer_norm).loss(mean, logvar, target, 0.01).item() == pytest.approx(nll)


# --- uncertainty ---------------------------------------------------------------------------------------------------


def test_uncertainties_by_hand() -> None:
    mean = torch.tensor([[[1.0, 0.0, 5.0]], [[3.0, 0.0, 1.0]]])  # M=2, B=1, D=2 states + reward
    logvar = 2 * torch.tensor([[[3.0, 4.0, 0.0]], [[1.0, 2.0, 2.0]]]).log().clamp_min(-50)
    assert max_sigma(mean, logvar).item() == pytest.approx(5.0)

    assert epistemic_mean(mean, logvar).item() == pytest.approx(math.sqrt((1 + 0 + 4) / 3))
    assert disagreement(mean, logvar).item() == pytest.approx(1.0)  # the reward's two units do not count
    variance = [1 + (9 + 1) / 2, (16 + 4) / 2, 4 + (0 + 4) / 2]
    assert total_sigma(mean, logvar).item() == pytest.approx(math.sqrt(sum(variance) / 3))


def test_deviation_of_samples_has_what_members_differ_by_and_their_noise() -> None:
    mean = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]]).expand(2, 3, 2)  # M = 2, B = 3, D = 2
    sure = measure(Uncertainty.sample_std, mean, torch.full_like(mean, -60.0), generator=stream(0, "u"))
    assert sure.tolist() == pytest.approx([2**0.5 / 2] * 3)  # the mean of √2 and 0
    same = torch.zeros(2, 4000, 2)
    noisy = measure(Uncertainty.sample_std, same, torch.zeros_like(same), generator=stream(0, "u"))
    assert float(noisy.mean()) == pytest.approx(2 / 3.14159**0.5 / 2**0.5, rel=0.03)  # E |x − y|/√2 of two normals


@pytest.mark.parametrize("kind", MEASURES)
def test_uncertainty_does_not_depend_on_the_order_of_members(kind: Uncertainty) -> None:
    mean, logvar = (torch.randn(5, 6, 4, generator=stream(1, name)) for name in ("mean", "logvar"))
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(MEASURES[kind](mean[order], logvar[order]), MEASURES[kind](mean, logvar))


def test_threshold_is_numpys_quantile() -> None:
    values = torch.randn(101, generator=stream(0, "u"))
    for quantile in (0.0, 0.37, 0.999, 1.0):
        assert uncertainty_threshold(values, quantile) == pytest.approx(float(torch.quantile(values, quantile)))
    with pytest.raises(SettingError, match="quantile"):
        uncertainty_threshold(values, 1.1)


# --- who computes which row ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "members"), [(1, 5), (7, 5), (10, 5), (100, 3)])
def test_members_have_equal_shares(count: int, members: int) -> None:
    share = torch.bincount(balanced_members(count, members, generator=stream(0, "draw")), minlength=members)
    assert int(share.max() - share.min()) <= 1
    assert int(share.sum()) == count


def test_one_row_sees_every_member_equally_often() -> None:
    drawn = torch.cat([balanced_members(2, 5, generator=stream(k, "draw"))[:1] for k in range(500)])
    share = torch.bincount(drawn, minlength=5) / 500
    assert (share - 0.2).abs().max() < 0.07  # four standard deviations


def test_groups_hold_each_row_once_at_its_place() -> None:
    member = torch.tensor([2, 0, 2, 2, 1, 0])
    grouped, place = group_rows(member, 4)
    assert grouped.shape == (4, 3)
    assert torch.equal(grouped.flatten()[place], torch.arange(6))
    assert torch.equal(place // 3, member)


# --- the networks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(Variant))
def test_stacked_members_equal_single_networks(variant: Variant) -> None:
    ensemble = make(variant)
    with torch.no_grad():
        for norm in ensemble.norms:
            norm.weight.normal_(1, 0.3, generator=stream(0, "norm"))
            norm.bias.normal_(0, 0.3, generator=stream(1, "norm"))
    inputs = torch.randn(4, 6, S + A, generator=stream(0, "inputs"))
    mean, logvar = ensemble(inputs)
    for i in range(4):
        hidden = inputs[i]
        for k, layer in enumerate(ensemble.layers):
            hidden = F.linear(hidden, layer.weight[i].T, layer.bias[i, 0])
            if k < 2 and variant is Variant.layer_norm:
                norm = ensemble.norms[k]
                hidden = F.leaky_relu(F.layer_norm(hidden, (16,), norm.weight[i, 0], norm.bias[i, 0]))
            elif k < 2:
                hidden = F.silu(hidden)
        raw = hidden[:, S + 1 :]
        clamped = 2 * soft_clamp(raw, -5.0, 0.25) if variant is Variant.layer_norm else soft_clamp(raw, -10.0, 0.5)
        torch.testing.assert_close(mean[i], hidden[:, : S + 1])
        torch.testing.assert_close(logvar[i], clamped)


def test_some_members_compute_what_all_would() -> None:
    ensemble, inputs = make(Variant.layer_norm), torch.randn(4, 6, S + A, generator=stream(0, "inputs"))
    chosen = torch.tensor([3, 1])
    some, every = ensemble(inputs[chosen], chosen), ensemble(inputs)
    torch.testing.assert_close(some[0], every[0][chosen])
    torch.testing.assert_close(some[1], every[1][chosen])


def test_statistics_standardise_inputs_and_leave_constant_columns() -> None:
    data, ensemble = rows(400), make()
    data.obs[:, 1] = 7.0
    ensemble.fit_statistics(data)
    inputs = ensemble.inputs(data.obs, data.action)
    torch.testing.assert_close(inputs.mean(0), torch.zeros(S + A), atol=1e-5, rtol=0)
    assert inputs.std(0, correction=0).tolist() == pytest.approx([1, 0, 1, 1, 1], abs=1e-5)
    torch.testing.assert_close(ensemble.targets(data)[:, :S], data.next_obs - data.obs)


def test_layer_norm_predicts_in_units_of_the_data() -> None:
    data, ensemble = rows(400), make(Variant.layer_norm)
    ensemble.fit_statistics(data)
    targets = ensemble.targets(data)
    # the residual of standardised states, as NEUBAY has it
    mean, std = data.obs.mean(0), data.obs.std(0, correction=0)
    torch.testing.assert_close(
        targets[:, :S], (data.next_obs - mean) / std - (data.obs - mean) / std, atol=1e-5, rtol=0
    )
    assert targets[:, -1].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    back, logvar = ensemble.in_data_units(targets, torch.zeros_like(targets))
    torch.testing.assert_close(back[:, -1], data.reward, atol=1e-5, rtol=0)
    torch.testing.assert_close((0.5 * logvar).exp(), ensemble.target_scale.expand_as(logvar))


def test_input_clip() -> None:
    ensemble = make(input_clip=10.0)
    inputs = ensemble.inputs(torch.tensor([[1e6, -1e6, 3.0]]), torch.zeros(1, A))
    assert inputs[0].tolist() == [10.0, -10.0, 3.0, 0.0, 0.0]


def test_folder_round_trip(tmp_path: Path) -> None:
    ensemble, data = make(Variant.layer_norm, seed=3), rows(50)
    ensemble.fit_statistics(data)
    ensemble.elites.copy_(torch.tensor([2, 0, 3]))
    ensemble.save(tmp_path / "ensemble")
    loaded = Ensemble.load(tmp_path / "ensemble")
    assert loaded.config == ensemble.config
    for name, tensor in ensemble.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    with pytest.raises(ArtefactError):
        Ensemble.load(tmp_path)


@pytest.mark.parametrize(
    ("over", "message"),
    [({"members": 3, "elites": 4}, "elites"), ({"variant": "plane"}, "did you mean 'plain'"), ({"width": 0}, "width")],
)
def test_impossible_sizes_are_refused(over: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        EnsembleConfig(**over)


def test_neubays_sizes() -> None:
    config, training = neubay_ensemble()
    assert (config.members, config.elites, training.decoupled) == (128, 100, True)


# --- the world -----------------------------------------------------------------------------------------------------


def test_world_meets_the_protocol() -> None:
    world = EnsembleWorld(make(), torch.zeros(5, S), never)
    checked: StateWorld = world
    assert (checked.obs_size, checked.action_size) == (S, A)


def test_each_row_is_moved_by_one_elite_with_equal_shares() -> None:
    ensemble = constant_members(torch.arange(5.0)[:, None].expand(5, S + 1), elites=3)
    ensemble.elites.copy_(torch.tensor([4, 0, 2]))
    world = EnsembleWorld(ensemble, torch.zeros(1, S), never)
    generator = stream(0, "world")
    state, obs = world.start(torch.zeros(9, dtype=torch.int64), generator=generator)
    moved = []
    for _ in range(2):
        before = obs
        state, outcome = world.step(state, torch.zeros(9, A), generator=generator)
        obs = outcome.obs
        moved.append((obs - before)[:, 0].round(decimals=4))
        assert sorted(moved[-1].tolist()) == [0.0] * 3 + [2.0] * 3 + [4.0] * 3
        torch.testing.assert_close(outcome.reward, moved[-1], atol=1e-4, rtol=0)
    assert not torch.equal(*moved)  # another elite at each step


def test_a_rollout_keeps_its_member_also_after_selection() -> None:
    ensemble = constant_members(torch.arange(1.0, 5.0)[:, None].expand(4, S + 1), elites=4)
    config = EnsembleWorldConfig(member_choice=MemberChoice.rollout)
    world, generator = EnsembleWorld(ensemble, torch.zeros(1, S), never, config), stream(0, "world")
    state, _ = world.start(torch.zeros(8, dtype=torch.int64), generator=generator)
    state, first = world.step(state, torch.zeros(8, A), generator=generator)
    kept = torch.tensor([6, 1, 3])
    state, second = world.step(world.select(state, kept), torch.zeros(3, A), generator=generator)
    torch.testing.assert_close(second.obs, 2 * first.obs[kept], atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize("voters", ["members", "elites"])
def test_asking_for_uncertainty_does_not_change_the_step(
    variant: Variant, voters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble_world, "ROWS_AT_ONCE", 4)
    ensemble = make(variant)
    ensemble.fit_statistics(rows(200))
    ensemble.elites.copy_(torch.tensor([3, 1, 2]))
    starts, action = rows(10).obs, rows(10).action

    def step(uncertainty: Uncertainty):
        config = EnsembleWorldConfig(uncertainty=uncertainty, uncertainty_from=voters)
        world, generator = EnsembleWorld(ensemble, starts, never, config), stream(0, "world")
        state, _ = world.start(torch.arange(10), generator=generator)
        return world.step(state, action, generator=generator)[1]

    plain, asked = step(Uncertainty.none), step(Uncertainty.max_sigma)
    torch.testing.assert_close(plain.obs, asked.obs)
    torch.testing.assert_close(plain.reward, asked.reward)
    assert (plain.uncertainty == 0).all()
    chosen = None if voters == "members" else ensemble.elites
    count = 4 if chosen is None else 3
    expected = max_sigma(*ensemble(ensemble.inputs(starts, action).expand(count, -1, -1), chosen))
    torch.testing.assert_close(asked.uncertainty, expected)


@torch.no_grad()
def test_steps_have_the_moments_of_the_mixture() -> None:
    ensemble = make(Variant.layer_norm)
    ensemble.fit_statistics(rows(200))
    start, action, count = rows(1).obs, rows(1).action, 30_000
    world, generator = EnsembleWorld(ensemble, start, never), stream(0, "world")
    state, _ = world.start(torch.zeros(count, dtype=torch.int64), generator=generator)
    _, outcome = world.step(state, action.expand(count, -1), generator=generator)
    mean, logvar = ensemble.predict(start, action, ensemble.elites)
    change = torch.cat([outcome.obs - start, outcome.reward[:, None]], dim=1)
    variance = (mean.var(0, correction=0) + logvar.exp().mean(0))[0]
    torch.testing.assert_close(change.mean(0), mean.mean(0)[0], atol=float(5 * (variance.max() / count).sqrt()), rtol=0)
    torch.testing.assert_close(change.var(0), variance, rtol=0.05, atol=0)


def test_same_generator_same_step_and_earlier_state_untouched() -> None:
    world = EnsembleWorld(make(), rows(20).obs, never)
    state, obs = world.start(torch.arange(20), generator=stream(0, "start"))
    before = obs.clone()
    one = world.step(state, rows(20).action, generator=stream(0, "step"))[1]
    two = world.step(state, rows(20).action, generator=stream(0, "step"))[1]
    assert torch.equal(one.obs, two.obs)
    assert torch.equal(one.reward, two.reward)
    assert torch.equal(state.obs, before)


def test_bad_actions_and_broken_members_are_named() -> None:
    ensemble = make()
    world, generator = EnsembleWorld(ensemble, torch.zeros(2, S), never), stream(0, "world")
    state, _ = world.start(torch.tensor([0, 1]), generator=generator)
    with pytest.raises(ActionError, match="2 actions got"):
        world.step(state, torch.zeros(2, A + 1), generator=generator)
    with pytest.raises(ActionError, match=r"action\[1\] is not finite"):
        world.step(state, torch.tensor([[0.0, 0.0], [0.0, math.nan]]), generator=generator)
    ensemble.layers[-1].bias.data[:] = math.inf
    with pytest.raises(NonFiniteError, match="row 0"):
        world.step(state, torch.zeros(2, A), generator=generator)


def test_uncertainty_of_the_data_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_world, "ROWS_AT_ONCE", 10)
    ensemble, data = make(), rows(25)
    config = EnsembleWorldConfig(uncertainty=Uncertainty.epistemic_mean)
    world = EnsembleWorld(ensemble, data.obs, never, config)
    expected = epistemic_mean(*ensemble(ensemble.inputs(data.obs, data.action).expand(4, -1, -1)))
    torch.testing.assert_close(dataset_uncertainty(world, data), expected)
    with pytest.raises(SettingError, match="measures nothing"):
        dataset_uncertainty(EnsembleWorld(ensemble, data.obs, never), data)
