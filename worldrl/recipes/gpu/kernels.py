"""What the scripts that time world models share: made-up data, the work of a call, and the rates it is measured by.

A single matrix product is no anchor: other sizes run faster, and Winograd's convolutions multiply less than is counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from worldrl.core.embodiment import Embodiment
from worldrl.core.rng import on_device, stream
from worldrl.core.types import ResetRecord

ROBOT = Embodiment(0.02, 0.1, (0.34, -0.22, 0.012), (0.66, 0.22, 0.24), 0.5, 20.0)
HOME = np.array([0.48, 0.0, 0.14, 0.0, 0.0, 0.0, -1.0], np.float32)
TASK, SENTENCE = "PickRedCube", "pick up the red cube"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ATEN = torch.ops.aten


def random_records(rows: int, memory_frames: int, size: int) -> list[ResetRecord]:
    """Start states of noise in square images of ``size`` pixels."""
    frames = np.random.default_rng(0).integers(0, 256, (rows, 1 + memory_frames, size, size, 3), dtype=np.uint8)
    return [ResetRecord(f[0], f[1:], HOME, SENTENCE, TASK, 0, "bench") for f in frames]


# -- work ----------------------------------------------------------------------------------------------------------


def _cpu_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _cpu_attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


UNCOUNTED = {
    ATEN._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
}
"""What torch's counter leaves out: attention on the CPU."""


def count_gflop(call: Callable[[], object]) -> float:
    """GFLOP of one call: matrix products, convolutions and attention; a multiply-add is two."""
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        call()
    return counter.get_total_flops() / 1e9


@dataclass(frozen=True)
class Kernel:
    """A matrix product or a convolution, without its numbers."""

    name: str  # `product` or `convolution`
    left: tuple[int, ...]  # shape of the first factor, or of the input
    right: tuple[int, ...]  # of the second factor, or of the weight
    options: tuple[Any, ...] = ()  # of a convolution: stride, padding, dilation, transposed, output padding, groups

    def __str__(self) -> str:
        """Name it with both shapes."""
        return f"{self.name} {'x'.join(map(str, self.left))} by {'x'.join(map(str, self.right))}"

    @property
    def gflop(self) -> float:
        """Work of one call."""
        return count_gflop(self.call(torch.float32, torch.device("meta")))

    def widened(self, rows: int) -> "Kernel":
        """Return what it is for ``rows`` rows at once, if it was seen with one."""
        right = (
            (self.right[0] * rows, *self.right[1:]) if self.name == "product" and len(self.right) == 3 else self.right
        )
        return replace(self, left=(self.left[0] * rows, *self.left[1:]), right=right)

    def call(self, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
        """Give it numbers, so that it can be run."""
        left, right = (_numbers(shape, dtype, device) for shape in (self.left, self.right))
        if self.name == "convolution":
            stride, padding, dilation, transposed, output_padding, groups = map(_plain, self.options)
            return lambda: ATEN.convolution(
                left, right, None, stride, padding, dilation, transposed, output_padding, groups
            )
        return lambda: left @ right


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.randn(shape, generator=on_device(stream(0, "kernel"), device), device=device).to(dtype)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def square(side: int) -> Kernel:
    """A product of two square matrices."""
    return Kernel("product", (side, side), (side, side))


class _Listener(TorchDispatchMode):
    """Notes every product and convolution that torch computes."""

    FACTORS = {ATEN.mm: 0, ATEN.bmm: 0, ATEN.addmm: 1, ATEN.baddbmm: 1}  # noqa: RUF012 (position of the first factor)

    def __init__(self) -> None:
        super().__init__()
        self.heard: set[Kernel] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet in self.FACTORS:
            left, right = args[self.FACTORS[packet] :][:2]
            self.heard.add(Kernel("product", tuple(left.shape), tuple(right.shape)))
        elif packet is ATEN.convolution:
            options = tuple(tuple(option) if isinstance(option, list) else option for option in args[3:9])
            self.heard.add(Kernel("convolution", tuple(args[0].shape), tuple(args[1].shape), options))
        return func(*args, **(kwargs or {}))


def kernels_of(call: Callable[[], object], count: int) -> list[Kernel]:
    """Run ``call`` and return its ``count`` largest products and convolutions."""
    with torch.no_grad(), _Listener() as listener:
        call()
    return sorted(listener.heard, key=lambda kernel: (-kernel.gflop, str(kernel)))[:count]


# -- rates ---------------------------------------------------------------------------------------------------------


def shares(rates: Sequence[float], anchors: Sequence[Sequence[float]]) -> list[float]:
    """Share of the fastest anchor's rate (GFLOP/s), round by round; incomplete rounds are left out."""
    best = [max(of_round) for of_round in zip(*anchors, strict=False)]
    return [rate / peak for rate, peak in zip(rates, best, strict=False)]
