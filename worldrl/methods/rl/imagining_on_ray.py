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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from worldrl.core.device import set_threads
from worldrl.core.errors import WorkerEnvironmentError, WorkerError, WorldrlError
from worldrl.methods.rl.imagination import PolicyImagination
from worldrl.methods.rl.imagining import MEND
from worldrl.methods.rl.interfaces import Request
from worldrl.methods.rl.trust import FilterResult
from worldrl.simulators.ray_cluster import RayCluster, one_line
from worldrl.workers.link import node

LOST = 100
"""Times that a batch may lose its process or node."""


class RayImaginers:
    """Makes imaginers for the nodes of ``cluster``; each batch takes ``gpus`` GPUs and a core for each of its threads."""

    def __init__(self, cluster: RayCluster, gpus: float) -> None:
        self.cluster, self.gpus = cluster, gpus
        self._kept: tuple[PolicyImagination, Any] | None = None

    def __call__(
        self, source: PolicyImagination, folder: Path, setting: str, *, threads: int | None = None, mend: str = MEND
    ) -> RayImaginer:
        """Prepare for ``source``; ``folder`` stays empty. WorkerEnvironmentError names a node and what it lacks."""
        self.cluster.connect()
        if self._kept is None or self._kept[0] is not source:
            self.cluster.check(_order())
            self._kept = (source, self.cluster.ray.put(source))
        share = {"num_cpus": threads or torch.get_num_threads(), "num_gpus": self.gpus, "max_retries": LOST}
        imagine = self.cluster.ray.remote(scheduling_strategy="SPREAD", **share)(imagined)
        return RayImaginer(self.cluster.ray, imagine, self._kept[1], share["num_cpus"], f"{setting}: a batch", mend)


class RayImaginer:
    """Imagines as :class:`~worldrl.methods.rl.imagining.Imaginer` says."""

    def __init__(self, ray: Any, imagine: Any, source: Any, threads: int, name: str, mend: str) -> None:
        self._ray, self._imagine, self._source = ray, imagine, source
        self._threads, self._name, self._mend = threads, name, mend
        self._token, self._weights = secrets.token_hex(8), dict[int, Any]()
        self._asked = deque[Any]()

    def ask(self, request: Request, version: int, weights: Mapping[str, Any]) -> None:
        """Ask for a batch."""
        if version not in self._weights:
            self._weights = {version: self._ray.put(dict(weights))}
        names = (self._token, version)
        held = [self._source, self._weights[version]]
        self._asked.append(self._imagine.remote(_order(), self._ray.get, held, names, request, self._threads))

    def take(self) -> FilterResult:
        """Wait for the oldest batch that was asked for; WorkerError where it failed."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(self._asked.popleft())
        except exceptions.RayTaskError as error:
            kind = "" if isinstance(error.cause, WorldrlError) else f"{type(error.cause).__name__}: "
            raise WorkerError(f"{self._name} failed: {kind}{one_line(error.cause)}; {self._mend}") from error
        except exceptions.RayError as error:
            raise WorkerError(f"{self._name} failed: {one_line(error)}; {self._mend}") from error

    def close(self) -> None:
        """Cancel what is under way."""
        for reference in self._asked:
            self._ray.cancel(reference, force=True)
        self._asked.clear()


def _order() -> dict[str, Any]:
    return {"shared": True, "versions": node.describe(), "paths": [], "mend": ""}


# --- on a node ---------------------------------------------------------------------------------------------------------

_held: dict[str, Any] = {}
"""What this process has loaded: a source by its imaginer's token, and the version of its policy's weights."""


def imagined(
    order: Mapping[str, Any], fetch: Any, held: list[Any], names: tuple[str, int], request: Request, threads: int
) -> FilterResult:
    """Imagine a batch in a process of a node. ``fetch`` gives the objects of ``held``: the source and the weights."""
    if _held.get("names") != names:
        if found := node.lacks(order):  # a node that joined after the check
            raise WorkerEnvironmentError(found[0])
        set_threads(threads)
        _load(fetch, held, names)
    result: FilterResult = _held["source"].imagine(request)
    return result._replace(rollouts=replace(result.rollouts, version=names[1]))


def _load(fetch: Any, held: list[Any], names: tuple[str, int]) -> None:
    if _held.get("names", ("", 0))[0] != names[0]:
        _held["source"] = copy.deepcopy(fetch(held[0]))  # Ray's arrays lie in shared memory and are read-only
    _held["source"].policy.load_state_dict(fetch(held[1]))
    _held["names"] = names
