"""A policy's folder, whatever kind it holds: worldrl's own artefact, or lerobot's published layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.actions import ActionSpec
from worldrl.core.artefact import parent, read_artefact, read_manifest
from worldrl.core.interfaces import TrainablePolicy
from worldrl.core.types import MAIN_CAMERAS
from worldrl.policies.lerobot_folder import Feature, LerobotFolder, is_lerobot_folder, read_lerobot_folder
from worldrl.policies.lerobot_inputs import (
    COMMAND,
    IMAGE,
    LIBERO_STATE,
    STATE,
    WRIST,
    match_inputs,
    require_fit,
)
from worldrl.policies.token_policy import TRAINED_ON, TokenPolicy, stored_actions
from worldrl.rollout.vector_agent import KIND as AGENT
from worldrl.rollout.vector_agent import require_vector_fits, vector_facts

TOKEN = "token"
PICTURES = {**dict.fromkeys(MAIN_CAMERAS, IMAGE), "wrist": WRIST}
"""A suite's camera → what policies call its picture; no policy asks for further ones."""


@dataclass(frozen=True)
class PolicyFacts:
    """What a protocol must know of a policy before it is loaded.

    Attributes:
        kind: ``token``, lerobot's type, or ``offline-agent``, which looks at a vector and at no picture.
        chunk_length: actions executed of each chunk.
        image_size: pixels of the square pictures it was made for; 0 where it looks at none.
        cameras: that it looks through, the scene camera first.
        actions: what the numbers of its actions are.
        hash: identity of everything that decides what it does.
        trained_on: what it learned from (``evaluation.trained_on``); None where its folder does not say.
    """

    kind: str
    chunk_length: int
    image_size: int
    cameras: tuple[str, ...]
    actions: ActionSpec
    hash: str
    trained_on: Mapping[str, Any] | None = None


def is_agent(folder: Path) -> bool:
    """Whether a folder holds an agent on vectors; ArtefactError where it holds nothing of worldrl's."""
    return not is_lerobot_folder(folder) and read_manifest(folder)["kind"] == AGENT


def policy_facts(folder: Path) -> PolicyFacts:
    """Read a folder's facts; ArtefactError or SettingError where it is incomplete or not supported."""
    if is_lerobot_folder(folder):
        found = read_lerobot_folder(folder)
        wrist = ("wrist",) if WRIST in match_inputs(found).values() else ()
        cameras = ("scene", *wrist)
        sizes = (found.chunk_length, found.image_size)
        return PolicyFacts(found.kind, *sizes, cameras, found.actions, found.hash, found.trained_on)
    if is_agent(folder):
        agent = vector_facts(folder)
        return PolicyFacts(AGENT, 1, 0, (), vector_actions(agent.low, agent.high), agent.hash)
    artefact = read_artefact(folder, kind="policy")
    config = artefact.config
    sizes, actions = (config["chunk_length"], config["image_size"]), stored_actions(config)
    return PolicyFacts(TOKEN, *sizes, ("scene",), actions, artefact.hash, config.get(TRAINED_ON))


def vector_actions(low: Sequence[float], high: Sequence[float]) -> ActionSpec:
    """Numbers of which nothing but the bounds is known."""
    names = tuple(f"action {number}" for number in range(len(low)))
    return ActionSpec(names, tuple(low), tuple(high), (False,) * len(names), (), 0.0, 0.0, 0.0)


def require_policy_fits(
    folder: Path, actions: ActionSpec, where: str, *, cameras: Sequence[str], vector: int | None = None
) -> None:
    """Refuse a policy whose inputs or actions are not those of a suite, before anything is started.

    Args:
        folder: of the policy.
        actions: of the suite's robot.
        where: name of the suite, for people.
        cameras: that the suite has; it draws them in the policy's size.
        vector: see :func:`~worldrl.rollout.vector_agent.require_vector_fits`.

    Raises:
        SettingError: with both specs side by side, and the nearest adapter.
    """
    if is_agent(folder):
        return require_vector_fits(folder, actions, where, shown=vector)
    found = read_lerobot_folder(folder) if is_lerobot_folder(folder) else _described(folder)
    picture = (found.image_size, found.image_size, 3)
    pictures = [name for camera, name in PICTURES.items() if camera in cameras]
    measured = actions.size if actions.absolute else LIBERO_STATE
    shown = {**dict.fromkeys(pictures, picture), COMMAND: (actions.size,), STATE: (measured,)}
    require_fit(found, match_inputs(found), shown, actions.size, where)


def _described(folder: Path) -> LerobotFolder:
    """Say of worldrl's own policy in lerobot's words what it takes and gives."""
    facts = policy_facts(folder)
    size = facts.actions.size
    return LerobotFolder(
        path=folder,
        kind=facts.kind,
        inputs={
            IMAGE: Feature("VISUAL", (3, facts.image_size, facts.image_size)),
            COMMAND: Feature("STATE", (size,)),
        },
        sources={IMAGE: IMAGE, COMMAND: COMMAND},
        action_size=size,
        actions=facts.actions,
        chunk_size=facts.chunk_length,
        chunk_length=facts.chunk_length,
        hash=facts.hash,
    )


def load_policy(folder: Path, device: str) -> TrainablePolicy:
    """Load a policy onto ``device``; a lerobot policy starts its worker."""
    if is_lerobot_folder(folder):
        from worldrl.rollout.lerobot_policy import LerobotPolicy

        return LerobotPolicy.load(folder, device)
    return TokenPolicy.load(folder, device)


def policy_parent(folder: Path) -> dict[str, str]:
    """Describe a policy as the parent of an artefact."""
    return {"path": str(folder), "hash": policy_facts(folder).hash} if is_lerobot_folder(folder) else parent(folder)
