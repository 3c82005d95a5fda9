"""Open world models of any kind by folder."""

from __future__ import annotations

from pathlib import Path

import torch

from worldrl.core.storage.artefact import read_manifest
from worldrl.world_models.video.model import KIND, VideoWorldModel
from worldrl.world_models.wan.model import WanWorldModel

AnyVideoModel = VideoWorldModel | WanWorldModel

VIDEO, WAN = "video", "wan"
BACKBONES = (VIDEO, WAN)
"""Values of the setting ``backbone``: worldrl's own transformer, or published Wan weights."""


def open_world_model(folder: Path | str, device: torch.device | str = "cpu") -> AnyVideoModel:
    """Load the video world model of an artefact folder, of either kind.

    Raises:
        ArtefactError: it is missing, damaged, or holds something else.
    """
    from worldrl.world_models.wan.model import KIND as WAN_KIND

    if read_manifest(Path(folder), wanted=KIND)["kind"] == WAN_KIND:
        return WanWorldModel.load(Path(folder), device)
    return VideoWorldModel.load(Path(folder), device)
