"""Named tensors to and from one safetensors file, with an optional smaller type on the disk."""

import errno
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as typeless
from torch import Tensor

from worldrl.core.errors import ArtefactError

_safetensors: Any = typeless  # Its paths are typed `PathLike` without an argument, which strict checking refuses
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], store_dtype: torch.dtype | None = None) -> list[str]:
    """Write tensors, float32 ones as ``store_dtype`` (ArtefactError on overflow); return the names of those cast."""
    stored = _apart({name: _cast(name, tensor, store_dtype) for name, tensor in tensors.items()})
    try:
        _safetensors.save_file(stored, str(path))
    except SafetensorError as reason:
        raise _os_error(reason) from reason
    return sorted(name for name in tensors if tensors[name].dtype != stored[name].dtype)


def load_tensors(path: Path, restore_float32: Collection[str] = ()) -> dict[str, Tensor]:
    """Read tensors to the CPU, some cast back to float32; ArtefactError where the file is not safetensors."""
    try:
        tensors: dict[str, Tensor] = _safetensors.load_file(str(path))
    except (SafetensorError, OSError) as reason:
        raise ArtefactError(f"{path}: not a safetensors file ({reason}); copy it again or convert it") from reason
    return {name: t.float() if name in restore_float32 else t for name, t in tensors.items()}


def number_types(path: Path) -> list[str]:
    """Name the floating-point types in a safetensors file, from its header alone; of a sound file."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    stored = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    return sorted(_FLOATS[name] for name in stored & _FLOATS.keys())


def tensor_bytes(tensors: Mapping[str, Tensor], store_dtype: torch.dtype | None = None) -> int:
    """Return how many bytes the tensors take in a file, headers aside."""
    return sum(t.numel() * _stored_dtype(t, store_dtype).itemsize for t in tensors.values())


def _stored_dtype(tensor: Tensor, store_dtype: torch.dtype | None) -> torch.dtype:
    return store_dtype if store_dtype is not None and tensor.dtype == torch.float32 else tensor.dtype


def _cast(name: str, tensor: Tensor, store_dtype: torch.dtype | None) -> Tensor:
    tensor = tensor.detach().cpu()
    stored = tensor.to(_stored_dtype(tensor, store_dtype))
    if stored.dtype != tensor.dtype and not torch.equal(stored.isfinite(), tensor.isfinite()):
        largest = tensor.abs().max().item()
        raise ArtefactError(f"tensor {name!r}: {largest:.4g} does not fit {stored.dtype}; store it as float32")
    return stored.contiguous()


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory: safetensors refuses them, and loading ties them again by name."""
    seen: set[int] = set()
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return result


def _os_error(reason: SafetensorError) -> OSError:
    """Recover the errno that safetensors' Rust side only leaves in its text, as ``(os error 28)``."""
    match = re.search(r"os error (\d+)", str(reason))
    return OSError(int(match[1]) if match else errno.EIO, str(reason))
