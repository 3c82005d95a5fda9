"""The shape of a window, a batch of them, and how they are cut out of a store (timeline in ``windows.py``)."""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.embodiment import AnyEmbodiment, integrate_commands
from worldrl.core.errors import SettingError
from worldrl.core.rng import Part
from worldrl.data.windows.frame_store import FrameStore

Index = NDArray[np.int64]


@dataclass(frozen=True)
class WindowLayout:
    """Shape of a window."""

    chunk_length: int = 8  # actions per chunk `L`
    memory_frames: int = 4  # frames of memory `K`
    frame_stride: int = 2  # control steps between model frames `s`; divides `chunk_length`
    unroll: int = 1  # chunks per window `U`

    def __post_init__(self) -> None:
        """Check ranges."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise SettingError(f"{field.name} must be at least 1, got {value}")
        if self.chunk_length % self.frame_stride:
            raise SettingError(
                f"chunk_length {self.chunk_length} is not a multiple of frame_stride {self.frame_stride}; "
                "a chunk must end on a model frame"
            )

    @property
    def steps(self) -> int:
        """Actions per window, ``U·L``."""
        return self.unroll * self.chunk_length


@dataclass(frozen=True)
class WindowBatch:
    """A batch of windows; ``W = U·F`` future frames, ``S = U·L`` actions."""

    reference: Tensor  # uint8 `[B, Y, X, 3]`, the episode's first frame
    memory: Tensor  # uint8 `[B, K, Y, X, 3]`, oldest first; the last one is frame `t`
    # Uint8 `[B, W, Y, X, 3]`, to be predicted. Where the store holds latents `[R, c, h, w]` instead of frames, these
    # three are latents in the same layout, on the latents' device.
    frames: Tensor
    null_action: Tensor  # float32 `[B, A]`, the null action at the episode's beginning
    memory_action: Tensor  # float32 `[B, K·s, A]`, what led to the memory; null before the episode began
    action: Tensor  # float32 `[B, S, A]`, from frame `t` on
    command: Tensor  # float32 `[B, A]` at frame `t`
    starts: Tensor  # float32 `[B, U, A]` before each chunk, from which its actions are integrated
    commands: Tensor  # float32 `[B, S, A]` after each action
    success: Tensor  # bool `[B, W]`, that future frame fulfils the task
    opening: Tensor  # float32 `[B, W, G]`, measured opening of each gripper in that future frame
    state: Tensor  # float32 `[B, W, S]`, measured in that future frame
    recorded: Tensor  # float32 `[B, W, A]`, the recorded command in that future frame
    valid: Tensor  # bool `[B, W]`, that future frame was recorded
    static: Tensor  # bool `[B]`, the row is a static clip
    fulfilled: Tensor  # bool `[B]`, the episode that it is cut out of fulfils the task somewhere
    episode: Tensor  # int64 `[B]`, position of the episode in what was given
    start: Tensor  # int64 `[B]`, the frame `t`
    instruction: list[str]  # `B` instructions
    task: list[str]  # `B` task names
    # Of the whole batch, where these rows are one of its `parts` equal parts; None where they are all.
    whole_success: Tensor | None = None
    whole_valid: Tensor | None = None
    parts: int = 1

    def part(self, part: Part) -> "WindowBatch":
        """Take the rows of a part; the masks of the whole batch stay with it."""
        if part.count == 1:
            return self
        rows, beside = part.rows(len(self.task)), ("whole_success", "whole_valid", "parts")
        own = {field.name: getattr(self, field.name)[rows] for field in fields(self) if field.name not in beside}
        return WindowBatch(**own, whole_success=self.success, whole_valid=self.valid, parts=part.count)

    def masks(self, frames: slice) -> tuple[Tensor, Tensor]:
        """Return success and validity ``[whole B, F]`` of these frames in the whole batch."""
        whole = (self.success, self.valid) if self.whole_valid is None else (self.whole_success, self.whole_valid)
        return whole[0][:, frames], whole[1][:, frames]  # pyright: ignore[reportOptionalSubscript]

    def mean_count(self, frames: slice) -> Tensor:
        """Valid frames of the whole batch among ``frames``, at least one, shared out evenly over its parts."""
        return self.masks(frames)[1].sum().clamp_min(1) / self.parts

    def to(self, device: torch.device | str) -> "WindowBatch":
        """Move the tensors."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)})


def gather_windows(
    store: FrameStore, layout: WindowLayout, episode: Index, start: Index, static: NDArray[np.bool_]
) -> WindowBatch:
    """Cut windows out of a store: frame ``start`` of ``episode`` (int64 ``[B]``), or where ``static`` a still clip."""
    first, last = store.first[episode][:, None], store.length[episode][:, None]
    now = start[:, None]
    moving = np.where(static, 0, 1)[:, None]  # a static clip is a window in which time stands still
    past = np.arange(layout.memory_frames - 1, -1, -1) * layout.frame_stride
    future = np.arange(layout.frame_stride, layout.steps + 1, layout.frame_stride)
    step = np.arange(layout.steps)
    memory_row = first + np.maximum(now - moving * past, 0)
    frame_row = first + np.minimum(now + moving * future, last)
    command, null = store.command[first[:, 0] + start], store.actions.hold(store.command[first[:, 0]])
    before = now + np.arange(-layout.memory_frames * layout.frame_stride, 0)
    taken = np.where(before[..., None] < 0, null[:, None], store.action[first + np.maximum(before, 0)])
    action = store.action[first + np.minimum(now + step, last)]
    taken[static] = action[static] = store.actions.hold(command[static])[:, None]
    commands = torch.from_numpy(store.command[first + np.minimum(now + moving * (step + 1), last)])
    starts = _chunk_starts(torch.from_numpy(command), commands, layout)
    if store.robot is not None:  # as imagination does: where the command is a measured pose, it would show the future
        starts, commands = _imagined_commands(store.robot, starts, torch.from_numpy(action), layout)
    return WindowBatch(
        reference=_take(store.frames, first[:, 0]),
        memory=_take(store.frames, memory_row),
        frames=_take(store.frames, frame_row),
        null_action=torch.from_numpy(null),
        memory_action=torch.from_numpy(taken),
        action=torch.from_numpy(action),
        command=torch.from_numpy(command),
        starts=starts,
        commands=commands,
        success=torch.from_numpy(store.success[frame_row]),
        opening=torch.from_numpy(store.opening[frame_row]),
        state=torch.from_numpy(store.state[frame_row]),
        recorded=torch.from_numpy(store.command[frame_row]),
        valid=torch.from_numpy(now + moving * future <= last),
        static=torch.from_numpy(static),
        fulfilled=torch.from_numpy(store.fulfilled[episode]),
        episode=torch.from_numpy(episode),
        start=torch.from_numpy(start),
        instruction=[store.instruction[e] for e in episode],
        task=[store.task[e] for e in episode],
    )


def _chunk_starts(command: Tensor, commands: Tensor, layout: WindowLayout) -> Tensor:
    ends = commands[:, layout.chunk_length - 1 : -1 : layout.chunk_length]
    return torch.cat([command[:, None], ends], dim=1)


def _imagined_commands(
    robot: AnyEmbodiment, recorded: Tensor, action: Tensor, layout: WindowLayout
) -> tuple[Tensor, Tensor]:
    """Integrate a window's actions; a measured pose is known again at the end of every chunk, as in imagination."""
    if not robot.measured_pose:
        commands = integrate_commands(robot, recorded[:, 0], action)
        return _chunk_starts(recorded[:, 0], commands, layout), commands
    chunks = zip(recorded.unbind(dim=1), action.split(layout.chunk_length, dim=1), strict=True)
    return recorded, torch.cat([integrate_commands(robot, start, chunk) for start, chunk in chunks], dim=1)


def _take(frames: NDArray[np.uint8] | Tensor, rows: Index) -> Tensor:
    if isinstance(frames, Tensor):
        return frames[torch.from_numpy(rows).to(frames.device)]
    return torch.from_numpy(np.take(frames, rows, axis=0))


def actions_before(
    action: NDArray[np.float32], null: NDArray[np.float32], step: int, count: int
) -> NDArray[np.float32]:
    """Return the last ``count`` actions of ``[T, A]`` before frame ``step``; before the start there are ``null`` ``[A]``."""
    return np.concatenate([np.tile(null, (count, 1)), action[:step]])[-count:]
