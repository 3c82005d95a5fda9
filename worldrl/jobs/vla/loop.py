"""What the stages of ``worldrl train-vla`` share: plan, run directory, collecting, imagining, training the world model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.interfaces import Policy
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.intervals import Rate, wilson
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.run import RunDirectory, Stage
from worldrl.core.types import Episode
from worldrl.jobs.vla.artefacts import Recording, SavedPolicy, SavedWorld, datasets_by_folder
from worldrl.jobs.vla.plan import Plan
from worldrl.recipes.stages import learn_world_model
from worldrl.recipes.world_model.start import SCRATCH, WORLD_MODEL, starting_world_model, transferred_world_model
from worldrl.rollout.agents.actors import AnyActor
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts, imagine_from_keyframes, imagine_policy
from worldrl.rollout.imagined.reset_store import keyframe_starts
from worldrl.rollout.real.collect import CollectPlan
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.config import VideoWorldModelConfig

DATASET = "dataset"
BY_POLICY = ("policy", "planner", "dream")
"""Sources of collected episodes in which the policy acted: alone, with the planner, or in an imagined rollout."""


@dataclass(frozen=True)
class Loop:
    """What every stage needs: the plan, the run directory and its metrics."""

    plan: Plan
    run: RunDirectory
    log: MetricLog

    def policy(self, folder: Path) -> SavedPolicy:
        """Return the policy of a folder."""
        return SavedPolicy(folder, self.plan.device)

    def world(self, folder: Path) -> SavedWorld:
        """Return the world model of a folder."""
        return SavedWorld(folder, self.plan.device, self.plan.dtype)

    def finish(self, stage: Stage, summary: dict[str, Any]) -> None:
        """Finish a stage with the wall time spent on the run so far."""
        stage.finish({**summary, "run_wall_s": self.run.wall_s})

    def collect(self, folder: Path, plans: Sequence[CollectPlan[AnyActor]]) -> dict[str, Rate]:
        """Record episodes; return how many, and how many succeeded, by source."""
        rows = self.plan.simulator.record(folder, plans)
        return success_by_source([(str(row["source"]), bool(row["success"])) for row in rows])

    def specs(self, source: str, count: int, seed: int) -> list[EpisodeSpec]:
        """Name ``count`` episodes of each task."""
        named = (EpisodeSpec(task, index, seed, source=source) for task in self.plan.tasks for index in range(count))
        return [self.plan.simulator.simulator_backend.placed(spec) for spec in named]


def success_by_source(rows: Sequence[tuple[str, bool]]) -> dict[str, Rate]:
    """Rates of success, from the source and the success of each episode."""
    sources = sorted({source for source, _ in rows})
    parts = {source: [success for of, success in rows if of == source] for source in sources}
    return {source: wilson(sum(part), len(part)) for source, part in parts.items()}


def fresh_rollouts(
    loop: Loop, policy: Policy, model: AnyVideoModel, count: int, *, number: int, name: str
) -> PolicyRollouts:
    """Imagine ``count`` rollouts of each task from initial states of their own, as round ``number`` explores.

    ``name`` fixes every draw.
    """
    return imagine_policy(
        model,
        policy,
        loop.plan.tasks,
        count,
        seed=loop.plan.seed_of(name, "dreams"),
        horizon=loop.plan.horizons,
        image_size=loop.plan.policy.image_size,
        exploration=loop.plan.improvement.of_round(number).exploration_of(policy),
        simulator_backend=loop.plan.simulator.simulator_backend,
    )


def keyframe_rollouts(
    loop: Loop, policy: Policy, model: AnyVideoModel, episodes: Sequence[Episode], count: int, *, number: int, name: str
) -> PolicyRollouts | None:
    """Continue recorded episodes in imagination from up to ``count`` keyframes of each task; None where rollouts start at none."""
    config = loop.plan.improvement.of_round(number)
    if not config.p_keyframe:
        return None
    starts = [(episodes[number], step) for number, step, _ in keyframe_starts(episodes, margin=config.keyframe_margin)]
    draw = numpy_stream(loop.plan.seed_of(name, "keyframes"))
    chosen = [
        of_task[i]
        for task in loop.plan.tasks
        for of_task in [[start for start in starts if start[0].task == task]]
        for i in draw.permutation(len(of_task))[:count]
    ]
    if not chosen:
        return None
    return imagine_from_keyframes(
        model,
        policy,
        chosen,
        seed=loop.plan.seed_of(name, "keyframe-dreams"),
        horizon=loop.plan.horizons,
        exploration=config.exploration_of(policy),
    )


def collection_split(loop: Loop, practices: Sequence[Recording]) -> tuple[list[Episode], list[Episode], list[Episode]]:
    """Split each practice set, so that an episode held out once is never trained on later."""
    parts = [
        loop.plan.suite.split(recording, loop.plan.held_out, seed=loop.plan.seed_of("held-out", number))
        for number, recording in enumerate(practices, start=1)
    ]
    training, calibration, gates = ([e for part in parts for e in part[k]] for k in range(3))
    return training, calibration, gates


def trained_world_model(
    loop: Loop, number: int, episodes: Sequence[Episode], embodiment: AnyEmbodiment, before: SavedWorld | None
) -> tuple[AnyVideoModel, dict[str, Any]]:
    """Train the world model of a round, from scratch or further; return it with the last numbers of the training."""
    plan, seed = loop.plan, loop.plan.seed_of("world-model", number)
    plan.suite.close()
    start, learning = SCRATCH, plan.first_training
    if before is not None:
        before.release()
        start, learning = str(before.folder), plan.training
    begun = {"seed": seed, "device": plan.device}
    if before is None and plan.weights is not None and isinstance(plan.world_model, VideoWorldModelConfig):
        model = transferred_world_model(plan.weights, plan.world_model, embodiment, **begun)
    else:
        model = starting_world_model(start, plan.world_model, embodiment, **begun)
    folder, series = loop.run.stage(f"round-{number}-2-world-model").folder, f"dynamics-{number}"
    numbers = learn_world_model(folder, model, episodes, learning, seed=seed, log=loop.log, series=series)
    model.compute_dtype = plan.dtype
    return model, numbers


def keep_world_model(
    loop: Loop,
    stage: Stage,
    model: AnyVideoModel,
    seen: Sequence[Recording],
    before: SavedWorld | None,
    summary: dict[str, Any],
) -> None:
    """Save a calibrated world model with what it has ``seen``, and finish its stage."""
    from worldrl.recipes.world_model.lineage import lineage

    start = loop.plan.weights or SCRATCH if before is None else str(before.folder)
    parents, learned = lineage(datasets_by_folder(seen), [start])
    model.save(stage.folder / WORLD_MODEL, parents=parents, learned=learned)
    dtype = str(model.compute_dtype).removeprefix("torch.")
    loop.finish(stage, {**summary, "threshold": model.config.outcome.threshold, "dtype": dtype})
