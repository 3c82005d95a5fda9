"""Plans as motions: targets that inverse dynamics reads from planned frames are executed in the simulator, open loop.

EVA's test of a video model: a motion that the robot can perform succeeds, one that jumps or leaves its limits does not.
Two frames are ``s`` control steps apart; targets in between are interpolated and clipped to the robot's range.

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
from worldrl.rollout.imagined.starts import EmbeddedBackend
from worldrl.rollout.real.specs import spec_of


def check_targets(columns: Sequence[Column], actions: ActionSpec) -> None:
    """Refuse an inverse dynamics whose readings cannot be executed as they are.

    Raises SettingError (it does not read the whole command in order, or the robot does not take targets).
    """
    read = [(column.vector, column.index) for column in columns]
    if not actions.absolute or read != [("command", place) for place in range(actions.size)]:
        raise SettingError(
            "idm: plans are executed as absolute targets, so it must read the whole command of a robot that takes targets "
            f"(train-idm target=[command]); it reads {', '.join(column.label for column in columns)}"
        )


def joint_path(command: Tensor, read: Tensor, stride: int, actions: ActionSpec) -> NDArray[np.float32]:
    """Interpolate targets ``[N, T, A]`` between frames, from the command ``[N, A]`` at the first frame.

    Returns float32 ``[N, T s, A]``: step ``k s`` is the reading of frame ``k``.
    """
    points = torch.cat([command[:, None], read], dim=1)
    share = torch.arange(1, stride + 1, dtype=points.dtype) / stride
    way = points[:, :-1, None] + share[:, None] * points.diff(dim=1)[:, :, None]  # [N, T, s, A]
    return np.clip(way.flatten(1, 2).numpy().astype(np.float32), *actions.bounds)


def execute_targets(
    read: Tensor,
    command: Tensor,
    stride: int,
    task: str,
    starts: Sequence[tuple[int, int]],
    actions: ActionSpec,
    domain: str = "clean",
) -> NDArray[np.int64]:
    """Execute targets ``[N, T, A]`` of imagined frames from their initial states; a plan holds its last one.

    ``command`` is that of the initial states ``[N, A]``, ``starts`` their ``(index, seed)`` in the domain. Returns
    int64 ``[N]``: control step after which the task was first fulfilled within its horizon, else -1.
    """
    path = joint_path(command, read, stride, actions)
    backend = EmbeddedBackend(domain)
    rest = max(backend.horizons([task])[task] - path.shape[1], 0)
    whole = np.concatenate([path, np.repeat(actions.hold(path[:, -1:]), rest, axis=1)], axis=1)
    return backend.replay(task, starts, list(whole))


def execute_recorded(episodes: Sequence[Episode], stride: int, read: Callable[[Episode], Tensor]) -> NDArray[np.bool_]:
    """Execute recorded episodes of the embedded suite again, by the targets of every ``stride``-th frame.

    ``read`` returns the targets ``[T, A]`` at the frames after an episode's first: :func:`decoded`, :func:`commanded`.
    Returns bool ``[E]``: the task was fulfilled within its horizon.
    """
    found = []
    for episode in episodes:
        spec, command = spec_of(episode.meta), torch.from_numpy(episode.command[:1])
        start, domain = (spec.index, spec.seed), episode.meta.get("domain", "clean")
        target = read(episode)[None]
        found.append(execute_targets(target, command, stride, episode.task, [start], episode.actions, domain))
    return np.concatenate(found) >= 0


def decoded(idm: InverseDynamics, camera: str, episode: Episode, restore: Restore | None = None) -> Tensor:
    """Targets read from a camera's images, recorded or restored by a codec, float32 ``[T, A]``: what decoding loses."""
    frames = torch.from_numpy(episode.view(camera)[:: idm.frame_stride].copy())
    return idm.decode(as_shown(frames, restore)[None]).mean[0, 1:].float().cpu()


def commanded(stride: int, episode: Episode) -> Tensor:
    """The command at every ``stride``-th frame, float32 ``[T, A]``: the loss between frames."""
    return torch.from_numpy(episode.command[::stride].copy())[1:]
