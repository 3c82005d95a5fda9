"""Published convolutional backbones as image encoders: timm's networks (extra ``timm``).

Features of every level from a stride on are mapped to one width, resized to the finest grid and added: a feature
pyramid (Lin et al. 2017) without its second convolutions. Keypoints are read as in
:class:`~worldrl.nn.vision.ImageEncoder`. Weights are random or from a file; nothing is downloaded.

Shapes legend: ``B`` rows, ``Y X`` pixels, ``C`` channels, ``K`` keypoints, ``N`` cells.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from worldrl.core.device import autocast
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.extras import require
from worldrl.nn.vision import cell_coordinates, find_points

EXTRA = "timm"


class BackboneEncoder(nn.Module):
    """Images and condition vectors ``[B, text_width]`` to features ``[B, out_width]``, on a trunk of timm's.

    Raises MissingExtraError: timm is not installed; SettingError: it has no such model, or that no level of ``stride``.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, text_width: int, *, name: str, stride: int, width: int, keypoints: int, value_width: int
    ) -> None:
        super().__init__()
        self.compute_dtype = torch.float32
        self.name, self.keypoints, self.value_width = name, keypoints, value_width
        self.out_width = keypoints * (2 + value_width)
        self.trunk, channels = make_trunk(name, stride)
        self.levels = nn.ModuleList([nn.Conv2d(count, width, 1) for count in channels])
        self.place = nn.Linear(2, width)
        self.query = nn.Linear(text_width, keypoints * width)
        self.value = nn.Linear(width, value_width)
        colours = require("timm", extra=EXTRA).models.get_pretrained_cfg(name)
        for buffer in ("mean", "deviation"):
            values = colours.mean if buffer == "mean" else colours.std
            self.register_buffer(buffer, torch.tensor(values).view(1, 3, 1, 1))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Encode uint8 ``[B, Y, X, 3]`` with conditions ``[B, text_width]`` as ``[B, out_width]``."""
        cells, place = self.features(image)
        query = self.query(text).unflatten(1, (self.keypoints, -1))
        return find_points(cells, place, query, self.value).flat

    def features(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cells' features ``[B, N, C]`` and their places ``[N, 2]``."""
        pixels = (image.to(self.mean.dtype).permute(0, 3, 1, 2) / 255 - self.mean) / self.deviation
        with autocast(image.device, self.compute_dtype):
            levels = [level(found) for level, found in zip(self.levels, self.trunk(pixels), strict=True)]
            size = levels[0].shape[2:]
            x = torch.stack([functional.interpolate(one, size, mode="bilinear") for one in levels]).sum(dim=0)
        place = cell_coordinates(*size, device=pixels.device, dtype=pixels.dtype)
        x = x.to(pixels.dtype) + self.place(place).T.unflatten(1, size)
        return functional.relu(x).flatten(2).transpose(1, 2), place

    def load_weights(self, file: Path) -> None:
        """Load the trunk's weights; ArtefactError: no such file, damaged or another model's; nothing changed."""
        try:
            tensors = {_plain(name): value for name, value in load_file(file).items()}
        except (OSError, SafetensorError) as error:
            raise ArtefactError(
                f"training.backbone_weights: cannot read {file}: {error}; give a .safetensors file"
            ) from error
        own = self.trunk.state_dict()
        bad = [name for name, value in own.items() if getattr(tensors.get(_plain(name)), "shape", None) != value.shape]
        if bad:
            raise ArtefactError(
                f"training.backbone_weights: {file} is not of {self.name!r}: {len(bad)} of {len(own)} tensors are missing or of "
                f"another shape, {bad[0]} first; give the file of model.backbone"
            )
        self.trunk.load_state_dict({name: tensors[_plain(name)] for name in own})


def make_trunk(name: str, stride: int) -> tuple[nn.Module, list[int]]:
    """Timm's model of random weights from level ``stride`` on, and its levels' channels; errors as the encoder's."""
    timm: Any = require("timm", extra=EXTRA)
    if not timm.is_model(name):
        near = timm.list_models(f"*{name}*")[:3]
        raise SettingError(
            f"model.backbone: timm has no model {name!r}" + (f"; near it: {', '.join(near)}" if near else "")
        )
    reductions = timm.create_model(name, pretrained=False, features_only=True).feature_info.reduction()
    if len(set(reductions)) < len(reductions) or stride not in reductions:
        raise SettingError(
            f"model.backbone_stride: {name!r} has levels of {', '.join(map(str, reductions))} pixels per cell, not a pyramid with "
            f"one of {stride}; give another stride, or a convolutional backbone"
        )
    wanted = list(range(reductions.index(stride), len(reductions)))
    trunk = timm.create_model(name, pretrained=False, features_only=True, out_indices=wanted)
    return trunk, list(trunk.feature_info.channels())


def _plain(name: str) -> str:
    return name.replace(".", "_")
