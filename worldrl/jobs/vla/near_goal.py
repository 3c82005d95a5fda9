"""Failures of the policy close to the goal, for the world model of ``worldrl train-vla``: World-VLA-Loop's near-success data.

The policy fails practice episodes, in the simulator or executing its imagined rollouts. Of each task, those that came nearest to their
goal are learned from more often than the others. Calibration and gates keep their episodes as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldrl.core.types import Episode
from worldrl.jobs.vla.loop import BY_POLICY
from worldrl.jobs.vla.settings import CollectionSettings
from worldrl.rollout.real.goal_distance import nearest_to_goal


@dataclass(frozen=True)
class NearGoal:
    """The failures that are learned from more often.

    Attributes:
        repeats: what stands beside the recordings: each of those episodes as often as it is repeated.
        counts: by task, how many failures there were and how many came near, and the largest distance of these (m).
    """

    repeats: list[Episode]
    counts: dict[str, dict[str, Any]]


def near_failures(collection: CollectionSettings, episodes: Sequence[Episode]) -> NearGoal:
    """Find the policy's failures that came nearest to their goal, a share of each task's, rounded up.

    Args:
        collection: settings.
        episodes: what the world model learns from, of all sources.
    """
    if not collection.near_goal_share:
        return NearGoal([], {})
    failed = [e for e in episodes if e.meta.get("source") in BY_POLICY and not e.success]
    repeats: list[Episode] = []
    counts: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(episode.task for episode in failed):
        of_task = [episode for episode in failed if episode.task == task]
        distance = nearest_to_goal(of_task)
        nearest = np.argsort(distance, kind="stable")[: int(np.ceil(collection.near_goal_share * len(of_task)))]
        repeats += [of_task[k] for k in nearest.tolist() for _ in range(collection.near_goal_weight - 1)]
        counts[task] = {"failures": len(of_task), "near": len(nearest), "within_m": float(distance[nearest].max())}
    return NearGoal(repeats, counts)
