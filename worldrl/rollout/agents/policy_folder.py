"""A policy of any kind: a folder (worldrl's own artefact, an offline agent, lerobot's published layout), or an address.

An address such as ``ws://127.0.0.1:8000`` is of a policy in another process (``policies.remote``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.image_fit import FIT, Fit, fit_name
from worldrl.core.interfaces import Policy, TrainablePolicy
from worldrl.core.observation import (
    IMAGE,
    NOT_OBSERVED,
    STATE,
    SUFFIX,
    ObservationSpec,
    further,
    images_among,
    require_consecutive,
)
from worldrl.core.storage.artefact import parent, read_artefact, read_manifest
from worldrl.core.storage.typed import from_plain
from worldrl.policies.remote.address import is_remote, with_slashes
from worldrl.policies.token.policy import TRAINED_ON, TokenPolicy, stored_actions

TOKEN, REMOTE = "token", "remote"


class _Address(type(Path())):
    """An address where a folder may stand as well. A path joins its two slashes; whatever shows it has both."""

    def __str__(self) -> str:
        return with_slashes(super().__str__())


def policy_place(policy: str) -> Path:
    """Return where a policy is, as a setting names it: its folder, or an address that is shown as one."""
    return (_Address if is_remote(policy) else Path)(policy)


@dataclass(frozen=True)
class PolicyFacts:
    """Facts of a policy that a protocol needs before the policy is loaded.

    ``kind`` is ``token``, lerobot's type, ``remote``, or ``offline-agent``, which acts on a vector and has no images. ``picture``
    is the rows and columns of its images (0 without images), ``cameras`` begins with the scene camera, ``hash``
    identifies weights and settings, ``trained_on`` is as in ``evaluation.policy.trained_on`` (None where the folder has
    none). ``more`` names inputs beside image, command and instruction. ``fit`` is how recorded images got their size.
    """

    kind: str
    chunk_length: int
    picture: tuple[int, int]
    cameras: tuple[str, ...]
    actions: ActionSpec
    hash: str
    trained_on: Mapping[str, Any] | None = None
    more: tuple[str, ...] = ()
    n_obs_steps: int = 1
    fit: Fit = Fit.refuse

    @property
    def observation(self) -> ObservationSpec:
        """What it observes."""
        images, fit = images_among(self.more), fit_name(self.fit)
        return ObservationSpec.of(self.actions, images, self.picture, state=STATE in self.more, fit=fit)

    @property
    def image_size(self) -> int:
        """Pixels of square images; SettingError where they are not square."""
        rows, columns = self.picture
        if rows != columns:
            raise SettingError(f"the policy's images are {rows} by {columns} pixels; here they are square")
        return rows


def is_agent(folder: Path) -> bool:
    """Whether a folder holds an agent on vectors; ArtefactError where it holds nothing of worldrl's."""
    from worldrl.policies.lerobot.folder import is_lerobot_folder
    from worldrl.rollout.agents.vector_agent import KIND as AGENT

    if is_remote(folder):
        return False
    return not is_lerobot_folder(folder) and read_manifest(folder, wanted="policy")["kind"] == AGENT


def policy_facts(folder: Path) -> PolicyFacts:
    """Read a folder's facts, or ask an address for them.

    Raises ArtefactError or SettingError (it is incomplete, or not supported). Raises RemoteError (no such server
    answers).
    """
    from worldrl.policies.lerobot.folder import is_lerobot_folder
    from worldrl.rollout.agents.lerobot_facts import lerobot_facts
    from worldrl.rollout.agents.vector_agent import KIND as AGENT
    from worldrl.rollout.agents.vector_agent import vector_facts

    if is_remote(folder):
        return _remote_facts(folder)
    if is_lerobot_folder(folder):
        facts = PolicyFacts(**lerobot_facts(folder))
        return replace(facts, fit=_trained_fit(facts.trained_on, Fit.refuse, folder))
    if is_agent(folder):
        agent = vector_facts(folder)
        return PolicyFacts(AGENT, 1, (0, 0), (), vector_actions(agent.low, agent.high), agent.hash)
    artefact = read_artefact(folder, kind="policy")
    config = artefact.config
    more = further(config.get("cameras", [IMAGE]), config.get(STATE, NOT_OBSERVED))
    return PolicyFacts(
        kind=TOKEN,
        chunk_length=config["chunk_length"],
        picture=(config["image_size"], config["image_size"]),
        cameras=("scene", *(name.removesuffix(SUFFIX) for name in images_among(more)[1:])),
        actions=stored_actions(config),
        hash=artefact.hash,
        trained_on=config.get(TRAINED_ON),
        more=more,
        fit=_trained_fit(config.get(TRAINED_ON), config.get(FIT, Fit.refuse), folder),
    )


def _remote_facts(address: Path) -> PolicyFacts:
    from worldrl.policies.remote.address import Address
    from worldrl.policies.remote.policy import contract

    found = contract(Address.parse(address))
    return PolicyFacts(
        kind=REMOTE,
        chunk_length=found.chunk_length,
        picture=found.image,
        cameras=("scene", *(name.removesuffix(SUFFIX) for name in images_among(found.more)[1:])),
        actions=found.actions,
        hash=found.hash,
        more=found.more,
    )


def _trained_fit(trained: Mapping[str, Any] | None, stated: str, folder: Path) -> Fit:
    """How the images that a policy learned from got their size, else as ``stated``; ArtefactError for no such fit."""
    return from_plain(Fit, (trained or {}).get(FIT, stated), where=f"{folder}: fit", error=ArtefactError)


def require_imaginable(
    folder: Path, who: str, *, frame_stride: int, memory_frames: int, dynamics: str = "world_model.dynamics"
) -> None:
    """Refuse a policy of vectors, or of more control steps than a world model of these frames keeps; SettingError."""
    if is_agent(folder):
        raise SettingError(
            f"{who} acts on a vector of numbers; imagination shows cameras, state, command and instruction"
        )
    require_consecutive(policy_facts(folder).n_obs_steps, frame_stride, memory_frames, who, dynamics)


def vector_actions(low: Sequence[float], high: Sequence[float]) -> ActionSpec:
    """Actions of which only the bounds are known."""
    names = tuple(f"action {number}" for number in range(len(low)))
    return ActionSpec(names, tuple(low), tuple(high), (False,) * len(names), (), 0.0, 0.0, 0.0)


def require_policy_fits(
    folder: Path,
    actions: ActionSpec,
    where: str,
    *,
    cameras: Sequence[str],
    picture: tuple[int, int] | None = None,
    vector: int | None = None,
) -> None:
    """Refuse a policy whose inputs or actions are not those of a suite, before anything is started.

    The suite ``where`` draws images of ``cameras`` as squares of any size, and in the rows and columns ``picture``
    where given. ``vector`` is the size of its vector
    (:func:`~worldrl.rollout.agents.vector_agent.require_vector_fits`). Raises SettingError (with both specs side by
    side, and the nearest adapter).
    """
    from worldrl.policies.lerobot.folder import is_lerobot_folder, read_lerobot_folder
    from worldrl.rollout.agents.lerobot_facts import described, require_shown
    from worldrl.rollout.agents.vector_agent import require_vector_fits

    if is_agent(folder):
        return require_vector_fits(folder, actions, where, shown=vector)
    if is_lerobot_folder(folder):
        found = read_lerobot_folder(folder)
    else:
        own = policy_facts(folder)
        found = described(
            folder,
            kind=own.kind,
            picture=own.picture,
            actions=own.actions,
            chunk_length=own.chunk_length,
            identity=own.hash,
            more=own.more,
        )
    try:
        require_shown(found, actions, where, cameras, picture)
    except SettingError as error:
        if not is_remote(folder):
            raise
        sides = str(error).partition("\nnearest adapter")[0]
        raise SettingError(
            f"{sides}\nthe address names what is sent: ?keys=libero or droid, ?key.NAME=OBSERVATION"
        ) from None


def load_policy(folder: Path, device: str) -> TrainablePolicy:
    """Load a policy onto ``device``, to train it too; a lerobot policy starts its worker. SettingError for an address."""
    from worldrl.policies.lerobot.folder import is_lerobot_folder

    if is_remote(folder):
        raise SettingError(f"policy: {folder} is an address; a policy in a folder is needed here")

    if is_lerobot_folder(folder):
        from worldrl.policies.lerobot.policy import LerobotPolicy

        return LerobotPolicy.load(folder, device)
    return TokenPolicy.load(folder, device)


def acting_policy(folder: Path, device: str) -> Policy:
    """Load a policy onto ``device``, or connect to its address, to measure it."""
    if is_remote(folder):
        from worldrl.policies.remote.policy import RemotePolicy

        return RemotePolicy.load(folder)
    return load_policy(folder, device)


def policy_parent(folder: Path) -> dict[str, str]:
    """Describe a policy as the parent of an artefact."""
    from worldrl.policies.lerobot.folder import is_lerobot_folder

    return {"path": str(folder), "hash": policy_facts(folder).hash} if is_lerobot_folder(folder) else parent(folder)
