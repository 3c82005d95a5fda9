"""An external suite as ``worldrl train-vla`` needs it: its initial states divided, its workers started when needed.

The last ``evaluation.episodes`` of a task's stored initial states are the evaluation's alone. Every other episode begins
at one that the suite draws (``Suite.drawn_states``), or else at one of the rest, in an order of its own
(``rollout.suites.backend``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit
from worldrl.core.storage.log import console
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.policy.protocol import EvalProtocol, suite_protocol
from worldrl.jobs.vla.settings import CollectionSettings
from worldrl.jobs.vla.training_suite import SimulatedSuite, SuiteOptions
from worldrl.recipes.suites.opening import OpenSuite, SuiteOnDemand, cameras_showing, fit_for, require_same_fit
from worldrl.recipes.world_model.start import is_bundled
from worldrl.rollout.agents.actors import AnyActor, ExpertActor
from worldrl.rollout.suites.backend import ExternalBackend
from worldrl.rollout.suites.names import suite_names
from worldrl.rollout.suites.suite import Suite, Workers, recorded_robot, require_expert

BY_EXPERT = ("demonstrations", "scratch.expert_episodes", "collection.expert_episodes")
"""Settings whose episodes the suite's scripted expert plays."""


def training_states(suite: Suite, evaluated: int) -> range:
    """Numbers of the initial states of everything but the evaluation, which has the last ``evaluated`` stored ones."""
    stored = suite.stored_states
    return range(stored, stored + suite.drawn_states) if suite.drawn_states else range(stored - evaluated)


def require_possible(suite: Suite, asked: Mapping[str, int], *, start: str, evaluated: int) -> None:
    """Refuse what the suite cannot give; ``asked`` is episodes of each task by setting.

    Raises SettingError (it cannot be recorded, weights of another robot, or more episodes of one kind than there are
    initial states, the later of which would repeat the earlier).
    """
    recorded_robot(suite)
    if is_bundled(start):
        raise SettingError(
            f"start: the bundled world models are of the embedded suite's robot; with suite={suite.setting} give "
            "start=scratch, or a world-model folder trained on its recordings"
        )
    states = training_states(suite, evaluated)
    if not states or evaluated > suite.stored_states:
        needed = "" if suite.drawn_states else " and training needs some of them"
        raise SettingError(
            f"evaluation.episodes: {suite.name} stores {suite.stored_states} initial states per task{needed}, "
            f"got {evaluated}"
        )
    for name, count in asked.items():
        if count > len(states):
            raise SettingError(
                f"{name}: {count} episodes of each task, and {suite.name} has {len(states)} initial states left beside "
                f"the {evaluated} of the evaluation; ask for fewer"
            )


def require_players(suite: Suite, asked: Mapping[str, int], tasks: Sequence[str]) -> None:
    """Refuse tasks that the suite's scripted expert does not play, where it is asked to; SettingError."""
    for name, count in asked.items():
        if count and name in BY_EXPERT:
            require_expert(name, suite, tasks)


def fit_of_loop(suite: Suite, supervised: str | None, data: str | None) -> Fit:
    """How a suite's own images get the loop's size: as in the training of a given policy, or in given demonstrations.

    SettingError, with both specs side by side, where the suite fits them otherwise; ArtefactError: neither can be read.
    """
    if supervised is not None:
        return fit_for(suite, Path(supervised))
    if data is None:
        return Fit.stretch
    header = EpisodeDataset.open(data).header
    require_same_fit(suite, header.observation, f"the data in {data}")
    return Fit.stretch if header.fit is Fit.refuse else header.fit


def measured_pose_note(name: str, robot: AnyEmbodiment) -> list[str]:
    """Say where imagination does not know the command exactly, and which suite of LIBERO has one that it knows."""
    if not robot.measured_pose:
        return []
    held = f" suite={name}@held has a command that follows from the actions." if f"{name}@held" in suite_names() else ""
    return [
        f"The command of {name} is the measured pose. Imagination reads it from its frames, up to centimetres off, "
        f"and policies seldom succeed there.{held}"
    ]


class ExternalTrainingSuite(SimulatedSuite):
    """An external suite; the policy decides on ``device`` for all environments at once."""

    def __init__(self, suite: Suite, tasks: tuple[str, ...], options: SuiteOptions, device: torch.device) -> None:
        self.options, self._suite, self.tasks, self.device = options, suite, tasks, str(device)
        self._cameras = cameras_showing(suite, options.images)
        self.name, self.embodiment = suite.name, recorded_robot(suite)
        slots = options.workers * options.envs_per_worker
        drawn = {"shadows": options.shadows, "fit": options.fit}
        asked = Workers(self._cameras, options.image_size, options.workers, slots, **drawn)
        self._on_demand = SuiteOnDemand(suite, asked, timeout_s=options.timeout_s, engine=options.engine)
        self._training = training_states(suite, options.evaluation.episodes)
        horizons = {task: suite.horizon(task) for task in tasks}
        self.simulator_backend = ExternalBackend(lambda: self.player.pool, horizons=horizons, states=self._training)
        others = "states that the suite draws" if suite.drawn_states else "the others"
        notes = measured_pose_note(suite.name, self.embodiment)
        for note in notes:
            console().print(note, markup=False, highlight=False)
        self.limits = (
            f"{suite.name} has {suite.stored_states} initial states per task. The evaluation begins at the last "
            f"{options.evaluation.episodes}, everything else of this run at {others}.",
            *notes,
        )

    def close(self) -> None:
        """Stop the workers, if any run."""
        self._on_demand.close()

    @property
    def player(self) -> OpenSuite:
        """Its workers, started with the first request."""
        return self._on_demand.opened

    def exploration_expert(self, collection: CollectionSettings) -> tuple[str, AnyActor]:
        """The suite's expert with noise on its motion: it has no goals to misplace, and feels what it holds."""
        return "noisy_expert", ExpertActor(collection.noise)

    @property
    def protocol(self) -> EvalProtocol:
        """It says what the suite's workers are."""
        evaluation, opened = self.options.evaluation, self.player
        return suite_protocol(
            self._suite,
            opened.pool.suite,
            tasks=self.tasks,
            episodes_per_task=evaluation.episodes,
            first_index=self._suite.stored_states - evaluation.episodes,
            seed=evaluation.seed,
            chunk_length=self.options.chunk_length,
            image_size=self.options.image_size,
            cameras=self._cameras,
            temperature=evaluation.temperature,
            shadows=self.options.shadows,
            assets_note=opened.assets_note,
        )

    def training_protocol(self, episodes: int, *, seed: int) -> EvalProtocol:
        """The first of the states of training; their draw has no seed."""
        return replace(self.protocol, episodes_per_task=episodes, first_index=self._training.start)
