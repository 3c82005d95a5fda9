"""How far a scene is from fulfilling its single-arm task (m), summed over the parts of the plan that must hold."""

from collections.abc import Callable
from typing import Any

import numpy as np

import worldrl_envs.predicates as predicates
from worldrl_envs.simulation import Simulation
from worldrl_envs.task_spec import TaskSpec


def goal_distance(sim: Simulation, task: TaskSpec) -> float:
    """Sum of what is missing to a single-arm plan's ends, metres; 0 is not yet success. KeyError for two arms."""
    placed = {step[1] for step in task.plan if step[0] == "place"}
    ends = (step for step in task.plan if not (step[0] == "pick" and step[1] in placed))
    return sum(MISSING[skill](sim, *arguments) for skill, *arguments in ends)


def _to_lift(sim: Simulation, name: str) -> float:
    """From the hand to the object, and from there up to where it counts as lifted."""
    apart = float(np.linalg.norm(sim.position(name) - sim.tcp))
    return apart + max(predicates.LIFT_HEIGHT - sim.height(name), 0.0)


def _outside(point: Any, low: Any, high: Any) -> float:
    """Distance of a point from an axis-aligned box; 0 inside."""
    return float(np.linalg.norm(np.maximum(np.maximum(low - point, point - high), 0.0)))


MISSING: dict[str, Callable[..., float]] = {
    "pick": _to_lift,
    # From the object's centre to the space between the container's walls, and along the table to the zone.
    "place": lambda sim, name, where: _outside(sim.local(name, where), *predicates.INSIDE[where]),
    "push": lambda sim, name: _outside(sim.local(name, "zone")[:2], -predicates.ZONE_HALF, predicates.ZONE_HALF),
    # How much further the drawer must be pulled or pushed.
    "open": lambda sim: max(predicates.OPENED - sim.opening, 0.0),
    "close": lambda sim: max(sim.opening - predicates.CLOSED, 0.0),
}
"""What is missing (m), by the skill of a plan."""
