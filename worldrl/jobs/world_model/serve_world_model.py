"""``worldrl serve-world-model``: a saved world model over a websocket: reset, then chunks of actions.

The messages are those of ``rollout.serving.world_model``; ``rollout.serving.remote_world.RemoteWorld`` is a client.
"""

from __future__ import annotations

import atexit
import gc
from dataclasses import dataclass
from typing import Any

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.observation import images_among
from worldrl.core.storage.artefact import artefact_hash
from worldrl.data.lerobot.dataset import EpisodeDataset, open_recorded
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
from worldrl.recipes.training_data import require_cameras, require_image_size
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, images_of, weights_folder
from worldrl.rollout.serving.server import Limits, SocketServer
from worldrl.rollout.serving.world_model import world_conversations
from worldrl.settings import one_of, positive, setting
from worldrl.world_models.loading import AnyVideoModel, open_world_model


@dataclass
class ServeWorldModelSettings:
    """Which world model, and where it listens."""

    world_model: str = setting(BUNDLED, "bundled, or a world-model folder")
    data: str = setting("", "dataset whose first frames clients may begin at, by number; empty: they send images")
    host: str = setting("127.0.0.1", HOST)
    port: int = setting(18090, PORT)
    exposed: bool = setting(False, EXPOSED)
    token_file: str = setting("", TOKEN_FILE)
    clients: int = setting(4, CLIENTS)
    rows: int = setting(16, "rollouts of a client at once, at most")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    dtype: str = setting("float32", "number type of imagination: float32, bfloat16 or auto")

    def __post_init__(self) -> None:
        """Check the ranges, and that nobody opens it to others unasked."""
        for name in ("clients", "rows"):
            positive(name, getattr(self, name))
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
        check_door(self.host, self.exposed, self.token_file)
        if self.world_model == SCRATCH:
            raise SettingError("world_model=scratch has learned nothing to imagine with; give bundled or a folder")


def main(settings: ServeWorldModelSettings) -> dict[str, Any]:
    """Serve until interrupted.

    Raises SettingError (the port is in use, the dataset is of another robot, image size or camera, or the token's file
    is not as it must be). Raises ArtefactError (there is no world model or dataset). Raises MissingExtraError
    (websockets or msgpack is not installed).
    """
    with open_server(settings) as server:
        serve(server, settings.world_model)
    atexit.register(gc.freeze)  # the last collection of torch's modules would take most of a second
    return {}


def open_server(settings: ServeWorldModelSettings) -> SocketServer:
    """Open the socket and load the world model."""
    token, device, folder = (
        token_of(settings.token_file),
        resolve_device(settings.device),
        weights_folder(settings.world_model),
    )
    require_serving()
    listening = listen(settings.host, settings.port)
    try:
        model = open_world_model(folder, device).eval()
        model.compute_dtype = resolve_dtype(settings.dtype, device)
        converse = world_conversations(model, artefact_hash(folder), recorded_starts(settings, model), settings.rows)
        return SocketServer(converse, listening, token=token, limits=Limits(clients=settings.clients))
    except BaseException:
        listening.close()
        raise


def recorded_starts(settings: ServeWorldModelSettings, model: AnyVideoModel) -> EpisodeDataset | None:
    """Open the dataset of starts, if one is given; SettingError where it does not fit the world model."""
    if not settings.data:
        return None
    data = open_recorded(settings.data, images_of(settings.world_model))
    if data.embodiment != model.embodiment:
        raise SettingError(f"data: {settings.data} is of another robot than the world model {settings.world_model}")
    require_image_size(data, model.config.codec.image_size, f"the size of world_model={settings.world_model}")
    require_cameras([data], images_among(model.more))
    return data
