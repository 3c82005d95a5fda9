"""Unit under test: what a policy's training means for a measurement (``evaluation/trained_on.py``)."""

from dataclasses import replace

import pytest

from worldrl.core.errors import SettingError
from worldrl.evaluation.trained_on import examine, merged, suite_conventions


def trained(suite, states=None, **changed):
    kept = suite_conventions(suite, ["PickRedCube"], 20.0) | changed
    return {"states": {suite: states or {}}, "conventions": {suite: kept}}


def test_equal_conventions_say_nothing_and_another_gripper_is_named(protocol):
    quiet = examine(protocol, trained("worldrl"), refuse=True)
    assert (quiet["conventions"]["differing"], quiet["warnings"]) == ({}, [])
    loud = examine(protocol, trained("worldrl", gripper="0 closed, 1 open"), refuse=False)
    assert loud["conventions"]["differing"] == {"gripper": ["0 closed, 1 open", "-1 open, +1 closed"]}
    assert "gripper (0 closed, 1 open there, -1 open, +1 closed here)" in loud["warnings"][0]


def test_another_embodiment_is_an_error(protocol):
    with pytest.raises(SettingError, match=r"embodiment: .*joint targets.*robotwin_clean.*worldrl takes pose changes"):
        examine(protocol, trained("robotwin_clean"), refuse=False)


def test_of_several_suites_the_nearest_counts(protocol):
    both = merged(trained("libero_goal"), trained("worldrl"))
    assert examine(protocol, both, refuse=False)["conventions"]["differing"] == {}
    assert set(both["conventions"]) == {"libero_goal", "worldrl"}
    assert merged(None, both) is None


def test_states_of_two_trainings_are_kept_once_in_their_order():
    first = trained("worldrl", {"A": [[3, -1, 1], [1, -1, 1]]})
    second = trained("worldrl", {"A": [[1, -1, 1], [2, -1, 1], [2, -1, 1]], "B": [[1, -1, 1]]})
    found = merged(first, second)
    assert found["states"] == {"worldrl": {"A": [[3, -1, 1], [1, -1, 1], [2, -1, 1]], "B": [[1, -1, 1]]}}
    assert first["states"] == {"worldrl": {"A": [[3, -1, 1], [1, -1, 1]]}}  # what was given stays as it is


def test_sampled_states_are_told_apart_by_their_seed(protocol):
    known = trained("worldrl", {"PickRedCube": [[0, -1, 11], [1, -1, 12]], "CloseDrawer": [[2, -1, 11]]})
    assert examine(protocol, known, refuse=False)["training_states"] == {"k": 2, "n": 6}
    with pytest.raises(SettingError, match="2 of 6 episodes"):
        examine(protocol, known, refuse=True)
    assert examine(replace(protocol, seed=5), known, refuse=True)["training_states"]["k"] == 0
    with pytest.raises(SettingError, match="does not say what it was trained on"):
        examine(protocol, None, refuse=True)
