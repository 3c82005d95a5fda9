"""A Ray cluster: the connection to it, and what its nodes must have before anything starts on them."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError, WorldrlError
from worldrl.core.extras import require
from worldrl.simulators.arrivals import require_listener
from worldrl.workers.link import node

LOCAL_CLUSTER, AUTO = "local", "auto"
CHECK_S = 120.0
"""Longest wait for the answer of a node's check (s)."""

LOST = 100
"""Times that a task may lose its process or node."""

MEND = "start one with `ray start --head`, or give ray.address=local for a cluster of this machine"

logger = logging.getLogger(__name__)


class RayCluster:
    """The cluster at ``address``: ``HOST:PORT``, ``auto`` (``RAY_ADDRESS``, or this machine's) or ``local`` (a new one).

    Ray is contacted when first asked for. Raises MissingExtraError without Ray.
    """

    def __init__(self, address: str = AUTO) -> None:
        # Ray would tell the network about its use, and hide GPUs with a warning.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self.ray = require("ray", extra="ray")
        self.address = address

    def connect(self) -> None:
        """Join the cluster, once; WorkerEnvironmentError where none answers."""
        ray = self.ray
        ray.cloudpickle.register_pickle_by_value(node)
        if ray.is_initialized():
            return
        given: dict[str, Any] = {"include_dashboard": False} if self.address == LOCAL_CLUSTER else {}
        named = os.environ.get("RAY_ADDRESS", "") if self.address == AUTO else self.address
        if ":" in named and "://" not in named:
            require_listener(named, MEND)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=self.address, log_to_driver=False, configure_logging=False, **given)
        except ConnectionError as error:
            raise WorkerEnvironmentError(f"ray.address={self.address}: no Ray cluster answers; {MEND}") from error
        except Exception as error:  # Ray raises the bare class where a node of its own does not start
            raise WorkerEnvironmentError(f"ray.address={self.address}: {one_line(error)}") from error
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own would end this process without its cleanup

    def check(self, order: Mapping[str, Any]) -> None:
        """Ask every node once; WorkerEnvironmentError names the node, what it lacks, and what mends it."""
        ray = self.ray
        lacks = ray.remote(num_cpus=0, max_retries=0)(node.lacks)
        pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        alive = {item["NodeID"]: name_of(item) for item in ray.nodes() if item["Alive"]}
        asked = {
            lacks.options(scheduling_strategy=pin(number, soft=False)).remote(dict(order)): name
            for number, name in alive.items()
        }
        for reference, name in asked.items():
            try:
                found = ray.get(reference, timeout=CHECK_S)
            except ray.exceptions.RayError as error:
                logger.warning("node %s did not answer the check (%s)", name, type(error).__name__)
                continue  # a node that is being lost is asked again by each start
            if found:
                raise WorkerEnvironmentError(f"{self.address}: {found[0]}")


def one_line(error: BaseException) -> str:
    """An error of Ray's as one line."""
    return " ".join(str(error).split())[:400]


def cause_of(error: Any) -> str:
    """What a task of Ray's raised, as one line, with its kind where nobody raised it on purpose."""
    kind = "" if isinstance(error.cause, WorldrlError) else f"{type(error.cause).__name__}: "
    return f"{kind}{one_line(error.cause)}"


def name_of(item: Mapping[str, Any]) -> str:
    """What a node is called in messages, from its row of ``ray.nodes()``."""
    return f"{item['NodeManagerHostname']} ({item['NodeManagerAddress']})"
