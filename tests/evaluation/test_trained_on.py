"""Unit under test: what a policy's training means for a measurement (``evaluation/trained_on.py``)."""

from dataclasses import replace

import numpy as np
import pytest

from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.external.libero_robot import libero_embodiment
from worldrl.data.lerobot.format import DatasetHeader
from worldrl.evaluation.policy.trained_on import examine, merged, recorded_conventions, suite_conventions, trained_on


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


def test_sampled_states_are_distinguished_by_their_seed(protocol):
    known = trained("worldrl", {"PickRedCube": [[0, -1, 11], [1, -1, 12]], "CloseDrawer": [[2, -1, 11]]})
    assert examine(protocol, known, refuse=False)["training_states"] == {"k": 2, "n": 6}
    with pytest.raises(SettingError, match="2 of 6 episodes"):
        examine(protocol, known, refuse=True)
    assert examine(replace(protocol, seed=5), known, refuse=True)["training_states"]["k"] == 0
    with pytest.raises(SettingError, match="does not state what it was trained on"):
        examine(protocol, None, refuse=True)


# --- suites that nobody knows ---

SAWYER = Embodiment(0.01, 0.1, (-0.5, 0.4, 0.0), (0.5, 1.0, 0.5), 1.0, 80.0)


def header(suite, robot=SAWYER):
    return DatasetHeader(round(robot.control_hz), ("scene",), (16, 16), robot, suite)


def test_an_unknown_suite_has_the_conventions_of_its_recorded_robot_and_nobody_elses(protocol):
    there = recorded_conventions(header("metaworld"), ["drawer-open"])
    assert (there["position_scale"], there["rotation_scale"], there["control_hz"]) == (0.01, 0.1, 80.0)
    assert (there["frame"], there["counted_from"], there["picture"]) == ("unknown",) * 3
    found = examine(protocol, {"states": {}, "conventions": {"metaworld": there}}, refuse=False)
    assert found["conventions"]["differing"] == {"position_scale": [0.01, 0.02], "control_hz": [80.0, 20.0]}
    assert "whether frame, counted_from, picture are those of worldrl is unknown" in found["warnings"][1]


def test_a_known_suite_keeps_its_words_beside_its_robots_numbers():
    there = recorded_conventions(header("libero_goal", libero_embodiment()), ["x"])
    assert there == suite_conventions("libero_goal", ["x"], 20.0)


def test_a_protocol_of_an_unknown_suite_claims_nothing(protocol):
    assert suite_conventions("metaworld", ["x"], 80.0) == {"embodiment": "unknown", "control_hz": 80.0}
    found = examine(replace(protocol, suite="metaworld"), trained("worldrl"), refuse=False)
    assert found["conventions"]["differing"] == {}
    assert "embodiment" in found["warnings"][-1]


def still_episode():
    zeros = np.zeros((3, 8), np.float32)
    frames, contact = np.zeros((3, 1, 16, 16, 3), np.uint8), np.zeros(3, bool)
    return Episode(frames, zeros, zeros[:, :7], zeros[:2, :7], zeros[:2, 0], contact, False, True, "wait", "wait")


def test_datasets_without_a_suite_still_say_which_robot_it_was(protocol):
    dataset = EpisodeDataset.from_episodes([still_episode()], fps=80, embodiment=SAWYER)
    known = trained_on([dataset])
    assert known["states"] is None
    assert known["conventions"]["unnamed suite"]["position_scale"] == 0.01
    found = examine(protocol, known, refuse=False)
    assert found["training_states"] is None
    assert any("position_scale (0.01 there, 0.02 here)" in text for text in found["warnings"])
    with pytest.raises(SettingError, match="initial states that the policy was trained on are unknown"):
        examine(protocol, known, refuse=True)
    other = EpisodeDataset.from_episodes([still_episode()], fps=20, embodiment=replace(SAWYER, control_hz=20.0))
    assert list(trained_on([dataset, other, dataset])["conventions"]) == ["unnamed suite", "unnamed suite 2"]
    assert merged(known, trained("worldrl"))["states"] is None
