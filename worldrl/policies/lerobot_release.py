"""Which releases of lerobot the adapter serves: it calls their networks by methods that change from release to release.

What 0.5 and 0.6 changed of what is called here, and what that would take, is listed in ``docs/lerobot.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError, WorkerEnvironmentError

SERVED = (0, 4)
TRIED = "0.4.4"
"""The release that the tests ran with."""
LATER = (
    "pretrained_revision",  # of which commit of the hub training began
    "gradient_checkpointing",  # memory of training
    "use_relative_actions",  # π0; switched on, its processors are refused (policies.lerobot_folder)
    "relative_exclude_joints",
    "action_feature_names",
)
"""Keys of ``config.json`` that 0.5 and 0.6 added and that change nothing of what a policy does with an observation."""


def refusal(release: str) -> str | None:
    """Why a release is not served; None where it is."""
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())
    if numbers == SERVED:
        return None
    return (
        f"lerobot {release} is not supported yet: its networks are called by the methods of 0.4 (tried with {TRIED}), "
        "and other releases have others"
    )


def installed_refusal() -> str | None:
    """The same for the lerobot of this interpreter; None where there is none, or where nothing stands against it."""
    try:
        return refusal(version("lerobot"))
    except PackageNotFoundError:
        return None


def require_served() -> None:
    """Refuse to go on with a lerobot that is not served.

    Raises:
        WorkerEnvironmentError: which one this interpreter has, and how to get one that is.
    """
    if reason := installed_refusal():
        raise WorkerEnvironmentError(f"{reason}; `worldrl setup lerobot` builds {TRIED} in an environment of its own")


def served_config(config: Mapping[str, Any], known: Collection[str], folder: Path) -> dict[str, Any]:
    """Leave out of a ``config.json`` what later releases added without changing what the policy does.

    Args:
        config: as saved.
        known: keys that the installed release knows, ``type`` among them.
        folder: for messages.

    Raises:
        ArtefactError: it says something else that the installed release does not know.
    """
    if unknown := sorted(set(config) - set(known) - set(LATER)):
        raise ArtefactError(
            f"{folder / 'config.json'}: lerobot 0.4 does not know {', '.join(unknown)}: another release saved it, and what "
            "that means for its actions is not known here; save the policy with 0.4"
        )
    return {key: value for key, value in config.items() if key in known}
