"""Training windows for the world model, cut out of many episodes.

A window at frame ``t`` of an episode with ``T`` actions (``s`` frame stride, ``K`` memory frames, ``L`` chunk
length, ``U`` chunks; a chunk has ``F = L/s`` model frames)::

    memory      t-(K-1)s ... t-s  t                       before frame 0 the first frame repeats
    frames                          t+s  t+2s ... t+UL    to be predicted; beyond T the last repeats, invalid
    action                        t  t+1 ...  t+UL-1      action t+i leads from frame t+i to t+i+1; beyond T-1: hold
    commands                        t+1  ...      t+UL    commanded pose after each action; with ``robot`` integrated from t

Any frame may be ``t`` as long as frame ``t+s`` exists. Four kinds of window are mixed: the first chunk of an
episode (``t = 0``, memory all reference), an event (the chunk in question covers a keyframe or begins within ``L``
steps after it: a gripper that closes shows what it holds only when it moves on), a static clip, and any frame.

A *static clip* teaches that nothing moves without an action: frame ``t`` repeats as memory and as future, the
action is zero motion **with the gripper's current command**. The null action proper commands an open gripper. With
a closed gripper it means "let go", and a still clip would teach that letting go has no effect. Frames within ``L`` steps after a gripper change are not used: there the fingers still move by themselves.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.observation import IMAGE
from worldrl.core.types import Episode
from worldrl.data.windows.batch import Index, WindowBatch, WindowLayout, gather_windows
from worldrl.data.windows.frame_store import FrameStore, Keep, build_store, copied
from worldrl.data.windows.keyframes import gripper_changes

__all__ = ["WindowBatch", "WindowLayout", "WindowSampler"]

Draw = NDArray[np.float64]


class WindowSampler:
    """Samples windows over episodes, copied into one array of frames, or of what ``keep`` makes of them.

    ``chunk_length`` is ``L``, ``memory_frames`` ``K``, ``frame_stride`` ``s`` and ``unroll`` ``U`` above. What the
    three shares leave starts at any frame; ``event_share`` is 0 where there is no keyframe. SettingError for a share
    outside [0, 1], shares above 1 together, no episode long enough, or a share of something that the episodes do not
    have.
    """

    def __init__(
        self,
        episodes: Sequence[Episode],
        *,
        chunk_length: int = 8,
        memory_frames: int = 4,
        frame_stride: int = 2,
        unroll: int = 1,
        first_chunk_share: float = 0.05,
        static_share: float = 0.05,
        event_share: float = 0.5,
        camera: str | None = None,
        images: Sequence[str] = (IMAGE,),
        robot: AnyEmbodiment | None = None,
        keep: Keep = copied,
    ) -> None:
        shares = {"first_chunk_share": first_chunk_share, "static_share": static_share, "event_share": event_share}
        self.layout = WindowLayout(chunk_length, memory_frames, frame_stride, unroll)
        _check_shares(shares)
        self.store = build_store(episodes, camera, images, robot, keep)
        # Frame t needs frame t+stride, so t is in 0..T-stride; shorter episodes have no window.
        self._last_start = self.store.length - frame_stride
        self._startable = np.flatnonzero(self._last_start >= 0)
        self._starts = _start_rows(self.store, self._last_start)
        self._event = np.flatnonzero(self._last_start[self.store.event_episode] >= 0)
        self._settled = _settled_rows(self.store, chunk_length)
        if not self._event.size:  # a robot without a gripper, or a task without contact: windows start anywhere
            shares["event_share"] = 0.0
        self._bounds = np.cumsum(list(shares.values()))
        self._refuse_empty(shares)

    def sample(self, batch: int, generator: torch.Generator, *, chunk: int = 0) -> WindowBatch:
        """Sample ``batch`` windows; the same generator state (CPU, three numbers per row) gives the same windows.

        Events and any frame are drawn for chunk ``chunk`` in 0..U-1.
        """
        kind, where, offset = torch.rand(batch, 3, generator=generator, dtype=torch.float64).numpy().T
        choice = np.searchsorted(self._bounds, kind, side="right")
        episode, start = np.empty(batch, dtype=np.int64), np.empty(batch, dtype=np.int64)
        for number, pick in enumerate((self._first_chunks, self._static_clips, self._events, self._anywhere)):
            rows = choice == number
            if rows.any():
                episode[rows], start[rows] = pick(where[rows], offset[rows], chunk)
        return gather_windows(self.store, self.layout, episode, start, choice == 1)

    def _first_chunks(self, where: Draw, _offset: Draw, _chunk: int) -> tuple[Index, Index]:
        episode = _pick(self._startable, where)
        return episode, np.zeros_like(episode)

    def _static_clips(self, where: Draw, _offset: Draw, _chunk: int) -> tuple[Index, Index]:
        return _locate(self.store, _pick(self._settled, where))

    def _events(self, where: Draw, offset: Draw, chunk: int) -> tuple[Index, Index]:
        """Choose a keyframe k, then any start t with k-L <= t + chunk·L < k+L, as far as the episode goes."""
        number, length = _pick(self._event, where), self.layout.chunk_length
        episode, step = self.store.event_episode[number], self.store.event_step[number]
        low = np.maximum(step - length - chunk * length, 0)
        high = np.minimum(step + length - 1 - chunk * length, self._last_start[episode])
        return episode, low + (offset * (np.maximum(high - low, 0) + 1)).astype(np.int64)

    def _anywhere(self, where: Draw, _offset: Draw, chunk: int) -> tuple[Index, Index]:
        """Let the chunk in question begin at any frame, as far as the episode goes back."""
        episode, step = _locate(self.store, _pick(self._starts, where))
        return episode, np.maximum(step - chunk * self.layout.chunk_length, 0)

    def _refuse_empty(self, shares: dict[str, float]) -> None:
        if not self._startable.size:
            raise SettingError(
                f"no episode has {self.layout.frame_stride} steps (the longest has {self.store.length.max()}); "
                "record longer episodes or lower frame_stride"
            )
        if shares["static_share"] > 0 and not self._settled.size:
            raise SettingError(
                f"static_share is {shares['static_share']}, but none of the {len(self.store.length)} episodes has such a "
                "frame; record episodes that do, or set static_share=0"
            )


def _check_shares(shares: dict[str, float]) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise SettingError(f"{name} must be in [0, 1], got {share}")
    if (total := sum(shares.values())) > 1 + 1e-9:
        raise SettingError(f"{' + '.join(shares)} must not exceed 1, got {total:g}; lower one of them")


def _pick(choices: Index, where: Draw) -> Index:
    return choices[(where * len(choices)).astype(np.int64)]


def _locate(store: FrameStore, row: Index) -> tuple[Index, Index]:
    episode = np.searchsorted(store.first, row, side="right") - 1
    return episode, row - store.first[episode]


def _start_rows(store: FrameStore, last_start: Index) -> Index:
    episode = np.repeat(np.arange(len(store.first)), store.length + 1)
    row = np.arange(len(store.command))
    return row[row - store.first[episode] <= last_start[episode]]


def _settled_rows(store: FrameStore, settle_steps: int) -> Index:
    """Return the rows at which the gripper has not changed for ``settle_steps`` frames."""
    settled = np.ones(len(store.command), dtype=np.bool_)
    for first, length in zip(store.first, store.length, strict=True):
        for step in gripper_changes(store.command[first : first + length + 1], store.actions):
            settled[first + step : first + min(step + settle_steps, length + 1)] = False
    return np.flatnonzero(settled)
