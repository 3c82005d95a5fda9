"""When a task is solved, by one frame: lifted means between both fingers, placed means released and at rest."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from worldrl_envs.simulation import Simulation

Predicate = Callable[["Simulation"], bool]

LIFT_HEIGHT = 0.08  # metres above the resting height
GRASP_RADIUS = 0.04  # metres between the tool centre point and a held object's centre
REST_SPEED = 0.05  # m/s; a placed object slower than this has come to rest
ZONE_HALF = 0.034  # metres; an unturned 5.2 cm cube then lies wholly on the 12 cm zone
OPENED, CLOSED = 0.09, 0.01  # metres of the drawer's travel
INSIDE = {
    "bin": (np.array([-0.074, -0.064, -np.inf]), np.array([0.074, 0.064, 0.05])),
    "drawer": (np.array([-0.055, -0.061, -np.inf]), np.array([0.064, 0.061, 0.048])),
}
"""Where an object's centre is between the walls and below their edge: lower and upper corner in the container's frame, metres."""


def held(sim: "Simulation", name: str) -> bool:
    """Both fingers touch the object, and it is where a grasp would have it."""
    near = np.linalg.norm(sim.position(name) - sim.tcp) < GRASP_RADIUS
    return bool(near) and all(sim.touched_by(name))


def lifted(name: str) -> Predicate:
    """The object is held at least 8 cm above its resting height."""
    return lambda sim: sim.height(name) >= LIFT_HEIGHT and held(sim, name)


def inside(sim: "Simulation", name: str, container: str) -> bool:
    """The object's centre is between the walls of the "bin" or the "drawer" and below their edge."""
    (low, high), place = INSIDE[container], sim.local(name, container)
    return bool(((low < place) & (place < high)).all())


def _at_rest(sim: "Simulation", name: str) -> bool:
    return sim.speed(name) < REST_SPEED and not any(sim.touched_by(name))


def in_bin(*names: str) -> Predicate:
    """Every named object lies in the bin, released and at rest."""
    return lambda sim: all(inside(sim, name, "bin") and _at_rest(sim, name) for name in names)


def in_bin_without(name: str, other: str) -> Predicate:
    """`name` lies in the bin and `other` does not: the first stage of an ordered task."""
    return lambda sim: in_bin(name)(sim) and not inside(sim, other, "bin")


def in_open_drawer(name: str) -> Predicate:
    """The object lies in the drawer, released and at rest."""
    return lambda sim: inside(sim, name, "drawer") and _at_rest(sim, name)


def drawer_open(at_least: float) -> Predicate:
    """The drawer stands open by at least so many metres."""
    return lambda sim: sim.opening >= at_least


def drawer_closed(at_most: float) -> Predicate:
    """The drawer is open by at most so many metres."""
    return lambda sim: sim.opening <= at_most


def in_zone(name: str) -> Predicate:
    """The object stands on the table inside the zone, at rest and not held."""

    def holds(sim: "Simulation") -> bool:
        x, y, _ = sim.local(name, "zone")
        inside = abs(x) < ZONE_HALF and abs(y) < ZONE_HALF
        return inside and sim.on_table(name) and sim.speed(name) < REST_SPEED and not held(sim, name)

    return holds
