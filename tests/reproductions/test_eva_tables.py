"""What the page of ``eva`` says of its arms: claims, tables and notes, on results whose numbers are known."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.reproductions.eva.climb import needed, reached_by_both, smoothed, times_less
from worldrl.reproductions.eva.limits import limits_table
from worldrl.reproductions.eva.reproduction import SETTINGS, claims, conclude, gain_claim, numbers_read
from worldrl.reproductions.eva.settings import ALIGNED, ARMS, CONTROLS
from worldrl.reproductions.eva.tables import cost_table, factor_cell, knowledge_table, paired_table
from worldrl.reproductions.findings import claims_table

QUICK = replace(SETTINGS["quick"], iterations=8)  # evaluated before, and after two, four, six and eight


def way(reward, seconds):
    """What an alignment reached; on the wall it took ten times as long, since other jobs ran beside it."""
    wall = [10 * each for each in seconds]
    return {
        "finished": [float(k) for k in range(len(reward))],
        "reward": reward,
        "terms": {"moving_executability": reward, "execution": reward},
        "rows": [10.0 * k for k in range(len(reward))],
        **dict.fromkeys(("seconds", "rollout_seconds"), wall),
        **dict.fromkeys(("cpu_seconds", "cpu_rollout_seconds"), seconds),
    }


def ramp(slope, per_look):
    """Five evaluations of a straight climb, which is free of noise."""
    return way([1 + slope * k for k in range(5)], [float(per_look * k) for k in range(5)])


def test_what_it_takes_to_the_same_reward():
    """The last smoothed reward is the mean of the last two looks; both are asked for the lower one's."""
    slow, fast = ramp(1.0, 60), ramp(2.0, 40)
    assert smoothed(slow["reward"]).tolist() == [1, 2, 3, 4, 4.5]
    assert reached_by_both(slow["reward"], fast["reward"]) == pytest.approx(4.5)
    assert needed(slow, "cpu_seconds", 4.25) == pytest.approx(210)
    assert needed(fast, "cpu_seconds", 4.0) == pytest.approx(60)
    assert times_less(slow, fast, "cpu_seconds") == pytest.approx(240 / 70)
    assert times_less(slow, fast, "rows") == pytest.approx(40 / 17.5)
    falling = ramp(-0.1, 60)
    assert times_less(slow, falling, "cpu_seconds") is times_less(falling, slow, "cpu_seconds") is None
    short = way([1.0, 2.0, 3.0, 4.0], [0.0, 1, 2, 3])
    assert times_less(short, fast, "rows") is None  # too few looks to tell a climb from noise


def test_on_a_plateau_noise_decides_nothing():
    """Two methods of which one is twice as fast, level after a third of their looks, measured again and again with other noise."""
    draws, looks = np.random.default_rng(0), np.arange(21)
    plain, fast = (1 + np.minimum(looks / at, 1.0) for at in (8, 4))
    found = []
    for _ in range(100):
        noisy = [way(list(y + draws.normal(0, 0.05, 21)), list(10.0 * looks)) for y in (plain, fast)]
        found.append(times_less(*noisy, "seconds"))
    assert None not in found
    assert np.mean(found) == pytest.approx(2, abs=0.2)
    assert np.std(found) < 0.3


def test_a_climb_within_the_noise_is_not_decided():
    draws = np.random.default_rng(1)
    for looks in (6, 21):
        flat = [way(list(draws.normal(0, 1, looks)), list(np.arange(looks, dtype=float))) for _ in range(200)]
        decided = [times_less(*pair, "seconds") is not None for pair in zip(flat[:100], flat[100:], strict=True)]
        assert np.mean(decided) < 0.05


def results(arms=ARMS, **flow):
    """Two seeds with two tests each."""
    same = {
        "success": 0.5,
        "violation_rate": 0.2,
        "jerk_spike_rate": 0.1,
        "motion": 0.5,
        "reward": 2.0,
        "test_rows": 24,
    }
    per_plan = {"reward": [2.0, 2.0], "foreseen_success": [0.9, 0.1]}
    critic = {
        "learned": 9,
        "successes": 3,
        "failures": 4,
        "auroc": 0.9,
        "auroc_pooled": 0.8,
        "executed": 10,
        "imagined_rows": 120,
    }
    critic |= {"seconds": 50.0, "cpu_seconds": 20.0, "terms": {"moving_executability": None}}
    rows = {
        method: {**same, "hits": [True, False], "episodes": 2, "motions": [0.2, 0.8], "per_plan": per_plan}
        for method in ARMS
    }
    for method in (*ALIGNED, *CONTROLS):
        rows[method] |= {"imagined_rows": 100.0, "trained_rows": 200.0, "cost": 700.0, "further_steps": 5}
    for method in ALIGNED:
        rows[method] |= {"climb": ramp(1.0, 60)}
    rows["none"] |= {"critic": critic}
    rows["flow-grpo"] |= flow
    rows["branch-grpo"] |= {"climb": ramp(2.0, 40), "hits": [True, True]}
    return {method: [rows[method], dict(rows[method])] for method in arms}


def test_claims_are_differences_that_should_lie_above_zero():
    found = claims(results(success=0.6, violation_rate=0.05, motion=0.5, reward=3.0))
    means = [claim.mean for claim in found]
    assert means[:5] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.1])
    # BranchGRPO is where plain GRPO ends after 70 s of a processor instead of 240; Sol-RL is as fast as its pool.
    assert means[5:] == pytest.approx([240 / 70 - 1.8, 1 - 2])
    assert "(20 % of the frames before)" in found[2].sentence


def test_motion_is_measured_plan_by_plan():
    """Plans move by 0.2 or 0.8, far more apart than the tenth that may go: two means would decide nothing."""

    def verdict(share):
        found = results(motions=[share * 0.2, share * 0.8])
        (claim,) = (claim for claim in claims(found) if "motion" in claim.sentence)
        assert "4 pairs of plans" in claim.quantity
        return claim.verdict

    assert [verdict(share) for share in (0.99, 0.9, 0.8)] == ["reproduced", "not reproduced", "contrary"]


def test_broken_limits_of_planned_videos_decide_whether_they_are_halved():
    """Over two seeds nothing is sure; over the plans of both it is. Pairs of the same states: what is in all plans takes no part."""
    found = results(violation_rate=0.05)
    (over_seeds,) = (claim for claim in claims(found) if "halves" in claim.sentence)
    assert "planned" not in over_seeds.quantity
    assert limits_table(found).rows == []
    before = np.random.default_rng(0).binomial(1, 0.1, 400) / 13
    for scale, verdict in ((0.2, "reproduced"), (0.5, "not reproduced"), (1.0, "contrary")):
        for one, other in zip(found["none"], found["flow-grpo"], strict=True):
            one["planned_violations"], other["planned_violations"] = list(before), list(scale * before)
        (claim,) = (claim for claim in claims(found) if "halves" in claim.sentence)
        assert (claim.verdict, "over 800 planned videos" in claim.quantity) == (verdict, True)
        assert claim.mean == pytest.approx(before.mean() * (0.5 - scale))
    rows = {row[0]: row for row in limits_table(found).rows}
    assert list(rows) == ["none", "flow-grpo"]
    assert rows["flow-grpo"][1] == "800"
    assert rows["flow-grpo"][4] == "0 [0, 0]"


def test_where_no_limit_was_broken_nothing_is_said_of_halving():
    found = results()
    for arm in ("none", "flow-grpo"):
        for one in found[arm]:
            one["planned_violations"] = [0.0] * 40
    (claim,) = (claim for claim in claims(found) if "halves" in claim.sentence)
    assert claim.verdict == "open"


def test_a_seed_whose_climb_is_noise_leaves_the_cost_open():
    found = results()
    assert [claim.verdict for claim in claims(found)][5:] == ["reproduced", "contrary"]
    found["branch-grpo"][1] |= {"climb": way([1.0, 1.1, 0.9, 1.1, 0.9], [0.0, 1, 2, 3, 4])}
    claim = claims(found)[5]
    assert (claim.verdict, len(claim.values), claim.undecided) == ("open", 1, 1)
    assert claims_table([claim]).rows[0][3] == "not decided in 1 of 2 seeds"
    cells = {
        row[0]: dict(zip(cost_table(QUICK, found).headers, row, strict=True)) for row in cost_table(QUICK, found).rows
    }
    assert cells["branch-grpo"]["Times less seconds"] == "3.43 (1 of 2 seeds)"
    found["branch-grpo"][0] |= {"climb": found["branch-grpo"][1]["climb"]}
    claim = claims(found)[5]
    assert (claim.verdict, claim.mean, claim.metrics()["undecided"]) == ("open", None, 2)
    assert factor_cell([None, None]) == "not decided"


@pytest.mark.parametrize(
    ("won", "lost", "tests", "verdict"),
    [
        (40, 6, 400, "reproduced"),  # 8.5 points
        (40, 6, 398, "open"),
        (22, 4, 400, "not reproduced"),  # 4.5 points, and surely more than none
        (60, 31, 400, "reproduced"),
        (40, 20, 400, "not reproduced"),  # 5 points
        (6, 40, 400, "contrary"),
    ],
)
def test_a_gain_of_six_points_is_measured_by_paired_episodes(won, lost, tests, verdict):
    before, after = np.zeros(tests, bool), np.zeros(tests, bool)
    after[:won], before[won : won + lost] = True, True
    halves = [
        [{"hits": part.tolist(), "success": part.mean()} for part in np.split(each, 2)] for each in (before, after)
    ]
    claim = gain_claim(dict(zip(("none", "flow-grpo"), halves, strict=True)))
    assert claim.verdict == verdict
    assert claim.mean == pytest.approx((won - lost) / tests)
    assert claim.interval is not None
    assert (claim.interval[0] > 0) == (verdict != "contrary")


def test_fewer_arms_make_fewer_claims_and_rows():
    few = results(("none", "best-of-n", "flow-grpo"))
    findings = conclude(replace(QUICK, tests=2), few)
    assert len(findings.claims) == 5
    titles = {table.title: [row[0] for row in table.rows] for table in findings.tables}
    assert titles["Success against none"] == ["best-of-n", "flow-grpo"]
    assert titles["Success against flow-grpo"] == ["best-of-n"]
    assert titles["Costs, means over seeds"] == ["none", "best-of-n", "flow-grpo"]
    assert findings.curves[2].y_label == "moving_executability"
    whole = conclude(replace(QUICK, tests=2, executed_plans=5), results())
    assert [curve.y_label for curve in whole.curves[2:]] == [
        "(moving_executability + 40 x execution) / 5",
        "moving_executability",
        "execution",
    ]
    assert "(all tasks together 0.80, 0.80)" in " ".join(whole.notes)
    told = " ".join(whole.notes)
    assert "5 steps more of the same training, without alignment: success 0.50 becomes 0.50" in told


def test_the_page_reads_what_it_says_it_reads():
    """Stages that hold only that are enough, so whoever has it can continue, and no other stage ends in a KeyError."""
    settings, whole = replace(QUICK, tests=2, executed_plans=5, limit_plans=3), results(foreseen_success=0.5)
    for arm in ("none", *CONTROLS, *ALIGNED):
        whole[arm] = [{**found, "planned_violations": [0.1, 0.0, 0.2]} for found in whole[arm]]
    kept = {arm: [only(found, numbers_read(settings, arm)) for found in each] for arm, each in whole.items()}
    assert kept != whole
    assert conclude(settings, kept).claims == conclude(settings, whole).claims
    assert {"motions", "climb.terms.execution", "climb.cpu_seconds"} <= set(numbers_read(settings, "flow-grpo"))
    assert not {"motions", "climb.rows"} & set(numbers_read(settings, "recorded"))


def only(found, names, prefix=""):
    """Take the named numbers, dotted where nested."""
    return {
        name: only(value, names, f"{prefix}{name}.") if isinstance(value, dict) else value
        for name, value in found.items()
        if any(f"{each}.".startswith(f"{prefix}{name}.") for each in names)
    }


def test_a_reward_is_asked_within_each_seed_and_task():
    """Two tasks of two tests: every reward is higher in the task that succeeds more often, and knows nothing within it."""
    found = results()
    two = replace(QUICK, tests=2, tasks="BimanualOpenDrawer+BimanualPlaceCubeOnPlate")
    hits = [True, True, False, True]
    for arm in found.values():
        for one in arm:
            one |= {
                "hits": hits,
                "per_plan": {"reward": [9.0, 9.0, 1.0, 1.0], "foreseen_success": [0.9, 0.8, 0.2, 0.1]},
            }
    rows = {row[:2]: row[2:] for row in knowledge_table(two, found).rows}
    assert rows["none", "moving_executability"] == ("0.50", "2 of 4", "6", "2")
    assert rows["none", "execution, foreseen"][0] == "0.00"


def test_what_a_reward_knows_of_success_is_reported_plan_by_plan():
    rows = {row[:2]: row[2:] for row in knowledge_table(QUICK, results()).rows}
    assert rows["none", "moving_executability"] == ("0.50", "2 of 2", "2", "2")
    assert rows["none", "execution, foreseen"] == ("1.00", "2 of 2", "2", "2")
    assert rows["branch-grpo", "execution, foreseen"][0] == "unknown: one outcome only"
    assert {arm for arm, _ in rows} == {"none", *CONTROLS, "best-of-n", "staged", *ALIGNED}


def test_arms_are_compared_test_by_test():
    """Four tests of two seeds: BranchGRPO wins two and loses none, the others are as before."""
    table = paired_table(results(), "none", ("branch-grpo", "sol-rl"))
    rows = {row[0]: dict(zip(table.headers, row, strict=True)) for row in table.rows}
    assert rows["branch-grpo"]["Against none, points"] == "+50.0"
    assert rows["branch-grpo"]["Won / lost"] == "2 / 0"
    assert rows["branch-grpo"]["Success"].endswith("(4/4)")
    assert rows["sol-rl"]["Against none, points"] == "+0.0"


def test_practice_training_and_tests_are_all_counted():
    table = cost_table(replace(QUICK, executed_plans=10), results())
    rows = {row[0]: dict(zip(table.headers, row, strict=True)) for row in table.rows}
    assert list(rows) == ["executed plans and critic", "none", *CONTROLS, "best-of-n", "staged", *ALIGNED]
    first = rows["executed plans and critic"]
    assert [first[head] for head in ("Episodes executed", "Cost", "Processor seconds")] == ["10", "120", "20"]
    assert (rows["none"]["Cost"], rows["longer"]["Cost"], rows["none"]["Rows of the tests"]) == ("0", "700", "24")
    plain, tree = rows["flow-grpo"], rows["branch-grpo"]
    spent = (plain["Processor seconds"], plain["Seconds on the wall"], plain["Times less seconds"])
    assert spent == ("240", "2400", "")
    assert tree["Times less seconds"] == "3.43"
    assert "executed plans and critic" not in [row[0] for row in cost_table(QUICK, results()).rows]
