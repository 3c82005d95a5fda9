"""Seeds that RoboTwin's expert has solved: a small file per candidate, the same whichever worker writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worldrl.workers.link.server import Refusal
from worldrl.workers.robotwin import facts

Verdict = Mapping[str, Any]
SOLVED, UNSTABLE, UNSOLVED, FAILED = "solved", "unstable", "unsolved", "failed"


class RoboTwinError(Refusal):
    """The checkout is not what the adapter expects, or no start can be found."""


class VerifiedSeeds:
    """The starts of one task; ``folder`` stores the verdicts, ``verify`` plays a candidate: ``{"verdict", "info"}``."""

    def __init__(self, folder: Path, verify: Callable[[int], Verdict]) -> None:
        self._folder, self._verify = folder, verify

    def find(self, init_id: int, seed: int) -> tuple[int, dict[str, Any]]:
        """Return the ``init_id``-th solved candidate and its scene; RoboTwinError after too many failures."""
        first, solved, failures = facts.first_seed(seed), -1, 0
        attempts = facts.MOST_ATTEMPTS * (init_id + 1)
        for candidate in range(first, first + attempts):
            verdict = self.verdict(candidate)
            if verdict["verdict"] != UNSTABLE:  # the expert did not play
                failures = failures + 1 if verdict["verdict"] == FAILED else 0
            if failures == facts.FAILED_IN_A_ROW:
                raise RoboTwinError(
                    f"the expert failed on {failures} seeds in a row, last on {candidate}: {verdict['why']}"
                )
            solved += verdict["verdict"] == SOLVED
            if solved == init_id:
                return candidate, dict(verdict["info"])
        raise RoboTwinError(
            f"of {attempts} candidates from {first} on the expert solved {solved + 1}, wanted is number {init_id}; "
            f"the verdicts are in {self._folder}"
        )

    def verdict(self, candidate: int) -> Verdict:
        """Return a candidate's stored verdict, or play it; exceptions are not stored: a repair may follow."""
        path = self._folder / f"{candidate}.json"
        if path.exists():
            return json.loads(path.read_text())
        verdict = self._verify(candidate)
        if verdict["verdict"] != FAILED:
            self._folder.mkdir(parents=True, exist_ok=True)
            whole = path.with_suffix(f".{os.getpid()}.tmp")
            whole.write_text(json.dumps(verdict))
            whole.replace(path)
        return verdict
