"""``worldrl play``: a local page on which one drives the robot inside a world model, with MuJoCo beside it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import torch

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import SettingError
from worldrl.core.observation import images_among
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.log import console
from worldrl.play.recording import Recorder
from worldrl.play.server import PlayServer
from worldrl.play.session import Worlds
from worldrl.recipes.listening import listen
from worldrl.recipes.local_server import HOST, require_web, serve
from worldrl.recipes.run import open_run
from worldrl.recipes.world_model.policy_rollouts import check_policies
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, SHIPPED, weights_folder
from worldrl.rollout.agents.policy_folder import acting_policy, policy_place
from worldrl.rollout.real.embedded import embedded_embodiment, embedded_options
from worldrl.settings import one_of, setting
from worldrl.simulators.renderer import embedded_drawing
from worldrl.world_models.loading import AnyVideoModel, open_world_model


@dataclass
class PlaySettings:
    """Which world model is driven in, and where the page is."""

    run_dir: str = setting("runs/play", "where saved drives and result.json are written")
    seed: int = setting(0, "root of every random stream; also names the initial states")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    dtype: str = setting("float32", "number type of imagination: float32, bfloat16 or auto")
    world_model: str = setting(BUNDLED, f"{SHIPPED}, or a world-model folder")
    policy: str = setting("", "folder of a policy that may drive instead of the hand; empty for none")
    port: int = setting(0, "port on this machine (127.0.0.1); 0 takes a free one")
    tabs: int = setting(4, "most browser tabs at once, each with a drive of its own")

    def __post_init__(self) -> None:
        """Check the ranges."""
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
        if self.world_model == SCRATCH:
            raise SettingError("world_model=scratch is untrained, and cannot imagine; give bundled or a folder")


def main(settings: PlaySettings) -> dict[str, Any]:
    """Serve until interrupted; returns what was driven.

    Raises MissingExtraError (starlette, uvicorn or websockets is not installed). Raises SettingError (the port is in
    use; the world model is of another robot; the policy does not fit it). Raises WorkerEnvironmentError (nothing
    renders). Raises ArtefactError (a folder is incomplete).
    """
    require_web()
    device = resolve_device(settings.device)
    with open_run("play", settings) as run, closing(listen(HOST, settings.port)) as listening, ExitStack() as stack:
        worlds = open_worlds(settings, device, stack)
        folder = weights_folder(settings.world_model)
        recorder = Recorder(run.path, worlds, artefact_hash(folder))
        names = {"world_model": settings.world_model, "policy": settings.policy}
        server = PlayServer(worlds, recorder, settings.tabs, names)
        stack.callback(server.close)
        serve(server.app(), listening, "drive")
        metrics = server.metrics()
        run.write_result(metrics, seed=settings.seed, device=str(device))
    console().print(f"{metrics['chunks']} chunks driven, {metrics['saved']} drives saved in {settings.run_dir}")
    return metrics


def open_worlds(settings: PlaySettings, device: torch.device, stack: ExitStack) -> Worlds:
    """Load the world model and the policy, and start the simulator's thread; errors as of :func:`main`."""
    from worldrl_envs.tasks import task_names

    tasks = tuple(task_names())
    model = open_world_model(weights_folder(settings.world_model), device).eval()
    robot = hand_driven_robot(settings.world_model, model, tasks)
    model.compute_dtype = resolve_dtype(settings.dtype, device)
    options = embedded_options(tasks, model.config.codec.image_size, images=images_among(model.more))
    policy = None
    if settings.policy:
        check_policies([settings.policy], model, field="policy")
        policy = acting_policy(policy_place(settings.policy), str(device))
    embedded_drawing()
    simulator = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="mujoco"))
    return Worlds(model, robot, policy, tasks, options, settings.seed, simulator)


def hand_driven_robot(name: str, model: AnyVideoModel, tasks: tuple[str, ...]) -> Embodiment:
    """Return the model's robot; SettingError where keys cannot drive it, or the embedded suite does not have it."""
    if not isinstance(model.embodiment, Embodiment):
        raise SettingError(
            f"world_model: {name} is of a robot with {model.embodiment.actions.size} joint targets; keys drive one arm by "
            "changes of its tool's pose"
        )
    if model.embodiment != embedded_embodiment(tasks):
        raise SettingError(
            f"world_model: {name} was made for another robot than the embedded suite's, and MuJoCo could not drive beside it; "
            "`worldrl imagine data=FOLDER` shows such a world model"
        )
    return model.embodiment
