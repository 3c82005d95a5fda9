"""``worldrl serve-world-model``: a saved world model over a websocket: reset, then chunks of actions.

The messages are those of ``rollout.serving.world_model``; ``rollout.serving.remote_world.RemoteWorld`` is a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worldrl.core.device import resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.observation import images_among
from worldrl.core.storage.artefact import artefact_hash
from worldrl.data.lerobot.dataset import EpisodeDataset, open_recorded
from worldrl.recipes import listening
from worldrl.recipes.listening import Listening, serve
from worldrl.recipes.training_data import require_cameras, require_image_size
from worldrl.recipes.world_model.start import BUNDLED, SCRATCH, SHIPPED, images_of, weights_folder
from worldrl.rollout.serving.server import Converse, SocketServer
from worldrl.rollout.serving.world_model import world_conversations
from worldrl.settings import one_of, positive, setting
from worldrl.world_models.loading import AnyVideoModel, open_world_model


@dataclass
class ServeWorldModelSettings(Listening):
    """Which world model, and where it listens."""

    world_model: str = setting(BUNDLED, f"{SHIPPED}, or a world-model folder")
    data: str = setting("", "dataset whose first frames clients may begin at, by number; empty: they send images")
    port: int = setting(18090, "port; 0 takes a free one")
    clients: int = setting(4, "clients at once; further ones are refused")
    rows: int = setting(16, "rollouts of a client at once, at most")
    dtype: str = setting("float32", "number type of imagination: float32, bfloat16 or auto")

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        positive("rows", self.rows)
        one_of("dtype", self.dtype, ("float32", "bfloat16", "auto"))
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
    return {}


def open_server(settings: ServeWorldModelSettings) -> SocketServer:
    """Open the socket and load the world model."""
    return listening.open_server(settings, lambda: conversations(settings))


def conversations(settings: ServeWorldModelSettings) -> Converse:
    """Load the world model, and make what answers each client."""
    device, folder = resolve_device(settings.device), weights_folder(settings.world_model)
    model = open_world_model(folder, device).eval()
    model.compute_dtype = resolve_dtype(settings.dtype, device)
    return world_conversations(model, artefact_hash(folder), recorded_starts(settings, model), settings.rows)


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
