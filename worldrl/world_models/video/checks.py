"""Checks of every video world model before and after it imagines a chunk."""

from collections.abc import Sequence

import torch
from torch import Tensor

from worldrl.core.errors import ActionError, NonFiniteError


def check_chunk(action: Tensor, expected: tuple[int, int, int], generators: Sequence[torch.Generator]) -> None:
    """Check actions and the number of generators (the rows'); ActionError with the first bad number."""
    rows = expected[0]
    if tuple(action.shape) != expected or action.dtype != torch.float32:
        raise ActionError(f"action must be float32 {expected}, got {action.dtype} {tuple(action.shape)}")
    if len(generators) != rows:
        raise ActionError(f"imagine needs one generator per row: {rows}, got {len(generators)}")
    finite = torch.isfinite(action)
    if not finite.all():
        row, step, field = (int(i) for i in (~finite).nonzero()[0])
        raise ActionError(f"action[{row}, {step}, {field}] is {action[row, step, field].item()}; state unchanged")


def check_imagined(latent: Tensor) -> None:
    """Check that latents ``[B, ...]`` are finite. Raises NonFiniteError: with the first bad row."""
    finite = torch.isfinite(latent).flatten(1).all(dim=1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise NonFiniteError(
            f"the world model imagined non-finite latents, first in row {row}; its weights are damaged"
        )
