"""Where ``worldrl train-vla`` really acts: one suite's demonstrations, real rollouts and evaluation, whichever suite it is.

The stages ask an :class:`TrainingSuite` and never a simulator, so the loop is the same on the embedded suite and on
any external one (``external_suite``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from worldrl.core.embodiment import AnyEmbodiment, JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.evaluation.policy.evaluate import evaluate_policy
from worldrl.evaluation.policy.protocol import CLEAN, EvalProtocol, embedded_protocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.jobs.vla.settings import KIND, CollectionSettings, TrainVlaSettings
from worldrl.recipes.run import choose_tasks
from worldrl.rollout.agents.actors import AnyActor, ExpertActor
from worldrl.rollout.imagined.starts import EmbeddedBackend, SimulatorBackend
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_cameras, embedded_embodiment, embedded_options
from worldrl.rollout.suites.names import EMBEDDED


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


@dataclass(frozen=True)
class EmbeddedTrainingSuite:
    """The embedded suite, in worker processes of this environment.

    Attributes:
        settings: of the job.
        tasks: names.
    """

    settings: TrainVlaSettings
    tasks: tuple[str, ...]
    limits: tuple[str, ...] = (
        "Initial states are drawn anew for the evaluation; the interval covers other draws of the same kind, not other scenes.",
    )

    @property
    def name(self) -> str:
        """As the setting has it."""
        return EMBEDDED

    @property
    def simulator_backend(self) -> SimulatorBackend:
        """The simulator of this environment, in the settings' domain."""
        return EmbeddedBackend(self.settings.domain)

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
            env_options=embedded_options(
                self.tasks, self.settings.policy.image_size, self.settings.domain, self.settings.cameras
            ),
            workers=self.settings.workers,
            envs_per_worker=self.settings.envs_per_worker,
            hold_steps=self.settings.collection.hold_steps,
            timeout_s=self.settings.timeout_s,
        )

    @property
    def protocol(self) -> EvalProtocol:
        """Of both evaluations."""
        evaluation = self.settings.evaluation
        return embedded_protocol(
            self.tasks,
            episodes_per_task=evaluation.episodes,
            seed=evaluation.seed,
            chunk_length=self.settings.policy.chunk_length,
            image_size=self.settings.policy.image_size,
            cameras=embedded_cameras(self.tasks, self.settings.cameras),
            temperature=evaluation.temperature,
            domain=self.settings.domain,
        )

    def evaluate(self, policy: Path, *, out: Path, videos: int, on_recording: Callable[[Episode], None]) -> EvalResult:
        """Measure in simulators of this environment."""
        return evaluate_policy(
            policy,
            self.protocol,
            workers=self.settings.workers,
            envs_per_worker=self.settings.envs_per_worker,
            timeout_s=self.settings.timeout_s,
            out=out,
            record_videos=videos,
            on_recording=on_recording,
        )


@contextmanager
def open_training_suite(
    settings: TrainVlaSettings, tasks: Sequence[str], device: torch.device
) -> Generator[TrainingSuite]:
    """Open the suite of the settings; an external suite's workers start when they are needed first, and end here."""
    if settings.suite == EMBEDDED:
        yield EmbeddedTrainingSuite(settings, tuple(tasks))
        return
    from worldrl.jobs.vla.external_suite import ExternalTrainingSuite
    from worldrl.rollout.suites.registry import find_suite

    suite = find_suite(settings.suite, settings.python)
    with ExternalTrainingSuite(settings, suite, tuple(tasks), device) as training_suite:
        yield training_suite


def require_domain(domain: str, tasks: Sequence[str]) -> None:
    """Refuse a domain that tasks do not have; SettingError."""
    if domain != CLEAN and not isinstance(embedded_embodiment(tasks), JointEmbodiment):
        raise SettingError(f"domain: {domain} is of bimanual tasks, got {', '.join(tasks)}; give kind=bimanual")


def tasks_of(settings: TrainVlaSettings) -> tuple[str, ...]:
    """Names of the tasks that the settings mean.

    Raises SettingError (unknown ones, or something that an external suite cannot give). Raises WorkerEnvironmentError
    (an external suite is not set up).
    """
    if settings.suite == EMBEDDED:
        tasks = tuple(choose_tasks(settings.tasks, None if settings.tasks else settings.kind))
        require_domain(settings.domain, tasks)
        return tasks
    if settings.kind not in (None, KIND):
        raise SettingError(f"kind: {settings.kind!r} is of the embedded suite; with suite={settings.suite} give tasks")
    from worldrl.jobs.vla.external_suite import require_players, require_possible
    from worldrl.recipes.suites.opening import choose_suite_tasks
    from worldrl.rollout.suites.registry import find_suite

    suite = find_suite(settings.suite, settings.python)
    require_possible(settings, suite)
    tasks = tuple(choose_suite_tasks(settings.tasks, suite.tasks()))
    require_players(settings, suite, tasks)
    return tasks
