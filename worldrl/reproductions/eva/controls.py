"""Controls of ``eva``: the same cost without reinforcement learning.

``longer`` continues the planner's own training on its demonstrations, for as many steps as alignment and collection cost
in rows of the network. ``imitate`` adds its own successful executed plans as demonstrations, for as many steps as the
alignment costs: it uses the collection, as the critic does. Both begin with the weights and a new schedule.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.rng import stream_seed
from worldrl.core.storage.log import MetricLog
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.recipes.motion.planned_execution import COLLECTION, CollectionSettings, states_seed
from worldrl.recipes.stages import learn_world_model
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.eva.critic import collection_folder, tried_plans
from worldrl.reproductions.eva.parts import Parts, planner_training
from worldrl.reproductions.eva.settings import TRAINED, EvaSettings, alignment_rows, collection_rows, task_names_of
from worldrl.reproductions.stage_sharing import shared
from worldrl.rollout.agents.actors import ImaginedPlanActor
from worldrl.rollout.imagined.decoded_plans import joint_path
from worldrl.rollout.imagined.policy_rollouts import PolicyRollouts
from worldrl.rollout.imagined.starts import EmbeddedBackend
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_options
from worldrl.rollout.real.rollouts import EmbeddedPlayer

RECORDED, ACTIONS = "dataset", "plans.npz"


def trained_on(settings: EvaSettings, cell: Cell, parts: Parts, folder: Path) -> dict[str, Any]:
    """Continue training the control's copy of the video model, in place; return the cost."""
    more = [] if cell.method == "longer" else executed_successes(settings, cell.seed, parts, folder)
    steps, seed = further_steps(settings, cell.method), stream_seed(cell.seed, "eva", cell.method)
    training = replace(planner_training(settings), codec_steps=0, steps=steps)
    with MetricLog(folder) as log:
        learn_world_model(folder / "training", parts.model, [*parts.learned, *more], training, seed=seed, log=log)
    trained = steps * settings.batch
    imagined = round(steps * rows_per_step(settings)) - TRAINED * trained
    cost = {"imagined_rows": imagined, "trained_rows": trained, "cost": imagined + TRAINED * trained}
    return {**cost, "further_steps": steps, "further_demonstrations": len(more)}


def rows_per_step(settings: EvaSettings) -> float:
    """Mean cost of a step of the planner's training: its trained rows, and the chunks that it imagines before them."""
    ahead = settings.bootstrap * settings.unroll / 2 if settings.unroll > 1 else 0.0  # 1..unroll-1, all alike
    return settings.batch * (TRAINED + ahead * settings.denoising)


def further_steps(settings: EvaSettings, method: str) -> int:
    """Steps of a control: alignment's rows in rows of training, and the collection's where nothing is learned from it."""
    rows = alignment_rows(settings) + (collection_rows(settings) if method == "longer" else 0)
    return max(1, round(rows / rows_per_step(settings)))


# --- executed plans as demonstrations ---------------------------------------------------------------------------------


def executed_successes(settings: EvaSettings, seed: int, parts: Parts, folder: Path) -> Sequence[Episode]:
    """Return the successful plans of the collection as recorded episodes."""
    practice = collection_folder(settings, seed, folder, parts)

    def record(place: Path) -> None:
        plans = given_actions(settings, seed, parts, tried_plans(practice))
        if not len(plans):
            return
        plans.save(place / ACTIONS)
        episodes = CollectPlan(ImaginedPlanActor(str(place / ACTIONS)), plans.specs("executed plan"))
        options = embedded_options(task_names_of(settings), settings.image_size, settings.domain)
        collect_dataset(
            place / RECORDED, [episodes], EmbeddedPlayer(options, workers=0), hold_steps=settings.hold_steps
        )

    place = shared(folder, f"successes-seed-{seed}", record)
    if not (place / RECORDED).exists():
        return []
    return EpisodeDataset.open(place / RECORDED).subset(lambda episode: episode.success).load()


def given_actions(settings: EvaSettings, seed: int, parts: Parts, tried: CollectionSettings) -> PolicyRollouts:
    """Return the executed targets of the successful plans, with their initial states."""
    tasks, source = task_names_of(settings), states_seed(seed, COLLECTION)
    hit = tried.success.nonzero()[0]
    sizes: dict[str, Any] = {"memory_frames": 1, "image_size": settings.image_size}
    starts = EmbeddedBackend(settings.domain).starts(tasks, settings.executed_plans, seed=source, **sizes)
    command = torch.from_numpy(np.stack([record.command for record in starts]))[hit]
    model = parts.model
    path = joint_path(command, tried.read[hit], model.frame_stride, model.embodiment.actions)
    return PolicyRollouts(
        task=tuple(starts[row].task for row in hit),
        index=hit % settings.executed_plans,
        seed=np.full(len(hit), source, np.int64),
        action=path,
        probability=np.ones((len(hit), 1), np.float32),
        frame_stride=model.frame_stride,
        actions=model.embodiment.actions,
    )
