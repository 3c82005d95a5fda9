"""Learned perceptual distance of two images (LPIPS), the AlexNet variant 0.1, from a file of weights.

R. Zhang, P. Isola, A. A. Efros, E. Shechtman, O. Wang, "The Unreasonable Effectiveness of Deep Features as a
Perceptual Metric", CVPR 2018: the activations after each of AlexNet's five convolutions, scaled to unit length over the
channels; their squared differences are weighted per channel, averaged over the image and summed over the five layers.

The weights come with the authors' package, not with worldrl. The file is a safetensors state dict under that package's
own names, all float32 (further tensors are ignored)::

    scaling_layer.shift  [1, 3, 1, 1]      scaling_layer.scale  [1, 3, 1, 1]
    net.slice1.0   weight [64, 3, 11, 11]  bias [64]
    net.slice2.3   weight [192, 64, 5, 5]  bias [192]
    net.slice3.6   weight [384, 192, 3, 3] bias [384]
    net.slice4.8   weight [256, 384, 3, 3] bias [256]
    net.slice5.10  weight [256, 256, 3, 3] bias [256]
    lin0.model.1.weight [1, 64, 1, 1], lin1 192, lin2 384, lin3 256, lin4 256 channels

which ``safetensors.torch.save_file({k: v.clone() for k, v in net.state_dict().items()}, file)`` writes, with
``net = lpips.LPIPS(net="alex")``.

Shapes legend: ``B`` images, ``C`` channels, ``h w`` cells.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.tensorfile import load_tensors

LAYERS = (
    ("net.slice1.0", (64, 3, 11, 11), 4, 2),
    ("net.slice2.3", (192, 64, 5, 5), 1, 2),
    ("net.slice3.6", (384, 192, 3, 3), 1, 1),
    ("net.slice4.8", (256, 384, 3, 3), 1, 1),
    ("net.slice5.10", (256, 256, 3, 3), 1, 1),
)
"""Name, shape of the weights, stride and padding of each convolution."""
POOLED = (1, 2)
"""Convolutions whose input is max-pooled (3×3, stride 2)."""
LEAST_SIDE = 31
"""Least pixels per side for the second pooling."""
EPS = 1e-10


class Lpips:
    """The metric with its weights, named as above; ArtefactError where a tensor is missing or has another shape."""

    def __init__(self, weights: dict[str, Tensor], device: torch.device | str = "cpu") -> None:
        self._weights = {name: _checked(weights, name, shape).to(device) for name, shape in expected_shapes().items()}
        self.device = torch.device(device)

    @classmethod
    def load(cls, file: Path, device: torch.device | str = "cpu") -> Lpips:
        """Read a safetensors file; ArtefactError where it is missing or holds other tensors."""
        return cls(load_tensors(file), device)

    @torch.no_grad()
    def distance(self, a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Distance ``[B]`` of each pair of images uint8 ``[B, Y, X, 3]``; 0 for identical ones.

        Raises SettingError (different shapes, or images smaller than the network needs).
        """
        if a.shape != b.shape or min(a.shape[1:3]) < LEAST_SIDE:
            raise SettingError(
                f"lpips: needs two images of one size from {LEAST_SIDE} pixels on, got {a.shape} and {b.shape}"
            )
        total = torch.zeros(len(a), dtype=torch.float64)
        pairs = zip(self.activations(a), self.activations(b), strict=True)
        for number, (x, y) in enumerate(pairs):
            weight = self._weights[f"lin{number}.model.1.weight"]
            difference = (unit_length(x) - unit_length(y)).square()
            total += F.conv2d(difference, weight).mean(dim=(1, 2, 3)).double().cpu()
        return total.numpy()

    def activations(self, image: NDArray[np.uint8]) -> list[Tensor]:
        """Activations ``[B, C, h, w]`` after each of the five convolutions."""
        x = torch.from_numpy(image).to(self.device).permute(0, 3, 1, 2).float() / 127.5 - 1
        x = (x - self._weights["scaling_layer.shift"]) / self._weights["scaling_layer.scale"]
        found: list[Tensor] = []
        for number, (name, _, stride, padding) in enumerate(LAYERS):
            x = F.max_pool2d(x, 3, 2) if number in POOLED else x
            weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
            x = F.relu(F.conv2d(x, weight, bias, stride, padding))
            found.append(x)
        return found


def unit_length(x: Tensor) -> Tensor:
    """Scale ``[B, C, h, w]`` to length 1 over the channels; zeros stay zeros."""
    return x / (x.square().sum(dim=1, keepdim=True).sqrt() + EPS)


def expected_shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every required tensor."""
    shapes: dict[str, tuple[int, ...]] = {f"scaling_layer.{name}": (1, 3, 1, 1) for name in ("shift", "scale")}
    for number, (name, shape, _, _) in enumerate(LAYERS):
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        shapes[f"lin{number}.model.1.weight"] = (1, shape[0], 1, 1)
    return shapes


def _checked(weights: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in weights or tuple(weights[name].shape) != shape:
        found = tuple(weights[name].shape) if name in weights else "none"
        raise ArtefactError(
            f"lpips: tensor {name} must have shape {shape}, found {found}; give a safetensors file of the state dict of "
            'lpips.LPIPS(net="alex") (docs/reference/video-metrics.md says how to write one)'
        )
    return weights[name].float()
