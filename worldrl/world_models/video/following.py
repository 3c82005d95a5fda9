"""How a world model is rolled forward, chunk after chunk on its own frames: on actions, or along recorded windows.

Shapes legend: ``B`` rows, ``V`` views, ``K`` memory frames, ``L`` control steps per chunk, ``A`` numbers of a
command, ``S`` measured numbers, ``n`` tokens, ``d`` width of the features, ``c h w`` latent.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.rng import draw
from worldrl.core.types import Imagined
from worldrl.data.windows.batch import WindowBatch


class FollowedState(Protocol):
    """Rows between chunks."""

    @property
    def memory(self) -> Tensor:
        """The newest frames in the model's own form ``[B, K, ...]``."""
        ...

    @property
    def rows(self) -> int:
        """Number of rollouts."""
        ...


@dataclass(frozen=True)
class RowState:
    """Rows of a world model between chunks: tensors whose first axis are the rows."""

    reference: Tensor

    @property
    def rows(self) -> int:
        """Number of rollouts."""
        return self.reference.shape[0]

    def select(self, index: Tensor) -> Self:
        """Keep the rows of ``index``."""
        index = index.to(self.reference.device)
        return type(self)(**{name: value[index] for name, value in self.state_dict().items()})

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that restore the state exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class VideoState(RowState):
    """Rows of a video world model; ``reference`` is the latent of each row's first frame ``[B, c, h, w]``."""

    memory: Tensor  # newest latents ``[B, K, c, h, w]``.
    command: Tensor  # last command ``[B, A]``.
    instruction: Tensor  # embedded instructions ``[B, d]``.
    belief: Tensor  # recurrent state of the outcome ensemble ``[B, J b]``.
    first: Tensor  # uint8 ``[B, V Y, X, 3]``, each row's first sheet.
    measured: Tensor | None = None  # newest measured numbers ``[B, S]``; None where the model does not predict them.


def latent_start(batch: WindowBatch) -> VideoState:
    """Begin where windows of latents begin, without instruction, belief and image."""
    reference, memory = batch.reference.float(), batch.memory.float()
    nothing = reference.new_zeros(len(reference), 0)
    return VideoState(reference, memory, batch.command, nothing, nothing, nothing)


StateT = TypeVar("StateT", bound=FollowedState)


class Follower(Protocol[StateT]):
    """A world model that follows recorded windows."""

    embodiment: AnyEmbodiment  # of the robot that it imagines

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
    def more(self) -> tuple[str, ...]:
        """What it imagines besides the main image and the command."""
        ...

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal noise of one row's chunk."""
        ...

    def window_start(self, batch: WindowBatch) -> StateT:
        """Begin where windows begin, with their memory frames only, and no instruction."""
        ...

    def follow(
        self, state: StateT, batch: WindowBatch, steps: slice, noise: Tensor, hidden: Tensor | None = None
    ) -> tuple[StateT, Tensor]:
        """Imagine the chunk of control steps ``steps``; the state after it and the heads' features ``[B, n, d]``.

        ``noise`` is ``[B, *noise_shape]``. Rows of ``hidden``, bool ``[B]``, use the instruction instead of the true
        actions.
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
    noise = draw(torch.randn, (state.rows, *model.noise_shape), generator, device=model.device)
    return model.follow(state, batch, steps, noise, hidden)


def follow_window(
    model: Follower[StateT],
    state: StateT,
    batch: WindowBatch,
    chunks: int,
    generator: torch.Generator,
    hidden: Tensor | None = None,
) -> Iterator[tuple[StateT, Tensor]]:
    """Imagine a window's first ``chunks`` chunks from its true actions; yield state and features after each."""
    for chunk in range(chunks):
        state, features = imagine_chunk(model, state, batch, chunk, generator, hidden)
        yield state, features


def roll_forward(
    model: Any,
    state: Any,
    chunks: int,
    act: Callable[[int, Any], Tensor | None],
    noise: Callable[[int], Sequence[torch.Generator]],
) -> Iterator[tuple[Any, Imagined]]:
    """Imagine ``chunks`` chunks of a :class:`~worldrl.core.interfaces.WorldModel`; yield state and chunk after each.

    ``act`` maps a chunk's number and the state to actions ``[B, L, A]`` (None plans); ``noise`` gives a generator per
    row.
    """
    for chunk in range(chunks):
        state, imagined = model.imagine(state, act(chunk, state), generators=noise(chunk))
        yield state, imagined


def given_actions(action: Tensor, chunk_length: int) -> Callable[[int, Any], Tensor]:
    """Return the ``act`` of :func:`roll_forward` for actions ``[B, K L, A]`` that are known beforehand."""
    chunks = action.split(chunk_length, dim=1)
    return lambda chunk, _: chunks[chunk].contiguous()
