"""What a policy was trained on, as its folder says it, and what that means for a measurement.

Datasets name their suite; a policy that is cloned from them keeps, by suite and task, the initial states its episodes began
at. A benchmark tells how many of its own episodes begin at those: practice and examination on the same states are two
different numbers, and a clone's usual one is asked for on states it has not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldrl.core.errors import SettingError
from worldrl.data.dataset import EpisodeDataset
from worldrl.evaluation.protocol import EvalProtocol
from worldrl.rollout.specs import EpisodeSpec, spec_of
from worldrl.workers import libero_facts

TrainedOn = Mapping[str, Any]
"""``states``: suite → task → initial states, each a list of numbers that names it."""


def state_of(suite: str, spec: EpisodeSpec) -> list[int] | None:
    """Name an episode's initial state; None where it is none of the suite's (a demonstration file's own)."""
    if is_libero(suite):
        return None if spec.init_id is None else [spec.init_id]  # whatever the seed: the state is stored
    return [spec.index, -1 if spec.init_id is None else spec.init_id, spec.seed]


def is_libero(suite: str) -> bool:
    """Whether a suite is one of LIBERO's."""
    return suite in libero_facts.suite_names()


def states_owner(suite: str) -> str:
    """The suite whose initial states these are: a variant has its suite's own."""
    return libero_facts.split_suite(suite)[0]


def trained_on(datasets: Sequence[EpisodeDataset]) -> dict[str, Any] | None:
    """Say what a policy learns from these datasets; None where one of them does not name its suite."""
    if not all(dataset.header.suite for dataset in datasets):
        return None
    states: dict[str, dict[str, list[list[int]]]] = {}
    for dataset in datasets:
        suite = dataset.header.suite
        for record in dataset.records:
            state = state_of(suite, spec_of(record.meta))
            seen = states.setdefault(states_owner(suite), {}).setdefault(record.task, [])
            if state is not None and state not in seen:
                seen.append(state)
    return {"states": states}


def merged(a: TrainedOn | None, b: TrainedOn | None) -> dict[str, Any] | None:
    """What a policy has seen that learned from one after the other; None where one of them is not known."""
    if a is None or b is None:
        return None
    states: dict[str, dict[str, list[list[int]]]] = {}
    for part in (a, b):
        for suite, tasks in part["states"].items():
            for task, seen in tasks.items():
                known = states.setdefault(suite, {}).setdefault(task, [])
                known += [state for state in seen if state not in known]
    return {**b, "states": states}


def seen_states(protocol: EvalProtocol, trained: TrainedOn) -> dict[str, int]:
    """Count a protocol's episodes that begin at states the policy was trained on: ``k`` of ``n``."""
    tasks: Mapping[str, list[list[int]]] = trained["states"].get(states_owner(protocol.suite), {})
    specs = protocol.specs()
    seen = sum(state_of(protocol.suite, spec) in tasks.get(spec.task, ()) for spec in specs)
    return {"k": seen, "n": len(specs)}


def examine(protocol: EvalProtocol, trained: TrainedOn | None, *, refuse: bool) -> dict[str, Any]:
    """Return what a result says about the policy's training: ``training_states`` and ``warnings``.

    Args:
        protocol: what is measured.
        trained: what the policy's folder says; None where it says nothing.
        refuse: make episodes from training states an error.

    Raises:
        SettingError: ``refuse``, and there are such episodes, or nobody knows.
    """
    if trained is None:
        silent = "the policy does not say what it was trained on; whether these initial states were is not known"
        if refuse:
            raise SettingError(f"refuse_training_states: {silent}; train it again from datasets that name their suite")
        return {"training_states": None, "warnings": [silent]}
    seen = seen_states(protocol, trained)
    told = f"{seen['k']} of {seen['n']} episodes begin at initial states that the policy was trained on"
    if refuse and seen["k"]:
        raise SettingError(f"refuse_training_states: {told}; choose others with first_index= and episodes=")
    return {"training_states": seen, "warnings": [told] if seen["k"] else []}
