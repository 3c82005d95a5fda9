"""Training of a Wan world model, in all processes, then of its outcome ensemble in the first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldrl.core.rng import numpy_stream
from worldrl.core.storage.log import MetricLog
from worldrl.core.training.ranks import rank
from worldrl.core.types import Episode
from worldrl.recipes.world_model.numbers import DYNAMICS, last_numbers
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.outcome_training import fit_outcome
from worldrl.world_models.wan.fit import fit_wan, whole
from worldrl.world_models.wan.model import WanWorldModel
from worldrl.world_models.wan.training import WanTraining, take


def learn_wan(
    folder: Path,
    model: WanWorldModel,
    episodes: Sequence[Episode],
    training: WanTraining,
    instructions: TaskInstructions,
    *,
    seed: int,
    log: MetricLog | None,
    series: str = "dynamics",
) -> dict[str, Any]:
    """Train a Wan world model in place, in all processes, then its outcome ensemble in the first; return the last logged numbers."""
    name = series.replace("dynamics", "outcome")
    if training.steps:
        fit_wan(
            model,
            episodes,
            training,
            instructions=instructions,
            seed=seed,
            device=model.device,
            folder=folder / DYNAMICS,
            log=log,
            series=series,
        )
    if model.outcome is not None and training.outcome_steps and rank() == 0:
        order = numpy_stream(seed, "outcome-episodes").permutation(len(episodes))
        fit_outcome(
            whole_wan(model, folder),
            take(episodes, order[: training.outcome_episodes].tolist()),
            training,
            instructions=instructions,
            seed=seed,
            folder=folder / "outcome",
            log=log,
            series=name,
            rows=training.batch,
        )
    numbers = last_numbers(log, series) | last_numbers(log, name)
    return {key: value for key, value in numbers.items() if "/" in key}


def whole_wan(model: WanWorldModel, folder: Path) -> WanWorldModel:
    """A Wan world model with all parameters in this process, after its training in ``folder``."""
    return whole(model, folder / DYNAMICS)
