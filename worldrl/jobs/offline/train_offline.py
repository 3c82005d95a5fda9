"""``worldrl train-offline``: a dataset and an algorithm's name to a policy with a score that can be trusted."""

from __future__ import annotations

from typing import Any

from worldrl.recipes.offline.settings import TrainOfflineSettings
from worldrl.recipes.offline.settings import settings_for as settings_for  # the command line asks this module for it
from worldrl.recipes.offline.training import run_offline_training


def main(settings: TrainOfflineSettings) -> dict[str, Any]:
    """Train, save, evaluate; write ``result.json`` and print the closing table.

    Returns the metrics: data, score on every scale with interval, over-estimation, online budget, world, last logs.
    """
    return run_offline_training(settings)
