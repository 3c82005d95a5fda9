"""All frames of many episodes in one array, so that a batch of windows is one gather.

A row is a frame. Episode ``e`` holds rows ``first[e]`` to ``first[e] + length[e]``; the row of the last frame,
which has no action, carries the null action that holds the last command.

Shapes legend: ``R`` rows, ``E`` episodes, ``A`` numbers of an action and of a command, ``G`` grippers.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.observation import IMAGE
from worldrl.core.types import Episode
from worldrl.data.windows.keyframes import keyframes

AT_ONCE = 64
"""Episodes decoded at once."""

Keep = Callable[[Iterator[NDArray[np.uint8]], int], NDArray[np.uint8] | Tensor]
"""Makes the ``R`` frames of a store of each episode's ``[T+1, Y, X, 3]``."""


def copied(views: Iterator[NDArray[np.uint8]], rows: int) -> NDArray[np.uint8]:
    """Copy the frames as they are, uint8 ``[R, Y, X, 3]``."""
    frames, first = np.empty(0, np.uint8), 0
    for view in views:
        if not first:
            frames = np.empty((rows, *view.shape[1:]), np.uint8)
        frames[first : first + len(view)] = view
        first += len(view)
    return frames


def in_blocks(views: Iterable[NDArray[np.uint8]], size: int) -> Iterator[NDArray[np.uint8]]:
    """Join frames to blocks of ``size``; the last may be smaller."""
    held, count = list[NDArray[np.uint8]](), 0
    for view in views:
        first = 0
        while first < len(view):
            part = view[first : first + size - count]
            held.append(part)
            first, count = first + len(part), count + len(part)
            if count == size:
                yield np.concatenate(held)
                held, count = [], 0
    if held:
        yield np.concatenate(held)


@dataclass(frozen=True)
class FrameStore:
    """Concatenated episodes of one robot."""

    actions: ActionSpec  # what the numbers of `action` and `command` are
    # Uint8 `[R, Y, X, 3]` of one camera, or a sheet of several, or what a codec made of them: a tensor `[R, c, h, w]`.
    frames: NDArray[np.uint8] | Tensor
    action: NDArray[np.float32]  # float32 `[R, A]`, taken at this frame
    command: NDArray[np.float32]  # float32 `[R, A]` at this frame
    success: NDArray[np.bool_]  # bool `[R]`, this frame fulfils the task
    opening: NDArray[np.float32]  # float32 `[R, G]`, measured opening of each gripper
    state: NDArray[np.float32]  # float32 `[R, S]`, measured
    first: NDArray[np.int64]  # int64 `[E]`, the row of each episode's frame 0
    length: NDArray[np.int64]  # int64 `[E]`, each episode's number of actions `T`
    event_episode: NDArray[np.int64]  # int64 `[events]`, the episode of each keyframe
    event_step: NDArray[np.int64]  # int64 `[events]`, its frame in that episode
    fulfilled: NDArray[np.bool_]  # bool `[E]`, some frame of the episode fulfils the task
    instruction: tuple[str, ...]  # `E` instructions
    task: tuple[str, ...]  # `E` task names
    robot: AnyEmbodiment | None = None  # integrates a window's actions into its commands; None takes recorded ones


def build_store(
    episodes: Sequence[Episode],
    camera: str | None = None,
    images: Sequence[str] = (IMAGE,),
    robot: AnyEmbodiment | None = None,
    keep: Keep = copied,
) -> FrameStore:
    """Copy episodes into one store; those that are not loaded are decoded here, and the store is the only copy.

    ``camera`` None keeps ``images``, the names of a frame's views (the main one by default). ``keep`` makes the store's
    frames of the episodes', one after another. SettingError without episodes; ArtefactError where one lacks the
    camera, is of another robot, or its frames have another size.
    """
    if not len(episodes):
        raise SettingError("windows need at least one episode, got none")
    length = np.array(lengths_of(episodes), dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(length + 1)[:-1]]).astype(np.int64)
    one = episodes[0]
    shapes: dict[str, tuple[int, ...]] = {
        "action": (one.actions.size,),
        "command": (one.actions.size,),
        "success": (),
        "opening": (len(one.actions.grippers),),
        "state": (one.state.shape[1],),
    }
    rows, kinds = int((length + 1).sum()), {"success": np.bool_}
    arrays: dict[str, NDArray[Any]] = {
        name: np.zeros((rows, *shape), kinds.get(name, np.float32)) for name, shape in shapes.items()
    }
    fill = partial(_fill, arrays, camera=camera, images=images, size=one.frames.shape[2:4], actions=one.actions)
    filled = list[tuple[str, str, list[int]]]()
    frames = keep(_views(lambda e: fill(int(first[e]), episodes[e], number=e), len(episodes), filled), rows)
    events = [(number, step) for number, (_, _, steps) in enumerate(filled) for step in steps]
    event = np.array(events, dtype=np.int64).reshape(-1, 2)
    instruction, task, _ = zip(*filled, strict=True)
    return FrameStore(
        one.actions,
        frames,
        **arrays,
        first=first,
        length=length,
        event_episode=event[:, 0],
        event_step=event[:, 1],
        fulfilled=np.logical_or.reduceat(arrays["success"], first),
        instruction=instruction,
        task=task,
        robot=robot,
    )


def _views(
    fill: Callable[[int], tuple[NDArray[np.uint8], tuple[str, str, list[int]]]],
    count: int,
    filled: list[tuple[str, str, list[int]]],
) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames of each episode, :data:`AT_ONCE` of which are decoded side by side; ``filled`` takes the rest."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for begin in range(0, count, AT_ONCE):
            for view, facts in pool.map(fill, range(begin, min(begin + AT_ONCE, count))):
                filled.append(facts)
                yield view


def _fill(
    arrays: dict[str, NDArray[Any]],
    first: int,
    episode: Episode,
    *,
    camera: str | None,
    images: Sequence[str],
    size: tuple[int, ...],
    actions: ActionSpec,
    number: int,
) -> tuple[NDArray[np.uint8], tuple[str, str, list[int]]]:
    """Copy one episode's numbers to its rows; return its frames, and its instruction, task and keyframe steps."""
    rows = {name: array[first : first + len(episode) + 1] for name, array in arrays.items()}
    if episode.frames.shape[2:4] != size:
        raise ArtefactError(f"episode {number}: frames {episode.frames.shape}, the first episode's size is {size}")
    require_robot(episode, number, actions)
    rows["command"][:] = episode.command
    rows["action"][:-1], rows["action"][-1] = episode.action, actions.hold(episode.command[-1])
    rows["success"][1:] = episode.reward > 0
    rows["opening"][:], rows["state"][:] = episode.opening, episode.state
    facts = (episode.instruction, episode.task, sorted({key.step for key in keyframes(episode)}))
    return _camera_view(episode, camera, images), facts


def require_robot(episode: Episode, number: int, actions: ActionSpec) -> None:
    """Refuse an episode of another robot than the first one's (ArtefactError)."""
    if episode.actions != actions:
        raise ArtefactError(
            f"episode {number} ({episode.task}): actions are {', '.join(episode.actions.names)}, the first episode's "
            f"{', '.join(actions.names)}; policies and world models are of one robot, so train on one robot's tasks"
        )


def _camera_view(episode: Episode, camera: str | None, images: Sequence[str]) -> NDArray[np.uint8]:
    return episode.sheet(images) if camera is None else episode.view(camera)


def lengths_of(episodes: Sequence[Episode]) -> list[int]:
    """Return each episode's number of actions, without decoding a dataset's images."""
    from worldrl.data.lerobot.dataset import EpisodeDataset

    if isinstance(episodes, EpisodeDataset):
        return [record.length for record in episodes.records]
    return [len(episode) for episode in episodes]
