"""Unit under test: ``core/sequential.py``; its probabilities against simulation, closed forms and published numbers."""

import numpy as np
import pytest

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import mcnemar
from worldrl.core.statistics.sequential import (
    boundary,
    decide,
    discordant_share,
    false_alarm,
    leads,
    paired_episodes,
    paired_power,
    sequential_plan,
    unpaired_episodes,
)


def test_leads_are_where_exact_mcnemar_falls_below_the_level():
    for nominal in (0.05, 0.013):
        found = leads(40, nominal)
        for total in range(41):
            smallest = [
                d for d in range(total % 2, total + 1, 2) if mcnemar((total - d) // 2, (total + d) // 2) <= nominal
            ]
            assert found[total] == (smallest[0] if smallest else total + 1)


@pytest.mark.parametrize("n_max", [1, 20, 100, 500])
def test_false_alarms_stay_below_alpha_and_use_most_of_it(n_max):
    rule = boundary(n_max, 0.05)
    total = false_alarm(rule.lead).sum()
    assert total <= 0.05
    if n_max >= 100:
        assert total > 0.045
        assert rule.nominal < 0.05 / 3  # looking again and again has a price


def test_false_alarms_agree_with_simulated_comparisons_whatever_the_share_of_ties():
    rule, draw, stopped = boundary(60, 0.1), np.random.default_rng(0), {0.3: 0, 1.0: 0}
    for share in stopped:
        for _ in range(1500):
            kind = draw.random(60)
            a = (kind < share / 2).tolist()
            b = ((kind >= share / 2) & (kind < share)).tolist()
            stopped[share] += decide(a, b, rule)["verdict"] != "not decided"
    expected = 1500 * false_alarm(rule.lead).sum()
    assert abs(stopped[1.0] - expected) < 4 * np.sqrt(expected)
    assert stopped[0.3] < stopped[1.0]  # fewer discordant pairs, fewer looks: the level holds all the more


def test_a_decision_stops_at_its_first_crossing_and_later_pairs_do_not_count():
    rule = boundary(100, 0.05)
    first = int(np.flatnonzero(rule.lead <= np.arange(101))[0])  # so many in a row decide
    a, b = [False] * 60 + [True] * 40, [True] * 60 + [False] * 40
    found = decide(a, b, rule)
    assert (found["verdict"], found["n"], found["only_b"]) == ("b is better", first, first)
    assert decide(b, a, rule)["verdict"] == "a is better"
    assert decide(a[: first - 1], b[: first - 1], rule)["verdict"] == "not decided"
    assert decide([], [], rule)["n"] == 0


def test_more_pairs_than_the_maximum_are_refused():
    with pytest.raises(SettingError, match="at most 10"):
        decide([True] * 11, [True] * 11, boundary(10))
    with pytest.raises(SettingError, match="n_max"):
        boundary(0)


@pytest.mark.parametrize(
    ("rate", "diff", "episodes"), [(0.5, 0.1, 388), (0.75, 0.05, 1094), (0.9, 0.05, 435), (0.95, 0.02, 1506)]
)
def test_unpaired_sizes_are_the_textbooks(rate, diff, episodes):
    assert abs(unpaired_episodes(rate, diff) - episodes) <= 1


def test_paired_power_agrees_with_simulation():
    draw, n, share, diff = np.random.default_rng(1), 120, 0.3, 0.12
    kind = draw.random((4000, n))
    only_b, only_a = (kind < (share + diff) / 2).sum(1), ((kind >= (share + diff) / 2) & (kind < share)).sum(1)
    needed = leads(n, 0.05)
    found = np.mean((only_b > only_a) & (only_b - only_a >= needed[only_a + only_b]))
    assert paired_power(n, share, diff) == pytest.approx(found, abs=0.03)


def test_pairing_pays_and_the_plan_is_the_smallest_that_suffices():
    independent = discordant_share(0.5, 0.1)
    assert independent == pytest.approx(0.5)
    assert paired_episodes(0.2, 0.1) < paired_episodes(independent, 0.1)
    n = paired_episodes(0.3, 0.12)
    assert paired_power(n, 0.3, 0.12) >= 0.8 > paired_power(n - 1, 0.3, 0.12)
    with pytest.raises(SettingError, match="discordant share"):
        paired_episodes(0.05, 0.1)
    with pytest.raises(SettingError, match="larger difference"):
        paired_episodes(0.5, 0.001)


def test_a_sequential_comparison_saves_episodes_where_there_is_a_difference():
    plan, once = sequential_plan(0.4, 0.15), paired_episodes(0.4, 0.15)
    assert 0.8 <= plan["power"] < 0.83
    assert plan["episodes"] < once < plan["n_max"] < 1.8 * once
    assert plan["episodes"] < plan["episodes_if_equal"] <= plan["n_max"]
    draw, rule, seen, won = np.random.default_rng(2), boundary(plan["n_max"]), [], 0
    for _ in range(300):
        kind = draw.random(plan["n_max"])
        found = decide(((kind >= 0.275) & (kind < 0.4)).tolist(), (kind < 0.275).tolist(), rule)
        seen.append(found["n"])
        won += found["verdict"] == "b is better"
    assert plan["episodes"] == pytest.approx(np.mean(seen), abs=4 * np.std(seen) / np.sqrt(300))
    assert won / 300 == pytest.approx(plan["power"], abs=0.1)


def test_a_policy_that_fails_nowhere_can_be_planned_for():
    assert discordant_share(0.9, 0.1) == 0.1
    assert paired_episodes(discordant_share(0.9, 0.1), 0.1) < 100
