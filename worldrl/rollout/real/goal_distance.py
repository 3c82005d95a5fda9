"""Smallest distance of recorded episodes to their goal: what a failure missed by, in metres.

Recordings hold no positions of objects. Their actions are executed again from the same initial state, without images,
and the simulator measures the objects' distance to the goal (``worldrl_envs.closeness``) at each frame. Single-arm tasks
of the embedded suite only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from worldrl.core.errors import ArtefactError
from worldrl.core.types import Episode
from worldrl.rollout.real.execution import AGREEMENT
from worldrl.rollout.real.slots import EnvSlot
from worldrl.rollout.real.specs import EnvOptions, spec_of


def nearest_to_goal(episodes: Sequence[Episode]) -> NDArray[np.float64]:
    """Find the smallest distance to the goal over each episode (m), ``[E]``; neighbours share a simulator.

    Raises ArtefactError (an episode's initial state is unknown, or the simulator does not repeat it).
    """
    limits = {episode.task: max(len(e) for e in episodes if e.task == episode.task) for episode in episodes}
    with closing(EnvSlot(EnvOptions(max_steps=limits))) as slot:
        return np.array([_nearest(slot, episode) for episode in episodes])


def _nearest(slot: EnvSlot, episode: Episode) -> float:
    from worldrl_envs.closeness import goal_distance

    spec = spec_of(episode.meta)
    slot.reset(spec, render=False)
    sim, task = slot.env.unwrapped.sim, slot.env.unwrapped.task
    distance = [goal_distance(sim, task)]
    for action in episode.action:
        slot.step(action, render=False)
        distance.append(goal_distance(sim, task))
    if np.abs(sim.tcp - episode.state[-1, :3]).max() > AGREEMENT:
        raise ArtefactError(
            f"{spec.describe()}: the simulator does not repeat this recording, so its distance to the goal is unknown; "
            "record it again with this version"
        )
    return min(distance)
