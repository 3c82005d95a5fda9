"""Start states of imagined rollouts: initial states of the simulator and keyframes of recorded episodes.

Keyframe-initialised rollouts (WoVR) begin just before the critical part, so the model need not imagine the way there;
their horizon is shorter by the steps already spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from worldrl.core.errors import SettingError
from worldrl.core.observation import STATE, images_among
from worldrl.core.types import Episode, ResetRecord
from worldrl.data.windows.batch import actions_before
from worldrl.data.windows.divergence import first_closing, partings
from worldrl.data.windows.keyframes import Keyframe, keyframes


def record_at(
    episode: Episode, step: int, *, memory_frames: int, frame_stride: int, source: str, more: Sequence[str] = ()
) -> ResetRecord:
    """Make the record of frame ``step``; the first frame stands for those before the start.

    ``more`` names what is observed besides the main camera, command and instruction.
    """
    index = np.maximum(step - frame_stride * np.arange(memory_frames)[::-1], 0)
    images = images_among(more)
    return ResetRecord(
        reference=episode.sheet(images, slice(1))[0],
        memory=episode.sheet(images, index),
        command=episode.command[step],
        instruction=episode.instruction,
        task=episode.task,
        step=step,
        source=source,
        memory_action=actions_before(episode.action, episode.null_action, step, memory_frames * frame_stride),
        reference_command=episode.command[0],
        state=episode.state[step] if STATE in more else None,
        memory_command=episode.command[index],
        memory_state=episode.state[index] if STATE in more else None,
    )


def initial_record(
    image: np.ndarray,
    command: np.ndarray,
    *,
    instruction: str,
    task: str,
    memory_frames: int,
    source: str,
    state: np.ndarray | None = None,
) -> ResetRecord:
    """Make the record of an initial state from one rendered frame (uint8 ``[Y, X, 3]``, or a sheet) and its measured state."""
    return ResetRecord(
        reference=image,
        memory=np.repeat(image[None], memory_frames, axis=0),
        command=np.asarray(command, dtype=np.float32),
        instruction=instruction,
        task=task,
        step=0,
        source=source,
        state=None if state is None else np.asarray(state, dtype=np.float32),
    )


def keyframe_records(
    episodes: Sequence[Episode], *, margin: int, memory_frames: int, frame_stride: int, more: Sequence[str] = ()
) -> list[ResetRecord]:
    """Make one record per start of :func:`keyframe_starts`, ``margin`` control steps before its keyframe."""
    layout = {"memory_frames": memory_frames, "frame_stride": frame_stride, "more": more}
    return [
        record_at(episodes[number], step, source=f"episode {number}, {what}", **layout)
        for number, step, what in keyframe_starts(episodes, margin=margin)
    ]


def keyframe_starts(episodes: Sequence[Episode], *, margin: int) -> list[tuple[int, int, str]]:
    """Find starts near keyframes, as episode, frame and description.

    A start is ``margin`` steps before its keyframe, within its episode and before its success. The divergence step of
    success and failure of a task counts as a keyframe.
    """
    starts, offsets = [], partings(episodes)
    for number, episode in enumerate(episodes):
        end = episode.first_success or len(episode)
        for keyframe in [*keyframes(episode), *_divergence_step(episode, offsets)]:
            step = keyframe.step - margin
            if 0 < step < end:
                starts.append((number, step, f"{margin} steps before {keyframe.kind} at {keyframe.step}"))
    return starts


def _divergence_step(episode: Episode, offsets: Mapping[str, int]) -> list[Keyframe]:
    closing = first_closing(episode)
    if closing is None or episode.task not in offsets:
        return []
    return [Keyframe(closing + offsets[episode.task], "parting")]


class ResetStore:
    """Draws start states, balanced over tasks. A state's number in ``records`` is its id.

    ``records`` are the initial states (at least one), then the keyframes; ``task`` and ``keyframe`` describe each.
    ``tasks`` are sorted.
    """

    def __init__(self, initial: Sequence[ResetRecord], keyframe: Sequence[ResetRecord] = ()):
        if not initial:
            raise SettingError("a reset store needs at least one initial state, got none")
        self.tasks = sorted({record.task for record in initial})
        kinds = ((initial, False), (keyframe, True))
        stored = [(r, begun) for kind, begun in kinds for task in self.tasks for r in kind if r.task == task]
        self.records = [record for record, _ in stored]
        self.task = tuple(record.task for record in self.records)
        self.keyframe = tuple(begun for _, begun in stored)

    def __len__(self) -> int:
        return len(self.records)

    def sample(self, n_groups: int, p_keyframe: float, *, generator: torch.Generator) -> list[ResetRecord]:
        """Draw one start state per group with :func:`balanced_starts`."""
        drawn = balanced_starts(self.task, self.keyframe, n_groups, p_keyframe, generator=generator)
        return [self.records[number] for number in drawn]


def balanced_starts(
    task: Sequence[str], keyframe: Sequence[bool], count: int, p_keyframe: float, *, generator: torch.Generator
) -> list[int]:
    """Draw the numbers of ``count`` start states; tasks take turns from a random start.

    ``keyframe`` marks starts within an episode, drawn with probability ``p_keyframe`` where the task has any; every
    task has a start that is none. ``generator`` is on the CPU.
    """
    tasks, among = sorted(set(task)), dict[tuple[str, bool], list[int]]()
    for number, kind in enumerate(zip(task, keyframe, strict=True)):
        among.setdefault(kind, []).append(number)
    offset, drawn = int(torch.randint(len(tasks), (), generator=generator)), list[int]()
    for n in range(count):
        name = tasks[(offset + n) % len(tasks)]
        wanted = float(torch.rand((), generator=generator)) < p_keyframe
        numbers = among[name, wanted and (name, True) in among]
        drawn.append(numbers[int(torch.randint(len(numbers), (), generator=generator))])
    return drawn
