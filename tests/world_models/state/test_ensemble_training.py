"""Training of the ensemble: it learns, stops, keeps the best of each member and resumes bit for bit.

Unit under test: ``fit_ensemble`` and its parts.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import MetricLog, TrackerName, read_metrics
from worldrl.core.transitions import Transitions
from worldrl.world_models.state.config import EnsembleConfig, EnsembleTraining, Variant
from worldrl.world_models.state.ensemble import Ensemble
from worldrl.world_models.state.ensemble_training import (
    _State,
    fit_ensemble,
    holdout_error,
    make_optimizer,
    split_rows,
    train_step,
)

TINY = EnsembleConfig(members=3, elites=2, width=16, depth=2)
QUICK = EnsembleTraining(weight_decay=(1e-5,), max_epochs=4, batch_size=32)


@pytest.fixture(scope="module")
def pendulum() -> Transitions:
    """Rows of a damped pendulum: s' = s + 0.1 (velocity, action - angle - 0.1 velocity), r = angle - action."""
    generator = stream(0, "pendulum")
    obs = torch.randn(600, 2, generator=generator)
    action = torch.rand(600, 1, generator=generator) * 2 - 1
    change = 0.1 * torch.stack([obs[:, 1], action[:, 0] - obs[:, 0] - 0.1 * obs[:, 1]], dim=1)
    no = torch.zeros(600, dtype=torch.bool)
    return Transitions(obs, action, obs[:, 0] - action[:, 0], obs + change, no, no)


def same(a: Ensemble, b: Ensemble) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("variant", list(Variant))
def test_it_learns_and_names_its_elites(pendulum: Transitions, variant: Variant) -> None:
    config, training = replace(TINY, variant=variant), replace(QUICK, learning_rate=1e-2, max_epochs=12, patience=12)
    ensemble, report = fit_ensemble("toy", pendulum, config, training, seed=0)
    errors = report.holdout_error
    _, held = split_rows(pendulum, training, 0, "toy")
    targets = ensemble.targets(held)
    fresh = holdout_error(ensemble, ensemble.inputs(held.obs, held.action), targets)
    torch.testing.assert_close(fresh, torch.tensor(errors))  # the snapshot is what was measured
    assert max(errors) < 0.3 * float(targets.square().mean())
    assert ensemble.elites.tolist() == list(report.elites) == sorted(range(3), key=errors.__getitem__)[:2]
    assert report.stopped == "max_epochs"


def test_resumed_training_is_the_uninterrupted_one(pendulum: Transitions, tmp_path: Path) -> None:
    whole, _ = fit_ensemble("toy", pendulum, TINY, QUICK, seed=1)
    with MetricLog(tmp_path, tracker=TrackerName.none) as log:
        half = replace(QUICK, max_epochs=2)
        fit_ensemble("toy", pendulum, TINY, half, seed=1, folder=tmp_path / "checkpoints", log=log)
        resumed, report = fit_ensemble("toy", pendulum, TINY, QUICK, seed=1, folder=tmp_path / "checkpoints", log=log)
    assert report.resumed_from == 2
    assert same(whole, resumed)
    assert len({line["step"] for line in read_metrics(tmp_path)}) == 4


def test_patience_waits_for_the_least_epochs_and_slows_down_once(pendulum: Transitions, tmp_path: Path) -> None:
    training = replace(QUICK, improvement=0.999, patience=2, min_epochs=7, max_epochs=20)
    whole, report = fit_ensemble("toy", pendulum, TINY, training, seed=1)
    assert (report.epochs, report.stopped) == (8, "patience")
    fit_ensemble("toy", pendulum, TINY, replace(training, max_epochs=7), seed=1, folder=tmp_path)
    resumed, _ = fit_ensemble("toy", pendulum, TINY, training, seed=1, folder=tmp_path)
    assert same(whole, resumed)
    state = _State("toy", training, whole, whole, make_optimizer(whole, training), None, epoch=3, dry=2)
    for _ in range(2):
        state.slow_down()
    assert {group["lr"] for group in state.optimizer.param_groups} == {0.3 * training.learning_rate}
    with pytest.raises(SettingError, match="min_epochs"):
        replace(QUICK, min_epochs=9)


def test_finished_training_is_not_taken_up_again(pendulum: Transitions, tmp_path: Path) -> None:
    first, _ = fit_ensemble("toy", pendulum, TINY, replace(QUICK, max_epochs=1), seed=1, folder=tmp_path)
    again, report = fit_ensemble("toy", pendulum, TINY, replace(QUICK, max_epochs=1), seed=1, folder=tmp_path)
    assert (report.epochs, report.resumed_from) == (1, 1)
    assert same(first, again)


def test_another_seed_another_ensemble(pendulum: Transitions) -> None:
    once = replace(QUICK, max_epochs=1)
    a, b = (fit_ensemble("toy", pendulum, TINY, once, seed=seed)[0] for seed in (0, 1))
    assert not same(a, b)


def test_training_stops_after_dry_epochs(pendulum: Transitions) -> None:
    training = replace(QUICK, improvement=0.999, patience=2, max_epochs=0)  # after the first, nothing improves so much
    _, report = fit_ensemble("toy", pendulum, TINY, training, seed=0)
    assert report.stopped == "patience"
    assert report.epochs == 3


def test_snapshot_takes_improved_members_alone() -> None:
    with initial_weights(0, "a"):
        ensemble, best = Ensemble(TINY, 2, 1), Ensemble(TINY, 2, 1)
    state = _State("toy", QUICK, ensemble, best, make_optimizer(ensemble, QUICK), None)
    state.errors = [1.0, 1.0, 1.0]
    old = best.layers[0].weight.detach().clone()
    assert state.keep_improved([0.995, 0.98, 2.0]) == [1]  # half a per cent is not an improvement
    assert state.errors == [1.0, 0.98, 1.0]
    assert torch.equal(best.layers[0].weight[1], ensemble.layers[0].weight[1])
    assert torch.equal(best.layers[0].weight[[0, 2]], old[[0, 2]])


def test_weight_decay_is_half_the_squared_norm_of_each_layers_weights(pendulum: Transitions) -> None:
    training = replace(QUICK, weight_decay=(0.1, 0.2, 0.3))
    with initial_weights(0, "a"):
        ensemble = Ensemble(TINY, 2, 1)
    with initial_weights(0, "a"):
        other = Ensemble(TINY, 2, 1)
    inputs = ensemble.inputs(pendulum.obs, pendulum.action).expand(3, -1, -1)
    targets = ensemble.targets(pendulum).expand(3, -1, -1)
    train_step(ensemble, make_optimizer(ensemble, training), inputs, targets, 0.01)
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    loss = other.loss(*other(inputs), targets, 0.01)
    for decay, layer in zip(training.weight_decay, other.layers, strict=True):
        loss = loss + 0.5 * decay * layer.weight.square().sum()
    loss.backward()
    optimizer.step()
    for ours, theirs in zip(ensemble.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_hold_out_is_a_share_and_never_more_than_asked(pendulum: Transitions) -> None:
    train, held = split_rows(pendulum, QUICK, 0, "toy")
    assert (len(train), len(held)) == (480, 120)
    assert len(split_rows(pendulum, replace(QUICK, holdout_most=7), 0, "toy")[1]) == 7
    together = torch.cat([train.obs, held.obs])
    assert torch.equal(together.sort(0).values, pendulum.obs.sort(0).values)
    with pytest.raises(SettingError, match="hold out"):
        split_rows(pendulum.select(torch.arange(4)), QUICK, 0, "toy")


def test_bad_data_stops_the_training(pendulum: Transitions) -> None:
    reward = pendulum.reward.clone()
    reward[3] = float("nan")
    with pytest.raises(NonFiniteError, match="toy: loss is nan in epoch 0"):
        fit_ensemble("toy", replace(pendulum, reward=reward), TINY, QUICK, seed=0)


@pytest.mark.parametrize(
    ("over", "message"),
    [({"holdout_share": 1.0}, "holdout_share"), ({"patience": 0}, "patience"), ({"max_epochs": -1}, "max_epochs")],
)
def test_impossible_settings_are_refused(over: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        EnsembleTraining(**over)


def test_weight_decay_must_fit_the_depth() -> None:
    with pytest.raises(SettingError, match="weight_decay"):
        make_optimizer(Ensemble(TINY, 2, 1), EnsembleTraining())
