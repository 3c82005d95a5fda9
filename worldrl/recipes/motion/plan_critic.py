"""A critic of plans is learned from executed ones, and measured on others. Shapes: ``N`` plans."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.intervals import auroc, auroc_within
from worldrl.core.storage.jsonfile import write_json
from worldrl.core.storage.learned import Learned
from worldrl.core.storage.log import MetricLog
from worldrl.recipes.motion.planned_execution import CollectionSettings
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic, fit_execution

WORTH = "worth.json"  # How well a critic tells plans apart that it has not learned from


def learn_critic(
    tried: CollectionSettings,
    config: ExecutionConfig,
    kept: float,
    place: Path,
    *,
    seed: int,
    log: MetricLog,
    parents: Sequence[dict[str, Any]] = (),
    learned: Learned | None = None,
    on_step: Callable[[int], None] | None = None,
) -> None:
    """Leave a critic in ``place/critic``, its curve in ``log``, and in ``place`` its accuracy on the share ``kept`` of the plans."""
    order = numpy_stream(seed, "practice", "kept").permutation(len(tried.success))
    apart, rest = (tried.select(rows) for rows in np.split(order, [round(kept * len(order))]))
    success = torch.from_numpy(rest.success)
    data, keep = (rest.read, rest.instruction, success), place / "checkpoints"
    critic, _ = fit_execution(config, *data, seed=seed, folder=keep, log=log, on_step=on_step)
    critic.save(place / CRITIC, parents=parents, learned=learned)
    known = {name: areas(term, tried) for name, term in tried.terms.items()}
    terms = {
        of: {name: found[kind] for name, found in known.items()}
        for of, kind in (("terms", "auroc"), ("terms_pooled", "auroc_pooled"))
    }
    write_json(place / WORTH, {"learned": len(rest.success), **separation(critic, apart), **terms})


def separation(critic: ExecutionCritic, apart: CollectionSettings) -> dict[str, Any]:
    """Say how well a critic tells successes from failures that it has not learned from."""
    hit = apart.success
    score = critic.reward(apart.read, apart.instruction).numpy() if len(hit) else np.zeros(0, np.float32)
    return {"successes": int(hit.sum()), "failures": int((~hit).sum()), **areas(score, apart)}


def areas(score: NDArray[np.float32], tried: CollectionSettings) -> dict[str, Any]:
    """Areas under the ROC curve of a reward ``[N]`` of executed plans, within tasks and pooled; None without a pair.

    Pooled, a reward that only distinguishes an easy task from a hard one seems to rank plans.
    """
    hit = tried.success
    within = auroc_within(score, hit, tried.task)
    pooled = auroc(score[hit], score[~hit]) if hit.any() and not hit.all() else None
    return {"auroc": within["value"], "pairs": within["pairs"], "auroc_pooled": pooled}
