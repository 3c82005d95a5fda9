"""Unit under test: ``evaluation/race.py`` and ``evaluation/result.py: mean_score``, on results made by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from worldrl.core.errors import ProtocolError, SettingError
from worldrl.evaluation.policy.evaluate import evaluate
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalResult, mean_score
from worldrl.evaluation.policy.sequential_comparison import ComparisonDecided, sequential_against
from worldrl.rollout.agents.actors import ExpertActor
from worldrl.rollout.real.specs import EpisodeOutcome

TASKS = ("a", "b")
PROTOCOL = EvalProtocol(
    suite="toy",
    suite_version="v0",
    tasks=TASKS,
    episodes_per_task=30,
    seed=3,
    horizon=dict.fromkeys(TASKS, 9),
    chunk_length=1,
    replan=1,
    control_hz=20.0,
    packages={},
)


def outcome(spec, solved):
    return EpisodeOutcome(spec, solved, solved, 5, 5 if solved else None)


def result(solves, *, name="before", protocol=PROTOCOL):
    return EvalResult(protocol, name, name, tuple(outcome(spec, solves(spec)) for spec in protocol.specs()))


def runner(solves, played):
    def run(specs, record):
        # Successes end first, as they do when episodes run side by side.
        for spec in sorted(specs[:8], key=lambda spec: not solves(spec)) + list(specs[8:]):
            played.append(spec.key)
            yield outcome(spec, solves(spec))

    return run


def measure(solves, comparison, out=None):
    played = []
    player = SimpleNamespace(
        play=lambda planned, **_: runner(solves, played)([spec for spec, _ in planned], []),
        surroundings=lambda images: {"workers": 0, "envs": 1},
    )
    found = evaluate(
        player,
        ExpertActor(),
        comparison.protocol,
        name="after",
        identity="after",
        out=out,
        comparison=comparison,
    )
    return found, played


def test_a_clear_difference_ends_the_measurement_early_and_says_so(tmp_path):
    comparison = sequential_against(result(lambda spec: False), PROTOCOL)
    with pytest.raises(ComparisonDecided) as over:
        measure(lambda spec: True, comparison, tmp_path)
    decision = over.value.decision
    assert decision["verdict"] == "b is better"
    assert decision["n"] < 15 < decision["n_max"] == 60
    with pytest.raises(ComparisonDecided) as again:  # started again, it does not play on
        measure(lambda spec: True, comparison, tmp_path)
    assert again.value.decision == decision


def test_the_rule_is_chosen_by_name_and_said():
    comparison = sequential_against(result(lambda spec: False), PROTOCOL, rule="budget")
    with pytest.raises(ComparisonDecided) as over:
        measure(lambda spec: True, comparison)
    metrics = comparison.metrics(over.value.decision)
    assert (metrics["rule"], metrics["verdict"], metrics["n_max"]) == ("budget", "b is better", 60)
    assert "nominal" not in metrics


ONE_TASK = replace(PROTOCOL, tasks=("a",), horizon={"a": 9})


@pytest.mark.parametrize(
    ("states", "other"), [("sampled", {"seed": 4}), ("sampled", {"first_index": 30}), ("stored", {"first_index": 30})]
)
def test_step_compares_with_a_result_on_other_initial_states(states, other, tmp_path):
    protocol = replace(ONE_TASK, initial_states=states)
    comparison = sequential_against(
        result(lambda spec: False, protocol=protocol), replace(protocol, **other), rule="step"
    )
    with pytest.raises(ComparisonDecided) as over:
        measure(lambda spec: True, comparison, tmp_path)
    metrics = comparison.metrics(over.value.decision)
    assert (metrics["rule"], metrics["verdict"], metrics["n_max"]) == ("step", "b is better", 30)
    assert (metrics["solved_a"], metrics["solved_b"]) == (0, metrics["n"])
    assert "only_b" not in metrics
    equal = sequential_against(
        result(lambda spec: spec.index % 3 > 0, protocol=protocol), comparison.protocol, rule="step"
    )
    assert equal.decision(measure(lambda spec: spec.index % 3 > 0, equal)[0].outcomes)["verdict"] == "not decided"


def test_step_refuses_shared_states_other_fields_and_several_tasks():
    def refused(error, words, protocol, baseline=ONE_TASK):
        with pytest.raises(error, match=words):
            sequential_against(result(bool, protocol=baseline), protocol, rule="step")

    refused(ProtocolError, "share 30 initial states.* another seed", ONE_TASK)
    refused(ProtocolError, "share 20 initial states", replace(ONE_TASK, first_index=10))
    stored = replace(ONE_TASK, initial_states="stored")
    refused(ProtocolError, "share 30 initial states.* another first_index", replace(stored, seed=4), stored)
    refused(ProtocolError, "temperature", replace(ONE_TASK, seed=4, temperature=1.0))
    refused(ProtocolError, "episodes_per_task", replace(ONE_TASK, seed=4, episodes_per_task=20))
    refused(SettingError, r"of one task, got 2; give tasks=\[a\], or budget", replace(PROTOCOL, seed=4), PROTOCOL)


def test_equal_policies_go_to_the_last_episode():
    solves = lambda spec: spec.index % 3 > 0  # noqa: E731
    comparison = sequential_against(result(solves), PROTOCOL)
    found, played = measure(solves, comparison)
    assert len(played) == 60
    assert comparison.decision(found.outcomes)["verdict"] == "not decided"


def test_the_order_mixes_tasks_and_depends_on_the_protocol_alone():
    one, two = (sequential_against(result(lambda spec, p=p: p, name=str(p)), PROTOCOL).order for p in (True, False))
    assert one == two
    assert {spec.task for spec in one[:10]} == set(TASKS)
    other = replace(PROTOCOL, seed=4)
    assert [s.index for s in sequential_against(result(bool, protocol=other), other).order] != [s.index for s in one]


def test_an_episode_that_ended_early_waits_for_its_turn():
    """Only successes have come in: tested as they come, they would decide; in their order, they are a gap."""
    comparison = sequential_against(result(lambda spec: False), PROTOCOL)
    later = [outcome(spec, True) for spec in comparison.order[1:20]]
    assert comparison.decision(later)["n"] == 0
    assert comparison.decision([outcome(comparison.order[0], True), *later])["verdict"] == "b is better"


def test_results_of_another_protocol_are_refused():
    with pytest.raises(ProtocolError, match="temperature"):
        sequential_against(result(bool), replace(PROTOCOL, temperature=1.0))


def test_mean_score_covers_seeds_and_is_never_of_no_width():
    generator = np.random.default_rng(0)
    sure = mean_score([result(lambda spec: True)], generator=generator)
    assert (sure["value"], sure["hi"], sure["n"]) == (1.0, 1.0, 60)
    assert 0.9 < sure["lo"] < 1.0
    one = mean_score([result(lambda spec: spec.index % 2 == 0)], generator=generator)
    seeds = [result(lambda spec, s=s: spec.index % 10 < s, name=str(s)) for s in (2, 5, 8)]
    three = mean_score(seeds, generator=generator)
    assert one["value"] == three["value"] == 0.5
    assert three["hi"] - three["lo"] > 1.5 * (one["hi"] - one["lo"])  # seeds differ more than episodes do
    with pytest.raises(ProtocolError, match="twice"):
        mean_score([seeds[0], seeds[0]], generator=generator)
