"""Composes a task's MuJoCo model: arm, table, fixtures from MJCF, and free objects.

Arm and fingers have contype 2, conaffinity 1, the rest contype 1, conaffinity 3: the arm never touches itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldrl_envs.engine import mujoco
from worldrl_envs.paths import mjcf

ROBOT_BITS = (2, 4)  # contype of an arm's geoms; 4 is the second arm of two
FIXTURES = ("bin", "cabinet", "plate", "zone")
N_PROPS = 6  # slots for visual-only distractors; invisible until a style shows them


@dataclass(frozen=True)
class Part:
    """A further primitive of an object, such as a handle."""

    shape: str  # "box" or "cylinder"
    size: tuple[float, float, float]  # Half extents in metres, as in `ObjectSpec`
    position: tuple[float, float, float]  # Of its centre in the object's frame, metres
    rgba: tuple[float, float, float, float]  # Colour in [0, 1]


@dataclass(frozen=True)
class ObjectSpec:
    """A free object made of one primitive, or of one with parts on it."""

    shape: str  # "box" or "cylinder"
    # Half extents in metres: (x, y, z) of a box, (radius, half height, 0) of a cylinder.
    size: tuple[float, float, float]
    rgba: tuple[float, float, float, float]  # Colour in [0, 1]
    mass: float = 0.08  # Of the main primitive, kilograms
    parts: tuple[Part, ...] = ()  # Further primitives, 10 g each

    @property
    def rest_height(self) -> float:
        """Height of the centre above the table when standing on it, metres."""
        return self.size[2] if self.shape == "box" else self.size[1]


RED, BLUE = (0.86, 0.10, 0.10, 1.0), (0.10, 0.25, 0.85, 1.0)
GREEN, YELLOW = (0.10, 0.62, 0.20, 1.0), (0.98, 0.82, 0.10, 1.0)
CUBE = (0.026, 0.026, 0.026)  # 5.2 cm: 8.6 pixels wide in the 64-pixel scene image

OBJECTS = {
    "red_cube": ObjectSpec("box", CUBE, RED),
    "blue_cube": ObjectSpec("box", CUBE, BLUE),
    "green_cylinder": ObjectSpec("cylinder", (0.026, 0.0275, 0.0), GREEN),
    "yellow_brick": ObjectSpec("box", (0.0275, 0.025, 0.018), YELLOW),
    "left_cube": ObjectSpec("box", CUBE, RED),
    "right_cube": ObjectSpec("box", CUBE, RED),
    "near_cube": ObjectSpec("box", CUBE, RED),
    "far_cube": ObjectSpec("box", CUBE, RED),
}


def build_model(objects: tuple[str, ...], fixtures: tuple[str, ...]) -> mujoco.MjModel:
    """Compile a scene: the arm's seven joints and two fingers, free objects by their names, mocap fixtures."""
    # Includes rather than MjSpec.attach: attaching without a prefix warns, and a prefix would
    # give every joint and site two names.
    parts = "".join(f'<include file="{mjcf(part)}"/>' for part in ("scene", "panda", *fixtures))
    spec = mujoco.MjSpec.from_string(f"<mujoco>{parts}</mujoco>")
    add_objects(spec, {name: OBJECTS[name] for name in objects})
    return spec.compile()


def add_objects(spec: mujoco.MjSpec, objects: Mapping[str, ObjectSpec]) -> None:
    """Add free objects, each with a free joint of its own name, and the props, invisible yet."""
    for name, what in objects.items():
        body = spec.worldbody.add_body(name=name, pos=[0.5, 0, what.rest_height])
        body.add_freejoint(name=name)
        _add_geom(body, name, what, mass=what.mass)
        for number, part in enumerate(what.parts):
            _add_geom(body, f"{name}_part{number}", part, mass=0.01, pos=part.position)
    for index in range(N_PROPS):
        _add_prop(spec, f"prop{index}")


def _add_geom(body: mujoco.MjsBody, name: str, what: ObjectSpec | Part, **options: Any) -> None:
    body.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_BOX if what.shape == "box" else mujoco.mjtGeom.mjGEOM_CYLINDER,
        size=what.size,
        rgba=what.rgba,
        contype=1,
        conaffinity=3,
        condim=4,
        friction=[1.0, 0.02, 0.0005],
        # Stiff: a 15 N grip on 80 g would sink millimetres into MuJoCo's default contact.
        solref=[0.004, 1],
        solimp=[0.95, 0.99, 0.001, 0.5, 2],
        **options,
    )


def _add_prop(spec: mujoco.MjSpec, name: str) -> None:
    spec.worldbody.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[0.02, 0.02, 0.02],
        pos=[0.5, 0, -0.5],
        rgba=[0.5, 0.5, 0.5, 0],
        contype=0,
        conaffinity=0,
        mass=0,
    )
