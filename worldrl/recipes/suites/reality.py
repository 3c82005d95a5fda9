"""The simulator that a world model is measured beside: the embedded suite, or an external one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND, SimulatorBackend
from worldrl.rollout.real.embedded import EMBEDDED_SUITE, embedded_options
from worldrl.rollout.real.episodes import Player
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.slots import EmbeddedSlots, Slots

if TYPE_CHECKING:
    from worldrl.rollout.suites.suite import Suite


@dataclass(frozen=True)
class Processes:
    """Simulator processes, environments in each, and the longest silence of one before it is restarted (s)."""

    workers: int
    envs_per_worker: int
    timeout_s: float


@dataclass(frozen=True)
class Reality:
    """What executes actions beside a world model; each part starts with its first use.

    ``positions`` is whether the simulator states where its objects are.
    """

    name: str
    backend: SimulatorBackend
    player: Callable[[], Player]
    slots: Callable[[], AbstractContextManager[Slots]]
    positions: bool


def open_reality(
    suite: Suite | None,
    tasks: Sequence[str],
    asked: Processes,
    *,
    image_size: int,
    images: Sequence[str],
    shadows: bool = True,
) -> AbstractContextManager[Reality]:
    """The embedded suite for None, else an external one; ``images`` of ``image_size`` pixels, LIBERO's with ``shadows``."""
    if suite is None:
        return nullcontext(_embedded(tasks, image_size, images, asked))
    return _external(suite, image_size, images, asked, shadows=shadows)


def _embedded(tasks: Sequence[str], image_size: int, images: Sequence[str], asked: Processes) -> Reality:
    """Recordings are repeated in this process."""
    options = embedded_options(tasks, image_size, images=images)
    return Reality(
        EMBEDDED_SUITE,
        EMBEDDED_BACKEND,
        player=lambda: EmbeddedPlayer(options, asked.workers, asked.envs_per_worker, asked.timeout_s),
        slots=lambda: closing(EmbeddedSlots(options)),
        positions=True,
    )


@contextmanager
def _external(
    suite: Suite, image_size: int, images: Sequence[str], asked: Processes, *, shadows: bool
) -> Generator[Reality]:
    """Its workers start with the first use of a part; SettingError where it lacks a camera."""
    from worldrl.recipes.suites.opening import SuiteOnDemand, cameras_showing
    from worldrl.rollout.suites.backend import ExternalBackend
    from worldrl.rollout.suites.episodes import SuiteSlots
    from worldrl.rollout.suites.suite import Workers

    cameras, horizons = cameras_showing(suite, images), {task: suite.horizon(task) for task in suite.tasks()}
    slots = asked.workers * asked.envs_per_worker
    workers = Workers(cameras, image_size, asked.workers, slots, shadows=shadows)
    with SuiteOnDemand(suite, workers, timeout_s=asked.timeout_s) as lazy:
        yield Reality(
            suite.name,
            ExternalBackend(lambda: lazy.opened.pool, horizons=horizons, states=range(suite.stored_states)),
            player=lambda: lazy.opened,
            slots=lambda: nullcontext(SuiteSlots(lazy.opened.pool, cameras, horizon=horizons)),
            positions=False,
        )
