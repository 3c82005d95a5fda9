"""What a policy was trained on, as its folder says it, and what that means for a measurement.

Datasets name their suite; a policy that is cloned from them keeps, by suite and task, the initial states its episodes began
at. A benchmark tells how many of its own episodes begin at those: practice and examination on the same states are two
different numbers. A policy also keeps its suites' conventions: seven numbers fit every suite of one arm, and mean another
motion on each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldrl.core.embodiment import Embodiment, JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.data.dataset import EpisodeDataset
from worldrl.evaluation.protocol import EvalProtocol
from worldrl.rollout.embedded import EMBEDDED_SUITE, embedded_embodiment
from worldrl.rollout.specs import EpisodeSpec, spec_of
from worldrl.workers import isaac_facts, libero_facts, maniskill_facts, robotwin_facts

TrainedOn = Mapping[str, Any]
"""``states``: suite → task → initial states, each a list of numbers that names it. ``conventions``: suite → field → value."""
_Seen = dict[str, dict[str, dict[tuple[int, ...], None]]]
"""The same states as sets that keep their order."""
EMBODIMENT = "embodiment"
GRIPPER, WORLD, BASE = "-1 open, +1 closed", "world", "the robot's base"
ONE_TOOL, JOINTS = "pose changes of one tool", "absolute joint targets"


def suite_conventions(suite: str, tasks: Sequence[str], control_hz: float) -> dict[str, Any]:
    """What a suite's actions and pictures mean, field by field.

    Args:
        suite: as a protocol names it.
        tasks: of it; the embedded suite has one- and two-armed ones.
        control_hz: control steps per second.
    """
    robot = embedded_embodiment(tasks) if suite == EMBEDDED_SUITE else None
    if isinstance(robot, JointEmbodiment) or suite in robotwin_facts.CONFIGS:
        return {EMBODIMENT: JOINTS, "gripper": "0 closed, 1 open", "control_hz": control_hz}
    if isinstance(robot, Embodiment):
        numbers, words = (robot.position_scale, robot.rotation_scale), (WORLD, "the commanded pose", "upright")
    elif is_libero(suite):
        facts = libero_facts
        numbers, words = (facts.POSITION_SCALE, facts.ROTATION_SCALE), (WORLD, "the measured pose", facts.IMAGE_TURN)
    else:
        facts = maniskill_facts if suite in maniskill_facts.SUITES else isaac_facts
        numbers, words = (facts.POSITION_SCALE, facts.ROTATION_SCALE), (BASE, "the measured pose", "upright")
    return {
        EMBODIMENT: ONE_TOOL,
        **dict(zip(("position_scale", "rotation_scale"), numbers, strict=True)),
        **dict(zip(("frame", "counted_from", "picture"), words, strict=True)),
        "gripper": GRIPPER,
        "control_hz": control_hz,
    }


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
    states: _Seen = {}
    for dataset in datasets:
        suite = dataset.header.suite
        for record in dataset.records:
            state = state_of(suite, spec_of(record.meta))
            seen = states.setdefault(states_owner(suite), {}).setdefault(record.task, {})
            if state is not None:
                seen[tuple(state)] = None
    conventions = {
        dataset.header.suite: suite_conventions(dataset.header.suite, dataset.tasks(), float(dataset.fps))
        for dataset in datasets
    }
    return {"states": _listed(states), "conventions": conventions}


def _listed(states: _Seen) -> dict[str, dict[str, list[list[int]]]]:
    """Write sets of initial states as JSON has them."""
    return {suite: {task: list(map(list, seen)) for task, seen in tasks.items()} for suite, tasks in states.items()}


def merged(a: TrainedOn | None, b: TrainedOn | None) -> dict[str, Any] | None:
    """What a policy has seen that learned from one after the other; None where one of them is not known."""
    if a is None or b is None:
        return None
    states: _Seen = {}
    for part in (a, b):
        for suite, tasks in part["states"].items():
            for task, seen in tasks.items():
                states.setdefault(suite, {}).setdefault(task, {}).update(dict.fromkeys(map(tuple, seen)))
    return {"states": _listed(states), "conventions": {**a["conventions"], **b["conventions"]}}


def seen_states(protocol: EvalProtocol, trained: TrainedOn) -> dict[str, int]:
    """Count a protocol's episodes that begin at states the policy was trained on: ``k`` of ``n``."""
    tasks: Mapping[str, list[list[int]]] = trained["states"].get(states_owner(protocol.suite), {})
    known = {(task, *state) for task, seen in tasks.items() for state in seen}
    specs = protocol.specs()
    named = [(spec.task, *(state_of(protocol.suite, spec) or (None,))) for spec in specs]
    return {"k": sum(name in known for name in named), "n": len(specs)}


def examine(protocol: EvalProtocol, trained: TrainedOn | None, *, refuse: bool) -> dict[str, Any]:
    """Return what a result says about the policy's training: ``training_states``, ``conventions`` and ``warnings``.

    Args:
        protocol: what is measured.
        trained: what the policy's folder says; None where it says nothing.
        refuse: make episodes from training states an error.

    Raises:
        SettingError: the policy is of another embodiment; or ``refuse``, and there are such episodes, or nobody knows.
    """
    if trained is None:
        silent = (
            "the policy does not say what it was trained on: neither its initial states nor its conventions are known"
        )
        if refuse:
            raise SettingError(f"refuse_training_states: {silent}; train it again from datasets that name their suite")
        return {"training_states": None, "conventions": None, "warnings": [silent]}
    differing = differing_conventions(protocol, trained["conventions"])
    seen = seen_states(protocol, trained)
    told = f"{seen['k']} of {seen['n']} episodes begin at initial states that the policy was trained on"
    if refuse and seen["k"]:
        raise SettingError(f"refuse_training_states: {told}; choose others with first_index= and episodes=")
    suites = list(trained["conventions"])
    warnings = [*([told] if seen["k"] else []), *([_told(protocol.suite, suites, differing)] if differing else [])]
    found = {"trained_on": suites, "differing": differing}
    return {"training_states": seen, "conventions": found, "warnings": warnings}


def differing_conventions(protocol: EvalProtocol, known: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Fields in which a protocol's suite differs from the nearest one of the training: ``[there, here]``.

    Raises:
        SettingError: the embodiment differs from all of them.
    """
    here = suite_conventions(protocol.suite, protocol.tasks, protocol.control_hz)
    tables = [
        {name: [there.get(name), here.get(name)] for name in {**there, **here} if there.get(name) != here.get(name)}
        for there in known.values()
    ]
    fitting = [table for table in tables if EMBODIMENT not in table]
    if not fitting:
        there = "; ".join(f"{fields[EMBODIMENT]} ({suite})" for suite, fields in known.items())
        raise SettingError(
            f"{EMBODIMENT}: the policy was trained on {there}, and {protocol.suite} takes {here[EMBODIMENT]}; "
            "measure it on a suite of its own robot"
        )
    return min(fitting, key=len)


def _told(suite: str, trained: Sequence[str], differing: Mapping[str, Sequence[Any]]) -> str:
    fields = ", ".join(f"{name} ({there} there, {here} here)" for name, (there, here) in differing.items())
    return f"the policy was trained on {', '.join(trained)}, whose conventions are not those of {suite}: {fields}"
