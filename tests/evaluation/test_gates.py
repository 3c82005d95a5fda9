import math

import pytest

from worldrl.core.errors import GateError, SettingError
from worldrl.evaluation.world_model.gates import ADVICE, MEANING, GateThresholds, make_gates, measure_gates, require
from worldrl.rewards.success import SuccessRule

GOOD = {"psnr": 30.0, "action_swap_ratio": 3.0, "static_psnr": 30.0, "recall": 0.9, "precision": 0.95}


def gate(name, **values):
    (found,) = [g for g in make_gates(GOOD | values, GateThresholds()) if g.name == name]
    return found


def test_every_gate_has_its_threshold_meaning_and_advice():
    gates = make_gates(GOOD, GateThresholds())
    of_others = {"confirmed", "view_psnr"}  # measured elsewhere, or of models with further cameras
    assert {g.name for g in gates} == GOOD.keys() == MEANING.keys() - of_others == ADVICE.keys() - of_others
    assert all(g.passed for g in gates)
    require(gates)


@pytest.mark.parametrize("name", list(GOOD))
def test_a_gate_passes_at_its_threshold_and_fails_below_and_without_a_number(name):
    limit = getattr(GateThresholds(), name)
    assert gate(name, **{name: limit}).passed
    assert not gate(name, **{name: math.nextafter(limit, 0)}).passed
    assert not gate(name, **{name: math.nan}).passed


def test_the_error_names_every_failed_number_its_threshold_and_what_to_do():
    gates = make_gates(GOOD | {"recall": 0.4567, "precision": math.nan}, GateThresholds(recall=0.75, precision=0.9))
    with pytest.raises(GateError) as caught:
        require(gates)
    text = str(caught.value)
    assert "recall is 0.457, needs 0.75" in text
    assert "precision is not measurable, needs 0.9" in text
    assert ADVICE["recall"] in text
    assert ADVICE["precision"] in text
    assert "gates=warn" in text
    assert "psnr" not in text


def test_measured_on_a_simulator_that_is_right(push_simulator, push_episode):
    episodes = [push_episode(n, 34) for n in range(6)]
    gates, metrics = measure_gates(push_simulator(error=4), episodes, SuccessRule(0.5, 1), GateThresholds(), seed=0)
    values = {g.name: g.value for g in gates}
    assert (values["recall"], values["precision"]) == (1, 1)
    assert all(gate.passed for gate in gates)
    assert values["psnr"] == values["static_psnr"] == metrics["closed_loop.psnr@32"] == pytest.approx(36.1, abs=0.1)
    assert metrics["recall"].keys() == {"k", "n", "rate", "lo", "hi", "method"}


def test_measured_on_simulators_that_are_wrong(push_simulator, push_episode):
    episodes = [push_episode(n, 34) for n in range(6)]

    def failed(**wrong):
        gates, _ = measure_gates(
            push_simulator(error=4, **wrong),
            episodes,
            SuccessRule(0.5, 1),
            GateThresholds(recall=0.8, precision=0.85),
            seed=0,
        )
        return {g.name for g in gates if not g.passed}

    assert failed(blind=True) >= {"psnr", "action_swap_ratio", "recall"}
    assert failed(uncertainty=0.9) == {"precision"}
    assert failed(certainty=0.1) == {"recall", "precision"}  # nothing imagined to succeed: precision unknown, so failed


def test_what_cannot_be_measured_fails(push_simulator, push_episode):
    with pytest.raises(SettingError, match="held_out"):
        measure_gates(push_simulator(), [], SuccessRule(0.5, 1), GateThresholds(), seed=0)
    short = [push_episode(n, 12) for n in range(4)]
    gates, _ = measure_gates(push_simulator(error=4), short, SuccessRule(0.5, 1), GateThresholds(), seed=0)
    (of_psnr,) = [g for g in gates if g.name == "psnr"]
    assert math.isnan(of_psnr.value)
    assert not of_psnr.passed


def test_thresholds_out_of_range_are_refused():
    with pytest.raises(SettingError, match=r"thresholds\.recall"):
        GateThresholds(recall=80)


def test_the_gate_of_confirmation_checks_the_rate_and_fails_without_one():
    from worldrl.core.statistics.intervals import wilson
    from worldrl.evaluation.world_model.gates import confirmed_gate

    assert confirmed_gate(wilson(5, 10), 0.75).passed  # [0.24, 0.76]: could be
    assert not confirmed_gate(wilson(50, 100), 0.75).passed  # [0.40, 0.60]: is not
    assert not confirmed_gate(None, 0.75).passed  # nothing was imagined to succeed


def test_a_rate_fails_when_its_whole_interval_lies_below_and_shows_it():
    from worldrl.core.statistics.intervals import wilson

    rate = wilson(7, 9)
    found = gate("precision", precision=rate)
    assert (found.value, found.lo, found.hi) == (rate["rate"], rate["lo"], rate["hi"])
    assert found.passed == (rate["hi"] >= GateThresholds().precision)
    assert str(found) == "0.778 [0.45, 0.94]"
    short = make_gates(GOOD | {"precision": wilson(60, 90)}, GateThresholds(precision=0.85))
    with pytest.raises(GateError, match=r"precision is 0\.667 \[0\.56, 0\.76\], needs 0\.85"):
        require(short)
