"""How an action moves the command: one embodiment's constants, in numbers that travel with a dataset.

:class:`Embodiment` moves one tool by LIBERO's seven numbers, :class:`JointEmbodiment` takes absolute joint targets. The
command follows exactly from the actions, so imagination integrates it. :func:`next_command` is the torch twin of
``worldrl_envs.control.next_command`` and ``worldrl_envs.bimanual.control.next_command``; tests hold them together.
Shapes: ``A`` numbers of an action and of a command.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec, joint_targets
from worldrl.core.errors import SettingError
from worldrl.core.storage.typed import from_plain

STATE_NAMES = ("x", "y", "z", "rx", "ry", "rz", "finger_left", "finger_right")
COMMAND_NAMES = ("x", "y", "z", "rx", "ry", "rz", "gripper")
JOINTS = "joints"


@dataclass(frozen=True)
class Embodiment:
    """Constants of one robot under LIBERO's 7-number convention."""

    position_scale: float  # metres of Δposition at action 1
    rotation_scale: float  # radians of Δrotation at action 1
    workspace_low: tuple[float, float, float]  # lower corner of the box the commanded position is clipped to (m)
    workspace_high: tuple[float, float, float]  # upper corner (m)
    max_rotation: float  # largest norm of the commanded rotation vector (rad)
    control_hz: float  # control steps per second
    # share of an action's motion that one control step makes; below 1 where the command is the measured pose, from which
    # the robot's controller counts each action anew.
    response: float = 1.0
    state_names: ClassVar[tuple[str, ...]] = STATE_NAMES  # of the measured numbers
    command_names: ClassVar[tuple[str, ...]] = COMMAND_NAMES  # of the commanded numbers
    actions: ClassVar[ActionSpec] = TOOL_ACTIONS  # what an action's numbers are

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("position_scale", "rotation_scale", "max_rotation", "control_hz"):
            _require_positive(name, getattr(self, name))
        if not 0 < self.response <= 1:
            raise SettingError(f"embodiment.response: must be in (0, 1], got {self.response}; write the robot's own")
        _require_ordered("workspace", self.workspace_low, self.workspace_high)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Embodiment":
        """Rebuild from :meth:`to_json`; SettingError for an unknown field, another type or a wrong range."""
        return from_plain(cls, dict(data), where="embodiment")

    @property
    def measured_pose(self) -> int:
        """How many of the command's numbers are measured, so that actions alone only estimate them: six of the pose, or 0."""
        return 6 if self.response < 1 else 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``response`` only where it is not 1, as in files from before it."""
        plain = {**asdict(self), "workspace_low": list(self.workspace_low), "workspace_high": list(self.workspace_high)}
        return plain if self.response != 1 else {name: plain[name] for name in plain if name != "response"}

    @property
    def step_m(self) -> float:
        """Metres that action 1 moves the command in one control step."""
        return self.response * self.position_scale

    @property
    def step_rad(self) -> float:
        """Radians that action 1 turns the command in one control step."""
        return self.response * self.rotation_scale

    def scaled_command(self, command: Tensor) -> Tensor:
        """Scale a commanded pose ``[..., 7]`` to about [-1, 1]: position by the workspace box, the rest as it is."""
        low, high = command.new_tensor(self.workspace_low), command.new_tensor(self.workspace_high)
        position = 2 * (command[..., :3] - low) / (high - low) - 1
        return torch.cat([position, command[..., 3:]], dim=-1)


@dataclass(frozen=True)
class JointEmbodiment:
    """A robot of absolute joint targets; state, command and action are joints (rad), grippers (0 closed, 1 open)."""

    names: tuple[str, ...]  # of the numbers, in order
    low: tuple[float, ...]  # least value of each
    high: tuple[float, ...]  # greatest value of each
    max_speed: tuple[float, ...]  # fastest change of each per second; the command follows the action no faster
    control_hz: float  # control steps per second
    measured_pose: ClassVar[int] = 0  # its command follows from the actions

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.names or not len(self.names) == len(self.low) == len(self.high) == len(self.max_speed):
            raise SettingError(f"embodiment: needs low, high and max_speed for each of {self.names}")
        for speed in (*self.max_speed, self.control_hz):
            _require_positive("max_speed and control_hz", speed)
        _require_ordered("joints", self.low, self.high)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "JointEmbodiment":
        """Rebuild from :meth:`to_json`; SettingError for an unknown field, another type or a wrong range."""
        own = {name: value for name, value in data.items() if name != "kind"}
        return from_plain(cls, own, where="embodiment")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``kind`` tells them from an :class:`Embodiment`'s."""
        numbers = {"low": list(self.low), "high": list(self.high), "max_speed": list(self.max_speed)}
        return {"kind": JOINTS, "names": list(self.names), **numbers, "control_hz": self.control_hz}

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the measured and of the commanded numbers."""
        return self.names

    command_names = state_names

    @property
    def actions(self) -> ActionSpec:
        """What an action's numbers are."""
        return joint_targets(self.names, self.low, self.high)

    def scaled_command(self, command: Tensor) -> Tensor:
        """Scale commanded targets ``[..., A]`` as actions: they are such."""
        return self.actions.scaled(command)


AnyEmbodiment = Embodiment | JointEmbodiment


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise SettingError(f"embodiment.{name}: must be positive, got {value}; write the robot's own")


def _require_ordered(name: str, low: tuple[float, ...], high: tuple[float, ...]) -> None:
    if not all(math.isfinite(a) and math.isfinite(b) and a < b for a, b in zip(low, high, strict=True)):
        raise SettingError(f"embodiment.{name}: low must lie below high in each number, got {low} and {high}")


def embodiment_from_json(data: Mapping[str, Any]) -> AnyEmbodiment:
    """Rebuild either convention from its ``to_json``."""
    return (JointEmbodiment if data.get("kind") == JOINTS else Embodiment).from_json(data)


def _norm(vector: Tensor) -> Tensor:
    # The floor keeps the square root's gradient finite at zero rotation.
    return vector.square().sum(dim=-1, keepdim=True).clamp_min(1e-24).sqrt()


def quaternion_from_rotvec(rotvec: Tensor) -> Tensor:
    """Map rotation vectors ``[..., 3]`` (rad) to unit quaternions ``[..., 4]`` as (w, x, y, z)."""
    angle = _norm(rotvec)
    # sin(θ/2)/θ tends to 1/2; torch.sinc is sin(πx)/(πx) and is smooth there.
    scale = 0.5 * torch.sinc(angle / (2 * torch.pi))
    return torch.cat([torch.cos(angle / 2), rotvec * scale], dim=-1)


def rotvec_from_quaternion(quaternion: Tensor) -> Tensor:
    """Map unit quaternions ``[..., 4]`` to rotation vectors ``[..., 3]`` with angle in [0, π]."""
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    w, xyz = quaternion[..., :1], quaternion[..., 1:]
    norm = _norm(xyz)
    angle = 2 * torch.atan2(norm, w)
    # angle/norm tends to 2/w as the rotation vanishes.
    return xyz * torch.where(norm > 1e-8, angle / norm.clamp_min(1e-8), 2 / w)


def quaternion_product(a: Tensor, b: Tensor) -> Tensor:
    """Hamilton product of quaternions ``[..., 4]``: first ``b``, then ``a``."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    parts = [
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    ]
    return torch.stack(parts, dim=-1)


def next_command(embodiment: AnyEmbodiment, command: Tensor, action: Tensor) -> Tensor:
    """Integrate an action ``[..., A]`` in the robot's range into the command ``[..., A]`` one control step later."""
    if isinstance(embodiment, JointEmbodiment):
        return _follow_targets(embodiment, command, action)
    return _move_tool(embodiment, command, action)


def within_workspace(embodiment: AnyEmbodiment, command: Tensor) -> Tensor:
    """Clip the commanded position ``[..., A]`` of a tool to its workspace; joint targets stay as they are."""
    if isinstance(embodiment, JointEmbodiment):
        return command
    low, high = (command.new_tensor(edge) for edge in (embodiment.workspace_low, embodiment.workspace_high))
    return torch.cat([torch.clamp(command[..., :3], low, high), command[..., 3:]], dim=-1)


def _move_tool(robot: Embodiment, command: Tensor, action: Tensor) -> Tensor:
    """Add the scaled Δposition and clip it to the workspace, compose Δrotation from the left, copy the gripper."""
    low = command.new_tensor(robot.workspace_low)
    high = command.new_tensor(robot.workspace_high)
    position = torch.clamp(command[..., :3] + robot.step_m * action[..., :3], low, high)
    turn = quaternion_from_rotvec(robot.step_rad * action[..., 3:6])
    rotvec = rotvec_from_quaternion(quaternion_product(turn, quaternion_from_rotvec(command[..., 3:6])))
    norm = _norm(rotvec).clamp_min(1e-12)
    rotvec = rotvec * torch.clamp(robot.max_rotation / norm, max=1.0)
    return torch.cat([position, rotvec, action[..., 6:].clamp(-1, 1)], dim=-1)


def _follow_targets(robot: JointEmbodiment, command: Tensor, action: Tensor) -> Tensor:
    """Follow targets inside the joint limits no faster than the joints turn: c' = c + clip(a - c, -v/f, v/f)."""
    before = command.double()  # where a reached target is reached exactly
    step = before.new_tensor(robot.max_speed) / robot.control_hz
    target = action.double().clamp(before.new_tensor(robot.low), before.new_tensor(robot.high))
    return target.clamp(before - step, before + step).to(command.dtype)


def integrate_commands(embodiment: AnyEmbodiment, command: Tensor, action: Tensor) -> Tensor:
    """Return the command after each of ``action`` ``[B, L, A]``, from ``command`` ``[B, A]`` before it."""
    commands: list[Tensor] = []
    for step in action.unbind(dim=1):
        command = next_command(embodiment, command, step)
        commands.append(command)
    return torch.stack(commands, dim=1)
