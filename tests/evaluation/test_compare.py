import dataclasses

import pytest

from worldrl.core.errors import ProtocolError
from worldrl.evaluation.policy.compare import compare, holm, pooled
from worldrl.evaluation.policy.result import EvalResult


def test_holm_against_a_worked_example():
    # Sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 is 0.02, 0.03, 0.06, 0.04; made monotone, the last is 0.06.
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_episodes_are_paired_by_identity_not_by_order(protocol, make_result):
    before, after = make_result(protocol, "sfffss", policy="a"), make_result(protocol, "ssffff", policy="b")
    shuffled = EvalResult(protocol, "b", "h", after.outcomes[::-1])
    for found in (compare(before, after), compare(before, shuffled)):
        pair = found.overall
        assert (pair["n"], pair["both"], pair["only_a"], pair["only_b"]) == (6, 1, 2, 1)
        assert pair["diff"] == pytest.approx(-1 / 6)
        assert (found.tasks["PickRedCube"]["only_b"], found.tasks["CloseDrawer"]["only_a"]) == (1, 2)


def test_metrics_agree_with_themselves(protocol, make_result):
    found = compare(make_result(protocol, "sfffff"), make_result(protocol, "sssfff")).metrics()
    for entry in (found, *found["tasks"].values()):
        pair = entry["paired"]
        assert entry["before"]["k"] == pair["both"] + pair["only_a"]
        assert entry["after"]["k"] == pair["both"] + pair["only_b"]
    assert found["paired"]["diff"] == pytest.approx(2 / 6)
    assert all(entry["p_holm"] >= entry["paired"]["p"] for entry in found["tasks"].values())
    held = dataclasses.replace(protocol, hold_steps=1)
    at_end = compare(make_result(held, "sfffff"), make_result(held, "sssfff"), at_end=True).metrics()
    assert (at_end["before"]["k"], at_end["after"]["k"], at_end["paired"]["neither"]) == (0, 0, 6)


def test_other_protocols_are_refused(protocol, make_result):
    other = dataclasses.replace(protocol, seed=12)
    with pytest.raises(ProtocolError, match="seed: 11 against 12"):
        compare(make_result(protocol, "ssssss"), make_result(other, "ssssss"))


def test_what_differs_outside_the_protocol_is_named_and_not_refused(protocol, make_result):
    """OSMesa against EGL, or another GPU, has moved success by ten points elsewhere (MemoryVLA#17, openvla#142)."""
    a, b = (
        dataclasses.replace(make_result(protocol, "ssssss"), provenance={"render": render, "python": "3.12.1", **more})
        for render, more in (("egl", {"hardware": "H100"}), ("osmesa", {}))
    )
    notes = compare(a, b).metrics()["notes"]
    assert notes == ["render: egl against osmesa", "hardware: H100 against not recorded"]
    assert compare(a, a).metrics()["notes"] == []


def test_two_methods_are_compared_over_their_trainings(protocol, make_result):
    def training(outcomes, name):
        return dataclasses.replace(make_result(protocol, outcomes, policy=name), policy_hash=name)

    pairs = [
        compare(training("sfffff", "a1"), training("ssssff", "b1")),  # +3 of 6
        compare(training("ssffff", "a2"), training("sfffss", "b2")),  # +1 of 6
    ]
    found = pooled(pairs)
    assert (found["before"]["k"], found["after"]["k"], found["paired"]["n"]) == (3, 7, 12)
    assert (found["paired"]["both"], found["paired"]["only_a"], found["paired"]["only_b"]) == (2, 1, 5)
    assert found["paired"]["diff"] == pytest.approx(4 / 12)
    # Student with one degree of freedom: 1/3 ± 12.706 · sd / √2, and sd = (1/2 - 1/6) / √2.
    mean = found["trainings"]
    assert (mean["mean"], mean["hi"] - mean["mean"]) == (pytest.approx(1 / 3), pytest.approx(12.706 / 6, rel=1e-4))
    assert [pair["a"] for pair in found["pairs"]] == ["a1", "a2"]
    with pytest.raises(ProtocolError, match="a: policy a1 appears twice, and would be counted twice"):
        pooled([pairs[0], compare(training("sfffff", "a1"), training("ssffff", "b2"))])
    longer = dataclasses.replace(protocol, hold_steps=1)
    other = [dataclasses.replace(make_result(longer, "ssffff", policy=name), policy_hash=name) for name in ("a3", "b3")]
    with pytest.raises(ProtocolError, match="hold_steps"):
        pooled([pairs[0], compare(*other)])
