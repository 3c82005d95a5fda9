"""When a bimanual task is solved. Each predicate reads one frame; as in `predicates.py` they ask for the cause."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from worldrl_envs.bimanual.control import ARMS
from worldrl_envs.predicates import REST_SPEED

if TYPE_CHECKING:
    from worldrl_envs.bimanual.simulation import BimanualSimulation

# A task's stages are called with the environment's own physics, whose type the shared record cannot name.
Predicate = Callable[[Any], bool]

CLEAR = 0.03  # metres above the resting height from which on an object has left the table
LIFT_HEIGHT = 0.07  # metres above the resting height
UPRIGHT = 0.97  # cosine of the largest tilt (14 degrees) of a pot that does not spill
ON_PLATE = 0.035  # metres from the plate's middle to the cube's, plate radius 5 cm
ZONE_HALF = 0.045  # metres; the middle of a placed cube lies in the zone's inner square
STACKED = 0.02  # metres between the middles of two stacked cubes, half an edge is 3 cm


def held(sim: "BimanualSimulation", arm: str, name: str) -> bool:
    """Both fingers of the arm touch the object."""
    return all(sim.touched_by(arm, name))


def released(sim: "BimanualSimulation", name: str) -> bool:
    """No finger touches the object."""
    return not any(any(sim.touched_by(arm, name)) for arm in ARMS)


def at_rest(sim: "BimanualSimulation", name: str) -> bool:
    """The object is released and does not move."""
    return sim.speed(name) < REST_SPEED and released(sim, name)


def nearer_arm(sim: "BimanualSimulation", name: str) -> str:
    """The arm on whose side of the table the object is."""
    return "left" if sim.position(name)[1] > 0 else "right"


def lifted_by(arm: str, name: str) -> Predicate:
    """One arm holds the object in the air, and the other does not touch it."""
    other = ARMS[1 - ARMS.index(arm)]
    return lambda sim: held(sim, arm, name) and not any(sim.touched_by(other, name)) and sim.height(name) >= LIFT_HEIGHT


def taken_by_nearer_arm(name: str) -> Predicate:
    """The object has left the table in the hand of the arm on whose side it is."""
    return lambda sim: sim.height(name) >= CLEAR and held(sim, nearer_arm(sim, name), name)


def lifted_together(name: str) -> Predicate:
    """Both arms hold the object in the air, and it is upright."""

    def holds(sim: "BimanualSimulation") -> bool:
        upright = sim.axis(name)[2] > UPRIGHT
        return upright and sim.height(name) >= LIFT_HEIGHT and all(held(sim, arm, name) for arm in ARMS)

    return holds


def on_plate(name: str) -> Predicate:
    """The object stands on the plate, released and at rest."""

    def holds(sim: "BimanualSimulation") -> bool:
        x, y, _ = sim.local(name, "plate")
        on = np.hypot(x, y) < ON_PLATE and abs(sim.height(name) - 0.004) < 0.006  # the plate is 4 mm thick
        return bool(on) and at_rest(sim, name)

    return holds


def in_zone(name: str) -> Predicate:
    """The object stands on the table inside the zone, released and at rest."""

    def holds(sim: "BimanualSimulation") -> bool:
        x, y, _ = sim.local(name, "zone")
        return bool(max(abs(x), abs(y)) < ZONE_HALF) and sim.on_table(name) and at_rest(sim, name)

    return holds


def stacked(lower: str, upper: str) -> Predicate:
    """`lower` stands in the zone, `upper` on it, both released and at rest."""

    def holds(sim: "BimanualSimulation") -> bool:
        aside = np.linalg.norm(sim.position(upper)[:2] - sim.position(lower)[:2])
        rests = aside < STACKED and sim.height(upper) > CLEAR and sim.touches_object(lower, upper)
        return bool(rests) and in_zone(lower)(sim) and at_rest(sim, upper)

    return holds


def inside_drawer(sim: "BimanualSimulation", name: str) -> bool:
    """The object's middle is between the drawer's walls and below their edge."""
    x, y, z = sim.local(name, "drawer")
    return bool(-0.055 < x < 0.064 and abs(y) < 0.061 and z < 0.05)


def in_drawer(name: str) -> Predicate:
    """The object lies in the drawer, released and at rest."""
    return lambda sim: inside_drawer(sim, name) and at_rest(sim, name)


def inside_bin(sim: "BimanualSimulation", name: str) -> bool:
    """The object's middle is between the bin's walls and below its rim."""
    x, y, z = sim.local(name, "bin")
    return bool(abs(x) < 0.074 and abs(y) < 0.064 and z < 0.05)


def in_bin(*names: str) -> Predicate:
    """Every named object lies in the bin, released and at rest."""
    return lambda sim: all(inside_bin(sim, name) and at_rest(sim, name) for name in names)
