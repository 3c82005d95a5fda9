"""What of a world model's surface its configuration alone decides: the sizes of a chunk, and what is observed."""

from typing import Generic, Protocol, TypeVar

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.observation import STATE, ObservationSpec, images_among


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


ConfigT = TypeVar("ConfigT", bound=_Config)


class Chunked(Generic[ConfigT]):
    """A world model whose ``config.dynamics`` has the sizes of its chunks."""

    config: ConfigT
    embodiment: AnyEmbodiment

    @property
    def more(self) -> tuple[str, ...]:
        """What it imagines besides the main image, the command and success: nothing."""
        return ()

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
