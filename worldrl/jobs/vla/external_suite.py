"""LIBERO as the arena of ``worldrl train-vla``: its stored initial states shared out, its workers started when needed.

A suite stores 50 initial states per task. The last ``evaluation.episodes`` are the evaluation's alone; whatever
else begins somewhere begins at the others, in an order of its own (``rollout.suites.backend``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.data.lerobot.external.libero_robot import libero_embodiment
from worldrl.evaluation.policy.evaluate import policy_actor
from worldrl.evaluation.policy.protocol import EvalProtocol
from worldrl.evaluation.policy.result import EvalResult
from worldrl.evaluation.policy.suites import evaluate_in_suite, suite_protocol
from worldrl.jobs.vla.settings import CollectionSettings, TrainVlaSettings
from worldrl.recipes.suites.opening import OpenSuite, open_suite
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, PolicyActor
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.real.collect import CollectPlan, record_missing
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.suites.backend import ExternalBackend
from worldrl.rollout.suites.episodes import Rules, in_order, play_episodes
from worldrl.rollout.suites.registry import require_expert
from worldrl.workers.libero import facts

CAMERAS = ("scene",)
"""What the loop's policies and world models look through."""


BY_EXPERT = ("demonstrations", "scratch.expert_episodes", "collection.expert_episodes")
"""Settings whose episodes the suite's scripted expert plays."""


def training_states(settings: TrainVlaSettings) -> int:
    """How many of a task's stored states are left to everything but the evaluation."""
    return facts.STORED_STATES - settings.evaluation.episodes


def require_possible(settings: TrainVlaSettings) -> None:
    """Refuse what the suite cannot give, before anything is recorded.

    Raises:
        SettingError: weights of another robot, or more episodes of one kind than there are stored states, the later of
            which would repeat the earlier.
    """
    if settings.start == BUNDLED:
        raise SettingError(
            f"start: the bundled world model is of the embedded suite's robot; with suite={settings.suite} give "
            "start=scratch, or a world-model folder trained on its recordings"
        )
    states = training_states(settings)
    if states < 1:
        raise SettingError(
            f"evaluation.episodes: {settings.suite} stores {facts.STORED_STATES} initial states per task and "
            f"training needs some of them, got {settings.evaluation.episodes}"
        )
    for name, count in _asked(settings).items():
        if count > states:
            raise SettingError(
                f"{name}: {count} episodes of each task, and {settings.suite} has {states} initial states left beside "
                f"the {settings.evaluation.episodes} of the evaluation; ask for fewer"
            )


def require_players(settings: TrainVlaSettings, tasks: Sequence[str]) -> None:
    """Refuse tasks that the suite's scripted expert does not play, where it is asked to; SettingError."""
    for name, count in _asked(settings).items():
        if count and name in BY_EXPERT:
            require_expert(name, settings.suite, tasks)


def _asked(settings: TrainVlaSettings) -> dict[str, int]:
    """Episodes per task of every source that is really asked for, by setting."""
    scratch = settings.start == SCRATCH
    later = not scratch or settings.rounds > 1  # only a first round without a world model has the longer practice
    return {
        "demonstrations": 0 if settings.data else settings.demonstrations,
        "collection.policy_episodes": settings.collection.policy_episodes,
        "scratch.expert_episodes": settings.scratch.expert_episodes if scratch else 0,
        "collection.expert_episodes": settings.collection.expert_episodes if later else 0,
    }


class ExternalTrainingSuite:
    """See :class:`~worldrl.jobs.vla.training_suite.TrainingSuite`; a context manager that leaves no worker behind.

    Args:
        settings: of the job.
        tasks: names.
        device: where the policy decides for all environments at once.
    """

    def __init__(self, settings: TrainVlaSettings, tasks: tuple[str, ...], device: torch.device) -> None:
        self._settings, self.tasks, self._device = settings, tasks, str(device)
        self._stack, self._open = ExitStack(), cast("OpenSuite | None", None)
        states = training_states(settings)
        self.simulator_backend = ExternalBackend(
            lambda: self._suite.pool, horizon=facts.horizon(settings.suite), states=states
        )
        self.limits = (
            f"{settings.suite} stores {facts.STORED_STATES} initial states per task. The evaluation begins at the last "
            f"{settings.evaluation.episodes}, everything else of this run at the others.",
        )

    def __enter__(self) -> ExternalTrainingSuite:
        """Start nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the workers."""
        self._stack.close()

    @property
    def _suite(self) -> OpenSuite:
        if self._open is None:
            settings = self._settings
            self._open = self._stack.enter_context(
                open_suite(
                    settings.suite,
                    cameras=CAMERAS,
                    image_size=settings.policy.image_size,
                    shadows=settings.shadows,
                    workers=settings.workers,
                    slots=settings.workers * settings.envs_per_worker,
                    timeout_s=settings.timeout_s,
                )
            )
        return self._open

    @property
    def embodiment(self) -> AnyEmbodiment:
        """Of LIBERO's robot."""
        return libero_embodiment()

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of its workers."""
        return self._suite.facts

    def exploration_expert(self, collection: CollectionSettings) -> tuple[str, AnyActor]:
        """The suite's expert with noise on its motion: it has no goals to misplace, and feels what it holds."""
        return "noisy_expert", ExpertActor(collection.noise)

    def record(self, folder: Path, plans: Sequence[CollectPlan[AnyActor]]) -> list[dict[str, Any]]:
        """Record in the suite's workers."""
        return record_missing(
            folder,
            plans,
            self._play,
            embodiment=libero_embodiment(),
            cameras=CAMERAS,
            image_size=self._settings.policy.image_size,
            suite=self._settings.suite,
        )

    def _play(self, missing: Sequence[tuple[EpisodeSpec, AnyActor]]) -> Iterator[Episode | EpisodeOutcome]:
        horizon = self.simulator_backend.horizons(self.tasks)
        for actor, group in groupby(missing, key=lambda pair: pair[1]):
            specs = [spec for spec, _ in group]
            rules = Rules(horizon, CAMERAS, self._settings.collection.hold_steps, range(len(specs)))
            yield from in_order(play_episodes(self._suite.pool, specs, self._deciding(actor), rules), specs)

    def _deciding(self, actor: AnyActor) -> AnyActor:
        return replace(actor, device=self._device) if isinstance(actor, PolicyActor) else actor

    @property
    def protocol(self) -> EvalProtocol:
        """Of both evaluations; it says what the suite's workers are."""
        evaluation, suite = self._settings.evaluation, self._suite
        return suite_protocol(
            self._settings.suite,
            suite.pool.suite,
            tasks=self.tasks,
            episodes_per_task=evaluation.episodes,
            first_index=training_states(self._settings),
            seed=evaluation.seed,
            chunk_length=self._settings.policy.chunk_length,
            image_size=self._settings.policy.image_size,
            temperature=evaluation.temperature,
            shadows=self._settings.shadows,
            assets_note=suite.assets_note,
        )

    def evaluate(self, policy: Path, *, out: Path, videos: int, on_recording: Callable[[Episode], None]) -> EvalResult:
        """Measure in the suite's workers."""
        protocol = self.protocol
        return evaluate_in_suite(
            self._suite.pool,
            policy_actor(policy, protocol, self._device),
            protocol,
            CAMERAS,
            name=policy.name,
            identity=policy_facts(policy).hash,
            out=out,
            record_videos=videos,
            on_recording=on_recording,
        )
