"""Unit under test: ``scripts/scale.py``: the simulation against closed forms, stage times against a stored run."""

import json

import pytest


@pytest.fixture
def scale(script):
    return script("scale")


def plan(scale, **over):
    given = {"updates": 40, "batches": 4, "actors": 1, "imagine_s": 3.0, "learn_s": 2.0, "sync_s": 0.5}
    return scale.Rounds(**{**given, **over})


def test_one_actor_without_staleness_is_the_sum_of_all_times(scale):
    found = scale.simulate(plan(scale))
    assert found.seconds == pytest.approx(40 * (4 * 3 + 2 + 0.5) - 0.5)
    assert found.largest_lag == 0
    assert found.learner_busy == pytest.approx(40 * 2 / found.seconds)


def test_many_actors_and_a_loose_bound_leave_the_learner_alone(scale):
    found = scale.simulate(plan(scale, actors=1000, staleness=100))
    assert found.seconds == pytest.approx(3 + 40 * 2)


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_with_many_actors_the_bound_decides_the_pace(scale, staleness):
    """Per update max(learn, (imagine + sync + learn) / (staleness + 1))."""
    long, short = (scale.simulate(plan(scale, actors=1000, staleness=staleness, updates=n)) for n in (1200, 600))
    pace = max(2.0, (3 + 0.5 + 2) / (staleness + 1))
    assert (long.seconds - short.seconds) / 600 == pytest.approx(pace, rel=1e-3)
    assert long.largest_lag <= staleness


def test_few_actors_bound_the_pace_themselves(scale):
    found = scale.simulate(plan(scale, actors=3, staleness=50, updates=600))
    assert found.seconds / 600 == pytest.approx(4 * 3 / 3, rel=1e-2)
    assert found.actors_busy == pytest.approx(1, abs=0.01)


def test_evaluations_delay_the_end_and_nothing_else(scale):
    base = scale.simulate(plan(scale)).seconds
    late = scale.simulate(plan(scale, evaluate_every=10, evaluate_s=5.0))
    assert late.seconds == pytest.approx(base + 5)
    queued = scale.simulate(plan(scale, evaluate_every=1, evaluate_s=100.0, evaluators=2))
    assert queued.seconds > 20 * 100


def test_a_stage_stops_at_its_smallest_piece(scale):
    stage = scale.Stage("a", work=100.0, least=5.0, exchange=1.0)
    assert [stage.seconds(n) for n in (1, 10, 1000)] == [100, 11, 6]
    assert scale.Stage("b", work=100.0, scales=False).seconds(64) == 100


def test_stages_of_a_stored_run_are_its_whole_time(scale):
    result = json.loads(scale.RUN.read_text())
    found = scale.stage_seconds(result)
    assert sum(found.values()) == pytest.approx(result["wall_s"])
    assert all(seconds > 0 for seconds in found.values())
    assert len(found) == 10


def test_every_stage_is_a_row_where_the_result_holds_its_time(scale):
    result = json.loads(scale.RUN.read_text())
    stages = {"01-demonstrations": 41.0, "02-policy": 95.0, "03-before": 10.0}
    result["metrics"]["stage_wall_s"] = stages
    assert scale.stage_seconds(result) == {**stages, "report": result["wall_s"] - 146}
    assert "| 02-policy | 95 |" in scale.stage_table(result)


def test_a_measured_run_is_compared(scale):
    measured = {**vars(plan(scale)), "seconds": 290.0, "machine": "two nodes"}
    assert scale.compare(measured)["ratio"] == pytest.approx(579.5 / 290)


def test_the_page_holds_the_tables_of_the_script(scale, capsys):
    scale.main([])
    page = (scale.ROOT / "docs" / "scale.md").read_text()
    for table in capsys.readouterr().out.strip().split("\n\n"):
        assert table in page
