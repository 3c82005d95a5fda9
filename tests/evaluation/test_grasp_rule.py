"""Outcomes by score and grasp together: the rule, how it is fitted, and what the battery makes of it."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.statistics.intervals import wilson
from worldrl.evaluation.world_model.battery import drifts, summarise
from worldrl.evaluation.world_model.grasp_rule import LEVEL, GraspRule, fit_rule, logistic
from worldrl.evaluation.world_model.measures import Instruments, measure
from worldrl.evaluation.world_model.rollout_error import f1_score
from worldrl.rewards.success import SuccessRule

MADE_FOR = {"world_model": "a" * 8, "grasp": "b" * 8, "sampler": {"steps": 2, "refinement_steps": 0}}
TUNED = frozenset({("PickRedCube", 0, -1, 7)})


def drawn(seed, count=400):
    """Outcomes of which score and grasp each know a little; errors are squares, far from normal."""
    draws = np.random.default_rng(seed)
    actual = draws.random(count) < 0.6
    score = 1 / (1 + np.exp(-(2 * actual - 1 + draws.normal(size=count))))
    agreement = -np.square(draws.normal(size=count) * np.where(actual, 1, 4))
    return actual, score, agreement


def fit(parts):
    return fit_rule(*parts, made_for=MADE_FOR, tuned=TUNED)


def test_weights_are_those_that_the_outcomes_were_drawn_with():
    draws = np.random.default_rng(0)
    x = draws.normal(size=(40_000, 2)) * [1, 3] + [2, -1]
    y = draws.random(len(x)) < 1 / (1 + np.exp(-(0.5 + 1.5 * x[:, 0] - 0.7 * x[:, 1])))
    assert logistic(x, y) == pytest.approx((0.5, 1.5, -0.7), abs=0.1)
    apart = logistic(np.column_stack([np.arange(9.0), np.zeros(9)]), np.arange(9) > 4)  # without an error: still finite
    assert np.isfinite(apart).all()
    assert apart[1] > 0


def test_odds_are_the_equation():
    rule = GraspRule((0.5, 2.0, 3.0), 0.0, MADE_FOR, TUNED)
    expected = 0.5 + 2 * np.log(0.9 / 0.1) - 3 * np.log(1 + 7.0)
    assert rule.odds(np.array([0.9]), np.array([-7.0])) == pytest.approx([expected])


def test_both_signs_together_tell_more_than_the_score_alone():
    actual, score, agreement = drawn(1, 4000)
    both = fit(drawn(0)).counts(score, agreement)
    known, told, _ = drawn(0)
    alone = fit((known, told, np.zeros(400))).counts(score, 0 * agreement)
    assert (both == actual).mean() > (alone == actual).mean() + 0.02
    assert (both & ~alone).any()  # a sure grasp speaks for an imagined rollout that is less sure itself


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_tells_most_right_of_those_that_count_few_failures(seed):
    actual, score, agreement = drawn(seed, 200)
    rule = fit((actual, score, agreement))
    odds = rule.odds(score, agreement)
    told = {}
    for least in [*odds, np.inf]:
        counts = odds >= least
        if (counts & ~actual).sum() <= LEVEL * (~actual).sum():
            told[least] = int((counts == actual).sum())
    assert (rule.counts(score, agreement) == actual).sum() == max(told.values())
    assert rule.threshold == max(least for least, right in told.items() if right == max(told.values()))


def test_where_failures_cannot_be_kept_out_nothing_counts():
    actual = np.arange(10) % 2 == 0
    alike = np.full(10, 0.5), np.zeros(10)
    assert not fit((actual, *alike)).counts(*alike).any()


def test_what_needed_a_closing_and_had_none_never_counts_and_moves_nothing():
    actual, score, agreement = drawn(3)
    least = -np.finfo(np.float64).max
    unheld = np.append(agreement, [least] * 3), np.append(score, [1.0] * 3), np.append(actual, [False] * 3)
    rule = fit((unheld[2], unheld[1], unheld[0]))
    assert rule.weights == pytest.approx(fit((actual, score, agreement)).weights)
    assert not rule.counts(unheld[1], unheld[0])[-3:].any()


def test_a_rule_needs_successes_and_failures():
    _, score, agreement = drawn(4, 50)
    for truth in (np.ones(50, bool), np.zeros(50, bool)):
        with pytest.raises(SettingError, match=r"grasp_rule=fit: of 50 tuning episodes \d+ really succeeded"):
            fit((truth, score, agreement))
    with pytest.raises(SettingError, match="of 50 tuning episodes 25 really succeeded"):
        fit((np.arange(50) % 2 > 0, score, np.full(50, -np.finfo(np.float64).max)))  # nobody closed a hand


def test_a_rule_is_read_as_it_was_written(tmp_path):
    rule = fit(drawn(5))
    rule.save(tmp_path / "rule.json")
    assert GraspRule.load(tmp_path / "rule.json") == rule
    for text, words in (
        ('{"schema": 2}', "weights: Field required"),
        ('{"schema": 1}', "schema 1"),
        ("{", "not valid JSON"),
    ):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(ArtefactError, match=words):
            GraspRule.load(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("imagined", "real", "expected"),
    [([1, 1, 0, 0], [1, 0, 1, 0], 0.5), ([1, 1, 1, 0], [1, 1, 0, 0], 0.8), ([0, 0], [0, 0], 0.0), ([1], [1], 1.0)],
)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(imagined, real, expected):
    assert f1_score(np.array([imagined, real], float).T) == pytest.approx(expected)


class Sees:
    """Predicts grasps: error as large as the image at the beginning is bright; successes of ``closes`` all closed the hand."""

    def __init__(self, actions, closes=()):
        self.actions, self.closes = actions, closes

    def normalised_error(self, frame, instruction, command):
        assert (command[:, 6] > 0).all()
        return frame.float().mean(dim=(1, 2, 3))


BARE = Instruments(SuccessRule(0.5, 1), {}, None, None, seed=0)


def closing_at(run, step):
    command = run.episode.command.copy()
    command[:, 6] = np.where(np.arange(len(command)) < step, -1, 1)
    return replace(run, episode=replace(run.episode, command=command))


@pytest.mark.parametrize(("uncertainty", "counted"), [(0.9, [True, False]), (0.1, [True, True])])
def test_the_closing_counts_that_came_before_the_imagined_success(push_simulator, push_runs, uncertainty, counted):
    """Success is imagined at the first frame or never; one hand closes at step 1, the other at 30."""
    runs = [closing_at(run, step) for run, step in zip(push_runs[:2], (1, 30), strict=True)]
    swapped, model = (
        np.stack([run.episode.action[:32] for run in runs]),
        push_simulator(uncertainty=uncertainty, blind=True),
    )
    found = measure(model, runs, swapped, replace(BARE, grasp=Sees(runs[0].episode.actions)))
    assert found.predicted.tolist() == [uncertainty > 0.5] * 2
    np.testing.assert_allclose(found.score, uncertainty, rtol=1e-6)
    bright = np.array([run.episode.frames[0].mean() for run in runs])
    np.testing.assert_allclose(found.agreement, np.where(counted, -bright, 0), rtol=1e-5)
    assert np.isnan(measure(model, runs, swapped, BARE).agreement).all()


def test_a_success_without_a_closing_is_uncertain_as_much_as_files_can_hold(push_simulator, push_runs):
    """Imagined at the first frame, before the hand closes, of an instruction whose recorded successes all closed it."""
    runs = [closing_at(run, 30) for run in push_runs[:2]]
    swapped = np.stack([run.episode.action[:32] for run in runs])
    grasp = Sees(runs[0].episode.actions, {runs[0].episode.instruction, runs[1].episode.instruction})
    found = measure(push_simulator(uncertainty=0.9, blind=True), runs, swapped, replace(BARE, grasp=grasp))
    assert found.predicted.all()
    assert (found.agreement == np.finfo(np.float64).min).all()
    rule = fit(drawn(6))
    assert not rule.counts(found.score, found.agreement).any()


def battery(measures, rule):
    drift = drifts(measures, frame_stride=2, seed=0)
    return summarise(measures, drift, (8,), names=(), seed=0, rule=rule)


def test_the_battery_tells_outcomes_both_ways_under_names_of_their_own(push_simulator, push_runs):
    swapped = np.roll(np.stack([run.episode.action[:32] for run in push_runs]), 1, axis=0)
    measures = measure(push_simulator(uncertainty=0.9, error=4), push_runs, swapped, BARE)
    right = replace(measures, agreement=np.where(measures.actual, 0.0, -9.0))
    rule = fit((right.actual, right.score, right.agreement))
    plain, found = battery(right, None), battery(right, rule)
    assert {name: found[name] for name in plain} == plain
    assert found.keys() - plain.keys() == {
        f"{name}.with_grasp"
        for name in ("outcome_alignment", "precision", "recall", "false_success_rate", "f1", "confusion")
    }
    assert found["outcome_alignment.with_grasp"] == wilson(8, 8)
    assert found["false_success_rate.with_grasp"]["k"] == 0
    assert found["f1.with_grasp"]["value"] == 1
    assert plain["false_success_rate"]["rate"] == 1
    true = int(measures.actual.sum())
    assert plain["f1"]["value"] == pytest.approx(2 * true / (8 + true))
    assert plain["f1"]["lo"] < plain["f1"]["value"] < plain["f1"]["hi"]
    assert {task["f1"]["n"] for task in plain["tasks"].values()} == {4}
