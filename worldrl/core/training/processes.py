"""The processes of ``torchrun`` or ``accelerate launch`` as one group: they meet, compare, add and wait.

Both launchers set torch's own variables (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ...), so torch alone is enough. On a
CPU the group talks over gloo, on GPUs over NCCL. Nothing that is sent is unpickled.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import LostProcessError
from worldrl.core.training.ranks import rank, world_size

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PATIENCE = timedelta(hours=2)
"""The longest wait for the first process, which measures and saves while the others wait."""
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "Socket Timeout")
"""What gloo says where another process has ended."""


@contextmanager
def joined(device: torch.device) -> Generator[None]:
    """Meet the other processes, and part from them at the end; LostProcessError where one of them ends before."""
    import torch.distributed as group

    if device.type == "cuda":
        import torch

        torch.cuda.set_device(device)
    try:
        group.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        raise LostProcessError(
            f"process {rank()} of {world_size()} stops: another process ended; start the same command again to resume"
        ) from error
    finally:
        if group.is_initialized():
            group.destroy_process_group()


def is_loss(error: RuntimeError) -> bool:
    """Whether torch failed because another process is gone."""
    import torch.distributed as group

    return isinstance(error, group.DistError) or any(text in str(error) for text in LOST)


def in_group() -> bool:
    """Whether this process has met others."""
    import torch.distributed as group

    return group.is_available() and group.is_initialized()


def wait() -> None:
    """Wait for all processes."""
    if in_group():
        _group().barrier()


def total(value: Tensor) -> Tensor:
    """Sum a tensor over the processes."""
    if in_group():
        _group().all_reduce(value)
    return value


def gather_texts(text: str, device: torch.device) -> list[str]:
    """Return every process's text, by rank."""
    import torch

    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    sizes = _gather(torch.tensor([len(data)], device=device), 1)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(data)] = data
    rows = _gather(padded, longest)
    return [bytes(row[: int(size)].tolist()).decode() for row, size in zip(rows, sizes, strict=True)]


def _gather(value: Tensor, length: int) -> Sequence[Any]:
    import torch

    rows = [torch.empty(length, dtype=value.dtype, device=value.device) for _ in range(world_size())]
    _group().all_gather(rows, value)
    return rows


def _group() -> Any:
    """Torch's functions of the group, whose types are unknown in part."""
    import torch.distributed as group

    return group
