"""Where ``worldrl train-vla`` acts: a suite's tasks and start states, and, in a simulator, its real rollouts.

The stages ask a :class:`TrainingSuite` and never a simulator, so the loop is the same on the embedded suite and on any
external one (``external_suite``). Recordings alone (``recordings``) have a loop of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.image_fit import Fit
from worldrl.core.types import Episode, ResetRecord
from worldrl.evaluation.policy.evaluate import evaluate_policy
from worldrl.evaluation.policy.protocol import EvalProtocol, embedded_protocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.jobs.vla.artefacts import Recording
from worldrl.jobs.vla.settings import CollectionSettings, Evaluation
from worldrl.recipes.stages import split_held_out
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, PolicyActor
from worldrl.rollout.imagined.starts import EmbeddedBackend, SimulatorBackend
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_cameras, embedded_embodiment, embedded_options
from worldrl.rollout.real.episodes import Player
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.suites.names import EMBEDDED

if TYPE_CHECKING:
    from worldrl.simulators.process import Engine


@dataclass(frozen=True)
class SuiteOptions:
    """How a run uses its suite.

    ``image_size`` in pixels, of the cameras' ``images``; ``chunk_length`` and ``hold_steps``, recorded after the first
    success, in control steps; ``evaluation``: of both evaluations; ``timeout_s``: longest silence of a worker (s); ``engine`` starts it;
    ``fit``: how images of a simulator's own size get ``image_size``.
    """

    image_size: int
    images: tuple[str, ...]
    chunk_length: int
    hold_steps: int
    evaluation: Evaluation
    workers: int
    envs_per_worker: int
    timeout_s: float
    engine: Engine
    domain: str
    shadows: bool
    fit: Fit = Fit.stretch


class TrainingSuite(ABC):
    """A suite as every stage needs it.

    ``tasks`` are names, ``embodiment`` the robot that does them, ``options`` how the run uses the suite, ``limits`` what a
    reader of the report must know about its numbers. ``loop`` names the function that runs the stages.
    """

    name: str
    tasks: tuple[str, ...]
    embodiment: AnyEmbodiment
    options: SuiteOptions
    limits: tuple[str, ...]
    loop: str = "worldrl.jobs.vla.train_vla:run_loop"

    @property
    @abstractmethod
    def horizons(self) -> dict[str, int]:
        """Time limit of each task (control steps)."""

    @abstractmethod
    def starts(self, recorded: Sequence[Episode], count: int, *, seed: int, **layout: Any) -> list[ResetRecord]:
        """Initial states of imagined rollouts, ``count`` of each task.

        ``recorded`` are the episodes that may be trained on; ``layout`` as of
        :meth:`~worldrl.rollout.imagined.starts.SimulatorBackend.starts`.
        """

    def split(
        self, recording: Recording, share: float, *, seed: int
    ) -> tuple[Sequence[Episode], list[Episode], list[Episode]]:
        """Divide episodes into those of training, calibration and gates."""
        return split_held_out(recording.episodes, share, seed=seed)

    def close(self) -> None:  # noqa: B027  (only an external suite keeps something open)
        """Stop its workers; the next request starts others. A simulator's workers may hold several GB."""


class SimulatedSuite(TrainingSuite):
    """A suite that acts.

    ``simulator_backend`` is under imagined rollouts: where they begin, and what their actions really lead to. A policy
    decides on ``device``.
    """

    simulator_backend: SimulatorBackend
    device: str = "cpu"

    @property
    def horizons(self) -> dict[str, int]:
        """As the simulator has them."""
        return self.simulator_backend.horizons(self.tasks)

    def starts(self, recorded: Sequence[Episode], count: int, *, seed: int, **layout: Any) -> list[ResetRecord]:
        """Rendered anew."""
        return self.simulator_backend.starts(self.tasks, count, seed=seed, **layout)

    @property
    @abstractmethod
    def player(self) -> Player:
        """What plays its episodes."""

    @property
    @abstractmethod
    def protocol(self) -> EvalProtocol:
        """Of both evaluations."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a result says about assets, physics and drawing."""
        return self.player.facts

    @abstractmethod
    def exploration_expert(self, collection: CollectionSettings) -> tuple[str, AnyActor]:
        """The expert that practice varies, and the name of its episodes' source."""

    def record(self, folder: Path, plans: Sequence[CollectPlan[AnyActor]]) -> list[dict[str, Any]]:
        """Record the episodes of the plans that the dataset does not hold yet; one row per episode."""
        here = [CollectPlan(self._deciding(plan.actor), plan.specs) for plan in plans]
        return collect_dataset(folder, here, self.player, hold_steps=self.options.hold_steps)

    def _deciding(self, actor: AnyActor) -> AnyActor:
        return replace(actor, device=self.device) if isinstance(actor, PolicyActor) else actor

    @abstractmethod
    def training_protocol(self, episodes: int, *, seed: int) -> EvalProtocol:
        """Return the protocol with so many initial states of each task that neither evaluation has."""

    def evaluate(self, policy: Path, *, protocol: EvalProtocol | None = None, **measuring: Any) -> EvalResult:
        """Measure a policy; ``measuring`` as of :func:`~worldrl.evaluation.policy.evaluate.evaluate`."""
        return evaluate_policy(self.player, policy, protocol or self.protocol, device=self.device, **measuring)


class EmbeddedTrainingSuite(SimulatedSuite):
    """The embedded suite, in worker processes of this environment; each call ends its own."""

    limits = (
        "Initial states are drawn anew for the evaluation; the interval covers other draws of the same kind, not other scenes.",
    )
    name = EMBEDDED

    def __init__(self, tasks: tuple[str, ...], options: SuiteOptions) -> None:
        self.tasks, self.options = tasks, options
        self.simulator_backend = EmbeddedBackend(options.domain)
        self.embodiment = embedded_embodiment(tasks)

    @property
    def player(self) -> EmbeddedPlayer:
        """In the run's domain."""
        asked = self.options
        options = embedded_options(self.tasks, asked.image_size, asked.domain, asked.images)
        limits = asked.workers, asked.envs_per_worker, asked.timeout_s
        return EmbeddedPlayer(options, *limits, engine=asked.engine)

    def exploration_expert(self, collection: CollectionSettings) -> tuple[str, AnyActor]:
        """An expert with noise and misplaced goals that tries each skill once, whatever becomes of it."""
        return "blind_expert", ExpertActor(collection.noise, collection.goal_offset, blind=True)

    @property
    def protocol(self) -> EvalProtocol:
        """With the suite's own horizons."""
        evaluation = self.options.evaluation
        return embedded_protocol(
            self.tasks,
            episodes_per_task=evaluation.episodes,
            seed=evaluation.seed,
            chunk_length=self.options.chunk_length,
            image_size=self.options.image_size,
            cameras=embedded_cameras(self.tasks, self.options.images),
            temperature=evaluation.temperature,
            domain=self.options.domain,
        )

    def training_protocol(self, episodes: int, *, seed: int) -> EvalProtocol:
        """Initial states of another seed."""
        return replace(self.protocol, episodes_per_task=episodes, seed=seed)
