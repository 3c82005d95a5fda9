"""Actions beyond the robot's range in an external dataset: refused, or moved to it by ``clip_actions``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.external.folder import ExternalFolder
from worldrl.data.lerobot.external.gripper import Ends
from worldrl.data.lerobot.external.sample import Sample
from worldrl.data.lerobot.external.selection import OURS
from worldrl.data.lerobot.external.stated import wrong
from worldrl.data.lerobot.format import ACTION_TOLERANCE

CLIP = "clip_actions"
MEND = f'write "{CLIP}": true, which moves them to their bound'


def clips(folder: ExternalFolder, stated: Mapping[str, Any]) -> bool:
    """Whether ``worldrl.json`` clips actions; SettingError for another value than true or false."""
    given = stated.get(CLIP, False)
    if not isinstance(given, bool):
        raise wrong(folder, CLIP, "true or false", given)
    return given


def within_bounds(
    action: NDArray[np.float32], spec: ActionSpec, *, clip: bool, where: str, path: Path
) -> NDArray[np.float32]:
    """Return actions ``[n, A]`` within the robot's range; ArtefactError names row and value beyond it."""
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    if clip:
        return np.clip(action, low, high)
    beyond = np.maximum(low - action, action - high)
    if beyond.max(initial=0) > ACTION_TOLERANCE:
        row, place = (int(i) for i in np.unravel_index(beyond.argmax(), beyond.shape))
        raise ArtefactError(
            f"{where}, field 'action': action leaves [{low[place]:g}, {high[place]:g}] at row {row}, "
            f"{spec.names[place]} is {action[row, place]:.6g}; in {path / OURS} correct robot's range, or {MEND}"
        )
    return action


def clipped(sample: Sample, spec: ActionSpec, ends: Ends | None) -> Sample:
    """Return rows whose recorded actions are clipped to the range of the robot's own numbers."""
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    for place, (opened, closed) in zip(spec.grippers, ends or (), strict=False):
        share = [
            (bound - spec.gripper_open) / (spec.gripper_closed - spec.gripper_open)
            for bound in (low[place], high[place])
        ]
        low[place], high[place] = sorted(opened + part * (closed - opened) for part in share)
    return replace(sample, action=np.clip(sample.action, low, high))
