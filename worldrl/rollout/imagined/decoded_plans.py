"""Planned videos become motions: what inverse dynamics reads off the frames is executed in the simulator, open loop.

EVA's test of a video model: a motion that the robot can perform succeeds, one that jumps or leaves its limits does not.
Between two frames lie ``s`` control steps; the targets in between are interpolated, and clipped to the robot's range.

Shapes legend: ``N`` plans, ``T`` imagined frames, ``s`` control steps per frame, ``A`` numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.core.types import Episode
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.readout import Column
from worldrl.rewards.motion.training import Restore, as_shown
from worldrl.rollout.imagined.starts import replay_in_simulator, task_horizons
from worldrl.rollout.real.specs import spec_of


def check_targets(columns: Sequence[Column], actions: ActionSpec) -> None:
    """Refuse an inverse dynamics whose readings cannot be executed as they are.

    Raises:
        SettingError: it does not read the whole command in order, or the robot does not take targets.
    """
    read = [(column.vector, column.index) for column in columns]
    if not actions.absolute or read != [("command", place) for place in range(actions.size)]:
        raise SettingError(
            "idm: plans are executed as absolute targets, so it must read the whole command of a robot that takes targets "
            f"(train-idm target=[command]); it reads {', '.join(column.label for column in columns)}"
        )


def joint_path(told: Tensor, read: Tensor, stride: int, actions: ActionSpec) -> NDArray[np.float32]:
    """Interpolate what was read between frames, from the command that holds at the first frame.

    Args:
        told: the command before the plan ``[N, A]``.
        read: targets read off each imagined frame ``[N, T, A]``.
        stride: control steps per frame.
        actions: whose range the targets are clipped to.

    Returns:
        float32 ``[N, T s, A]``: step ``k s`` is the reading of frame ``k``, those between lie evenly on the way.
    """
    points = torch.cat([told[:, None], read], dim=1)
    share = torch.arange(1, stride + 1, dtype=points.dtype) / stride
    way = points[:, :-1, None] + share[:, None] * points.diff(dim=1)[:, :, None]  # [N, T, s, A]
    return np.clip(way.flatten(1, 2).numpy().astype(np.float32), *actions.bounds)


def execute_targets(
    read: Tensor,
    told: Tensor,
    stride: int,
    task: str,
    starts: Sequence[tuple[int, int]],
    actions: ActionSpec,
    domain: str = "clean",
) -> NDArray[np.int64]:
    """Execute targets from their initial states; after the last one a plan holds it.

    Args:
        read: targets read off each imagined frame ``[N, T, A]`` (:func:`check_targets`).
        told: the command at the initial states ``[N, A]``.
        stride: control steps between the targets.
        task: of all of them.
        starts: ``(index, seed)`` of each.
        actions: of the robot.
        domain: in which the initial states lie.

    Returns:
        int64 ``[N]``: control step after which the task was first fulfilled within its horizon, -1 where it never was.
    """
    path = joint_path(told, read, stride, actions)
    rest = max(task_horizons([task])[task] - path.shape[1], 0)
    whole = np.concatenate([path, np.repeat(actions.hold(path[:, -1:]), rest, axis=1)], axis=1)
    return replay_in_simulator(task, starts, list(whole), domain=domain)


def execute_recorded(episodes: Sequence[Episode], stride: int, read: Callable[[Episode], Tensor]) -> NDArray[np.bool_]:
    """Execute recorded episodes again, from their initial states, by what is known of every ``stride``-th frame.

    Args:
        episodes: made by ``collect`` in the embedded suite.
        stride: control steps between the frames.
        read: the targets ``[T, A]`` at the frames of an episode after its first: :func:`decoded`, :func:`commanded`.

    Returns:
        bool ``[E]``: the task was fulfilled within its horizon.
    """
    found = []
    for episode in episodes:
        spec, told = spec_of(episode.meta), torch.from_numpy(episode.command[:1])
        start, domain = (spec.index, spec.seed), episode.meta.get("domain", "clean")
        target = read(episode)[None]
        found.append(execute_targets(target, told, stride, episode.task, [start], episode.actions, domain))
    return np.concatenate(found) >= 0


def decoded(idm: InverseDynamics, camera: str, episode: Episode, restore: Restore | None = None) -> Tensor:
    """What a camera's pictures show, as recorded or restored by a codec: how much decoding loses, float32 ``[T, A]``."""
    frames = torch.from_numpy(episode.view(camera)[:: idm.frame_stride].copy())
    return idm.decode(as_shown(frames, restore)[None]).mean[0, 1:].float().cpu()


def commanded(stride: int, episode: Episode) -> Tensor:
    """What was commanded at every ``stride``-th frame: how much is lost between the frames, float32 ``[T, A]``."""
    return torch.from_numpy(episode.command[::stride].copy())[1:]
