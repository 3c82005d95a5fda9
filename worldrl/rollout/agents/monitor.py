"""FLOAT of ARMADA (2510.02298): online detection of failures by optimal transport between embeddings of a policy.

At each decision the policy's embeddings of the running episode so far, ``x_1 … x_k``, are matched with those of each
expert episode, ``e_1 … e_H``. ``H`` are the decisions of the time limit; a shorter expert repeats its last one::

    c_ij  = 1 - cos(e_i, x_j);   0 for the decisions still to come, j > k
    index = min over experts of  min over plans π of  Σ_ij π_ij c_ij,   both marginals of π uniform, 1 / H

The plans are exact: with ``H`` atoms on both sides an optimal one is a permutation over ``H``, and the free columns leave
an assignment of ``k`` decisions to different expert decisions. ARMADA approximates it (Sinkhorn, entropy 0.1) and chooses
the expert by the prefix's own cost. Its limit is the 95th percentile of successful rollouts' last index; here it is the
conformal quantile of their highest one, which holds for finite numbers of them.

Shapes legend: ``E`` experts, ``H`` decisions of the time limit, ``k`` decisions so far, ``d`` numbers of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.lookup import Lazy
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.typed import from_plain

optimize: Any = Lazy("scipy.optimize")
KIND = "monitor"
Embeddings = NDArray[np.float64]


def unit(embeddings: ArrayLike) -> Embeddings:
    """Scale embeddings ``[..., d]`` to length 1; a zero one stays zero."""
    array = np.asarray(embeddings, np.float64)
    length = np.linalg.norm(array, axis=-1, keepdims=True)
    return array / np.where(length > 0, length, 1.0)


def transport_distance(cost: NDArray[np.float64]) -> float:
    """Least Σ_ij π_ij c_ij from ``H`` atoms of mass 1/H to ``H``, of which ``cost [H, k]`` gives the first ``k``.

    The other ``H - k`` cost nothing. SettingError for more columns than rows.
    """
    rows, columns = cost.shape
    if columns > rows:
        raise SettingError(f"transport_distance: {columns} decisions do not fit {rows}; give at most as many")
    return float(cost[optimize.linear_sum_assignment(cost)].sum() / rows)


def float_index(experts: Embeddings, prefix: Embeddings) -> float:
    """FLOAT index of decisions ``[k, d]`` against experts ``[E, H, d]``, all of length 1."""
    return min(transport_distance(1 - expert @ prefix.T) for expert in experts)


def conformal_limit(scores: Sequence[float], false_alarms: float) -> float:
    """The ⌈(n + 1)(1 - α)⌉-th smallest of ``n`` scores: a further exchangeable one exceeds it with probability ≤ α.

    Split conformal prediction (Papadopoulos et al., 2002). Infinite where ``n`` is below 1/α - 1.
    """
    rank = math.ceil((len(scores) + 1) * (1 - false_alarms) - 1e-9)  # 19 scores at 0.05: the 19th, not a 20th
    return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf


def padded(embeddings: Embeddings, length: int) -> Embeddings:
    """Cut ``[k, d]`` to ``length`` decisions, or repeat the last one."""
    return embeddings[np.minimum(np.arange(length), len(embeddings) - 1)]


@dataclass(frozen=True)
class Limits:
    """What a monitor knows of one task: numbers beside its experts' embeddings."""

    limit: float  # of the index; above it is an alarm.
    steps_limit: float  # the same of the control steps to the first success: what time alone would say.
    successes: int  # rollouts behind both.
    experts: int


@dataclass(frozen=True)
class Facts:
    """How the decisions were made that a monitor was fitted to; one made otherwise does not share its limits."""

    policy: str  # hash of the policy.
    every: int  # control steps from one decision to the next.
    temperature: float | None
    false_alarms: float
    tasks: Mapping[str, Limits]


def stored_facts(config: Mapping[str, Any], folder: Path) -> Facts:
    """Read the facts of a saved monitor; ArtefactError for a field that is missing, unknown or of another type."""
    return from_plain(Facts, dict(config), where=f"{folder}: config", error=ArtefactError)


@dataclass(frozen=True)
class Monitor:
    """Experts' embeddings ``[E, H, d]`` by task, all of length 1, and the facts of the artefact."""

    facts: Facts
    experts: Mapping[str, Embeddings]

    def score(self, task: str, prefix: Sequence[Embeddings]) -> float:
        """FLOAT index of an episode's decisions so far."""
        return float_index(self.experts[task], np.stack(prefix))

    def save(self, folder: Path, *, parents: Sequence[Mapping[str, str]] = ()) -> None:
        """Write the artefact in place of an older one."""
        tensors = {task: torch.from_numpy(experts.astype(np.float32)) for task, experts in self.experts.items()}
        write_artefact(folder, kind=KIND, config=asdict(self.facts), tensors=tensors, parents=parents)

    @classmethod
    def load(cls, folder: Path) -> Monitor:
        """Read a monitor; ArtefactError where it is missing, damaged or of another kind."""
        artefact = read_artefact(folder, kind=KIND)
        facts = stored_facts(artefact.config, folder)
        if set(facts.tasks) != set(artefact.tensors):
            raise ArtefactError(f"{folder}: its limits and its experts are of other tasks; fit the monitor again")
        return cls(facts, {task: unit(experts.numpy()) for task, experts in artefact.tensors.items()})
