"""LIBERO's robot, as it is stored with recordings."""

from __future__ import annotations

import math
from dataclasses import replace

from worldrl.core.embodiment import Embodiment
from worldrl.workers.libero import facts


def libero_embodiment() -> Embodiment:
    """Constants of LIBERO's robot, whose command is the measured pose."""
    return Embodiment(
        position_scale=facts.POSITION_SCALE,
        rotation_scale=facts.ROTATION_SCALE,
        workspace_low=facts.WORKSPACE_LOW,
        workspace_high=facts.WORKSPACE_HIGH,
        max_rotation=math.pi,
        control_hz=facts.CONTROL_HZ,
        response=facts.RESPONSE,
    )


def held_embodiment() -> Embodiment:
    """Constants of the same robot with a controller that keeps its goal: the command follows from the actions."""
    scales = {"position_scale": facts.HELD_POSITION_SCALE, "rotation_scale": facts.HELD_ROTATION_SCALE}
    return replace(libero_embodiment(), **scales, response=1.0)
