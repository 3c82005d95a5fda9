"""What of a policy's folder only lerobot's layout knows: its facts, and whether its inputs fit a suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldrl.core.actions import ActionSpec
from worldrl.core.types import MAIN_CAMERAS
from worldrl.policies.lerobot.folder import Feature, LerobotFolder, read_lerobot_folder
from worldrl.policies.lerobot.inputs import (
    COMMAND,
    IMAGE,
    LEFT,
    RIGHT,
    STATE,
    WRIST,
    further,
    match_inputs,
    measured_size,
    require_fit,
)

IMAGES = {**dict.fromkeys(MAIN_CAMERAS, IMAGE), "wrist": WRIST, "left_wrist": LEFT, "right_wrist": RIGHT}
"""A suite's camera → a policy's name for its image; no policy has further ones."""


def lerobot_facts(folder: Path) -> dict[str, Any]:
    """Return the values of a ``PolicyFacts`` by field; ArtefactError or SettingError as ``read_lerobot_folder``."""
    found = read_lerobot_folder(folder)
    sources = match_inputs(found)
    further_cameras = (camera for camera, name in IMAGES.items() if name != IMAGE and name in sources.values())
    return {
        "kind": found.kind,
        "chunk_length": found.chunk_length,
        "picture": found.picture,
        "cameras": ("scene", *further_cameras),
        "actions": found.actions,
        "hash": found.hash,
        "trained_on": found.trained_on,
        "more": further(sources),
        "n_obs_steps": found.n_obs_steps,
    }


def described(
    folder: Path,
    *,
    kind: str,
    picture: tuple[int, int],
    actions: ActionSpec,
    chunk_length: int,
    identity: str,
    more: Sequence[str] = (),
) -> LerobotFolder:
    """Describe worldrl's own policy as a lerobot folder; ``identity`` is its hash, ``more`` what it observes besides."""
    image, state = Feature("VISUAL", (3, *picture)), Feature("STATE", (measured_size(actions),))
    inputs = {IMAGE: image, COMMAND: Feature("STATE", (actions.size,))}
    inputs |= {name: state if name == STATE else image for name in more}
    return LerobotFolder(
        path=folder,
        kind=kind,
        inputs=inputs,
        sources={name: name for name in inputs},
        action_size=actions.size,
        actions=actions,
        chunk_size=chunk_length,
        chunk_length=chunk_length,
        hash=identity,
    )


def require_shown(
    found: LerobotFolder, actions: ActionSpec, where: str, cameras: Sequence[str], picture: tuple[int, int] | None
) -> None:
    """Refuse a policy whose inputs are not among what a suite shows; see ``require_policy_fits``."""
    rows, columns = found.picture
    drawn = (rows, columns, 3) if picture == (rows, columns) else (rows, rows, 3)
    images = [name for camera, name in IMAGES.items() if camera in cameras]
    shown = {**dict.fromkeys(images, drawn), COMMAND: (actions.size,), STATE: (measured_size(actions),)}
    require_fit(found, match_inputs(found), shown, actions.size, where)
