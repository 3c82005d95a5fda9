"""Facts of ManiSkill: tasks with assets in its wheel, time limits, scales and conventions.

Imported by the core and by the worker; standard library only. ManiSkill 3: Tao et al. 2024 (arXiv:2410.00425).

Its ``pd_ee_delta_pose`` controller takes LIBERO's seven numbers with two differences, which ``maniskill/worker.py``
undoes::

    action   Δposition (1 is 0.1 m) from the measured pose, Δrotation (1 is 0.1 rad; as Euler angles, and ManiSkill turns
             the OTHER way: it multiplies by the lower bound of its range), gripper +1 OPEN, -1 closed; at 20 Hz
    state    tool position (m), axis-angle of its quaternion (rad), two finger positions (m)
    image    the camera ``base_camera``, unchanged; ManiSkill hides goal marks from it
    start    drawn by ManiSkill from one seed, made of task, number and seed (:func:`episode_seed`)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

CONTROL_HZ = 20.0
POSITION_SCALE, ROTATION_SCALE = 0.1, 0.1
WORKSPACE_LOW, WORKSPACE_HIGH = (-1.5, -0.9, -0.1), (0.3, 0.9, 1.2)
"""A box (m) that holds every pose of a Panda (reach 0.855 m) whose base stands at x = -0.615: ManiSkill bounds none."""
STORED_STATES = 2**20  # Initial states are drawn, not stored; so many numbers identify them
CAMERAS = {"scene": "base_camera"}
PACKAGES = {"mani-skill": "3.0.1", "sapien": "3.0.3"}  # The exact packages of the physics
VERSION = "maniskill3.0.1"
DEVICES = ("cuda", "cpu")
"""Devices of SAPIEN's renderer, in the order of preference; the second through Mesa's software Vulkan."""


@dataclass(frozen=True)
class TaskFacts:
    """One task."""

    instruction: str  # for policies; worldrl's, since ManiSkill has none
    horizon: int  # control steps, as ManiSkill registers the task
    expert: bool = False  # whether the scripted expert supports it


TASKS: Mapping[str, TaskFacts] = {
    "PickCube-v1": TaskFacts("pick up the red cube and hold it at the goal", 50, expert=True),
    "PushCube-v1": TaskFacts("push the cube onto the target", 50, expert=True),
    "PullCube-v1": TaskFacts("pull the cube onto the target", 50, expert=True),
    "StackCube-v1": TaskFacts("put the red cube on the green cube", 50, expert=True),
    "PlaceSphere-v1": TaskFacts("put the sphere into the bin", 50),
    "LiftPegUpright-v1": TaskFacts("set the peg upright", 50),
    "PokeCube-v1": TaskFacts("poke the cube with the peg", 50),
    "RollBall-v1": TaskFacts("roll the ball to the goal", 80),
    "PullCubeTool-v1": TaskFacts("pull the cube closer with the tool", 100),
    "PegInsertionSide-v1": TaskFacts("insert the peg into the hole", 100),
    "PlugCharger-v1": TaskFacts("plug the charger into the socket", 200),
    "StackPyramid-v1": TaskFacts("put the red cube beside the green cube and the blue cube on both", 250),
}

SUITES: Mapping[str, tuple[str, ...]] = {
    "maniskill": tuple(TASKS),
    "maniskill_cubes": tuple(name for name, task in TASKS.items() if task.expert),
}
"""``maniskill_cubes``: the tasks of the scripted expert."""


def episode_seed(task: str, init_id: int, seed: int) -> int:
    """ManiSkill's seed of one episode, a function of these arguments alone, in 0..2³¹ − 1."""
    digest = hashlib.sha256(f"{task}/{init_id}/{seed}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
