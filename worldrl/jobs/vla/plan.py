"""What a run of ``worldrl train-vla`` does: its settings, resolved once and checked before anything is recorded.

The stages read a :class:`Plan`; no other file of this folder knows the settings of the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.embodiment import JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.observation import MEASURED, ObservationSpec, require_observed
from worldrl.core.rng import stream_seed
from worldrl.evaluation.policy.protocol import CLEAN
from worldrl.evaluation.world_model.gates import GateThresholds
from worldrl.jobs.vla.branch import Branch
from worldrl.jobs.vla.settings import CollectionSettings, Evaluation, TrainVlaSettings
from worldrl.jobs.vla.training_suite import EmbeddedTrainingSuite, SimulatedSuite, SuiteOptions, TrainingSuite
from worldrl.methods.imitation.config import BehaviourCloning, Distillation
from worldrl.methods.rl.improve import Improvement
from worldrl.policies.token.policy import TokenPolicyConfig
from worldrl.recipes.run import choose_tasks, engine_of, imaginers_of
from worldrl.recipes.stages import held_out_count
from worldrl.recipes.training_data import require_debounce
from worldrl.recipes.world_model.start import (
    SCRATCH,
    check_start,
    check_wan_start,
    check_weights,
    require_kind,
    require_robot,
    stored_config,
    weights_folder,
)
from worldrl.rollout.agents.policy_folder import policy_facts, require_imaginable
from worldrl.rollout.planning.config import NONE, Planner
from worldrl.rollout.real.embedded import embedded_embodiment
from worldrl.rollout.suites.names import EMBEDDED, RECORDINGS
from worldrl.world_models.loading import VIDEO, WAN
from worldrl.world_models.video.config import VideoWorldModelConfig
from worldrl.world_models.video.training_config import WorldModelTraining

if TYPE_CHECKING:
    from worldrl.methods.rl.imagining import Imaginers
    from worldrl.recipes.world_model.wan_settings import WanSettings
    from worldrl.rollout.suites.suite import Suite
    from worldrl.world_models.wan.training import WanTraining

GRPO = "grpo"
"""The algorithm that needs nothing of a policy but its log-probabilities."""


@dataclass(frozen=True)
class Plan:
    """All that the stages need to know.

    ``start`` is the folder of the world model to begin with, None for one from scratch, which ``first_training`` trains,
    from ``weights`` of another robot where there are any; ``training`` refines any other. ``data`` and ``supervised`` are
    folders that replace recording and cloning. ``styles`` counts the other visual styles of each training episode.
    ``held_out`` is the share of collected episodes that calibration and gates have. ``stop_at_gate`` and
    ``from_supervised``: see ``gates`` and ``improve_from``. ``planner`` plans in the newest world model; None: nobody plans.
    ``imaginers`` make the processes that imagine besides; None: on this machine.
    """

    suite: TrainingSuite
    branch: Branch
    seed: int
    device: torch.device
    dtype: torch.dtype
    rounds: int
    start: Path | None
    data: str | None
    demonstrations: int
    supervised: Path | None
    policy: TokenPolicyConfig
    cloning: BehaviourCloning
    collection: CollectionSettings
    first_expert_episodes: int
    styles: int
    held_out: float
    world_model: VideoWorldModelConfig | WanSettings
    first_training: WorldModelTraining | WanTraining
    weights: str | None
    training: WorldModelTraining | WanTraining
    target_precision: float | None
    thresholds: GateThresholds
    confirmed: float
    stop_at_gate: bool
    improvement: Improvement
    from_supervised: bool
    evaluation: Evaluation
    distillation: Distillation
    planner: Planner | None
    imaginers: Imaginers | None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names."""
        return self.suite.tasks

    @property
    def horizons(self) -> dict[str, int]:
        """Time limit of each task (control steps)."""
        return self.suite.horizons

    @property
    def simulator(self) -> SimulatedSuite:
        """The suite, in stages that act in it."""
        if not isinstance(self.suite, SimulatedSuite):
            raise TypeError(f"suite={self.suite.name} has no simulator")  # its loop has no such stage
        return self.suite

    def precision_of(self, number: int) -> float:
        """Precision at which the success threshold of a round is calibrated."""
        own = self.improvement.of_round(number).target_precision
        return own if self.target_precision is None else self.target_precision

    def seed_of(self, *names: str | int) -> int:
        """Derive a stage's seed; below 2**31, which every simulator keeps."""
        return stream_seed(self.seed, "train-vla", *names) % 2**31


def resolve(settings: TrainVlaSettings) -> Plan:
    """Check what can be checked, and return what the run does; the suite's workers start when they are needed first.

    Raises SettingError (tasks, suite, weights, policy and numbers of episodes do not fit each other). Raises
    ArtefactError (no world model in ``start``, or no policy in ``supervised``). Raises WorkerEnvironmentError (the
    suite is not set up).
    """
    plan = planned(settings, resolve_device(settings.device))
    if isinstance(plan.suite, SimulatedSuite):
        check_held_out(settings, len(plan.tasks))
        check_near_goal(settings.collection.near_goal_share, settings.suite, plan.tasks)
    if settings.backbone == VIDEO:
        require_kind(settings.start, settings.world_model)
        check_start(settings.start, settings.world_model, settings.training)
        if settings.start == SCRATCH and settings.scratch.weights is not None:
            check_weights(settings.scratch.weights, settings.world_model, settings.scratch.training, "scratch.training")
    else:
        check_wan_start(settings.start, settings.wan)
    check_policy_fits(settings)
    require_robot(settings.start, plan.suite.embodiment)
    if settings.start == SCRATCH:
        world = settings.wan.model if settings.backbone == WAN else settings.world_model
        require_debounce(world.outcome.debounce, max(plan.horizons.values()) + 1)
    return plan


def planned(settings: TrainVlaSettings, device: torch.device) -> Plan:
    """Find suite and tasks, and refuse what the suite cannot give; nothing else is checked."""
    wan = settings.backbone == WAN
    return Plan(
        suite=_suite(settings, device),
        branch=settings.branch,
        seed=settings.seed,
        device=device,
        dtype=resolve_dtype(settings.dtype, device),
        rounds=settings.rounds,
        start=None if settings.start == SCRATCH else weights_folder(settings.start),
        data=settings.data,
        demonstrations=settings.demonstrations,
        supervised=None if settings.supervised is None else Path(settings.supervised),
        policy=settings.policy,
        cloning=settings.cloning,
        collection=settings.collection,
        first_expert_episodes=settings.scratch.expert_episodes,
        styles=settings.styles,
        held_out=settings.held_out,
        world_model=settings.wan if wan else settings.world_model,
        first_training=settings.wan.training if wan else settings.scratch.training,
        weights=settings.scratch.weights,
        training=settings.wan.training if wan else settings.training,
        target_precision=settings.target_precision,
        thresholds=settings.thresholds,
        confirmed=settings.confirmed,
        stop_at_gate=settings.gates == "stop",
        improvement=settings.improvement,
        from_supervised=settings.improve_from == "supervised",
        evaluation=settings.evaluation,
        distillation=settings.distillation,
        planner=None if settings.planner == NONE else Planner(settings.planner, settings.planning),
        imaginers=imaginers_of(settings),
    )


# -- suite and tasks -----------------------------------------------------------------------------------------------


def _suite(settings: TrainVlaSettings, device: torch.device) -> TrainingSuite:
    options = SuiteOptions(
        image_size=settings.policy.image_size,
        images=tuple(settings.cameras),
        chunk_length=settings.policy.chunk_length,
        hold_steps=settings.collection.hold_steps,
        evaluation=settings.evaluation,
        workers=settings.workers,
        envs_per_worker=settings.envs_per_worker,
        timeout_s=settings.timeout_s,
        engine=engine_of(settings),
        domain=settings.domain,
        shadows=settings.shadows,
    )
    if settings.suite == EMBEDDED:
        tasks = tuple(choose_tasks(settings.tasks, None if settings.tasks else settings.kind))
        require_domain(settings.domain, tasks)
        return EmbeddedTrainingSuite(tasks, options)
    if settings.suite == RECORDINGS:
        from worldrl.jobs.vla.recorded_suite import recorded_suite

        return recorded_suite(settings, options)
    from worldrl.jobs.vla.external_suite import ExternalTrainingSuite, fit_of_loop
    from worldrl.rollout.suites.registry import find_suite

    suite = find_suite(settings.suite, settings.python)
    tasks, fit = external_tasks(settings, suite), fit_of_loop(suite, settings.supervised, settings.data)
    return ExternalTrainingSuite(suite, tasks, replace(options, fit=fit), device)


def external_tasks(settings: TrainVlaSettings, suite: Suite) -> tuple[str, ...]:
    """Return the tasks of an external suite that the settings name; SettingError for what the suite cannot give."""
    from worldrl.jobs.vla.external_suite import require_players, require_possible
    from worldrl.rollout.suites.names import choose_suite_tasks

    scratch = settings.start == SCRATCH
    later = not scratch or settings.rounds > 1  # only a first round without a world model has the longer collection
    asked = {
        "demonstrations": 0 if settings.data else settings.demonstrations,
        "collection.policy_episodes": settings.collection.policy_episodes,
        "collection.planner_episodes": settings.collection.planner_episodes,
        "evaluation.accept": settings.evaluation.accept,
        "scratch.expert_episodes": settings.scratch.expert_episodes if scratch else 0,
        "collection.expert_episodes": settings.collection.expert_episodes if later else 0,
    }
    require_possible(suite, asked, start=settings.start, evaluated=settings.evaluation.episodes)
    tasks = tuple(choose_suite_tasks(settings.tasks, suite.tasks()))
    require_players(suite, asked, tasks)
    return tasks


def require_domain(domain: str, tasks: Sequence[str]) -> None:
    """Refuse a domain that tasks do not have; SettingError."""
    if domain != CLEAN and not isinstance(embedded_embodiment(tasks), JointEmbodiment):
        raise SettingError(f"domain: {domain} is of bimanual tasks, got {', '.join(tasks)}; give kind=bimanual")


# -- episodes ------------------------------------------------------------------------------------------------------


def check_held_out(settings: TrainVlaSettings, tasks: int) -> None:
    """Refuse a collection on that many tasks that would leave no episode for calibration and gates; SettingError."""
    scratch = settings.start == SCRATCH
    expert = settings.scratch.expert_episodes if scratch else settings.collection.expert_episodes
    in_world_model = 0 if scratch else settings.collection.imagined_episodes + settings.collection.planner_episodes
    episodes = tasks * (settings.collection.policy_episodes + expert + in_world_model)
    if held_out_count(episodes, settings.held_out) < 1:
        raise SettingError(
            f"held_out: {settings.held_out} of {episodes} collected episodes is not one each for calibration and gates; "
            "raise held_out or the episodes of collection"
        )


def check_near_goal(share: float, suite: str, tasks: Sequence[str]) -> None:
    """Refuse to rank failures where no simulator measures how near to the goal they came; SettingError."""
    if share and (suite != EMBEDDED or isinstance(embedded_embodiment(tuple(tasks)), JointEmbodiment)):
        raise SettingError(
            f"collection.near_goal_share={share}: how near to its goal an episode came is measured in "
            "the embedded suite's tasks of one arm only; give collection.near_goal_share=0"
        )


# -- policy --------------------------------------------------------------------------------------------------------


def check_policy_fits(settings: TrainVlaSettings) -> None:
    """Refuse a policy whose chunks or images are not the world model's, or that cannot be improved in imagination.

    Raises ArtefactError (no world model in ``start``, or no policy in ``supervised``). Raises SettingError (they
    differ, or the given policy observes what imagination does not have or learns otherwise).
    """
    held = settings.scratch.weights if settings.start == SCRATCH and settings.backbone == VIDEO else settings.start
    if held in (None, SCRATCH):
        world = (settings.wan.model if settings.backbone == WAN else settings.world_model).to_json()
    else:
        world = stored_config(held).to_json()
    if settings.supervised:
        require_given(settings, world["dynamics"])
    for name, part in (("chunk_length", "dynamics"), ("image_size", "codec")):
        own, its = getattr(settings.policy, name), world[part][name]
        if own != its:
            raise SettingError(
                f"policy.{name} is {own}, the world model's {name} is {its} (start={settings.start}); make them the same"
            )


def require_given(settings: TrainVlaSettings, dynamics: Mapping[str, Any]) -> None:
    """Refuse a given policy that a world model of ``dynamics`` cannot show what it observes, or that learns otherwise."""
    folder = Path(settings.supervised or "")
    require_imaginable(
        folder,
        f"supervised: the policy in {folder}",
        frame_stride=dynamics["frame_stride"],
        memory_frames=dynamics["memory_frames"],
        dynamics="wan.model.dynamics" if settings.backbone == WAN else "world_model.dynamics",
    )
    require_inputs(settings)
    require_algorithm(settings.improvement.algorithm, folder)
    if settings.planner != NONE:
        from worldrl.recipes.planning import require_plannable

        require_plannable(folder, settings.planner)


def require_inputs(settings: TrainVlaSettings) -> None:
    """Refuse a given policy that observes what the loop's world model will not imagine, with both specs side by side."""
    folder = Path(settings.supervised or "")
    facts, state = policy_facts(folder), settings.state == MEASURED
    shown = ObservationSpec.of(facts.actions, settings.cameras, facts.picture, state=state)
    where = f"the world model of cameras=[{', '.join(settings.cameras)}] state={settings.state}"
    require_observed(facts.observation, shown, f"the policy in {folder}", where)


def require_algorithm(algorithm: str, folder: Path) -> None:
    """Refuse an algorithm that the policy cannot learn by, hours before it would begin; SettingError."""
    from worldrl.policies.lerobot.folder import is_lerobot_folder

    if algorithm != GRPO and is_lerobot_folder(folder):
        raise SettingError(
            f"improvement.algorithm={algorithm}: self-training imitates tokens, which the policy in {folder} has none of; "
            f"give improvement.algorithm={GRPO}"
        )
