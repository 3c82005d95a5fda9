"""What both video world models share: sizes of chunks, the measured state, and the checks around ``imagine``.

Shapes legend: ``B`` rows, ``F`` frames per chunk, ``L`` actions, ``A`` numbers of a command, ``S`` measured numbers,
``n`` tokens, ``d`` width.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from worldrl.core.embodiment import AnyEmbodiment, within_workspace
from worldrl.core.errors import ActionError, NonFiniteError
from worldrl.core.observation import STATE, ObservationSpec, further, images_among
from worldrl.core.types import ResetRecord
from worldrl.world_models.video.heads import StateHead


class ChunkSizes(Protocol):
    """The part of a dynamics configuration that says how long a chunk is."""

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


class _Images(Protocol):
    @property
    def image_size(self) -> int: ...


class _Config(Protocol):
    @property
    def dynamics(self) -> ChunkSizes: ...

    @property
    def codec(self) -> _Images: ...

    @property
    def cameras(self) -> list[str]: ...

    @property
    def state(self) -> str: ...


ConfigT = TypeVar("ConfigT", bound=_Config)


class Chunked(Generic[ConfigT]):
    """A world model whose ``config.dynamics`` has the sizes of its chunks."""

    config: ConfigT
    embodiment: AnyEmbodiment
    state_head: StateHead | None
    pose_head: StateHead | None

    @property
    def more(self) -> tuple[str, ...]:
        """What it imagines besides the main image and the command: further images, then the measured state."""
        return further(self.config.cameras, self.config.state)

    @property
    def observation(self) -> ObservationSpec:
        """What a policy observes in it."""
        size, more = self.config.codec.image_size, self.more
        return ObservationSpec.of(self.embodiment.actions, images_among(more), (size, size), state=STATE in more)

    @property
    def chunk_length(self) -> int:
        """Control steps ``L`` per chunk."""
        return self.config.dynamics.chunk_length

    @property
    def memory_frames(self) -> int:
        """Memory frames ``K``."""
        return self.config.dynamics.memory_frames

    @property
    def frame_stride(self) -> int:
        """Control steps per predicted frame."""
        return self.config.dynamics.frame_stride

    @property
    def frame_steps(self) -> tuple[int, ...]:
        """Control step (1..L) that each predicted frame shows."""
        return tuple(range(self.frame_stride, self.chunk_length + 1, self.frame_stride))

    def first_state(self, records: Sequence[ResetRecord], device: torch.device) -> Tensor | None:
        """Measured numbers ``[B, S]`` of start states, where it predicts them; ActionError: a record has none."""
        if self.state_head is None:
            return None
        states = [record.state for record in records if record.state is not None]
        if len(states) < len(records):
            raise ActionError(
                "start: this world model predicts the measured state, and a record has none; give its state"
            )
        return torch.from_numpy(np.stack(states)).to(device)

    def read_state(self, features: Tensor, before: Tensor, commands: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Measured numbers and deviations ``[B, F, S]`` of a chunk, if predicted, with ``commands [B, L, A]``."""
        if self.state_head is None:
            return None, None
        return self.state_head.measure(features, self.frame_commands(before, commands))

    def seen_commands(self, features: Tensor, before: Tensor, commands: Tensor) -> Tensor:
        """Return the commands ``[B, L, A]`` of a chunk, of a measured pose as the imagined frames show it.

        Between frames the difference from the integrated commands grows evenly.
        """
        if self.pose_head is None or not self.pose_head.scaled:  # it was added to weights, and has learned nothing
            return commands
        pose, _ = self.pose_head.measure(features, self.frame_commands(before, commands))
        size, stride = pose.shape[-1], self.frame_stride
        left = pose - commands[:, stride - 1 :: stride, :size]
        earlier = torch.cat([torch.zeros_like(left[:, :1]), left[:, :-1]], dim=1)
        share = torch.arange(1, stride + 1, device=left.device)[:, None] / stride
        between = earlier[:, :, None] + share * (left - earlier)[:, :, None]  # [B, F, s, 6]
        seen = torch.cat([commands[..., :size] + between.flatten(1, 2), commands[..., size:]], dim=-1)
        return within_workspace(self.embodiment, seen)

    def frame_commands(self, before: Tensor, commands: Tensor) -> Tensor:
        """Return each predicted frame's scaled command, and its change since the frame before: ``[B, F, 2A]``."""
        every = torch.cat([before[:, None], commands[:, self.frame_stride - 1 :: self.frame_stride]], dim=1)
        scaled = self.embodiment.scaled_command(every)
        return torch.cat([scaled[:, 1:], scaled.diff(dim=1)], dim=-1)


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
