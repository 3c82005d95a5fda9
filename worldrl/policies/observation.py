"""Checks of a policy's observations (:class:`~worldrl.core.types.PolicyObs`) before any arithmetic."""

from __future__ import annotations

import torch

from worldrl.core.errors import WorldrlError
from worldrl.core.types import PolicyObs


class ObservationError(WorldrlError, ValueError):
    """An observation has the wrong size, dtype or shape, or holds numbers that are not finite."""


def check_obs(obs: PolicyObs, image_size: int, command_size: int) -> None:
    """Check a batch of observations for a policy with images of ``image_size`` pixels and ``command_size`` numbers.

    Raises:
        ObservationError: names the field, the rule, the value and the fix.
    """
    _check_image(obs.image, image_size)
    rows = obs.image.shape[0]
    _check_command(obs.command, rows, command_size)
    if isinstance(obs.instruction, str) or len(obs.instruction) != rows:
        received = "one string" if isinstance(obs.instruction, str) else f"{len(obs.instruction)} instructions"
        raise ObservationError(f"instruction: must be {rows} instructions, one per row, got {received}")
    for row, text in enumerate(obs.instruction):
        if not isinstance(text, str) or not text.strip():
            raise ObservationError(f"instruction[{row}]: must say what to do, got {text!r}")


def _check_image(image: torch.Tensor, size: int) -> None:
    if image.dtype != torch.uint8:
        raise ObservationError(f"image: dtype must be uint8 (0…255), got {image.dtype}; do not normalise it")
    if image.ndim != 4 or tuple(image.shape[1:]) != (size, size, 3):
        raise ObservationError(
            f"image: shape must be [B, {size}, {size}, 3], got {list(image.shape)}; "
            f"render at {size} pixels, channels last, with a leading axis of rows"
        )
    if image.shape[0] == 0:
        raise ObservationError("image: must hold at least one row, got 0 rows")


def _check_command(command: torch.Tensor, rows: int, size: int) -> None:
    if not command.is_floating_point():
        raise ObservationError(f"command: dtype must be floating, got {command.dtype}; use float32")
    if tuple(command.shape) != (rows, size):
        raise ObservationError(f"command: shape must be [{rows}, {size}], got {list(command.shape)}")
    bad = ~torch.isfinite(command).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ObservationError(f"command[{row}]: must be finite, got {command[row].tolist()}")
