"""What jobs on an external suite share: its workers started, its physics probed, and the note on its assets."""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit, fit_name
from worldrl.core.observation import ObservationSpec, beside, image_name
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.real.episodes import DatasetLayout, EpisodeTiming, Order, Result, positions
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, play_episodes
from worldrl.rollout.suites.suite import Suite, Workers, recorded_robot
from worldrl.simulators.pool import SimulatorPool
from worldrl.simulators.process import LOCAL, Engine


@dataclass(frozen=True)
class OpenSuite:
    """A suite whose workers run, see :class:`~worldrl.rollout.real.episodes.Player`.

    ``cameras`` are in the order of an episode's frames. Results state ``assets_note`` where it is not empty.
    ``settle_mm`` (mm) is the probe's, ``fit`` as asked. The time of playing is added to ``spent``.
    """

    suite: Suite
    pool: SimulatorPool
    cameras: tuple[str, ...]
    image_size: int
    assets_note: str
    settle_mm: float | None
    fit: Fit
    spent: EpisodeTiming = field(default_factory=EpisodeTiming)

    def play(
        self,
        planned: Sequence[tuple[EpisodeSpec, Any]],
        *,
        hold_steps: int = 0,
        record: bool | Collection[int] = True,
        order: Order = "spec",
        horizon: Mapping[str, int] | None = None,
    ) -> Iterator[Result]:
        """One actor after the other."""
        limits = horizon or {spec.task: self.suite.horizon(spec.task) for spec, _ in planned}
        kept, first = positions(record, len(planned)), 0
        for actor, group in groupby(planned, key=lambda pair: pair[1]):
            specs = [spec for spec, _ in group]
            own = {at for at in range(len(specs)) if first + at in kept}
            rules = Rules(limits, self.cameras, hold_steps, own)
            yield from play_episodes(self.pool, specs, actor, rules, self.spent, order=order)
            first += len(specs)

    def layout(self, tasks: Collection[str]) -> DatasetLayout:
        """SettingError where no episodes of the suite can be recorded."""
        return suite_layout(self.suite, self.cameras, self.image_size, self.fit)

    def surroundings(self, *, images: bool) -> dict[str, Any]:
        """What renders is stated where cameras were launched."""
        pool = self.pool
        drawing = {"render": self.render, **{key: str(pool.probed.get(key, "")) for key in ("renderer", "frame")}}
        own = {"workers": pool.workers, "envs": pool.slots, "suite_python": str(pool.suite["python"])}
        return own | (drawing if self.cameras else {})

    @property
    def render(self) -> str:
        """GL back end of the workers, or their rendering device; empty where nothing is drawn."""
        launch = self.pool.launch
        return (launch.variables.get("MUJOCO_GL") or str(launch.options.get("device", ""))) if self.cameras else ""

    @property
    def facts(self) -> dict[str, Any]:
        """What a result states about the machine's side of the measurement."""
        return {"settle_mm": self.settle_mm, "assets_note": self.assets_note, "render": self.render}


def suite_layout(suite: Suite, cameras: tuple[str, ...], image_size: int, fit: Fit) -> DatasetLayout:
    """What a dataset of a suite's episodes states, fitted as asked; SettingError where none can be recorded."""
    return {
        "embodiment": recorded_robot(suite),
        "cameras": cameras,
        "image_size": image_size,
        "suite": suite.name,
        "fit": suite.fit_of(fit),
    }


@contextmanager
def open_suite(
    suite: Suite, asked: Workers, *, timeout_s: float, assets_note: str = "", engine: Engine = LOCAL
) -> Generator[OpenSuite]:
    """Start a suite's workers and probe its physics: in LIBERO, let a stored state settle.

    Settings as of :class:`~worldrl.rollout.suites.suite.Workers`; ``timeout_s`` is the longest silence (s), and
    ``assets_note`` is added to the one given at setup; ``engine`` starts the processes. Raises WorkerEnvironmentError without setup or rendering,
    WorkerError for a broken worker or another physics.
    """
    config = suite.worker_config(asked)
    with SimulatorPool(config.launch, timeout_s=timeout_s, engine=engine, **config.pool) as pool:
        settled = pool.probe()
        note = suite.assets_note(pool.suite, assets=asked.assets, given=assets_note)
        yield OpenSuite(suite, pool, asked.cameras, asked.image_size, note, settled["distance_mm"], asked.fit)


class SuiteOnDemand(ExitStack):
    """An external suite whose workers start with a request, and stop when it is closed; see :func:`open_suite`."""

    def __init__(self, suite: Suite, asked: Workers, *, timeout_s: float, engine: Engine = LOCAL) -> None:
        super().__init__()
        self._suite, self._asked, self._limits = suite, asked, {"timeout_s": timeout_s, "engine": engine}

    @cached_property
    def opened(self) -> OpenSuite:
        """Its running workers."""
        return self.enter_context(open_suite(self._suite, self._asked, **self._limits))

    def close(self) -> None:
        """Stop the workers; the next request starts others."""
        vars(self).pop("opened", None)
        super().close()


def fit_for(suite: Suite, policy: Path) -> Fit:
    """How images of the suite's own size get the policy's: as the suite says, or as in the policy's training.

    Stretched of who sees none. SettingError, with both specs side by side, where suite and training differ.
    """
    facts = policy_facts(policy)
    if facts.cameras:
        require_same_fit(suite, facts.observation, f"the policy in {policy}")
    if suite.spec.fit is not None:
        return suite.spec.fit
    as_they_are = not facts.cameras or suite.spec.picture in (None, facts.picture)
    return Fit.stretch if as_they_are else RobotSide.served(policy).fit


def require_same_fit(suite: Suite, seen: ObservationSpec, who: str) -> None:
    """SettingError, with both specs side by side, for images that a suite brings to their size in another way."""
    shown = replace(seen, fit=fit_name(suite.fit_of(Fit.refuse)))
    if seen.fit and shown.fit not in ("", seen.fit):
        table = beside(seen, f"{who} takes", shown, f"{suite.name} shows")
        raise SettingError(
            f"{who} does not fit {suite.name}\n{table}\ntrain on images that were fitted as the suite fits them, or change "
            "the fit of the suite's adapter"
        )


def cameras_showing(suite: Suite, images: Sequence[str]) -> tuple[str, ...]:
    """The suite's cameras that show these images; SettingError where it has none for one of them."""
    names = {image_name(camera): camera for camera in suite.spec.cameras}
    if missing := [name for name in images if name not in names]:
        raise SettingError(f"cameras: {suite.name} has no {missing[0]}; give some of {', '.join(names)}")
    return tuple(names[name] for name in images)
