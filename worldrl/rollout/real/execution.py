"""Recorded episodes executed again in the simulator, and beyond their recorded end.

A world model may be asked for more frames than a recording has. Holding still until then would test nothing, and free
motion would leave the world model's training data. After its recorded actions an episode therefore holds still for
``HOLD_STEPS``, retraces its own commanded path to its beginning (which puts a lifted object down, opens the gripper and
leaves), executes the recorded actions of another episode of its task, and so on. All commanded poses are those of
recorded episodes; only letting go of a held object is missing in recordings of a picking task.

One arm only: the way back is that of a tool, and the points are the tool's and the objects'.

Every frame comes from the simulator, with positions that no camera shows. A recording holds its start, ``(task, index,
seed)`` or a stored state, and the simulator is deterministic.

Shapes legend: ``T`` control steps, ``P`` points (gripper, free objects, drawer), ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.embodiment import Embodiment, integrate_commands, quaternion_from_rotvec, quaternion_product
from worldrl.core.embodiment import rotvec_from_quaternion as rotvec
from worldrl.core.observation import IMAGE
from worldrl.core.types import Episode
from worldrl.rollout.camera import Camera, scene_camera
from worldrl.rollout.real.embedded import embedded_cameras
from worldrl.rollout.real.rows import Recording
from worldrl.rollout.real.slots import EnvSlot
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec, spec_of

HOLD_STEPS = 8
"""Control steps of holding still after the recorded actions, so that a lift in motion ends."""
CONTINUATIONS = ("retrace", "hold")
GRIPPER = "gripper"
DRAWER = "drawer"
AGREEMENT = 1e-3
"""Largest difference (m, rad) between recorded and repeated proprioception of the same episode."""


@dataclass(frozen=True)
class Script:
    """What repeats an episode: its initial state and its actions, without its frames.

    ``action`` is float32 ``[T, 7]``; ``command`` float32 ``[T+1, 7]`` the commanded pose at each frame; ``state``
    float32 ``[T+1, 8]`` the recorded proprioception.
    """

    spec: EpisodeSpec
    action: NDArray[np.float32]
    command: NDArray[np.float32]
    state: NDArray[np.float32]

    @classmethod
    def of(cls, episode: Episode) -> Script:
        """Take what repeats ``episode``; ArtefactError where its initial state is unknown."""
        spec = replace(spec_of(episode.meta), instruction=episode.instruction)
        return cls(spec, episode.action, episode.command, episode.state)

    def __len__(self) -> int:
        """Return the number of recorded actions."""
        return len(self.action)


@dataclass(frozen=True)
class TrueRun:
    """An episode as the simulator executed it.

    ``episode`` has frames of the scene camera, actions and rewards; its first ``recorded`` actions were recorded.
    ``point`` float32 ``[T+1, P, 3]`` holds positions in the world (m) of the points ``names``, the gripper first.
    ``repeated`` is whether the recorded part went as recorded.
    """

    episode: Episode
    recorded: int
    point: NDArray[np.float32]
    names: tuple[str, ...]
    camera: Camera
    repeated: bool

    def succeeds_within(self, steps: int) -> bool:
        """Whether the task is fulfilled at one of the first ``steps`` frames after the initial one."""
        return bool((self.episode.reward[:steps] > 0).any())


def still(gripper: float, steps: int = HOLD_STEPS) -> NDArray[np.float32]:
    """Return actions ``[steps, 7]`` that hold the commanded pose and the gripper command."""
    action = np.zeros((steps, TOOL_ACTIONS.size), np.float32)
    action[:, TOOL_ACTIONS.grippers] = gripper
    return action


def return_to_start(embodiment: Embodiment, command: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return actions float32 ``[T, 7]`` in [-1, 1] back along commanded poses ``[T+1, 7]``.

    From ``command[-1]`` they pass every pose in reverse and end at ``command[0]``.
    """
    path = torch.from_numpy(command).double().flip(0)
    here, there = path[:-1], path[1:]
    inverse = quaternion_from_rotvec(-here[:, 3:6])
    turn = rotvec(quaternion_product(quaternion_from_rotvec(there[:, 3:6]), inverse))
    move = (there[:, :3] - here[:, :3]) / embodiment.position_scale
    action = torch.cat([move, turn / embodiment.rotation_scale, there[:, 6:]], dim=1)
    return action.clamp(-1, 1).float().numpy()


def continued(
    script: Script,
    others: Sequence[Script],
    steps: int,
    *,
    continuation: str,
    embodiment: Embodiment,
    generator: np.random.Generator,
) -> NDArray[np.float32]:
    """Return ``steps`` actions float32 ``[steps, 7]`` in [-1, 1]: the recorded ones and what follows them.

    With the continuation ``"retrace"`` (see the module) the actions of ``others``, episodes of the same task, are drawn
    one after the other once the arm is back. ``"hold"`` holds still to the end. Fewer steps than recorded cut the
    recording.
    """
    if continuation == "hold":
        rest = still(script.action[-1, 6], max(steps - len(script), 0))
        return np.concatenate([script.action, rest])[:steps]
    legs: list[NDArray[np.float32]] = []
    length, start, action = 0, script.command[0], script.action
    while True:
        there = np.concatenate([action, still(action[-1, 6])])
        path = _path(embodiment, start, there)
        legs += [there, return_to_start(embodiment, path)]
        length += 2 * len(there)
        if length >= steps:
            return np.concatenate(legs)[:steps]
        action = others[int(generator.integers(len(others)))].action


def _path(embodiment: Embodiment, start: NDArray[np.float32], action: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the commanded poses ``[T+1, 7]`` of actions."""
    first = torch.from_numpy(start)[None]
    after = integrate_commands(embodiment, first, torch.from_numpy(action)[None])
    return torch.cat([first, after[0]]).numpy()


def true_runs(
    scripts: Sequence[Script],
    actions: Sequence[NDArray[np.float32]],
    *,
    image_size: int,
    images: Sequence[str] = (IMAGE,),
) -> Iterator[TrueRun]:
    """Execute actions float32 ``[T_i, 7]`` from each script's initial state, whatever the task's outcome.

    ``images`` names the cameras' images. Neighbours of one task share a simulator. Yields one run per script, with the frame after every action.
    """
    limits = {script.spec.task: max(map(len, actions)) for script in scripts}
    options = EnvOptions(image_size=image_size, cameras=embedded_cameras(limits, images), max_steps=limits)
    with closing(EnvSlot(options)) as slot:
        for script, action in zip(scripts, actions, strict=True):
            yield _execute(slot, options, script, action)


def _execute(slot: EnvSlot, options: EnvOptions, script: Script, action: NDArray[np.float32]) -> TrueRun:
    obs = slot.reset(script.spec)
    recording = Recording(script.spec, cameras=options.cameras, keep=True, hold_steps=len(action))
    recording.observe(obs)
    names = point_names(script.spec.task)
    points = [points_in(names, obs)]
    for step in action:
        obs = slot.step(step)
        recording.step(step, obs)
        points.append(points_in(names, obs))
    episode = recording.episode(obs["instruction"])
    return TrueRun(episode, len(script), np.stack(points), names, scene_camera(slot.env), _repeated(script, episode))


def point_names(task: str) -> tuple[str, ...]:
    """Name what moves in a task: the gripper, the free objects, and a drawer."""
    from worldrl_envs.tasks import get_task

    spec = get_task(task)
    return (GRIPPER, *spec.objects, *((DRAWER,) if "cabinet" in spec.fixtures else ()))


def points_in(names: Sequence[str], obs: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the simulator's positions of the points, ``[P, 3]`` (m)."""
    places = {name: pose[:3] for name, pose in obs["privileged"].items()} | {GRIPPER: obs["state"][:3]}
    return np.array([places[name] for name in names], np.float32)


def _repeated(script: Script, episode: Episode) -> bool:
    length = min(len(script.state), len(episode.state))
    return bool(np.abs(script.state[:length] - episode.state[:length]).max() < AGREEMENT)
