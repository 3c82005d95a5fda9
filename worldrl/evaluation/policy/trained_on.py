"""What a policy was trained on, according to its folder, and the consequences for a measurement.

A policy stores the initial states of its training episodes by suite and task, and the conventions of its suites. A benchmark counts
its own episodes from the same states. Seven numbers fit every suite of one arm, but mean another motion on each: the meaning is read
from the dataset's robot, never guessed from an unknown suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from worldrl.core.errors import SettingError
from worldrl.core.image_fit import FIT, fit_name
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.format import DatasetHeader
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.rollout.real.embedded import EMBEDDED_SUITE, embedded_embodiment
from worldrl.rollout.real.specs import EpisodeSpec, spec_of
from worldrl.rollout.suites.registry import known_suite
from worldrl.rollout.suites.suite import EMBODIMENT, OWN_IMAGES, UNKNOWN, UPRIGHT, WORDS, WORLD, robot_meaning
from worldrl.workers.libero import facts as libero_facts

TrainedOn = Mapping[str, Any]
"""``states``: suite → task → initial states, each a list of numbers; None where a dataset names no suite.
``conventions``: suite → field → value. ``recorded``: how external recordings became the robot's numbers. ``fit``: how images of another aspect got their size; absent
where nobody said."""
_Seen = dict[str, dict[str, dict[tuple[int, ...], None]]]
"""The same states as sets that keep their order."""
UNNAMED = "unnamed suite"


def suite_conventions(suite: str, tasks: Sequence[str], control_hz: float) -> dict[str, Any]:
    """Meaning of a suite's actions and images, field by field; ``unknown`` where the suite is."""
    if suite == EMBEDDED_SUITE:
        return robot_meaning(embedded_embodiment(tasks), control_hz, (WORLD, "the commanded pose", UPRIGHT))
    known = known_suite(suite)
    return {EMBODIMENT: UNKNOWN, "control_hz": control_hz} if known is None else known.meaning(control_hz)


def protocol_conventions(protocol: EvalProtocol) -> dict[str, Any]:
    """Meaning of a protocol's actions and images; an adapter's is part of its protocol."""
    if EMBODIMENT in protocol.conventions:
        return {name: value for name, value in protocol.conventions.items() if name not in ("adapter", OWN_IMAGES)}
    return suite_conventions(protocol.suite, protocol.tasks, protocol.control_hz)


def recorded_conventions(header: DatasetHeader, tasks: Sequence[str]) -> dict[str, Any]:
    """Meaning of a dataset's actions and images: its robot's constants, and the words of its suite."""
    known = suite_conventions(header.suite, tasks, float(header.fps))
    words = tuple(str(known.get(name, UNKNOWN)) for name in WORDS)
    return robot_meaning(header.embodiment, float(header.fps), words)


def state_of(suite: str, spec: EpisodeSpec) -> list[int] | None:
    """Name of an episode's initial state; None where it is not one of the suite's (a demonstration file's own)."""
    if suite in libero_facts.suite_names():
        return None if spec.init_id is None else [spec.init_id]  # whatever the seed: the state is stored
    return [spec.index, -1 if spec.init_id is None else spec.init_id, spec.seed]


def states_owner(suite: str) -> str:
    """Suite of the initial states: a variant has those of its suite."""
    return libero_facts.split_suite(suite)[0]


def trained_on(datasets: Sequence[EpisodeDataset]) -> dict[str, Any]:
    """What a policy learns from these datasets."""
    from worldrl.rollout.agents.robot_side import RECORDED

    states: _Seen = {}
    conventions: dict[str, dict[str, Any]] = {}
    recorded: list[dict[str, Any]] = []
    for dataset in datasets:
        suite = dataset.header.suite
        for record in dataset.records if suite else ():
            state = state_of(suite, spec_of(record.meta))
            seen = states.setdefault(states_owner(suite), {}).setdefault(record.task, {})
            if state is not None:
                seen[tuple(state)] = None
        meaning = recorded_conventions(dataset.header, dataset.tasks())
        conventions[_free_name(suite or UNNAMED, meaning, conventions)] = meaning
        recorded += [row for row in _recorded(dataset) if row not in recorded]
    named = all(dataset.header.suite for dataset in datasets)
    found: dict[str, Any] = {"states": _listed(states) if named else None, "conventions": conventions}
    if fits := [fit for dataset in datasets if (fit := fit_name(dataset.header.fit))]:
        found[FIT] = fits[0]  # joined datasets state one
    return {**found, RECORDED: recorded} if recorded else found


def _free_name(name: str, meaning: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> str:
    numbered = (name if number == 1 else f"{name} {number}" for number in count(1))
    return next(free for free in numbered if others.get(free, meaning) == meaning)


def _recorded(dataset: EpisodeDataset) -> list[dict[str, Any]]:
    """How the numbers and images of an external dataset became the robot's own; empty for worldrl's own datasets."""
    from worldrl.data.lerobot.external.episode import SOURCE

    actions, rows = dataset.embodiment.actions, list[dict[str, Any]]()
    for entry in (record.meta[SOURCE] for record in dataset.records if SOURCE in record.meta):
        pairs = entry["gripper"] or []
        pairs = [pairs] * len(actions.grippers) if pairs and not isinstance(pairs[0], list) else pairs
        names = [actions.names[place] for place in actions.grippers]
        ends = {
            name: dict(zip(("open", "closed"), pair, strict=True)) for name, pair in zip(names, pairs, strict=False)
        }
        row = {
            "folder": entry["folder"],
            "gripper": ends or None,
            **{name: entry[name] for name in ("cameras", "pictures", "image_sizes", "image_size", "fit")},
        }
        rows += [] if row in rows else [row]
    return rows


def _listed(states: _Seen) -> dict[str, dict[str, list[list[int]]]]:
    return {suite: {task: list(map(list, seen)) for task, seen in tasks.items()} for suite, tasks in states.items()}


def merged(a: TrainedOn | None, b: TrainedOn | None) -> dict[str, Any] | None:
    """Training of a policy that learned from one after the other; None where one of them is unknown."""
    from worldrl.rollout.agents.robot_side import RECORDED

    if a is None or b is None:
        return None
    states: _Seen = {}
    for part in (a, b):
        for suite, tasks in (part["states"] or {}).items():
            for task, seen in tasks.items():
                states.setdefault(suite, {}).setdefault(task, {}).update(dict.fromkeys(map(tuple, seen)))
    known = a["states"] is not None and b["states"] is not None
    recorded = [*a.get(RECORDED, ()), *(row for row in b.get(RECORDED, ()) if row not in a.get(RECORDED, ()))]
    found = {"states": _listed(states) if known else None, "conventions": {**a["conventions"], **b["conventions"]}}
    if fits := [part[FIT] for part in (b, a) if FIT in part]:
        found[FIT] = fits[0]
    return {**found, RECORDED: recorded} if recorded else found


def seen_states(protocol: EvalProtocol, trained: TrainedOn) -> dict[str, int] | None:
    """Count episodes of a protocol from initial states of the training: ``k`` of ``n``; None where unknown."""
    if trained["states"] is None:
        return None
    tasks: Mapping[str, list[list[int]]] = trained["states"].get(states_owner(protocol.suite), {})
    known = {(task, *state) for task, seen in tasks.items() for state in seen}
    specs = protocol.specs()
    named = [(spec.task, *(state_of(protocol.suite, spec) or (None,))) for spec in specs]
    return {"k": sum(name in known for name in named), "n": len(specs)}


def examine(protocol: EvalProtocol, trained: TrainedOn | None, *, refuse: bool) -> dict[str, Any]:
    """Report of a policy's training for a result: ``training_states``, ``conventions`` and ``warnings``.

    Raises SettingError: the policy is of another embodiment; or ``refuse``, and episodes begin at training states or
    these are unknown.
    """
    if trained is None:
        missing = (
            "the policy does not state what it was trained on: neither its initial states nor its conventions are known"
        )
        if refuse:
            raise SettingError(f"refuse_training_states: {missing}; train it again from datasets that name their suite")
        return {"training_states": None, "conventions": None, "warnings": [missing]}
    differing, unknown = differing_conventions(protocol, trained["conventions"])
    seen = seen_states(protocol, trained)
    states = "the initial states that the policy was trained on are unknown: one of its datasets names no suite"
    if seen is not None:
        states = f"{seen['k']} of {seen['n']} episodes begin at initial states that the policy was trained on"
    if refuse and (seen is None or seen["k"]):
        mend = (
            "train it from datasets that name their suite"
            if seen is None
            else "choose others with first_index= and episodes="
        )
        raise SettingError(f"refuse_training_states: {states}; {mend}")
    suites = list(trained["conventions"])
    warnings = [
        *([states] if seen is None or seen["k"] else []),
        *_warnings(protocol.suite, suites, differing, unknown),
    ]
    found = {"trained_on": suites, "differing": differing}
    return {"training_states": seen, "conventions": found, "warnings": warnings}


def differing_conventions(
    protocol: EvalProtocol, known: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, list[Any]], list[str]]:
    """Fields in which a protocol's suite differs from the nearest one of the training, ``[there, here]``; and unknown fields.

    Raises SettingError (the embodiment differs from all of them).
    """
    here = protocol_conventions(protocol)
    tables = [_compared(there, here, same=suite == protocol.suite) for suite, there in known.items()]
    fitting = [table for table in tables if EMBODIMENT not in table[0]]
    if not fitting:
        there = "; ".join(f"{fields[EMBODIMENT]} ({suite})" for suite, fields in known.items())
        raise SettingError(
            f"{EMBODIMENT}: the policy was trained on {there}, and {protocol.suite} takes {here[EMBODIMENT]}; "
            "measure it on a suite of its own robot"
        )
    return min(fitting, key=lambda table: (len(table[0]), len(table[1])))


def _compared(
    there: Mapping[str, Any], here: Mapping[str, Any], *, same: bool
) -> tuple[dict[str, list[Any]], list[str]]:
    """Fields that differ, and those of which one side is unknown; what the ``same`` suite leaves unknown is its own."""
    unknown = [name for name in {**there, **here} if UNKNOWN in (there.get(name), here.get(name))]
    unknown = [name for name in unknown if not (same and there.get(name) == here.get(name))]
    names = [name for name in {**there, **here} if name not in unknown and there.get(name) != here.get(name)]
    if EMBODIMENT in unknown:
        names = [name for name in names if name in there and name in here]
    return {name: [there.get(name), here.get(name)] for name in names}, unknown


def _warnings(
    suite: str, trained: Sequence[str], differing: Mapping[str, Sequence[Any]], unknown: Sequence[str]
) -> Iterator[str]:
    if differing:
        fields = ", ".join(f"{name} ({there} there, {here} here)" for name, (there, here) in differing.items())
        yield f"the policy was trained on {', '.join(trained)}, whose conventions are not those of {suite}: {fields}"
    if unknown:
        yield f"the policy was trained on {', '.join(trained)}, and whether {', '.join(unknown)} are those of {suite} is unknown"
