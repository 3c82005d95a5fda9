"""What jobs on a foreign suite share: its workers started, its physics probed, and what its assets' note says."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from worldrl.core.errors import SettingError, nearest
from worldrl.core.storage.log import console
from worldrl.evaluation.policy.provenance import render_of
from worldrl.rollout.suites.registry import assets_note as known_note
from worldrl.rollout.suites.registry import worker_config_of
from worldrl.simulators.pool import SimulatorPool

RESTARTS, RECYCLE_AFTER = 2, 50
"""Where nobody sets them: restarts of a worker per episode, and after how many episodes a worker is replaced."""


@dataclass(frozen=True)
class OpenSuite:
    """A suite whose workers run.

    Attributes:
        pool: the workers.
        assets_note: what every result must say about the assets; empty where they are the benchmark's own.
        settle_mm: what the probe of the physics found (mm).
        render: GL back end of the workers; empty where nothing is drawn.
    """

    pool: SimulatorPool
    assets_note: str
    settle_mm: float
    render: str

    @property
    def facts(self) -> dict[str, Any]:
        """What a result says about the machine's side of the measurement."""
        return {"settle_mm": self.settle_mm, "assets_note": self.assets_note, "render": self.render}


def say_assets(facts: Mapping[str, Any]) -> None:
    """Print under a table what must be said of assets that are not the benchmark's own.

    Args:
        facts: of a result; ``suite``, and ``assets_note`` where a suite's workers ran.
    """
    if facts.get("assets_note"):
        console().print(f"assets: {facts['assets_note']}; this is not a {facts['suite']} result", markup=False)


@contextmanager
def open_suite(
    suite: str,
    *,
    cameras: Sequence[str],
    image_size: int,
    shadows: bool,
    assets: str = "",
    assets_note: str = "",
    workers: int,
    slots: int,
    timeout_s: float,
    restarts: int = RESTARTS,
    recycle_after: int | None = RECYCLE_AFTER,
) -> Generator[OpenSuite]:
    """Start a foreign suite's workers and probe its physics: in LIBERO, let a stored state settle.

    Args:
        suite: a name of :func:`~worldrl.rollout.suites.registry.suite_names`.
        cameras: of the suite, for example ``scene`` and ``wrist``; empty renders nothing.
        image_size: pixels of the square pictures; 0 draws the suite's own.
        shadows: LIBERO's shadows and anti-aliasing.
        assets: folder of LIBERO's assets; empty takes the one that setup was told.
        assets_note: what results must say about them besides what setup was told.
        workers: processes.
        slots: environments in all.
        timeout_s: longest silence of a worker (s).
        restarts: restarts of a worker per episode.
        recycle_after: episodes after which a worker is replaced; None never.

    Raises:
        WorkerEnvironmentError: not set up, or nothing renders there.
        WorkerError: a worker cannot serve, or its physics is not the protocol's.
    """
    worker_config = worker_config_of(
        suite,
        cameras=cameras,
        image_size=image_size,
        shadows=shadows,
        assets=assets,
        workers=workers,
        slots=slots,
        restarts=restarts,
        recycle_after=recycle_after,
    )
    with SimulatorPool(worker_config.launch, timeout_s=timeout_s, **worker_config.pool) as pool:
        settled = pool.probe()
        note = known_note(suite, pool.suite, assets=assets, given=assets_note)
        yield OpenSuite(pool, note, settled["distance_mm"], render_of(pool) if cameras else "")


def choose_suite_tasks(tasks: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the named tasks, or all of a suite.

    Args:
        tasks: names; empty takes all.
        names: of the suite's tasks.

    Raises:
        SettingError: an unknown task, or one named twice.
    """
    for task in tasks:
        if task not in names:
            raise SettingError(f"tasks: unknown task {task!r}{nearest(task, names)}")
    if len(set(tasks)) < len(tasks):
        raise SettingError(f"tasks: each may be named once, got {list(tasks)}")
    return list(tasks or names)
