"""Unit under test: ``evaluation/policy/ranking.py``: a ranking's numbers, and the file of real outcomes."""

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.intervals import paired, pearson, wilson
from worldrl.evaluation.policy.ranking import labels_of, ranked, read_outcomes

NAMES = {"runs/a/policy": "a", "a": "a", "b": "b"}


def success_of(rates, episodes=40):
    draw = numpy_stream(3, "success").random((len(rates), episodes))
    return draw < np.array(rates)[:, None]


def test_labels_are_what_tells_folders_apart():
    assert labels_of(["runs/a/policy", "runs/b/policy"]) == ["a", "b"]
    assert labels_of(["/x/run/1/policy", "/x/run/2/other/policy"]) == ["1", "2/other"]
    assert labels_of(["a", "b/policy"]) == ["a", "b/policy"]
    assert labels_of(["a", "/x/b"]) == ["a", "/x/b"]


def test_a_ranking_holds_rates_pairs_and_the_order():
    success, tasks = success_of([0.2, 0.9, 0.5]), ["x", "y"] * 20
    found = ranked(["low", "high", "mid"], success, tasks, None, seed=0)
    assert found["order"] == ["high", "mid", "low"]
    assert [one["imagined"] for one in found["policies"]] == [wilson(int(row.sum()), 40) for row in success]
    (pair,) = [one for one in found["pairs"] if {one["a"], one["b"]} == {"low", "high"}]
    assert (pair["a"], pair["b"]) == ("high", "low")
    assert pair["diff"] == paired(success[1], success[0])["diff"] < 0
    assert sum(one["probability_best"] for one in found["policies"]) == pytest.approx(1)
    assert found["policies"][0]["tasks"]["x"]["n"] == 20
    assert found["calibration"] is None


def test_permuted_policies_permute_the_result():
    labels, success, tasks = list("abcd"), success_of([0.3, 0.5, 0.5, 0.6]), ["x"] * 40
    order = [2, 0, 3, 1]
    first = ranked(labels, success, tasks, None, seed=0)
    other = ranked([labels[one] for one in order], success[order], tasks, None, seed=0)
    assert [first["policies"][one] for one in order] == other["policies"]
    assert (first["order"], first["pairs"]) == (other["order"], other["pairs"])


def test_calibration_takes_the_policies_with_real_outcomes():
    labels, success = list("abcdef"), success_of([0.1, 0.3, 0.5, 0.7, 0.9, 0.2])
    outcomes = {label: {n: n < 4 * k for n in range(20)} for k, label in enumerate("abcde", start=1)}
    found = ranked(labels, success, ["x"] * 40, outcomes, seed=0)["calibration"]
    rates = success[:5].mean(axis=1)
    assert found["policies"] == 5
    assert found["pearson"]["r"] == pytest.approx(pearson(rates, np.arange(1, 6) / 5)["r"])
    assert found["bias"]["mean"] == pytest.approx((rates - np.arange(1, 6) / 5).mean())
    assert found["mmrv"]["lo"] <= found["mmrv"]["value"] <= found["mmrv"]["hi"]
    few = ranked(labels, success, ["x"] * 40, {"a": {0: True}}, seed=0)["calibration"]
    assert (few["policies"], few["pearson"], few["bias"]) == (1, None, None)


def test_outcomes_are_read_under_either_name(tmp_path):
    file = tmp_path / "o.csv"
    file.write_text("policy,episode,success\nruns/a/policy,0,1\na, 1,false\n\nb,0,TRUE\n")
    assert read_outcomes(file, NAMES) == {"a": {0: True, 1: False}, "b": {0: True}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: must be policy,episode,success"),
        ("policy,trial,success\na,0,1\n", "line 1: must be policy,episode,success, got 'policy,trial,success'"),
        ("policy,episode,success\n", "holds no outcome"),
        ("policy,episode,success\na,0,1\na,1\n", "line 3: needs 3 values, got 2"),
        ("policy,episode,success\nc,0,1\n", "line 2: policy 'c' is not ranked here"),
        ("policy,episode,success\na,-1,1\n", "line 2: episode must be a whole number"),
        ("policy,episode,success\na,1.0,1\n", "line 2: episode must be a whole number"),
        ("policy,episode,success\na,0,0.5\n", "line 2: success must be 0 or 1, got '0.5'"),
        ("policy,episode,success\na,0,1\nruns/a/policy,0,0\n", "line 3: episode 0 of a stands in line 2, too"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(tmp_path, text, said):
    file = tmp_path / "o.csv"
    file.write_text(text)
    with pytest.raises(ArtefactError) as caught:
        read_outcomes(file, NAMES)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_or_missing_is_refused(tmp_path):
    (tmp_path / "o.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("o.csv", "none.csv"):
        with pytest.raises(ArtefactError, match="cannot be read as CSV"):
            read_outcomes(tmp_path / name, NAMES)
