"""Checks of a policy's observations (:class:`~worldrl.core.types.PolicyObs`) before any arithmetic."""

from collections.abc import Sequence

import torch

from worldrl.core.errors import WorldrlError
from worldrl.core.observation import COMMAND, IMAGE, STATE
from worldrl.core.types import PolicyObs


class ObservationError(WorldrlError, ValueError):
    """An observation has the wrong size, dtype or shape, or holds numbers that are not finite."""


def check_obs(
    obs: PolicyObs, image_size: int, command_size: int, *, more: Sequence[str] = (), state_size: int = 0
) -> None:
    """Check a batch of observations against a policy's sizes; ObservationError names field, rule, value and fix."""
    _check_image(IMAGE, obs.image, image_size)
    rows = obs.image.shape[0]
    _check_numbers(COMMAND, obs.command, rows, command_size)
    for name in more:
        if name not in obs.more:
            raise ObservationError(f"{name}: the policy needs it, the observation has {', '.join(_shown(obs))}")
        if name == STATE:
            _check_numbers(name, obs.more[name], rows, state_size)
        else:
            _check_image(name, obs.more[name], image_size)
    if isinstance(obs.instruction, str) or len(obs.instruction) != rows:
        received = "one string" if isinstance(obs.instruction, str) else f"{len(obs.instruction)} instructions"
        raise ObservationError(f"instruction: must be {rows} instructions, one per row, got {received}")
    for row, text in enumerate(obs.instruction):
        if not isinstance(text, str) or not text.strip():
            raise ObservationError(f"instruction[{row}]: must say what to do, got {text!r}")


def _shown(obs: PolicyObs) -> list[str]:
    return sorted((IMAGE, COMMAND, "instruction", *obs.more))


def _check_image(name: str, image: torch.Tensor, size: int) -> None:
    if image.dtype != torch.uint8:
        raise ObservationError(f"{name}: dtype must be uint8 (0…255), got {image.dtype}; do not normalise it")
    if image.ndim != 4 or tuple(image.shape[1:]) != (size, size, 3):
        raise ObservationError(
            f"{name}: shape must be [B, {size}, {size}, 3], got {list(image.shape)}; "
            f"render at {size} pixels, channels last, with a leading axis of rows"
        )
    if image.shape[0] == 0:
        raise ObservationError(f"{name}: must hold at least one row, got 0 rows")


def _check_numbers(name: str, numbers: torch.Tensor, rows: int, size: int) -> None:
    if not numbers.is_floating_point():
        raise ObservationError(f"{name}: dtype must be floating, got {numbers.dtype}; use float32")
    if tuple(numbers.shape) != (rows, size):
        raise ObservationError(f"{name}: shape must be [{rows}, {size}], got {list(numbers.shape)}")
    bad = ~torch.isfinite(numbers).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ObservationError(f"{name}[{row}]: must be finite, got {numbers[row].tolist()}")
