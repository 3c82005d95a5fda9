"""``worldrl serve-policy``: a saved policy, ours or lerobot's, for RoboTwin's own evaluation client, over a websocket.

On the simulator's side, in the checkout::

    python scripts/eval_policy_xpolicylab.py --task_name beat_block_hammer --policy_name worldrl --port 18080
"""

from __future__ import annotations

import atexit
import gc
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.extras import require
from worldrl.core.image_fit import WAYS, Fit, keeps_aspect
from worldrl.core.storage.log import console
from worldrl.recipes.listening import listen
from worldrl.rollout.agents.actors import PolicyActor
from worldrl.rollout.agents.policy_folder import PolicyFacts, policy_facts, require_policy_fits
from worldrl.rollout.agents.robot_side import RobotSide
from worldrl.rollout.suites.policy_frames import EXTRA
from worldrl.rollout.suites.policy_server import PolicyServer
from worldrl.rollout.suites.robotwin import RoboTwinSuite
from worldrl.settings import required, setting
from worldrl.workers.robotwin.facts import IMAGE, SIZE


@dataclass
class ServePolicySettings:
    """Which policy, and where it listens."""

    policy: str = required("folder of a policy of two arms (14 joint targets)", made_by="worldrl train-policy")
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(18080, "port; 0 takes a free one")
    exposed: bool = setting(False, "accept connections from other machines, without any password")
    device: str = setting("cpu", "where the policy runs: cpu, cuda, cuda:N or auto")
    temperature: float | None = setting(None, "sampling temperature; null is greedy")
    replan: int | None = setting(None, "actions given of each chunk; null for all")
    fit: Fit | None = setting(
        None, "how the client's images get the policy's size; null repeats the policy's training, else stretches"
    )

    def __post_init__(self) -> None:
        """Check the range, and that nobody opens it to others unasked."""
        if not 0 <= self.port < 65536:
            raise SettingError(f"port: must be in 0..65535, got {self.port}")
        if self.fit is Fit.refuse:
            raise SettingError(f"fit: a client's images must get the policy's size; give {', '.join(WAYS)} or null")
        if not self.exposed and not is_loopback(self.host):
            raise SettingError(
                f"host: other machines may reach {self.host!r}, and there is no password, so anyone can use this policy; "
                "keep host=127.0.0.1 and tunnel the port (ssh -L), or give exposed=true"
            )


def main(settings: ServePolicySettings) -> dict[str, Any]:
    """Serve until interrupted.

    Raises SettingError (the policy is not of two arms, or looks at what the client does not show; or the port is in
    use). Raises ArtefactError (its folder is incomplete). Raises WorkerEnvironmentError (it is lerobot's, and there
    is no lerobot). Raises MissingExtraError (websockets or msgpack is not installed).
    """
    with open_server(settings) as server:
        host, port = server.socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        console().print(f"serving {settings.policy} on ws://{shown}:{port}; Ctrl-C ends it", markup=False)
        server.serve_until_interrupted()
    console().print("closed")
    atexit.register(gc.freeze)  # the last collection of torch's modules would take most of a second
    return {}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a name other than localhost counts as reached by others."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_server(settings: ServePolicySettings) -> PolicyServer:
    """Open the socket and load the policy."""
    side = side_for_client(Path(settings.policy), settings.fit)
    require("msgpack", extra=EXTRA)
    require("websockets", extra=EXTRA)
    listening = listen(settings.host, settings.port)
    try:
        actor = PolicyActor(
            folder=settings.policy,
            temperature=settings.temperature,
            replan=settings.replan,
            device=str(resolve_device(settings.device)),
        ).build()
        return PolicyServer(actor, side, listening)
    except BaseException:
        listening.close()
        raise


def side_for_client(folder: Path, fit: Fit | None) -> RobotSide:
    """Check a policy, and say how its client's images become its own where their aspect differs."""
    facts_for_client(folder)
    side = RobotSide.served(folder, fit)
    if not keeps_aspect(side.image_size, IMAGE):
        console().print(f"images of {IMAGE} pixels become {side.image_size} by fit={side.fit}", markup=False)
    return side


def facts_for_client(folder: Path) -> PolicyFacts:
    """Read a policy's facts, and refuse one that RoboTwin's client cannot feed or obey."""
    facts, spec = policy_facts(folder), RoboTwinSuite.spec
    if facts.actions.size != SIZE:
        raise SettingError(
            f"policy: {folder} gives {facts.actions.size} numbers, RoboTwin takes {SIZE} joint targets; train one on bimanual "
            "demonstrations: worldrl collect kind=bimanual"
        )
    require_policy_fits(folder, spec.actions, "RoboTwin's client", cameras=spec.cameras, picture=spec.picture)
    if facts.n_obs_steps > 1:
        raise SettingError(
            f"policy: {folder} needs {facts.n_obs_steps} observations, one per control step, and RoboTwin's client shows one "
            "per chunk; give one of n_obs_steps 1, or measure this one: worldrl benchmark suite=robotwin_clean"
        )
    return facts
