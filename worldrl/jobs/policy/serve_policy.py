"""``worldrl serve-policy``: a saved policy, ours or lerobot's, over a websocket.

``protocol=openpi`` is for OpenPI's client and for ``policy=ws://HOST:PORT`` of worldrl's own commands.
``protocol=robotwin`` is for RoboTwin's evaluation client; in its checkout::

    python scripts/eval_policy_xpolicylab.py --task_name beat_block_hammer --policy_name worldrl --port 18080
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.image_fit import WAYS, Fit, keeps_aspect
from worldrl.core.storage.log import console
from worldrl.policies.exploration import at_temperature
from worldrl.policies.remote.address import is_remote
from worldrl.recipes import listening
from worldrl.recipes.listening import Listening, serve
from worldrl.rollout.agents.actors import PolicyActor
from worldrl.rollout.agents.policy_folder import PolicyFacts, policy_facts, require_policy_fits
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.serving.openpi import openpi_conversations
from worldrl.rollout.serving.server import Converse, SocketServer
from worldrl.rollout.suites.policy_server import robotwin_conversations
from worldrl.rollout.suites.robotwin import RoboTwinSuite
from worldrl.settings import one_of, required, setting
from worldrl.workers.robotwin.facts import IMAGE, SIZE

ROBOTWIN, OPENPI = "robotwin", "openpi"


@dataclass
class ServePolicySettings(Listening):
    """Which policy, and where it listens."""

    policy: str = required("folder of a policy", made_by="worldrl train-policy")
    protocol: str = setting(
        ROBOTWIN, "robotwin: for RoboTwin's client, two arms; openpi: OpenPI's, any policy of images"
    )
    temperature: float | None = setting(None, "sampling temperature; null is greedy")
    replan: int | None = setting(None, "actions given of each chunk; null for all")
    fit: Fit | None = setting(
        None, "how the client's images get the policy's size; null repeats the policy's training, else stretches"
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        one_of("protocol", self.protocol, (ROBOTWIN, OPENPI))
        if self.fit is Fit.refuse:
            raise SettingError(f"fit: a client's images must get the policy's size; give {', '.join(WAYS)} or null")


def main(settings: ServePolicySettings) -> dict[str, Any]:
    """Serve until interrupted.

    Raises SettingError (the policy observes what the client does not send, the port is in use, or the token's file is
    not as it must be). Raises ArtefactError (the policy's folder is incomplete). Raises WorkerEnvironmentError (it is
    lerobot's, and there is no lerobot). Raises MissingExtraError (websockets or msgpack is not installed).
    """
    with open_server(settings) as server:
        serve(server, settings.policy)
    return {}


def open_server(settings: ServePolicySettings) -> SocketServer:
    """Open the socket and load the policy."""
    if is_remote(settings.policy):
        raise SettingError(f"policy: {settings.policy} is served already; give the folder of a policy")
    side = side_for_client(Path(settings.policy), settings.fit, settings.protocol)
    return listening.open_server(settings, lambda: conversations(settings, side))


def conversations(settings: ServePolicySettings, side: RobotSide) -> Converse:
    """Load the policy, and make what answers each client in the protocol."""
    actor = PolicyActor(
        folder=settings.policy,
        exploration=at_temperature(settings.temperature),
        replan=settings.replan,
        device=str(resolve_device(settings.device)),
    ).build()
    if settings.protocol == ROBOTWIN:
        return robotwin_conversations(actor, side)
    folder, decoding = Path(settings.policy), "greedy"
    if settings.temperature is not None:
        decoding = f"temperature {settings.temperature:g}"
    return openpi_conversations(actor, side, folder, policy_facts(folder), f"{decoding}, replan {settings.replan}")


def side_for_client(folder: Path, fit: Fit | None, protocol: str) -> RobotSide:
    """Check a policy, and say how its client's images become its own where their aspect differs."""
    (facts_for_robotwin if protocol == ROBOTWIN else facts_for_openpi)(folder)
    side = RobotSide.served(folder, fit)
    if protocol == ROBOTWIN and not keeps_aspect(side.image_size, IMAGE):
        console().print(f"images of {IMAGE} pixels become {side.image_size} by fit={side.fit}", markup=False)
    return side


def facts_for_openpi(folder: Path) -> PolicyFacts:
    """Read a policy's facts, and refuse one that acts on vectors or needs a past."""
    facts = policy_facts(folder)
    if not facts.cameras:
        raise SettingError(f"policy: {folder} acts on a vector of numbers; protocol=openpi is for policies of images")
    if facts.n_obs_steps > 1:
        raise SettingError(
            f"policy: {folder} needs {facts.n_obs_steps} observations, one per control step, and OpenPI's client shows one per "
            "chunk; give one of n_obs_steps 1"
        )
    return facts


def facts_for_robotwin(folder: Path) -> PolicyFacts:
    """Read a policy's facts, and refuse one that RoboTwin's client cannot feed or obey."""
    facts, spec = policy_facts(folder), RoboTwinSuite.spec
    if facts.actions.size != SIZE:
        raise SettingError(
            f"policy: {folder} gives {facts.actions.size} numbers, RoboTwin takes {SIZE} joint targets; train one on bimanual "
            "demonstrations: worldrl collect kind=bimanual, or give protocol=openpi"
        )
    require_policy_fits(folder, spec.actions, "RoboTwin's client", cameras=spec.cameras, picture=spec.picture)
    if facts.n_obs_steps > 1:
        raise SettingError(
            f"policy: {folder} needs {facts.n_obs_steps} observations, one per control step, and RoboTwin's client shows one "
            "per chunk; give one of n_obs_steps 1, or measure this one: worldrl benchmark suite=robotwin_clean"
        )
    return facts
