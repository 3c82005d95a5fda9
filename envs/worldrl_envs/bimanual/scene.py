"""Composes a bimanual task's MuJoCo model: two arms on the shared table, a head camera, fixtures, free objects.

The left arm stands at +y, the left of the head camera's image. Contact bits (contype, conaffinity) let arms touch
objects, fixtures and each other, but never themselves.
"""

import numpy as np

from worldrl_envs.bimanual.control import ARMS
from worldrl_envs.engine import mujoco
from worldrl_envs.paths import mjcf
from worldrl_envs.scene import ObjectSpec, Part, add_objects

BASES = {"left": (0.0, 0.22, 0.0), "right": (0.0, -0.22, 0.0)}  # metres
BITS = {"left": (2, 5), "right": (4, 3)}  # contype and conaffinity
HEAD = {"pos": (-0.19, 0.0, 0.80), "xyaxes": (0, -1, 0, 0.80, 0, 0.60), "fovy": 27.5}

RED, GREEN, BLUE = (0.86, 0.10, 0.10, 1.0), (0.10, 0.62, 0.20, 1.0), (0.10, 0.25, 0.85, 1.0)
STEEL, BLACK = (0.62, 0.66, 0.72, 1.0), (0.15, 0.15, 0.17, 1.0)
CUBE = (0.0305, 0.0305, 0.0305)  # 6.1 cm: 9 pixels wide and more in the 64-pixel head image
HANDLE = (0.012, 0.030, 0.009)
# Things with an end for each hand: (y, z) of the left hand's grip in the thing's frame, metres; the right one's
# is at -y. The fingers close along the thing's x.
GRIPS = {"block": (0.055, 0.0), "pot": (0.092, 0.018)}

OBJECTS = {
    "red_cube": ObjectSpec("box", CUBE, RED),
    "green_cube": ObjectSpec("box", CUBE, GREEN),
    "blue_cube": ObjectSpec("box", CUBE, BLUE),
    "block": ObjectSpec("box", (0.019, 0.085, 0.022), RED),
    "pot": ObjectSpec(
        "cylinder",
        (0.055, 0.036, 0.0),
        STEEL,
        mass=0.15,
        parts=(Part("box", HANDLE, (0.0, 0.085, 0.018), BLACK), Part("box", HANDLE, (0.0, -0.085, 0.018), BLACK)),
    ),
}


def build_model(objects: tuple[str, ...], fixtures: tuple[str, ...]) -> mujoco.MjModel:
    """Compile a scene with free joints of the objects' names and fixtures as mocap bodies; arms' parts are prefixed."""
    parts = "".join(f'<include file="{mjcf(part)}"/>' for part in ("scene", *fixtures))
    spec = mujoco.MjSpec.from_string(f"<mujoco>{parts}</mujoco>")
    for arm in ARMS:
        _attach(spec, arm)
    spec.delete(spec.camera("scene"))
    _add_head(spec)
    add_objects(spec, {name: OBJECTS[name] for name in objects})
    return spec.compile()


def _attach(spec: mujoco.MjSpec, arm: str) -> None:
    one = mujoco.MjSpec.from_file(str(mjcf("sixaxis")))
    for geom in one.geoms:
        geom.contype, geom.conaffinity = BITS[arm]
    spec.attach(one, prefix=f"{arm}_", frame=spec.worldbody.add_frame(pos=BASES[arm]))


def _add_head(spec: mujoco.MjSpec) -> None:
    right, up = np.array(HEAD["xyaxes"], float).reshape(2, 3)
    matrix, quat = np.column_stack([right, up, np.cross(right, up)]), np.empty(4)
    mujoco.mju_mat2Quat(quat, matrix.reshape(-1))
    spec.worldbody.add_camera(name="head", pos=HEAD["pos"], quat=quat, fovy=HEAD["fovy"])
