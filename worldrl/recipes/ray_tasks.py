"""Stages side by side on the nodes of a Ray cluster. Each task writes to its stage's folder, which all nodes must see.

Ray starts a task again where its process or node is lost; the task then resumes from what its folder holds.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError, WorkerError
from worldrl.core.storage.log import WORKER_VARIABLE
from worldrl.recipes.folder_lock import exclusive_folder
from worldrl.recipes.side_by_side import Task, computed
from worldrl.simulators.ray_cluster import LOST, RayCluster, cause_of, one_line
from worldrl.workers.link import node

logger = logging.getLogger(__name__)


class RayCrew:
    """Computes tasks on a cluster, each with one core and ``gpus`` GPUs; ``place`` is the folder that holds their folders.

    Raises WorkerEnvironmentError (no cluster, or a node that has other versions or does not see the folders).
    """

    def __init__(self, cluster: RayCluster, gpus: float, place: Path) -> None:
        cluster.connect()
        self._ray, self._running = cluster.ray, dict[Any, tuple[str, Task]]()
        share = {"num_cpus": 1, "num_gpus": gpus, "max_retries": LOST, "max_calls": 1}
        self._compute = self._ray.remote(**share)(_compute)
        self._order = order_of([os.getcwd()], place)
        token = place.resolve() / f".seen-by-nodes-{secrets.token_hex(8)}"
        token.touch()
        try:
            cluster.check({**self._order, "paths": [*self._order["paths"], str(token)]})
        finally:
            token.unlink()
        room = self._ray.cluster_resources()
        if room.get("CPU", 0) < 1 or room.get("GPU", 0) < gpus:
            logger.warning("no node has a core%s yet; waiting for one", f" and {gpus:g} GPUs" if gpus else "")

    def start(self, folder: str, task: Task) -> None:
        """As of a crew."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._running[self._compute.remote(str(Path(folder).resolve()), task, self._order)] = (folder, task)

    def ended(self) -> list[tuple[str, dict[str, Any]]]:
        """As of a crew."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1)
        return [self._result(reference) for reference in ready]

    def _result(self, reference: Any) -> tuple[str, dict[str, Any]]:
        folder, task = self._running.pop(reference)
        try:
            return folder, self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise WorkerError(f"{task.label}: {cause_of(error)}") from error
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"{task.label}: {one_line(error)}; the same command resumes") from error

    def stop(self) -> None:
        """As of a crew."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)


def order_of(paths: Sequence[str], place: Path) -> dict[str, Any]:
    """What a node must have: the same versions and these paths."""
    mend = f"put the current folder and run_dir ({place}) on a disk that all nodes see"
    return {"shared": True, "versions": node.describe(), "paths": list(paths), "mend": mend}


def _compute(folder: str, task: Task, order: dict[str, Any]) -> dict[str, Any]:
    os.environ[WORKER_VARIABLE] = "1"
    if found := node.lacks({**order, "paths": [*order["paths"], folder]}):  # a node that joined after the check
        raise WorkerEnvironmentError(found[0])
    os.chdir(order["paths"][0])
    with exclusive_folder(Path(folder)):  # the process of a lost start may take seconds to end
        return computed(folder, task)
