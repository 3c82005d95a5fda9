"""Rows of a video world model between chunks.

Shapes legend: ``B`` rows, ``V`` views, ``K`` memory frames, ``A`` numbers of a command, ``S`` measured numbers, ``c h w``
latent.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from worldrl.data.windows.batch import WindowBatch


@dataclass(frozen=True)
class VideoState:
    """Rows between chunks.

    Attributes:
        reference: latent of each row's first frame ``[B, c, h, w]``.
        memory: newest latents ``[B, K, c, h, w]``.
        command: last command ``[B, A]``.
        instruction: embedded instructions ``[B, d]``.
        belief: recurrent state of the outcome ensemble ``[B, J b]``.
        first: uint8 ``[B, V Y, X, 3]``, each row's first sheet.
        measured: newest measured numbers ``[B, S]``; None where the model does not predict them.
    """

    reference: Tensor
    memory: Tensor
    command: Tensor
    instruction: Tensor
    belief: Tensor
    first: Tensor
    measured: Tensor | None = None

    @property
    def rows(self) -> int:
        """Number of rollouts."""
        return self.reference.shape[0]

    def select(self, index: Tensor) -> VideoState:
        """Keep the rows of ``index``."""
        index = index.to(self.reference.device)
        return VideoState(**{name: value[index] for name, value in self.state_dict().items()})

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that restore the state exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def latent_start(batch: WindowBatch) -> VideoState:
    """Begin where windows of latents begin, without instruction, belief and image."""
    reference, memory = batch.reference.float(), batch.memory.float()
    nothing = reference.new_zeros(len(reference), 0)
    return VideoState(reference, memory, batch.command, nothing, nothing, nothing)
