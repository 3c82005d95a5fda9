"""Batches of imagined rollouts as tasks of a Ray cluster.

::

    learner                                                   a process of a node
    ask   ── request, version, references ───────────────►    loads source and weights, where it has not yet
    take  ◄─ rollouts, by the object store ──────────────     imagines the rows

Source and weights of a version enter the object store once. Ray starts a task again where its node is lost. A rollout
depends on its names alone, so that batches equal those of one machine wherever they are imagined.
"""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from worldrl.core.device import set_threads
from worldrl.core.errors import WorkerEnvironmentError, WorkerError
from worldrl.methods.rl.imagination import PolicyImagination
from worldrl.methods.rl.imagining import MEND
from worldrl.methods.rl.interfaces import Request
from worldrl.methods.rl.trust import FilterResult
from worldrl.simulators.ray_cluster import LOST, RayCluster, cause_of, one_line
from worldrl.workers.link import node


class Stored:
    """The object that entered the object store last: its token and its reference."""

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put, self._last = put, (None, ("", None))

    def __call__(self, value: Any) -> tuple[str, Any]:
        """Put an object there, unless it was the last one."""
        if self._last[0] is not value:
            self._last = (value, (secrets.token_hex(8), self._put(value)))
        return self._last[1]


class RayImaginers:
    """Makes imaginers for the nodes of ``cluster``; each batch takes ``gpus`` GPUs and a core for each of its threads."""

    def __init__(self, cluster: RayCluster, gpus: float) -> None:
        self.cluster, self.gpus = cluster, gpus
        self.order: dict[str, Any] = {}  # what a node must have; empty before the first check.
        self.source, self.weights = Stored(cluster.ray.put), Stored(cluster.ray.put)

    def __call__(
        self, source: PolicyImagination, folder: Path, setting: str, *, threads: int | None = None, mend: str = MEND
    ) -> RayImaginer:
        """Prepare for ``source``; ``folder`` stays empty. WorkerEnvironmentError names a node and what it lacks."""
        self.cluster.connect()
        if not self.order:
            order = {"shared": True, "versions": node.describe(), "paths": [], "mend": ""}
            self.cluster.check(order)
            self.order = order
        return RayImaginer(self, source, threads or torch.get_num_threads(), f"{setting}: a batch", mend)


class RayImaginer:
    """Imagines as :class:`~worldrl.methods.rl.imagining.Imaginer` says."""

    def __init__(self, made_by: RayImaginers, source: PolicyImagination, threads: int, name: str, mend: str) -> None:
        self._made_by, self._source, self._threads, self._name, self._mend = made_by, source, threads, name, mend
        self._ray = ray = made_by.cluster.ray
        share = {
            "num_cpus": threads,
            "num_gpus": made_by.gpus,
            "max_retries": LOST,
            "scheduling_strategy": "SPREAD",
            "num_returns": 2,
        }
        self._imagine = ray.remote(**share)(imagined)
        self._asked = deque[tuple[Any, Any]]()  # references to batches, and to what they leave under way
        self._under_way: Any = None  # reference to what the batch before left; None: nothing

    def carry_on(self, under_way: Mapping[str, Any]) -> None:
        """Continue with the rollouts under way."""
        self._under_way = self._ray.put(under_way)

    def ask(self, request: Request, version: int, weights: Mapping[str, Any]) -> None:
        """Ask for a batch; it waits for the one before it where that leaves rollouts under way."""
        shared, ray = self._made_by, self._ray
        held = [shared.source(self._source), shared.weights(weights)]
        given = (shared.order, ray.get, held, request, version, self._threads, self._under_way)
        batch, under_way = self._imagine.remote(*given)
        self._under_way = under_way if self._source.lasting else None
        self._asked.append((batch, self._under_way))

    def take(self) -> FilterResult:
        """Wait for the oldest batch that was asked for; WorkerError where it failed."""
        exceptions = self._ray.exceptions
        batch, under_way = self._asked.popleft()
        try:
            found = self._ray.get(batch)
            return found if under_way is None else found._replace(under_way=self._ray.get(under_way))
        except exceptions.RayTaskError as error:
            raise WorkerError(f"{self._name} failed: {cause_of(error)}; {self._mend}") from error
        except exceptions.RayError as error:
            raise WorkerError(f"{self._name} failed: {one_line(error)}; {self._mend}") from error

    def close(self) -> None:
        """Cancel what is under way."""
        for batch, _ in self._asked:
            self._ray.cancel(batch, force=True)
        self._asked.clear()


# --- on a node ---------------------------------------------------------------------------------------------------------

_loaded: dict[str, Any] = {"source": "", "weights": ""}
"""What this process has loaded: the tokens of source and weights, and the source with these weights."""


def imagined(
    order: Mapping[str, Any],
    fetch: Callable[[Any], Any],
    held: Sequence[tuple[str, Any]],
    request: Request,
    version: int,
    threads: int,
    under_way: Mapping[str, Any] | None,
) -> tuple[FilterResult, dict[str, Any]]:
    """Imagine a batch in a process of a node; return also what is under way after it.

    ``held`` are tokens and references of source and weights, ``under_way`` what the batch before left (None: nothing).
    """
    source = loaded(order, fetch, held, threads)
    if source.lasting:
        source.carry_on(copy.deepcopy(under_way or {}))  # Ray's arrays are read-only
    result = source.imagine(request)
    return result._replace(rollouts=replace(result.rollouts, version=version)), source.under_way()


def loaded(
    order: Mapping[str, Any], fetch: Callable[[Any], Any], held: Sequence[tuple[str, Any]], threads: int
) -> PolicyImagination:
    """Return the source with these weights; WorkerEnvironmentError where a node that joined later lacks something."""
    (source, source_reference), (weights, weights_reference) = held
    if _loaded["source"] != source:
        if found := node.lacks(order):
            raise WorkerEnvironmentError(found[0])
        set_threads(threads)
        # Ray's arrays lie in shared memory and are read-only.
        _loaded.update(source=source, weights="", imagination=copy.deepcopy(fetch(source_reference)))
    if _loaded["weights"] != weights:
        _loaded["imagination"].policy.load_state_dict(fetch(weights_reference))
        _loaded["weights"] = weights
    return _loaded["imagination"]
