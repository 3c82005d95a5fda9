"""Inflated Inception-v1 (I3D) on Kinetics-400: the features by which videos are compared.

J. Carreira, A. Zisserman, "Quo Vadis, Action Recognition? A New Model and the Kinetics Dataset", CVPR 2017: Inception-v1
with its convolutions and poolings inflated in time, batch normalisation after each convolution, padding as TensorFlow's
``SAME``. 12.7 million parameters for 400 classes.

The weights are not shipped. The file is a safetensors state dict, all float32, under the names of the usual port to
PyTorch (its ``rgb_imagenet.pt``); a missing, further or differently shaped tensor is an error::

    Conv3d_1a_7x7   conv3d.weight [64, 3, 7, 7, 7]   bn.weight, bn.bias, bn.running_mean, bn.running_var [64]
    Conv3d_2b_1x1   conv3d.weight [64, 64, 1, 1, 1]  bn likewise
    Conv3d_2c_3x3   conv3d.weight [192, 64, 3, 3, 3] bn likewise
    Mixed_3b .b0 .b1a .b1b .b2a .b2b .b3b            conv3d.weight and bn likewise, channels of WIDTHS
    ... Mixed_3c, Mixed_4b to Mixed_4f, Mixed_5b, Mixed_5c
    logits          conv3d.weight [400, 1024, 1, 1, 1]  conv3d.bias [400]

``bn.num_batches_tracked``, which newer PyTorch adds, is ignored: it counts training steps.

Shapes legend: ``B`` clips, ``C`` channels, ``T`` frames, ``Y X`` pixels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.tensorfile import load_tensors

CLASSES = 400
WIDTHS = {
    "Mixed_3b": (64, 96, 128, 16, 32, 32),
    "Mixed_3c": (128, 128, 192, 32, 96, 64),
    "Mixed_4b": (192, 96, 208, 16, 48, 64),
    "Mixed_4c": (160, 112, 224, 24, 64, 64),
    "Mixed_4d": (128, 128, 256, 24, 64, 64),
    "Mixed_4e": (112, 144, 288, 32, 64, 64),
    "Mixed_4f": (256, 160, 320, 32, 128, 128),
    "Mixed_5b": (256, 160, 320, 32, 128, 128),
    "Mixed_5c": (384, 192, 384, 48, 128, 128),
}
"""Channels of each mixed block's branches: b0, b1a, b1b, b2a, b2b, b3b."""
TRACKED = "num_batches_tracked"
SHOWN = 4
"""Tensors that an error names; of more it gives the number."""

Size = tuple[int, int, int]
"""Frames, rows, columns."""


def same_padded(x: Tensor, kernel: Size, stride: Size) -> Tensor:
    """Pad ``[B, C, T, Y, X]`` with zeros so that each size becomes ⌈size / stride⌉; the odd one goes to the end."""
    total = [max(k - (n % s or s), 0) for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
    return F.pad(x, [part for n in reversed(total) for part in (n // 2, n - n // 2)])


class Pool(nn.Module):
    """Largest of each window; the input is never negative, so zero padding changes nothing."""

    def __init__(self, kernel: Size, stride: Size):
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, C, T, Y, X]`` to ``[B, C, ⌈T/s⌉, ⌈Y/s⌉, ⌈X/s⌉]``."""
        return F.max_pool3d(same_padded(x, self.kernel, self.stride), self.kernel, self.stride)


class Unit(nn.Module):
    """Convolution without bias, batch normalisation, rectifier."""

    def __init__(self, channels: int, out: int, kernel: Size = (1, 1, 1), stride: Size = (1, 1, 1)):
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.conv3d = nn.Conv3d(channels, out, kernel, stride, bias=False)
        self.bn = nn.BatchNorm3d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, channels, T, Y, X]`` to ``[B, out, ⌈T/s⌉, ⌈Y/s⌉, ⌈X/s⌉]``."""
        return F.relu(self.bn(self.conv3d(same_padded(x, self.kernel, self.stride))))


class Mixed(nn.Module):
    """Four branches side by side: 1×1×1; two reduced ones of 3×3×3; a pooled one. ``widths`` as in :data:`WIDTHS`."""

    def __init__(self, channels: int, widths: tuple[int, ...]):
        super().__init__()
        b0, b1a, b1b, b2a, b2b, b3b = widths
        self.b0 = Unit(channels, b0)
        self.b1a, self.b1b = Unit(channels, b1a), Unit(b1a, b1b, (3, 3, 3))
        self.b2a, self.b2b = Unit(channels, b2a), Unit(b2a, b2b, (3, 3, 3))
        self.pool, self.b3b = Pool((3, 3, 3), (1, 1, 1)), Unit(channels, b3b)
        self.out = b0 + b1b + b2b + b3b

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, channels, T, Y, X]`` to ``[B, out, T, Y, X]``."""
        return torch.cat([self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(self.pool(x))], dim=1)


class Logits(nn.Module):
    """Averages over two frames and seven by seven cells, a linear map, and the mean over the remaining frames."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.conv3d = nn.Conv3d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, channels, T/8, 7, 7]`` to ``[B, classes]``."""
        return self.conv3d(F.avg_pool3d(x, (2, 7, 7), stride=1)).mean(dim=(2, 3, 4))


class I3d(nn.Sequential):
    """The network: RGB clips ``[B, 3, T, 224, 224]`` in [-1, 1], T from 9 on, to logits ``[B, 400]``."""

    def __init__(self) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["Conv3d_1a_7x7"] = Unit(3, 64, (7, 7, 7), (2, 2, 2))
        layers["MaxPool3d_2a_3x3"] = Pool((1, 3, 3), (1, 2, 2))
        layers["Conv3d_2b_1x1"] = Unit(64, 64)
        layers["Conv3d_2c_3x3"] = Unit(64, 192, (3, 3, 3))
        layers["MaxPool3d_3a_3x3"] = Pool((1, 3, 3), (1, 2, 2))
        channels = _mixed(layers, "Mixed_3", 192)
        layers["MaxPool3d_4a_3x3"] = Pool((3, 3, 3), (2, 2, 2))
        channels = _mixed(layers, "Mixed_4", channels)
        layers["MaxPool3d_5a_2x2"] = Pool((2, 2, 2), (2, 2, 2))
        channels = _mixed(layers, "Mixed_5", channels)
        layers["logits"] = Logits(channels, CLASSES)
        super().__init__(layers)


def _mixed(layers: OrderedDict[str, nn.Module], stage: str, channels: int) -> int:
    """Add a stage's mixed blocks; return the number of output channels."""
    for name, widths in WIDTHS.items():
        if name.startswith(stage):
            block = Mixed(channels, widths)
            layers[name], channels = block, block.out
    return channels


def load_i3d(file: Path) -> I3d:
    """Read the network from a safetensors file, in evaluation mode; ArtefactError where it does not hold the tensors above."""
    network, tensors = I3d(), load_tensors(file)
    tensors = {name: tensor.float() for name, tensor in tensors.items() if not name.endswith(TRACKED)}
    _check(file, expected_shapes(network), tensors)
    network.load_state_dict(tensors, strict=False)  # checked above: only the counters are left out
    return network.eval().requires_grad_(False)


def expected_shapes(network: I3d) -> dict[str, tuple[int, ...]]:
    """Name and shape of every required tensor."""
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if not name.endswith(TRACKED)}


def _check(file: Path, expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    faults = {
        "missing": [name for name in expected if name not in shapes],
        "unexpected": [name for name in shapes if name not in expected],
        "of another shape": [name for name, shape in expected.items() if shapes.get(name, shape) != shape],
    }
    found = [f"{what}: {_some(names)}" for what, names in faults.items() if names]
    if found:
        raise ArtefactError(
            f"{file}: not the state dict of I3D with {CLASSES} classes ({'; '.join(found)}); docs/reference/video-metrics.md describes the "
            "weights and how to write the file"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
