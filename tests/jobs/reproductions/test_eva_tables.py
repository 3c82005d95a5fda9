"""What the page of ``eva`` says of its arms: claims, tables and notes, on results whose numbers are known."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.jobs.reproductions.eva import SETTINGS, claims, conclude, gain_claim
from worldrl.jobs.reproductions.eva_arms import needed, times_less
from worldrl.jobs.reproductions.eva_settings import ALIGNED, ARMS, CONTROLS
from worldrl.jobs.reproductions.eva_tables import cost_table, knowledge_table, paired_table

QUICK = replace(SETTINGS["quick"], iterations=4)  # looked at before, and after two and four


def way(reward, seconds):
    """What an alignment reached; on the wall it took ten times as long, since other jobs ran beside it."""
    wall = [10 * each for each in seconds]
    return {
        "finished": [0.0, 1, 2],
        "reward": reward,
        "rows": [0.0, 10, 20],
        **dict.fromkeys(("seconds", "rollout_seconds"), wall),
        **dict.fromkeys(("cpu_seconds", "cpu_rollout_seconds"), seconds),
    }


def test_what_it_takes_to_the_same_reward():
    slow, fast = way([1.0, 2.0, 3.0], [0.0, 60, 120]), way([1.0, 3.0, 4.0], [0.0, 40, 80])
    assert needed(slow, "cpu_seconds", 2.5) == pytest.approx(90)
    assert needed(fast, "cpu_seconds", 2.5) == pytest.approx(30)
    assert times_less(slow, fast, "cpu_seconds") == pytest.approx(120 / 40)  # both reach 3
    assert times_less(slow, fast, "rows") == pytest.approx(20 / 10)
    falling = way([1.0, 0.5, 0.9], [0.0, 1, 2])
    assert times_less(slow, falling, "cpu_seconds") == times_less(falling, slow, "cpu_seconds") == 1


def results(arms=ARMS, **flow: float):
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
    critic = {"learned": 9, "successes": 3, "failures": 4, "auroc": 0.9, "executed": 10, "imagined_rows": 120}
    critic |= {"seconds": 50.0, "cpu_seconds": 20.0, "terms": {"moving_executability": None}}
    rows = {method: {**same, "hits": [True, False], "episodes": 2, "per_plan": per_plan} for method in ARMS}
    for method in (*ALIGNED, *CONTROLS):
        rows[method] |= {"imagined_rows": 100.0, "trained_rows": 200.0, "cost": 700.0, "further_steps": 5}
    for method in ALIGNED:
        rows[method] |= {"climb": way([1.0, 2.0, 3.0], [0.0, 60, 120])}
    rows["none"] |= {"critic": critic}
    rows["flow-grpo"] |= flow
    rows["branch-grpo"] |= {"climb": way([1.0, 3.0, 4.0], [0.0, 40, 80]), "hits": [True, True]}
    return {method: [rows[method], dict(rows[method])] for method in arms}


def test_claims_are_differences_that_should_lie_above_zero():
    found = claims(results(success=0.6, violation_rate=0.05, motion=0.5, reward=3.0))
    means = [claim.mean for claim in found]
    assert means[:5] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.1])
    # BranchGRPO is where plain GRPO ends after 40 s of a processor instead of 120; Sol-RL is as fast as its pool.
    assert means[5:] == pytest.approx([3 - 1.8, 1 - 2])
    assert "(20 % of the frames before)" in found[2].sentence


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
def test_a_gain_of_six_points_is_judged_by_paired_episodes(won, lost, tests, verdict):
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
    whole = conclude(replace(QUICK, tests=2, practice=5), results())
    assert "execution" in whole.curves[2].y_label
    told = " ".join(whole.notes)
    assert "5 steps more of the same training, without alignment: success 0.50 becomes 0.50" in told


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


def test_what_a_reward_knows_of_success_is_told_plan_by_plan():
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
    table = cost_table(replace(QUICK, practice=10), results())
    rows = {row[0]: dict(zip(table.headers, row, strict=True)) for row in table.rows}
    assert list(rows) == ["practice and critic", "none", *CONTROLS, "best-of-n", "staged", *ALIGNED]
    first = rows["practice and critic"]
    assert [first[head] for head in ("Episodes executed", "Cost", "Processor seconds")] == ["10", "120", "20"]
    assert (rows["none"]["Cost"], rows["longer"]["Cost"], rows["none"]["Rows of the tests"]) == ("0", "700", "24")
    plain, tree = rows["flow-grpo"], rows["branch-grpo"]
    assert (plain["Processor seconds"], plain["Seconds on the wall"], plain["Times less seconds"]) == (
        "120",
        "1200",
        "",
    )
    assert tree["Times less seconds"] == "3.00"
    assert "practice and critic" not in [row[0] for row in cost_table(QUICK, results()).rows]
