"""``worldrl serve-policy``: a saved policy, ours or lerobot's, over a websocket.

``protocol=openpi`` is for OpenPI's client and for ``policy=ws://HOST:PORT`` of worldrl's own commands.
``protocol=robotwin`` is for RoboTwin's evaluation client; in its checkout::

    python scripts/eval_policy_xpolicylab.py --task_name beat_block_hammer --policy_name worldrl --port 18080
"""

from __future__ import annotations

import atexit
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.image_fit import WAYS, Fit, keeps_aspect
from worldrl.core.storage.log import console
from worldrl.policies.remote.address import is_remote
from worldrl.recipes.listening import (
    CLIENTS,
    EXPOSED,
    HOST,
    PORT,
    TOKEN_FILE,
    check_door,
    listen,
    require_serving,
    serve,
    token_of,
)
from worldrl.rollout.agents.actors import PolicyActor
from worldrl.rollout.agents.policy_folder import PolicyFacts, policy_facts, require_policy_fits
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.serving.openpi import openpi_conversations
from worldrl.rollout.serving.server import Limits, SocketServer
from worldrl.rollout.suites.policy_server import robotwin_conversations
from worldrl.rollout.suites.robotwin import RoboTwinSuite
from worldrl.settings import one_of, positive, required, setting
from worldrl.workers.robotwin.facts import IMAGE, SIZE

ROBOTWIN, OPENPI = "robotwin", "openpi"


@dataclass
class ServePolicySettings:
    """Which policy, and where it listens."""

    policy: str = required("folder of a policy", made_by="worldrl train-policy")
    protocol: str = setting(
        ROBOTWIN, "robotwin: for RoboTwin's client, two arms; openpi: OpenPI's, any policy of images"
    )
    host: str = setting("127.0.0.1", HOST)
    port: int = setting(18080, PORT)
    exposed: bool = setting(False, EXPOSED)
    token_file: str = setting("", TOKEN_FILE)
    clients: int = setting(8, CLIENTS)
    device: str = setting("cpu", "where the policy runs: cpu, cuda, cuda:N or auto")
    temperature: float | None = setting(None, "sampling temperature; null is greedy")
    replan: int | None = setting(None, "actions given of each chunk; null for all")
    fit: Fit | None = setting(
        None, "how the client's images get the policy's size; null repeats the policy's training, else stretches"
    )

    def __post_init__(self) -> None:
        """Check the ranges, and that nobody opens it to others unasked."""
        one_of("protocol", self.protocol, (ROBOTWIN, OPENPI))
        positive("clients", self.clients)
        if not 0 <= self.port < 65536:
            raise SettingError(f"port: must be in 0..65535, got {self.port}")
        if self.fit is Fit.refuse:
            raise SettingError(f"fit: a client's images must get the policy's size; give {', '.join(WAYS)} or null")
        check_door(self.host, self.exposed, self.token_file)


def main(settings: ServePolicySettings) -> dict[str, Any]:
    """Serve until interrupted.

    Raises SettingError (the policy looks at what the client does not show, the port is in use, or the token's file is
    not as it must be). Raises ArtefactError (the policy's folder is incomplete). Raises WorkerEnvironmentError (it is
    lerobot's, and there is no lerobot). Raises MissingExtraError (websockets or msgpack is not installed).
    """
    with open_server(settings) as server:
        serve(server, settings.policy)
    atexit.register(gc.freeze)  # the last collection of torch's modules would take most of a second
    return {}


def open_server(settings: ServePolicySettings) -> SocketServer:
    """Open the socket and load the policy."""
    folder, token = Path(settings.policy), token_of(settings.token_file)
    if is_remote(folder):
        raise SettingError(f"policy: {folder} is served already; give the folder of a policy")
    side = side_for_client(folder, settings.fit, settings.protocol)
    require_serving()
    listening = listen(settings.host, settings.port)
    try:
        actor = PolicyActor(
            folder=settings.policy,
            temperature=settings.temperature,
            replan=settings.replan,
            device=str(resolve_device(settings.device)),
        ).build()
        if settings.protocol == ROBOTWIN:
            converse = robotwin_conversations(actor, side)
        else:
            decoding = "greedy" if settings.temperature is None else f"temperature {settings.temperature:g}"
            converse = openpi_conversations(
                actor, side, folder, policy_facts(folder), f"{decoding}, replan {settings.replan}"
            )
        return SocketServer(converse, listening, token=token, limits=Limits(clients=settings.clients))
    except BaseException:
        listening.close()
        raise


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
