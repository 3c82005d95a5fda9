"""Training of worldrl's own world model, part after part."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.storage.log import MetricLog
from worldrl.core.types import Episode
from worldrl.recipes.world_model.numbers import DYNAMICS, last_numbers
from worldrl.world_models.video.config import CodecKind
from worldrl.world_models.video.flow_map import ON_POLICY, fit_flow_map
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.outcome_training import fit_outcome
from worldrl.world_models.video.restorer_training import fit_restorer
from worldrl.world_models.video.training import fit_codec, fit_dynamics
from worldrl.world_models.video.training_config import WorldModelTraining


def learn_video(
    folder: Path,
    model: VideoWorldModel,
    episodes: Sequence[Episode],
    training: WorldModelTraining,
    instructions: TaskInstructions,
    *,
    seed: int,
    log: MetricLog | None,
    series: str,
) -> dict[str, Any]:
    """Train codec, dynamics, flow map, outcome head and restorer in place, each with steps; return the last numbers."""
    numbers: dict[str, Any] = {}
    if training.codec_steps and model.config.codec_kind is CodecKind.patch:
        frames = torch.from_numpy(np.concatenate([episode.sheet(model.config.cameras) for episode in episodes]))
        fit_codec(model, frames, training, seed=seed, folder=folder / "codec", log=log)
        numbers |= last_numbers(log, "codec")
    parts = (
        (partial(fit_dynamics, instructions=instructions), DYNAMICS, training.steps),
        (partial(fit_flow_map, instructions=instructions), "flow_map", training.flow_map_steps),
        (partial(fit_outcome, instructions=instructions), "outcome", training.outcome_steps),
        (fit_restorer, "restorer", training.restorer_steps),
    )
    for fit_part, part, steps in parts:
        name = series.replace("dynamics", part)
        if steps:
            fit_part(model, episodes, training, seed=seed, folder=folder / part, log=log, series=name)
            for part_name in (name, f"{name}{ON_POLICY}"):
                numbers |= {key: value for key, value in last_numbers(log, part_name).items() if "/" in key}
    return numbers
