"""Devices, number types, threads and memory: what was asked for, or an error; never a substitute. Torch is lazy."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError, nearest

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "float32", "bfloat16", "float16")


def resolve_device(name: str) -> torch.device:
    """Turn ``cpu``, ``cuda``, ``cuda:N`` or ``auto`` into a device that exists, else SettingError."""
    import torch

    if re.fullmatch(r"cpu|auto|cuda(:\d+)?", name) is None:
        raise SettingError(f"device: unknown name {name!r}{nearest(name, ('cpu', 'cuda', 'cuda:0', 'auto'))}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    if name.startswith("cuda") and not count:
        raise SettingError(
            f"device: {name!r} was asked for, but {_why_no_cuda()}; use device=cpu or repair the installation"
        )
    device = torch.device(name)
    if ":" in name and device.index >= count:
        raise SettingError(
            f"device: {name!r} was asked for, but there are {count} CUDA devices; use cuda:0..{count - 1}"
        )
    return device


def _why_no_cuda() -> str:
    import torch

    version: str | None = torch.version.cuda
    if not version:
        return f"torch {torch.__version__} is a build without CUDA"
    return f"torch {torch.__version__} (CUDA {version}) finds no usable GPU or driver"


def hardware(device: str) -> str:
    """Name the GPU behind a device, or the processor: published rates have moved with the GPU's type."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def driver() -> str:
    """Version of the NVIDIA driver, which draws and computes; empty without one."""
    file = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", file.read_text()) if file.exists() else None
    return found.group(1) if found else ""


def attention_kernel(device: str) -> str:
    """Say how this process attends on a device: torch chooses among the kernels that are named (``nn/attention.py``)."""
    import torch

    if not device.startswith("cuda"):
        return "matrix products"
    backends: Any = torch.backends.cuda
    enabled = {
        "flash": backends.flash_sdp_enabled(),
        "cudnn": backends.cudnn_sdp_enabled(),
        "memory-efficient": backends.mem_efficient_sdp_enabled(),
        "math": backends.math_sdp_enabled(),
    }
    return "one of " + ", ".join(name for name, on in enabled.items() if on)


def resolve_dtype(name: str, device: torch.device | None = None) -> torch.dtype:
    """Turn ``float32``, ``bfloat16``, ``float16`` or ``auto`` (bfloat16 where it is fast) into a type; SettingError."""
    import torch

    if name not in DTYPES:
        raise SettingError(f"dtype: unknown name {name!r}{nearest(name, DTYPES)}")
    on_cuda = device is not None and device.type == "cuda"
    if name == "auto":
        fast = torch.cuda.is_bf16_supported(including_emulation=False) if on_cuda else cpu_has_bfloat16()
        return torch.bfloat16 if fast else torch.float32
    if name == "bfloat16" and on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise SettingError("dtype: 'bfloat16' is not supported by this GPU; use dtype=float16 or float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Compute in ``dtype`` on ``device``; weights, and what is kept, stay float32."""
    import torch

    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


BFLOAT16_UNITS = frozenset({"amx_bf16", "avx512_bf16"})
"""Processor flags under which a matrix product in bfloat16 is several times faster than in float32."""


def cpu_has_bfloat16() -> bool:
    """Whether the processor multiplies in bfloat16: twice float32's speed (measured), emulated half of it."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and not BFLOAT16_UNITS.isdisjoint(cpuinfo.read_text().split())


def set_threads(count: int) -> None:
    """Set torch's CPU threads; results are bit-equal at the same count only. SettingError for fewer than one."""
    import torch

    if count < 1:
        raise SettingError(f"threads: must be at least 1, got {count}")
    torch.set_num_threads(count)


def peak_rss_mb() -> float:
    """Peak resident memory in MB of this process and its living children; shared pages count once for each.

    Not by ``getrusage``: a spawned child inherits its parent's peak there. Without ``/proc`` only this process counts.
    """
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS
    return sum(map(_peak_kib, [os.getpid(), *_descendants(os.getpid())])) / 2**10


def peak_device_mb(device: torch.device) -> float | None:
    """Most memory in MB that tensors of this process took on a CUDA device (no reserve); None on the CPU."""
    import torch

    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


def _peak_kib(pid: int) -> int:
    with suppress(OSError):  # it may end while it is read
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found + [grandchild for child in found for grandchild in _descendants(child)]
