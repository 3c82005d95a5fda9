"""Chunks of actions as a few numbers: their principal components.

A chunk of 8 control steps of 7 numbers has 56, but recorded motions are smooth: a few components explain nearly all of
the variance. An agent that acts in them explores motions and cannot leave their span.

    z = (a − mean) Vᵀ / reach, clipped to [-1, 1];   a = mean + (z · reach) V, clipped to [-1, 1]

Shapes legend: ``B`` rows, ``A`` numbers of a chunk, ``C`` components.
"""

from typing import Self

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.nn.stored import StoredModule

REACH_SHARE = 0.995  # share of the recorded chunks that a component represents without clipping
REACH_FLOOR = 1e-6  # least reach, so that a component without variance stays finite


class ChunkBasis(StoredModule):
    """Maps chunks in [-1, 1] to components in [-1, 1] and back; nothing is trained."""

    kind = "chunk-basis"
    mean: Tensor  # ``[A]``.
    directions: Tensor  # V, orthonormal rows ``[C, A]``.
    reach: Tensor  # ``[C]``, projection at component 1.
    explained: Tensor  # scalar, share of the recorded chunks' variance that encoding and decoding preserve.

    def __init__(self, size: int, components: int) -> None:
        super().__init__()
        if not 1 <= components <= size:
            raise SettingError(f"components must be between 1 and a chunk's {size} numbers, got {components}")
        self.sizes = {"size": size, "components": components}
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("directions", torch.eye(size)[:components].clone())
        self.register_buffer("reach", torch.ones(components))
        self.register_buffer("explained", torch.ones(()))

    @property
    def components(self) -> int:
        """Numbers ``C`` of an action."""
        return len(self.reach)

    @classmethod
    def of(cls, chunks: Tensor, components: int) -> Self:
        """Compute the components of recorded chunks ``[N, A]``; SettingError: more components than either."""
        basis = cls(chunks.shape[1], components)
        if components > len(chunks):
            raise SettingError(f"components={components} of {len(chunks)} recorded chunks; record more, or take fewer")
        basis.mean.copy_(chunks.mean(0))
        basis.directions.copy_(torch.linalg.svd(chunks - basis.mean, full_matrices=False).Vh[:components])
        along = ((chunks - basis.mean) @ basis.directions.T).abs()
        basis.reach.copy_(along.quantile(REACH_SHARE, dim=0).clamp(min=REACH_FLOOR))
        lost = (basis.decode(basis.encode(chunks)) - chunks).square().sum()
        whole = (chunks - basis.mean).square().sum()
        basis.explained.copy_(1 - lost / whole.clamp(min=REACH_FLOOR))
        return basis

    def encode(self, chunk: Tensor) -> Tensor:
        """Map ``[B, A]`` to the nearest components ``[B, C]``."""
        return (((chunk - self.mean) @ self.directions.T) / self.reach).clamp(-1, 1)

    def decode(self, components: Tensor) -> Tensor:
        """Map ``[B, C]`` to chunks ``[B, A]``."""
        return (self.mean + (components * self.reach) @ self.directions).clamp(-1, 1)
