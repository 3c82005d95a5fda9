"""What jobs on an external suite share: its workers started, its physics probed, and the note on its assets."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from worldrl.core.errors import SettingError, nearest
from worldrl.core.image_fit import Fit
from worldrl.core.storage.log import console
from worldrl.evaluation.policy.provenance import render_of
from worldrl.rollout.suites.suite import Suite, Workers
from worldrl.simulators.pool import SimulatorPool

RESTARTS, RECYCLE_AFTER = 2, 50
"""Where no setting gives them: restarts of a worker per episode, and episodes after which a worker is replaced."""


@dataclass(frozen=True)
class OpenSuite:
    """A suite whose workers run; ``settle_mm`` (mm) is the probe's; results state ``assets_note`` where it is not empty."""

    pool: SimulatorPool
    assets_note: str
    settle_mm: float | None
    render: str

    @property
    def facts(self) -> dict[str, Any]:
        """What a result states about the machine's side of the measurement."""
        return {"settle_mm": self.settle_mm, "assets_note": self.assets_note, "render": self.render}


def say_assets(facts: Mapping[str, Any]) -> None:
    """Print the note on assets that are not the benchmark's own: ``assets_note`` and ``suite`` of a result's facts."""
    if facts.get("assets_note"):
        console().print(f"assets: {facts['assets_note']}; this is not a {facts['suite']} result", markup=False)


@contextmanager
def open_suite(
    suite: Suite,
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
    fit: Fit = Fit.stretch,
) -> Generator[OpenSuite]:
    """Start a suite's workers and probe its physics: in LIBERO, let a stored state settle.

    Settings as of :class:`~worldrl.rollout.suites.suite.Workers`; ``timeout_s`` is the longest silence (s). Raises
    WorkerEnvironmentError without setup or rendering, WorkerError for a broken worker or another physics.
    """
    asked = Workers(tuple(cameras), image_size, workers, slots, restarts, recycle_after, shadows, assets, fit)
    config = suite.worker_config(asked)
    with SimulatorPool(config.launch, timeout_s=timeout_s, **config.pool) as pool:
        settled = pool.probe()
        note = suite.assets_note(pool.suite, assets=assets, given=assets_note)
        yield OpenSuite(pool, note, settled["distance_mm"], render_of(pool) if cameras else "")


def choose_suite_tasks(tasks: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the named tasks, or all ``names`` of a suite; SettingError for an unknown task, or one named twice."""
    for task in tasks:
        if task not in names:
            raise SettingError(f"tasks: unknown task {task!r}{nearest(task, names)}")
    if len(set(tasks)) < len(tasks):
        raise SettingError(f"tasks: each may be named once, got {list(tasks)}")
    return list(tasks or names)
