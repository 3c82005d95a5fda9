"""Workers on the nodes of a Ray cluster: Ray places a small actor, and the actor starts the same worker process.

::

    driver: pools, journals, time limits                       node: actor (1 core, its share of a GPU)
      Arrivals ◄──────────TCP, one token per worker──────────── worker process (link/boot.py)
      `run` of the actor: how the worker ended, or that its node is lost

Messages do not pass through Ray. What a worker reads is found on its node by content, or copied there once through the
object store. A node is checked before the first worker starts anywhere, and again at each start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError, WorkerError
from worldrl.simulators.arrivals import Arrivals, AwaitedChannel
from worldrl.simulators.process import JOIN_S, Launch, Started, WorkerDied, describe_exit
from worldrl.simulators.ray_cluster import AUTO, RayCluster, one_line
from worldrl.workers.link import boot, node

COPY_BYTES = 8 << 30
"""Most bytes of one folder that are copied through the object store."""
_SENT = ("WORLDRL_", "MUJOCO_", "PYOPENGL_", "HF_", "TORCH_", "MKL_", "OMP_")
"""Beginnings of the driver's variables that a worker of this environment receives on a node."""


class RayEngine:
    """Starts workers on the nodes of the cluster at ``address``, each with one core and ``gpus`` GPUs.

    ``address`` is ``HOST:PORT``, ``auto`` (``RAY_ADDRESS``, or the cluster of this machine) or ``local`` (a cluster of
    this machine alone, for this process). Ray is contacted at the first start. Raises MissingExtraError without Ray.
    """

    def __init__(self, address: str = AUTO, gpus: float = 0.0) -> None:
        self._cluster, self._gpus = RayCluster(address), gpus
        self._ray = self._cluster.ray
        self._arrivals: Arrivals | None = None
        self._checked: set[tuple[str, ...]] = set()
        self._copies: dict[str, tuple[str, Any]] = {}

    def start(self, launch: Launch) -> Started:
        """Place one worker; WorkerEnvironmentError for an unreachable cluster, or a node that lacks something."""
        arrivals = self._connected()
        order = self._order(launch)
        key = (order["python"], order["target"], *order["paths"])
        if key not in self._checked:
            self._cluster.check(order)
            self._checked.add(key)
        token, channel = arrivals.expect()
        order |= {"token": token, "host": arrivals.host, "port": arrivals.port}
        copies = [(path, *self._copy(path)) for path in launch.reads]
        actor = self._starter.remote()
        outcome = actor.run.remote(order, self._ray.get, copies)
        return _RayWorker(self._ray, launch.name, actor, outcome, channel, lambda: arrivals.forget(token))

    def _connected(self) -> Arrivals:
        if self._arrivals is None:
            self._cluster.connect()
            self._arrivals = Arrivals(self._ray.util.get_node_ip_address())
            share = {"num_cpus": 1, "num_gpus": self._gpus, "max_concurrency": 2, "scheduling_strategy": "SPREAD"}
            self._starter = self._ray.remote(node.Starter).options(**share)
        return self._arrivals

    def _order(self, launch: Launch) -> dict[str, Any]:
        """What a node must know of a launch, in plain values."""
        variables = launch.own_variables
        path = variables.pop("PYTHONPATH", "").split(os.pathsep)
        sent = {name: value for name, value in os.environ.items() if name.startswith(_SENT)} if launch.shared else {}
        given = [launch.python, launch.target, *_texts(launch.options), *launch.variables.values()]
        return {
            "shared": launch.shared,
            "versions": node.describe(),
            "paths": [] if launch.shared else [name for name in map(_file_of, given) if name],
            "mend": f"set the suite up there, too (worldrl setup), or put that path on a disk that all nodes see ({launch.name})",
            "python": launch.python,
            "flag": launch.flag,
            "boot": boot.__file__,
            "target": launch.target,
            "hidden": list(launch.hidden),
            "variables": {**sent, **variables},
            "python_path": path,
            "store": os.environ.get("WORLDRL_CACHE", ""),
        }

    def _copy(self, path: str) -> tuple[str, Any]:
        """Digest and reference of what a worker reads, put into the object store once."""
        if path not in self._copies:
            place = Path(path).resolve()
            files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
            if (size := sum(file.stat().st_size for file in files)) > COPY_BYTES:
                raise WorkerEnvironmentError(
                    f"engine=ray: {path} holds {size / 1e9:.1f} GB, too much for the object store; put it on a disk that "
                    "all nodes see"
                )
            content = {"" if file == place else file.relative_to(place).as_posix(): file.read_bytes() for file in files}
            self._copies[path] = (node.content_digest(place), [self._ray.put(content)])
        return self._copies[path]


class _RayWorker:
    """A worker that an actor starts, or has started, on some node."""

    def __init__(
        self, ray: Any, name: str, actor: Any, outcome: Any, channel: AwaitedChannel, forget: Callable[[], None]
    ) -> None:
        self._ray, self._name, self._actor, self._outcome, self._forget = ray, name, actor, outcome, forget
        self.connection = channel
        self._end: WorkerDied | None = None
        self._text = ""
        self._stopped = False
        threading.Thread(target=self._watch, args=(outcome.future(),), daemon=True).start()

    @property
    def pid(self) -> int:
        """On its node; 0 before it has connected."""
        return int(self.connection.head.get("pid", 0))

    def _watch(self, future: Any) -> None:
        """Wait for the actor in a thread of its own: a worker that never connects, or whose node is lost, must end the wait."""
        if future.exception() is not None or not self.connection.connected:
            self.connection.abandon()

    def end(self, timeout_s: float) -> WorkerDied | None:
        """As of an engine's worker; WorkerError where its node refuses to start it."""
        if self._end is not None:
            return self._end
        exceptions = self._ray.exceptions
        try:
            outcome = self._ray.get(self._outcome, timeout=max(timeout_s, 0.0))
        except exceptions.GetTimeoutError:
            # A worker's own end is known at once; without an answer the node is lost, and Ray has yet to notice.
            return WorkerDied("lost its node (no answer)", node_lost=True) if timeout_s > 0 else None
        except exceptions.RayTaskError as error:
            raise WorkerError(f"{self._name}: {one_line(error)}") from error
        except exceptions.RayError as error:
            self._end = WorkerDied(f"lost its node ({type(error).__name__})", node_lost=True)
            return self._end
        if "refused" in outcome:
            raise WorkerEnvironmentError(f"{self._name}: {outcome['refused']}")
        self._text = outcome["printed"]
        self._end = WorkerDied(describe_exit(outcome["code"]))
        return self._end

    def printed(self) -> str:
        """Of a running worker asked from its node; WorkerError where the cluster never had room for it."""
        if self._end is None and not self._stopped and not self.connection.connected:
            self.stop()
            free, there = (self._ray.available_resources(), self._ray.cluster_resources())
            raise WorkerError(
                f"{self._name}: no node had a free core (or GPU) for a worker in time: {free.get('CPU', 0):g} of "
                f"{there.get('CPU', 0):g} cores are free; start a node, lower workers, or raise timeout_s while nodes "
                "are being added; the same command resumes"
            )
        if self._end is None and not self._stopped:
            with suppress(self._ray.exceptions.RayError):
                return self._ray.get(self._actor.printed.remote(), timeout=JOIN_S)
        return self._text

    def kill(self) -> None:
        """As of an engine's worker."""
        self._stopped = True
        self._forget()
        self._ray.kill(self._actor)

    def stop(self) -> None:
        """As of an engine's worker: the closed connection ends it too, wherever it is."""
        self.kill()
        self.connection.close()


def _texts(value: Any) -> list[str]:
    """All texts in JSON values."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for item in items for text in _texts(item)]


def _file_of(text: str) -> str:
    """The absolute path of a text such as ``/path/file.py:Class`` that exists here; empty for another text."""
    for name in (text, text.rpartition(":")[0]):
        if name.startswith(os.sep) and os.path.exists(name):
            return name
    return ""
