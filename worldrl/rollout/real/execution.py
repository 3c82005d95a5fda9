"""Recorded episodes executed again in the simulator, and beyond their recorded end.

A world model may be asked for more frames than a recording has. Holding still until then would test nothing, and free
motion would leave the world model's training data. So after its recorded actions an episode holds still for
``HOLD_STEPS``. Then it retraces its own commanded path to its beginning, which puts a lifted object down and leaves. It
executes the recorded actions of another episode of its task, and so on. All commanded poses are those of
recorded episodes; only letting go of a held object is missing in recordings of a picking task.

Every frame comes from the simulator; the embedded suite adds positions that no camera shows. A recording holds its
start, ``(task, index, seed)`` or a stored state, and the simulator is deterministic.

Shapes legend: ``T`` control steps, ``P`` points (gripper, free objects, drawer), ``A`` numbers of an action, ``S`` of a
state, ``Y X`` pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.embodiment import (
    AnyEmbodiment,
    JointEmbodiment,
    integrate_commands,
    quaternion_from_rotvec,
    quaternion_product,
)
from worldrl.core.embodiment import rotvec_from_quaternion as rotvec
from worldrl.core.observation import IMAGE, image_name
from worldrl.core.types import Episode
from worldrl.rollout.camera import Camera, HandCamera, camera_now
from worldrl.rollout.real.rows import Recording
from worldrl.rollout.real.slots import Observed, Slots
from worldrl.rollout.real.specs import EpisodeSpec, spec_of

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

    ``action`` is float32 ``[T, A]``; ``command`` float32 ``[T+1, A]`` what is commanded at each frame; ``state``
    float32 ``[T+1, S]`` the recorded proprioception.
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

    ``episode`` has frames of the cameras, actions and rewards; its first ``recorded`` actions were recorded.
    ``point`` float32 ``[T+1, P, 3]`` holds positions in the world (m) of the points ``names``, the gripper first.
    ``cameras`` are by the names of their images. A simulator in another process states no points and no cameras.
    ``repeated`` is whether the recorded part went as recorded.
    """

    episode: Episode
    recorded: int
    point: NDArray[np.float32]
    names: tuple[str, ...]
    cameras: Mapping[str, Camera]
    repeated: bool

    def succeeds_within(self, steps: int) -> bool:
        """Whether the task is fulfilled at one of the first ``steps`` frames after the initial one."""
        return bool((self.episode.reward[:steps] > 0).any())


def still(actions: ActionSpec, last: NDArray[np.float32], steps: int = HOLD_STEPS) -> NDArray[np.float32]:
    """Return actions ``[steps, A]`` that hold what the ``last`` action ``[A]`` left commanded."""
    return np.repeat(actions.hold(last)[None], steps, axis=0)


def return_to_start(embodiment: AnyEmbodiment, command: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return actions float32 ``[T, A]`` in the robot's range back along commands ``[T+1, A]``.

    From ``command[-1]`` they pass every command in reverse and end at ``command[0]``.
    """
    if isinstance(embodiment, JointEmbodiment):
        return embodiment.actions.within(command[-2::-1])
    path = torch.from_numpy(command).double().flip(0)
    here, there = path[:-1], path[1:]
    inverse = quaternion_from_rotvec(-here[:, 3:6])
    turn = rotvec(quaternion_product(quaternion_from_rotvec(there[:, 3:6]), inverse))
    move = (there[:, :3] - here[:, :3]) / embodiment.step_m
    action = torch.cat([move, turn / embodiment.step_rad, there[:, 6:]], dim=1)
    return action.clamp(-1, 1).float().numpy()


def continued(
    script: Script,
    others: Sequence[Script],
    steps: int,
    *,
    continuation: str,
    embodiment: AnyEmbodiment,
    generator: np.random.Generator,
) -> NDArray[np.float32]:
    """Return ``steps`` actions float32 ``[steps, A]`` in the robot's range: the recorded ones and what follows them.

    With the continuation ``"retrace"`` (see the module) the actions of ``others``, episodes of the same task, are drawn
    one after the other once the arm is back. ``"hold"`` holds still to the end. Fewer steps than recorded cut the
    recording.
    """
    if continuation == "hold":
        rest = still(embodiment.actions, script.action[-1], max(steps - len(script), 0))
        return np.concatenate([script.action, rest])[:steps]
    legs: list[NDArray[np.float32]] = []
    length, start, action = 0, script.command[0], script.action
    while True:
        there = np.concatenate([action, still(embodiment.actions, action[-1])])
        path = _path(embodiment, start, there)
        legs += [there, return_to_start(embodiment, path)]
        length += 2 * len(there)
        if length >= steps:
            return np.concatenate(legs)[:steps]
        action = others[int(generator.integers(len(others)))].action


def _path(embodiment: AnyEmbodiment, start: NDArray[np.float32], action: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the commands ``[T+1, A]`` of actions."""
    first = torch.from_numpy(start)[None]
    after = integrate_commands(embodiment, first, torch.from_numpy(action)[None])
    return torch.cat([first, after[0]]).numpy()


def true_runs(slots: Slots, scripts: Sequence[Script], actions: Sequence[NDArray[np.float32]]) -> Iterator[TrueRun]:
    """Execute actions float32 ``[T_i, A]`` from each script's initial state, whatever the task's outcome.

    As many run at once as there are simulators. Yields one run per script, with the frame after every action.
    """
    for first in range(0, len(scripts), slots.slots):
        rows = slice(first, first + slots.slots)
        yield from _side_by_side(slots, scripts[rows], actions[rows])


def _side_by_side(slots: Slots, scripts: Sequence[Script], actions: Sequence[NDArray[np.float32]]) -> Iterator[TrueRun]:
    running: dict[int, _Running] = {}
    for slot, obs in slots.reset({slot: script.spec for slot, script in enumerate(scripts)}, render=True).items():
        running[slot] = _Running(slots, scripts[slot], slots.env(slot), obs, len(actions[slot]))
    for step in range(max(map(len, actions))):
        live = {slot: given[step : step + 1] for slot, given in enumerate(actions) if step < len(given)}
        for slot, (obs,) in slots.steps(live, render=live).items():
            running[slot].add(actions[slot][step], obs)
    for slot in range(len(scripts)):
        yield running[slot].run(restarted=slots.finish(slot))


class _Running:
    """One script while it runs, with the points that its simulator states."""

    def __init__(self, slots: Slots, script: Script, env: Any, obs: Observed, steps: int) -> None:
        self.script, self.instruction = script, script.spec.instruction or str(obs["instruction"])
        self.recording = Recording(
            script.spec, cameras=slots.cameras, keep=True, hold_steps=steps, actions=slots.actions, domain=slots.domain
        )
        self.recording.observe(obs)
        self._env, self.names = env, () if env is None else point_names(script.spec.task)
        self._moving: dict[str, list[Camera]] = {camera: [] for camera in slots.cameras[1:] if env is not None}
        self.points: list[NDArray[np.float32]] = []
        self._place(obs)

    def add(self, action: NDArray[np.float32], obs: Observed) -> None:
        """Note an action and what followed."""
        self.recording.step(action, obs)
        self._place(obs)

    def _place(self, obs: Observed) -> None:
        """Note where points and moving cameras are."""
        self.points.append(points_in(self.names, obs))
        for name, places in self._moving.items():
            places.append(camera_now(self._env, name))

    def run(self, *, restarted: bool) -> TrueRun:
        """The result."""
        self.recording.restarted = restarted
        episode = self.recording.episode(self.instruction)
        repeated = _repeated(self.script, episode)
        cameras = {} if self._env is None else {IMAGE: camera_now(self._env)}
        cameras |= {image_name(name): HandCamera.of(places) for name, places in self._moving.items()}
        return TrueRun(episode, len(self.script), np.stack(self.points), self.names, cameras, repeated)


def point_names(task: str) -> tuple[str, ...]:
    """Name what moves in a task: the gripper, the free objects, and a drawer."""
    from worldrl_envs.tasks import get_task

    spec = get_task(task)
    return (GRIPPER, *spec.objects, *((DRAWER,) if "cabinet" in spec.fixtures else ()))


def points_in(names: Sequence[str], obs: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the simulator's positions of the points, ``[P, 3]`` (m)."""
    places = {name: pose[:3] for name, pose in obs.get("privileged", {}).items()} | {GRIPPER: obs["state"][:3]}
    return np.array([places[name] for name in names], np.float32).reshape(-1, 3)


def _repeated(script: Script, episode: Episode) -> bool:
    length = min(len(script.state), len(episode.state))
    return bool(np.abs(script.state[:length] - episode.state[:length]).max() < AGREEMENT)
