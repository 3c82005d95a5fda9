"""Where ``worldrl train-vla`` really acts: one suite's demonstrations, real rollouts and evaluation, whichever suite it is.

The stages ask an :class:`TrainingSuite` and never a simulator, so the loop is the same on the embedded suite and on
any external one (``external_suite``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.types import Episode
from worldrl.evaluation.policy.evaluate import evaluate_policy
from worldrl.evaluation.policy.protocol import EvalProtocol, embedded_protocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.jobs.vla.settings import CollectionSettings, Evaluation
from worldrl.rollout.agents.actors import AnyActor, ExpertActor
from worldrl.rollout.imagined.starts import EmbeddedBackend, SimulatorBackend
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_cameras, embedded_embodiment, embedded_options
from worldrl.rollout.suites.names import EMBEDDED


@dataclass(frozen=True)
class SuiteOptions:
    """How a run uses its suite.

    ``image_size`` in pixels, of the cameras' ``images``; ``chunk_length`` and ``hold_steps``, recorded after the first
    success, in control steps; ``evaluation``: of both evaluations; ``timeout_s``: longest silence of a worker (s).
    """

    image_size: int
    images: tuple[str, ...]
    chunk_length: int
    hold_steps: int
    evaluation: Evaluation
    workers: int
    envs_per_worker: int
    timeout_s: float
    domain: str
    shadows: bool


class TrainingSuite(Protocol):
    """A suite as the loop needs it."""

    @property
    def name(self) -> str:
        """In results and datasets."""
        ...

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names."""
        ...

    @property
    def options(self) -> SuiteOptions:
        """How the run uses it."""
        ...

    @property
    def simulator_backend(self) -> SimulatorBackend:
        """Under imagined rollouts: where they begin, and what their actions really lead to."""
        ...

    @property
    def limits(self) -> tuple[str, ...]:
        """What a reader of the report must know about the suite's numbers."""
        ...

    @property
    def embodiment(self) -> AnyEmbodiment:
        """Of the robot that does the tasks."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a result says about assets, physics and drawing."""
        ...

    def exploration_expert(self, collection: CollectionSettings) -> tuple[str, AnyActor]:
        """The expert that practice varies, and the name of its episodes' source."""
        ...

    def record(self, folder: Path, plans: Sequence[CollectPlan[AnyActor]]) -> list[dict[str, Any]]:
        """Record the episodes of the plans that the dataset does not hold yet; one row per episode."""
        ...

    def evaluate(self, policy: Path, *, out: Path, videos: int, on_recording: Callable[[Episode], None]) -> EvalResult:
        """Measure a policy under the loop's one protocol."""
        ...

    def close(self) -> None:
        """Stop its workers."""
        ...


@dataclass(frozen=True)
class EmbeddedTrainingSuite:
    """The embedded suite, in worker processes of this environment."""

    tasks: tuple[str, ...]
    options: SuiteOptions
    limits: tuple[str, ...] = (
        "Initial states are drawn anew for the evaluation; the interval covers other draws of the same kind, not other scenes.",
    )

    @property
    def name(self) -> str:
        """As the setting has it."""
        return EMBEDDED

    @property
    def simulator_backend(self) -> SimulatorBackend:
        """The simulator of this environment, in the run's domain."""
        return EmbeddedBackend(self.options.domain)

    @property
    def embodiment(self) -> AnyEmbodiment:
        """Of the robot that does the tasks."""
        return embedded_embodiment(self.tasks)

    @property
    def facts(self) -> Mapping[str, Any]:
        """None: its assets and its physics come with it, and the protocol names the packages."""
        return {}

    def exploration_expert(self, collection: CollectionSettings) -> tuple[str, AnyActor]:
        """An expert with noise and misplaced goals that tries each skill once, whatever becomes of it."""
        return "blind_expert", ExpertActor(collection.noise, collection.goal_offset, blind=True)

    def record(self, folder: Path, plans: Sequence[CollectPlan[AnyActor]]) -> list[dict[str, Any]]:
        """Record in simulators of this environment."""
        return collect_dataset(
            folder,
            plans,
            env_options=embedded_options(self.tasks, self.options.image_size, self.options.domain, self.options.images),
            workers=self.options.workers,
            envs_per_worker=self.options.envs_per_worker,
            hold_steps=self.options.hold_steps,
            timeout_s=self.options.timeout_s,
        )

    @property
    def protocol(self) -> EvalProtocol:
        """Of both evaluations."""
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

    def evaluate(self, policy: Path, *, out: Path, videos: int, on_recording: Callable[[Episode], None]) -> EvalResult:
        """Measure in simulators of this environment."""
        return evaluate_policy(
            policy,
            self.protocol,
            workers=self.options.workers,
            envs_per_worker=self.options.envs_per_worker,
            timeout_s=self.options.timeout_s,
            out=out,
            record_videos=videos,
            on_recording=on_recording,
        )

    def close(self) -> None:
        """Nothing: each call ends its own workers."""
