"""Facts of RoboTwin 2.0: files of its checkout, names, protocol and conventions.

Imported by the core and by the worker; standard library only. RoboTwin 2.0: Chen et al. 2025 (arXiv:2506.18088), read
at the commit :data:`COMMIT`; the adapter never ran against the real one.

::

    action   14 absolute joint targets: left arm 6 (rad), left gripper (0 closed, 1 open), right arm, right gripper. One
             action is a whole retimed motion, so a step has no fixed duration
    state    the same 14 numbers, measured
    image    head, left and right wrist camera, 240 by 320 pixels
    start    a seed that RoboTwin's own expert solved: candidates from 100000 (1 + seed) on without unstable and unsolved
             ones, as in its evaluation
    success  RoboTwin's ``check_success`` at any physics step of a motion
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMIT = "cf47ab5697c81c39f78522ba24102f789b6bce5e"
CLIENT_COMMIT = "7198143e890ee73bee241c6cf2521f748ab91427"  # Commit of XPolicyLab, the client of RoboTwin's evaluation
ARM_JOINTS = 6
SIZE = 14
CAMERAS = {"head": "head_camera", "left_wrist": "left_camera", "right_wrist": "right_camera"}
"""worldrl's camera names → RoboTwin's."""
CLIENT_CAMERAS = {"head": "cam_head", "left_wrist": "cam_left_wrist", "right_wrist": "cam_right_wrist"}
"""worldrl's camera names → those of RoboTwin's evaluation client."""
IMAGE = (240, 320)
FRAME_HZ = 10.0  # RoboTwin's playback rate of videos; a step lasts as long as its motion
CONFIGS: Mapping[str, str] = {"robotwin_clean": "demo_clean", "robotwin_randomised": "demo_randomized"}
"""Suite → task configuration of the checkout."""
DEFAULT_STEPS = 1000  # Time limit of a task that the checkout's table does not name
EMBODIMENT = "aloha-agilex"
SEED_BLOCK = 100000
MOST_ATTEMPTS = 50  # Candidates per start before the search fails, as in RoboTwin's batch evaluation
FAILED_IN_A_ROW = 5  # This many consecutive exceptions mean a broken installation
STORED_STATES = SEED_BLOCK // MOST_ATTEMPTS

LIMITS = "env_cfg/task_config/_eval_step_limit.yml"
NEEDED = (
    "envs/_base_task.py",
    LIMITS,
    "env_cfg/task_config/_embodiment_config.yml",
    "env_cfg/task_config/_camera_config.yml",
    "env_cfg/task_config/demo_clean.yml",
    "env_cfg/task_config/demo_randomized.yml",
    "description/utils/generate_episode_instructions.py",
)
"""Files that make a folder a checkout of RoboTwin 2.0."""
ASSETS = ("assets/embodiments", "assets/objects", "assets/background_texture")
"""Folders that its own script downloads separately."""


def first_seed(seed: int) -> int:
    """First candidate, as RoboTwin's evaluation counts."""
    return SEED_BLOCK * (1 + seed)


def joints() -> dict[str, list[Any]]:
    """Names and bounds of an action's numbers; the bounds catch degrees and unnormalised grippers."""
    names = [*(f"joint{number}" for number in range(1, ARM_JOINTS + 1)), "gripper"]
    high = [6.2832] * ARM_JOINTS + [1.0]
    low = [-6.2832] * ARM_JOINTS + [0.0]
    return {"names": [f"{arm}_{name}" for arm in ("left", "right") for name in names], "low": low * 2, "high": high * 2}
