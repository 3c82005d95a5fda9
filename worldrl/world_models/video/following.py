"""How a world model follows recorded windows: chunk after chunk on its own frames, from the true actions.

Training on a model's own rollouts (``losses``, ``bootstrapping``) and of what judges whole dreams (``outcome_training``) needs
no more of a model than this, and is the same for every one.

Shapes legend: ``B`` rows, ``L`` control steps per chunk, ``n`` tokens, ``d`` width of the features.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

from worldrl.data.windows.batch import WindowBatch


class FollowedState(Protocol):
    """Rows between chunks.

    Attributes:
        memory: what the model keeps of its newest frames ``[B, K, ...]``.
    """

    @property
    def memory(self) -> Tensor:
        """See the class."""
        ...

    @property
    def rows(self) -> int:
        """How many rollouts."""
        ...


StateT = TypeVar("StateT", bound=FollowedState)


class Follower(Protocol[StateT]):
    """A world model that follows recorded windows."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def chunk_length(self) -> int:
        """Control steps ``L`` per chunk."""
        ...

    @property
    def memory_frames(self) -> int:
        """Memory frames ``K``."""
        ...

    @property
    def frame_stride(self) -> int:
        """Control steps per predicted frame."""
        ...

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal noise that one row's chunk is made of."""
        ...

    def window_start(self, batch: WindowBatch) -> StateT:
        """Begin where windows begin, with nothing remembered but their memory, and no instruction."""
        ...

    def follow(
        self, state: StateT, batch: WindowBatch, steps: slice, noise: Tensor, hidden: Tensor | None = None
    ) -> tuple[StateT, Tensor]:
        """Imagine a chunk.

        Args:
            state: just before it.
            batch: the windows, on the model's device.
            steps: the chunk's ``L`` control steps in them.
            noise: ``[B, *noise_shape]``.
            hidden: bool ``[B]``, rows that imagine it from the instruction instead of the true actions, as they will where they
                plan: what drifts then is their context. None hides none.

        Returns:
            The state after the chunk and the features ``[B, n, d]`` for the heads.
        """
        ...


def imagine_chunk(
    model: Follower[StateT],
    state: StateT,
    batch: WindowBatch,
    chunk: int,
    generator: torch.Generator,
    hidden: Tensor | None = None,
) -> tuple[StateT, Tensor]:
    """Imagine a window's ``chunk``-th chunk from its true actions; see :meth:`Follower.follow`."""
    steps = slice(chunk * model.chunk_length, (chunk + 1) * model.chunk_length)
    noise = torch.randn((state.rows, *model.noise_shape), generator=generator, device=model.device)
    return model.follow(state, batch, steps, noise, hidden)
