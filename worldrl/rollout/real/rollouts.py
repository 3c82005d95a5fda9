"""Real rollouts: episodes run by worker processes, each with several environments, returned as they finish.

::

    specs ──► share of worker 0 ──► process: environments in lock-step ──► pipe ──┐
          └─► share of worker 1 ──► process: environments in lock-step ──► pipe ──┴─► results, in order

Worker ``w`` of ``W`` runs specs ``w, w + W, ...``, so tasks of a sorted list are spread evenly. A dead or silent worker
is restarted and its unfinished episodes run again from the start. With ``recycle_after`` a worker is replaced after so
many episodes, since renderers leak memory. All workers end with the iterator.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import ProtocolError, SettingError
from worldrl.core.image_fit import Fit
from worldrl.rollout.agents.actors import AnyActor
from worldrl.rollout.real.embedded import EMBEDDED_SUITE, embedded_embodiment
from worldrl.rollout.real.episodes import DatasetLayout, EpisodeTiming, Order, Result, positions
from worldrl.rollout.real.slots import silent
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.rollout.real.worker import Assignment, WorkerTask, run_share

if TYPE_CHECKING:
    from worldrl.rollout.real.pool import WorkerPool
    from worldrl.simulators.process import Engine


@dataclass(frozen=True)
class EmbeddedPlayer:
    """The embedded suite, see :class:`~worldrl.rollout.real.episodes.Player`; ``options`` say how environments are made."""

    options: EnvOptions
    workers: int = 1  # processes; 0 runs everything in this process, without a watchdog.
    envs_per_worker: int = 1  # environments stepped in lock-step by each worker, and the largest batch of a decision.
    # longest silence of a worker (s) before it counts as dead; its start may take two minutes.
    timeout_s: float = 120.0
    restarts: int = 1  # how often the same episode may lose its worker before that is an error.
    recycle_after: int | None = None  # episodes after which a worker is replaced; None never.
    # the time is added to it; workers decide and simulate in one.
    spent: EpisodeTiming = field(default_factory=EpisodeTiming)
    engine: Engine | None = None  # starts the processes, None on this machine; results do not depend on it.

    def play(
        self,
        planned: Sequence[tuple[EpisodeSpec, AnyActor]],
        *,
        hold_steps: int = 0,
        record: bool | Collection[int] = True,
        order: Order = "spec",
        horizon: Mapping[str, int] | None = None,
    ) -> Iterator[Result]:
        """Run episodes; each identity may appear once. Processes start with the first ``next`` and end with the iterator.

        Raises SettingError (a number is out of range). Raises ProtocolError (an episode's identity appears twice).
        Raises WorkerEnvironmentError (workers need images, and nothing renders). Raises WorkerError (a worker raised,
        or died or fell silent more than ``restarts`` times on the same episode).
        """
        self._check(planned, hold_steps)
        kept = positions(record, len(planned))
        count, actors = max(1, min(self.workers, len(planned))), list(dict.fromkeys(actor for _, actor in planned))
        whole = WorkerTask(
            episodes=[
                Assignment(at, spec, actors.index(actor), at in kept) for at, (spec, actor) in enumerate(planned)
            ],
            actors=actors,
            env_options=self.options if horizon is None else replace(self.options, max_steps=horizon),
            envs_per_worker=self.envs_per_worker,
            hold_steps=hold_steps,
        )
        began_s = time.monotonic()
        for result in self._played(whole, count, order) if planned else ():
            self.spent.simulate_s += time.monotonic() - began_s
            yield result
            began_s = time.monotonic()

    def _check(self, planned: Sequence[tuple[EpisodeSpec, AnyActor]], hold_steps: int) -> None:
        least = {"workers": 0, "envs_per_worker": 1, "hold_steps": 0, "recycle_after": 1}
        for name, value in {**vars(self), "hold_steps": hold_steps}.items():
            if name in least and value is not None and value < least[name]:
                raise SettingError(f"{name}: must be >= {least[name]}, got {value}")
        if self.timeout_s <= 0:
            raise SettingError(f"timeout_s: must be > 0, got {self.timeout_s}")
        for key, times in Counter(spec.key for spec, _ in planned).items():
            if times > 1:
                raise ProtocolError(
                    f"specs: (task, index, init_id, seed) = {key} appears {times} times; each counts once"
                )

    def _played(self, whole: WorkerTask, count: int, order: Order) -> Iterator[Result]:
        from worldrl.rollout.real.pool import WorkerPool

        if self.workers == 0:
            return arranged(run_share(whole, silent), order)
        shares = [replace(whole, episodes=whole.episodes[number::count]) for number in range(count)]
        names = ("timeout_s", "restarts", "recycle_after", "engine")
        rules = {name: getattr(self, name) for name in names}
        return _pooled(WorkerPool(shares, **rules), shares, order)

    @property
    def facts(self) -> Mapping[str, Any]:
        """None: assets and physics come with it, and the protocol names the packages."""
        return {}

    def layout(self, tasks: Collection[str]) -> DatasetLayout:
        """SettingError: single-arm and bimanual tasks together."""
        return {
            "embodiment": embedded_embodiment(tasks),
            "cameras": self.options.cameras,
            "image_size": self.options.image_size,
            "suite": EMBEDDED_SUITE,
            "fit": Fit.refuse,
        }

    def surroundings(self, *, images: bool) -> dict[str, Any]:
        """The renderer is stated only where the actor receives images."""
        from worldrl.simulators.renderer import embedded_drawing

        envs = max(1, self.workers) * self.envs_per_worker
        return {"workers": self.workers, "envs": envs, **(embedded_drawing() if images else {})}


def arranged(results: Iterator[tuple[int, Result]], order: Order) -> Iterator[Result]:
    """Yield results by position in the wanted order."""
    held = _Held(order)
    for position, item in results:
        held.add(position, item)
        yield from held.release()


class _Held:
    """Results that wait for their turn."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._items: dict[int, Result] = {}
        self.turn = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, position: int, item: Result) -> None:
        self._items[position] = item

    def release(self) -> Iterator[Result]:
        """Yield all results whose turn it is."""
        while self._items and (self._order == "completion" or self.turn in self._items):
            first = self.turn if self._order == "spec" else next(iter(self._items))
            self.turn += 1
            yield self._items.pop(first)


def _pooled(pool: WorkerPool, shares: Sequence[WorkerTask], order: Order) -> Iterator[Result]:
    from worldrl.simulators.renderer import embedded_drawing

    if shares[0].draws:
        embedded_drawing()
    # Memory holds a few results at most: beyond that only the worker whose turn it is may deliver.
    window = 2 * len(shares) * shares[0].envs_per_worker
    held = _Held(order)
    with pool:
        while not pool.finished:
            owner = held.turn % len(shares)
            paused = set(range(len(shares))) - {owner} if len(held) >= window else ()
            for position, item in pool.poll(paused):
                held.add(position, item)
            for item in held.release():
                left_s = time.monotonic()
                yield item
                pool.extend_deadline(time.monotonic() - left_s)
