"""Facts of Isaac Lab as used here: task ids, time limits, scales, conventions. Written against version 2.3.2.

Imported by the core and by the worker; standard library only. Mittal et al. 2023 (arXiv:2301.04195).

The ids are those with relative inverse kinematics, which take LIBERO's seven numbers. ``isaac/worker.py`` undoes the
differences::

    action   Δposition and Δrotation (axis-angle) from the measured pose. Isaac multiplies by 0.5, so ours are scaled until
             1 means LIBERO's 0.05 m and 0.5 rad; gripper +1 OPEN in Isaac, +1 closed here; none for reaching
    state    tool position in the environment's own frame (m), axis-angle of its quaternion, two finger positions (m);
             Isaac's quaternions have w first, ours last
    policy   Isaac's own group ``policy``, flat, without images: the input of its state-based agents
    start    drawn by Isaac from a seed made of task, number and seed, one environment at a time
    end      Isaac's own terminations are switched off: it would reset an environment within the step that ends it and
             the last observation would be lost. Success is computed here after each step; the core counts time
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WRITTEN_FOR = "2.3.2"  # Version of the isaaclab wheel behind these facts; the adapter never ran against the real one
VENDOR_SCALE = 0.5
POSITION_SCALE, ROTATION_SCALE = 0.05, 0.5
WORKSPACE_LOW, WORKSPACE_HIGH = (-0.3, -0.9, -0.1), (1.0, 0.9, 1.2)  # of the tool, in the environment's frame (m)
TOOL_OFFSET_M = 0.107  # From the body `panda_hand` along its z axis to the tool centre point
CAMERAS = {"scene": "table_cam", "wrist": "wrist_cam"}
STORED_STATES = 2**20


@dataclass(frozen=True)
class TaskFacts:
    """One task; one process holds environments of one task only."""

    id: str  # Isaac's
    instruction: str  # for policies; worldrl's, since Isaac has none
    horizon: int  # control steps: Isaac's episode length over its control step
    control_hz: float
    success: str  # description
    goal: str = ""  # name of the pose command to reach, constant over the episode; empty for none
    images: bool = False  # whether the task has cameras
    gripper: bool = True  # whether the action has a seventh number


LIFT_GOAL_M, REACH_GOAL_M, DRAWER_OPEN_M = 0.05, 0.05, 0.3

SUITES: Mapping[str, TaskFacts] = {
    "isaac_reach": TaskFacts(
        "Isaac-Reach-Franka-IK-Rel-v0",
        "move the hand to the goal",
        360,
        30.0,
        f"hand within {REACH_GOAL_M} m of the commanded position (ours: Isaac has none)",
        goal="ee_pose",
        gripper=False,
    ),
    "isaac_lift": TaskFacts(
        "Isaac-Lift-Cube-Franka-IK-Rel-v0",
        "lift the cube to the goal",
        250,
        50.0,
        f"cube within {LIFT_GOAL_M} m of the commanded position (ours: Isaac has none)",
        goal="object_pose",
    ),
    "isaac_drawer": TaskFacts(
        "Isaac-Open-Drawer-Franka-IK-Rel-v0",
        "open the top drawer",
        480,
        60.0,
        f"top drawer open by {DRAWER_OPEN_M} m (ours: Isaac has none)",
    ),
    "isaac_stack": TaskFacts(
        "Isaac-Stack-Cube-Franka-IK-Rel-Visuomotor-v0",
        "stack the red cube on the blue cube and the green cube on both",
        600,
        20.0,
        "Isaac's termination term `success` (cubes_stacked)",
        images=True,
    ),
}
