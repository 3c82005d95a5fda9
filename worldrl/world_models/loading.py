"""World models of any kind, opened by folder: a kind's class is imported when a folder of it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from worldrl.core.errors import SettingError
from worldrl.core.lookup import named
from worldrl.core.storage.artefact import read_manifest

if TYPE_CHECKING:
    from worldrl.world_models.video.model import VideoWorldModel
    from worldrl.world_models.wan.model import WanWorldModel

    AnyVideoModel = VideoWorldModel | WanWorldModel
else:
    AnyVideoModel = Any

VIDEO, WAN = "video", "wan"
BACKBONES = (VIDEO, WAN)  # values of the setting ``backbone``: worldrl's own transformer, or published Wan weights
CLASSES = {
    "video-world-model": "worldrl.world_models.video.model:VideoWorldModel",
    "wan-world-model": "worldrl.world_models.wan.model:WanWorldModel",
}
"""Kind of an artefact → its class."""


def require_one_view(model: AnyVideoModel, what: str) -> None:
    """Refuse a world model of several cameras or with a measured state for what reads the main image alone; SettingError."""
    if model.more:
        raise SettingError(
            f"{what}: takes a world model of one camera without measured state; this one also imagines {', '.join(model.more)}"
        )


def open_world_model(folder: Path | str, device: torch.device | str = "cpu") -> AnyVideoModel:
    """Load the video world model of a folder, of either kind; ArtefactError: missing, damaged or another."""
    kind = read_manifest(Path(folder), wanted="video-world-model")["kind"]
    return named(CLASSES.get(kind, CLASSES["video-world-model"])).load(Path(folder), device)
