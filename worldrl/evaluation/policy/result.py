"""Outcomes of an evaluation: one row per episode, counted into rates; the file on disk grows row by row.

::

    folder/
      evaluation.json   {"schema", "policy", "policy_hash", "protocol", "protocol_hash", "provenance"}
      episodes.jsonl    one outcome per line, in the order in which episodes finished
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.core.device import driver, hardware
from worldrl.core.errors import ArtefactError, ProtocolError
from worldrl.core.statistics.bootstrap import Bootstrap, suite_score
from worldrl.core.statistics.intervals import Rate, wilson
from worldrl.core.storage.atomic import open_to_append, write_file
from worldrl.core.storage.jsonfile import parse_json, read_json, read_record, write_json
from worldrl.core.storage.provenance import code_version, package_versions
from worldrl.evaluation.policy.protocol import EvalProtocol, require_same
from worldrl.rollout.real.specs import EpisodeOutcome

SCHEMA = 1
HEADER, EPISODES = "evaluation.json", "episodes.jsonl"
UNMEASURED = "not measured"
"""Table text for success at the end where episodes end at their first success."""
MAX_RESTARTS = 0.01
"""Share of episodes with worker failures above which rates are invalid."""
Provenance = Mapping[str, str]
"""What a result was measured on, besides the protocol: field to value; a field that is missing was not recorded.

The same provenance on the same machine repeats a deterministic suite bit by bit. With another one the same rate is
expected, not the same episodes.
"""
THEN = ", then "
"""Separates the values of an evaluation that was resumed elsewhere."""
UNRECORDED = "not recorded"
PACKAGES = ("python", "torch", "numpy", "mujoco")


@dataclass(frozen=True)
class EvalResult:
    """Outcomes of every episode of a protocol, in its order."""

    protocol: EvalProtocol
    policy: str
    policy_hash: str  # identity of the weights, or of the scripted actor's settings.
    outcomes: tuple[EpisodeOutcome, ...]
    # see :data:`Provenance`; empty where none was stored.
    provenance: Provenance = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        expected = Counter(spec.key for spec in self.protocol.specs())
        found = Counter(outcome.spec.key for outcome in self.outcomes)
        if expected != found:
            missing, surplus = sorted((expected - found).elements()), sorted((found - expected).elements())
            raise ProtocolError(
                f"evaluation: each (task, index, init_id, seed) must be run exactly once; "
                f"{len(missing)} missing {missing[:3]}, {len(surplus)} too many {surplus[:3]}; evaluate again"
            )

    def of_task(self, task: str | None = None) -> list[EpisodeOutcome]:
        """Outcomes of one task, or of all."""
        return [outcome for outcome in self.outcomes if task in (None, outcome.spec.task)]

    def rate(self, task: str | None = None, *, at_end: bool = False) -> Rate:
        """Success rate of one task, or of all; ``at_end`` counts success at the end (ProtocolError if not measured)."""
        if at_end:
            self.require_end()
        outcomes = self.of_task(task)
        hits = [outcome.success_at_end if at_end else outcome.success_once for outcome in outcomes]
        return wilson(sum(hits), len(hits))

    @property
    def end_measured(self) -> bool:
        """Whether episodes were extended after their first success; otherwise each success counts at the end too."""
        return self.protocol.hold_steps > 0

    def require_end(self) -> None:
        """Refuse to count successes at the end where they were not measured; ProtocolError."""
        if not self.end_measured:
            raise ProtocolError(
                f"{self.policy}: success at the end was not measured, episodes ended at their first success: hold_steps is "
                "0; measure again with hold_steps=20, for example"
            )

    @property
    def restarts(self) -> int:
        """Episodes that were run again because their worker died or did not answer; a node that went away is not counted."""
        return sum(outcome.restarted for outcome in self.outcomes)

    @property
    def clipped_share(self) -> float | None:
        """Share of the executed numbers that were decided outside the robot's range; None where not counted."""
        counts = [outcome.clipped for outcome in self.outcomes]
        numbers = self.protocol.actions.size * sum(outcome.steps for outcome in self.outcomes)
        return None if None in counts else sum(count or 0 for count in counts) / numbers

    @property
    def valid(self) -> bool:
        """Whether worker failures affected at most 1 % of the episodes."""
        return self.restarts <= MAX_RESTARTS * len(self.outcomes)

    def metrics(self) -> dict[str, Any]:
        """Content of ``result.json``; success at the end is null where it was not measured."""
        tasks, end = self.protocol.tasks, self.end_measured
        return {
            "policy": self.policy,
            "policy_hash": self.policy_hash,
            "success": self.rate(),
            "success_at_end": self.rate(at_end=True) if end else None,
            "tasks": {task: self.rate(task) for task in tasks},
            "tasks_at_end": {task: self.rate(task, at_end=True) for task in tasks} if end else None,
            "mean_steps": sum(outcome.steps for outcome in self.outcomes) / len(self.outcomes),
            "clipped_share": self.clipped_share,
            "restarted_episodes": self.restarts,
            "valid": self.valid,
            "provenance": self.provenance,
            "protocol": self.protocol.to_json(),
        }

    def save(self, folder: Path) -> None:
        """Write ``evaluation.json`` and ``episodes.jsonl``."""
        header = header_json(self.protocol, self.policy, self.policy_hash, self.provenance)
        write_json(folder / HEADER, header, error=ArtefactError)
        write_file(folder / EPISODES, b"".join(map(_line, self.outcomes)))

    @classmethod
    def load(cls, path: Path) -> EvalResult:
        """Read a finished evaluation from its folder, or from a file in it such as ``result.json``.

        Raises ArtefactError (there is no evaluation, or a damaged one). Raises ProtocolError (episodes are missing or
        repeated: it was not finished).
        """
        folder = path.parent if path.is_file() else path
        if not (folder / HEADER).is_file():
            raise ArtefactError(
                f"{path}: holds no {HEADER}, nor does its folder; give the run directory of `worldrl evaluate`"
            )
        header = read_header(folder)
        found = {outcome.spec.key: outcome for outcome in read_rows(folder)}
        at = folder / HEADER
        try:
            protocol = EvalProtocol.from_json(header["protocol"])
            at = folder / EPISODES
            outcomes = [found[spec.key] for spec in protocol.specs() if spec.key in found]
            return cls(protocol, header["policy"], header["policy_hash"], tuple(outcomes), header.get("provenance", {}))
        except ProtocolError as reason:
            raise ProtocolError(f"{at}: {reason}") from reason


def mean_score(results: Sequence[EvalResult], *, generator: np.random.Generator) -> Bootstrap:
    """Mean over tasks of the success rates of policies with different training seeds, with its interval over seeds and episodes.

    Raises ProtocolError (different protocols, or the same policy twice).
    """
    first = results[0]
    for other in results[1:]:
        require_same(first.protocol, other.protocol)
    if len({result.policy_hash for result in results}) < len(results):
        raise ProtocolError("others: a policy appears twice, so its seeds would be counted twice; name each once")
    hits = [
        [[outcome.success_once for outcome in result.of_task(task)] for task in first.protocol.tasks]
        for result in results
    ]
    return suite_score(np.array(hits).transpose(0, 2, 1), generator=generator)


def header_json(
    protocol: EvalProtocol, policy: str, policy_hash: str, provenance: Provenance | None = None
) -> dict[str, Any]:
    """Content of ``evaluation.json``."""
    return {
        "schema": SCHEMA,
        "policy": policy,
        "policy_hash": policy_hash,
        "protocol": protocol.to_json(),
        "protocol_hash": protocol.hash,
        "provenance": provenance or {},
    }


@dataclass(frozen=True)
class _Header:
    policy: str
    policy_hash: str
    protocol: dict[str, Any]
    protocol_hash: str
    provenance: dict[str, str] = field(default_factory=dict[str, str])


def read_header(folder: Path) -> dict[str, Any]:
    """Read ``evaluation.json``; ArtefactError where it is missing, damaged or of another schema."""
    header = read_json(folder / HEADER, error=ArtefactError)
    if header.get("schema") != SCHEMA:
        raise ArtefactError(f"{folder / HEADER}: schema must be {SCHEMA}, got {header.get('schema')}; evaluate again")
    read_record(folder / HEADER, _Header, error=ArtefactError, mend="evaluate again")
    return header


def read_rows(folder: Path) -> list[EpisodeOutcome]:
    """Read the whole lines of ``episodes.jsonl``; a truncated last line does not count."""
    path = folder / EPISODES
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_outcome(parse_json(line, path=path, error=ArtefactError), path, at) for at, line in enumerate(lines, 1)]


def _outcome(row: Any, path: Path, line: int) -> EpisodeOutcome:
    try:
        if not isinstance(row, dict):
            raise ArtefactError(f"must be an object, got {type(row).__name__}")
        return EpisodeOutcome.from_json(row)
    except ArtefactError as reason:
        raise ArtefactError(f"{path}: line {line}: {reason}; evaluate again") from reason


class EvalLog:
    """Appends outcomes durably; holds the outcomes and the provenance of an earlier, interrupted evaluation in ``folder``.

    Raises ProtocolError: the folder holds an evaluation of another policy or protocol.
    """

    def __init__(self, folder: Path | None, header: Mapping[str, Any]) -> None:
        self.outcomes: list[EpisodeOutcome] = []
        self.provenance: Provenance = header["provenance"]
        self._path = folder / EPISODES if folder else None
        if folder is None:
            return
        if (folder / HEADER).exists():
            _require_same_header(folder, header)
            self.outcomes = read_rows(folder)
            self.provenance = self._resumed(read_header(folder).get("provenance", {}), header)
        write_json(folder / HEADER, {**header, "provenance": self.provenance}, error=ArtefactError)
        # Rewritten as a whole, so that a truncated last line never precedes a new one.
        write_file(folder / EPISODES, b"".join(map(_line, self.outcomes)), error=ArtefactError)

    def _resumed(self, earlier: Provenance, header: Mapping[str, Any]) -> Provenance:
        """Provenance of both sessions; where no episode was left, that of the earlier one."""
        protocol = header["protocol"]
        finished = len(self.outcomes) == len(protocol["tasks"]) * protocol["episodes_per_task"]
        return earlier if finished else continued(earlier, header["provenance"])

    def add(self, outcome: EpisodeOutcome) -> None:
        """Store an outcome; afterwards it survives a crash."""
        self.outcomes.append(outcome)
        if self._path is not None:
            with open_to_append(self._path) as file:
                file.write(_line(outcome))
                file.flush()
                os.fsync(file.fileno())


def _line(outcome: EpisodeOutcome) -> bytes:
    return json.dumps(outcome.to_json()).encode() + b"\n"


def _require_same_header(folder: Path, header: Mapping[str, Any]) -> None:
    found = read_header(folder)
    differing: Sequence[str] = [name for name in ("policy_hash", "protocol_hash") if found[name] != header[name]]
    if differing:
        raise ProtocolError(
            f"{folder}: holds an evaluation with another {' and '.join(differing)}; choose another run directory"
        )


def provenance(physics: Mapping[str, str], *, device: str, workers: int, envs: int, **more: str) -> Provenance:
    """Collect the provenance of a measurement.

    ``physics`` holds versions of packages as in the protocol; ``envs`` is the number of all environments, and the largest batch of a
    decision. Of ``more`` (numerics of the policy, rendering and environment of the suite) empty values are left out.
    """
    code, versions = code_version(), package_versions()
    return {
        "code": f"{code['version']} at {code['commit']}" if code["commit"] else str(code["version"]),
        **{name: versions[name] for name in PACKAGES},
        "physics": ", ".join(f"{name} {version}" for name, version in physics.items()),
        "device": device,
        "hardware": hardware(device),
        "processor": hardware("cpu"),
        "workers": str(workers),
        "envs": str(envs),
        **{name.replace("_", " "): value for name, value in {"driver": driver(), **more}.items() if value},
    }


def continued(earlier: Provenance, now: Provenance) -> Provenance:
    """Provenance of an evaluation that was begun under ``earlier`` and resumed under ``now``."""
    found: dict[str, str] = {}
    for name in dict.fromkeys([*earlier, *now]):
        known, new = earlier.get(name, UNRECORDED), now.get(name, UNRECORDED)
        found[name] = known if new in known.split(THEN) else f"{known}{THEN}{new}"
    return found


def differences(a: Provenance, b: Provenance) -> list[str]:
    """One line per field in which two results' provenance differs."""
    pairs = {name: (a.get(name, UNRECORDED), b.get(name, UNRECORDED)) for name in [*a, *b]}
    return [f"{name}: {first} against {second}" for name, (first, second) in pairs.items() if first != second]
