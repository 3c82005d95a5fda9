"""Unit under test: ``worldrl/jobs/vla/combining.py``: which policy follows a round. The whole path: ``test_train_vla.py``."""

from types import SimpleNamespace

import pytest

from worldrl.jobs.vla import combining
from worldrl.jobs.vla.combining import better_by_task, policy_after, token_policies


def counts(**tasks):
    return {"tasks": {name: {"before": {"k": a}, "after": {"k": b}} for name, (a, b) in tasks.items()}}


def test_of_each_task_the_policy_with_more_successes_and_of_equal_ones_the_new_one():
    assert better_by_task(counts(x=(3, 2), y=(2, 3), z=(4, 4))) == {"x": "before", "y": "after", "z": "after"}


@pytest.fixture
def settled(monkeypatch, tmp_path):
    """What follows a round with these counts, for ``kept`` and a distilled policy ``combined``, or None."""

    def make(tasks, *, kept, combined="combined", accept=20, steps=400):
        asked = []
        monkeypatch.setattr(combining.checks, "accepted", lambda *_: kept)

        def distilled(loop, number, policies, better, recordings):
            asked.append(better)
            return combined

        monkeypatch.setattr(combining, "combined_policy", distilled)
        plan = SimpleNamespace(evaluation=SimpleNamespace(accept=accept), distillation=SimpleNamespace(steps=steps))
        run = SimpleNamespace(
            stage_finished=lambda name: (tmp_path / name).exists(),
            stage=lambda name: SimpleNamespace(summary=counts(**tasks)),
        )
        return policy_after(SimpleNamespace(plan=plan, run=run), 1, "old", "new", []), asked

    return make


MIXED, BETTER, WORSE = {"x": (3, 2), "y": (2, 3)}, {"x": (2, 2), "y": (2, 3)}, {"x": (3, 2), "y": (3, 2)}


def test_a_round_that_gains_and_loses_is_distilled_kept_or_undone(settled):
    assert settled(MIXED, kept=True) == (("combined", None), [{"x": "before", "y": "after"}])
    # The policy of an undone round still acts in the next collection, which shows what it exploited.
    assert settled(MIXED, kept=False)[0] == ("combined", "new")


def test_a_distilled_policy_that_loses_is_left_out(settled):
    assert settled(MIXED, kept=True, combined=None)[0] == ("new", None)
    assert settled(MIXED, kept=False, combined=None)[0] == ("old", "new")


@pytest.mark.parametrize(("tasks", "kept"), [(BETTER, True), (WORSE, False)])
def test_where_one_policy_is_better_everywhere_nothing_is_distilled(settled, tasks, kept):
    assert settled(tasks, kept=kept) == ((("new", None) if kept else ("old", "new")), [])


@pytest.mark.parametrize("off", [{"accept": 0}, {"steps": 0}])
def test_it_can_be_switched_off(settled, off):
    assert settled(MIXED, kept=True, **off) == (("new", None), [])


@pytest.mark.parametrize(("stages", "distilled"), [([], 1), (["round-2-1-practice"], 0), (["04-verify"], 0), (["round-1-1-practice"], 1), (["round-1-6-distil", "04-verify"], 1)])  # fmt: skip
def test_a_run_that_is_past_a_round_keeps_the_policy_with_which_it_continued(settled, tmp_path, stages, distilled):
    for name in stages:
        (tmp_path / name).touch()
    assert len(settled(MIXED, kept=True)[1]) == distilled


def test_another_policys_distribution_is_not_known(tiny_policy):
    own = SimpleNamespace(network=tiny_policy())
    assert token_policies({"before": own, "after": own}) == {"before": own.network, "after": own.network}
    assert token_policies({"before": own, "after": SimpleNamespace(network=object())}) is None
