r"""The records that travel between rooms.

Timeline of an episode, fixed once (``T`` actions, ``T + 1`` frames)::

    frame    0     1     2   ...  T
              \   / \   /
    action     0     1   ...  T-1        action t is taken at frame t and produces frame t+1
    reward     0     1   ...  T-1        reward t is what arriving at frame t+1 earned

Laid out for a world model, each frame is paired with the action that produced it. A clip's first frame has the null
action, which holds the first command (:meth:`worldrl.core.actions.ActionSpec.hold`).

Shapes legend: ``B`` rows, ``T`` steps, ``L`` chunk, ``V`` cameras, ``Y X`` pixels, ``A`` numbers of an action and of a command
(7 of one arm, 14 of two), ``S`` measured numbers (8 and 14), ``N`` groups, ``G`` group size or grippers, ``K`` memory frames.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import ArtefactError
from worldrl.core.observation import IMAGE, MAIN_CAMERAS, camera_of, stack_views


@dataclass(frozen=True)
class Episode:
    """One recorded episode; ArtefactError where actions have another size than ``actions`` says."""

    frames: NDArray[np.uint8]  # uint8 `[T+1, V, Y, X, 3]`, one per camera of `cameras`
    # Float32 `[T+1, S]`, measured. One arm (8): end-effector position (m), axis-angle (rad), two finger positions (m;
    # the right one counts negative, as in LIBERO). Joints: as the action.
    state: NDArray[np.float32]
    # Float32 `[T+1, A]`. One arm (7): commanded pose, position (m), rotation vector (rad), gripper in [-1, 1]. Joints:
    # the targets that the servos have.
    command: NDArray[np.float32]
    action: NDArray[np.float32]  # float32 `[T, A]` in the range of `actions`
    reward: NDArray[np.float32]  # float32 `[T]`; 1 where frame `t+1` fulfils the task, else 0
    contact: NDArray[np.bool_]  # bool `[T+1]`, the fingers touch a task object
    terminated: bool  # the task ended the episode (success)
    truncated: bool  # the time limit ended it
    instruction: str  # what the robot is to do
    task: str  # name of the task, for example `"PickRedCube"`
    cameras: tuple[str, ...] = ("scene",)  # names, in the order of axis `V`
    # JSON-ready provenance: seed, index, source (expert, policy id, random), style.
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    actions: ActionSpec = TOOL_ACTIONS  # what the numbers of `action` and `command` are

    def __post_init__(self) -> None:
        """Refuse numbers that nobody has described."""
        if self.action.shape[-1] != self.actions.size:
            raise ArtefactError(
                f"{self.task}: actions have {self.action.shape[-1]} numbers, and {self.actions.size} are described "
                f"({', '.join(self.actions.names)}); give the episode its robot's ActionSpec"
            )

    def __len__(self) -> int:
        """Return the number of actions ``T``."""
        return int(self.action.shape[0])

    @property
    def success(self) -> bool:
        """Whether the task was fulfilled at any frame."""
        return bool((self.reward > 0).any())

    @property
    def first_success(self) -> int | None:
        """Index of the first frame (1..T) that fulfils the task, or None."""
        hits = np.flatnonzero(self.reward > 0)
        return int(hits[0]) + 1 if hits.size else None

    @property
    def null_action(self) -> NDArray[np.float32]:
        """The action that holds the first command, float32 ``[A]``: what was done before the episode began."""
        return self.actions.hold(self.command[0])

    @property
    def opening(self) -> NDArray[np.float32]:
        """How far each gripper was really open, ``[T+1, G]``; see :meth:`worldrl.core.actions.ActionSpec.opening`."""
        return self.actions.opening(self.state)

    @property
    def main_view(self) -> NDArray[np.uint8]:
        """Frames of :attr:`main_camera`, ``[T+1, Y, X, 3]``; ArtefactError where it was not recorded."""
        return self.view(self.main_camera)

    @property
    def main_camera(self) -> str:
        """Name of the camera that policies and world models observe; ArtefactError where it was not recorded."""
        for camera in MAIN_CAMERAS:
            if camera in self.cameras:
                return camera
        raise ArtefactError(
            f"{self.task}: none of the main cameras {', '.join(MAIN_CAMERAS)} was recorded; this episode has "
            f"{', '.join(self.cameras)}"
        )

    def view(self, camera: str) -> NDArray[np.uint8]:
        """Frames of one camera, ``[T+1, Y, X, 3]``; ArtefactError where it was not recorded."""
        if camera not in self.cameras:
            raise ArtefactError(f"camera {camera!r} was not recorded; this episode has {', '.join(self.cameras)}")
        return self.frames[:, self.cameras.index(camera)]

    def sheet(self, images: Sequence[str] = (IMAGE,), at: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.uint8]:
        """Views named ``images`` one below the other, of the frames ``at``, ``[T', V Y, X, 3]``.

        ArtefactError where one was not recorded. Several views are copied, so ask for the frames that you need.
        """
        if tuple(images) == (IMAGE,):
            return self.main_view[at]
        return stack_views([self.view(camera_of(name, self.cameras))[at] for name in images])

    def __repr__(self) -> str:
        """Show shapes, not arrays."""
        outcome = "success" if self.success else "failure"
        return f"Episode({self.task}, {len(self)} steps, frames {self.frames.shape}, {outcome})"


@dataclass(frozen=True)
class PolicyObs:
    """What a policy sees, batched."""

    image: torch.Tensor  # uint8 `[B, Y, X, 3]` of the scene camera
    command: torch.Tensor  # float32 `[B, A]`, the robot's last command (see Episode)
    instruction: Sequence[str]  # `B` instructions
    # What is observed besides, by name, for policies that ask for it: `state` float32 `[B, S]`, `wrist_image` uint8
    # `[B, Y, X, 3]`.
    more: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    # What it saw at the control steps before, the oldest first, for policies with `n_obs_steps` above 1; before an
    # episode's first observation that one is repeated.
    past: "Sequence[PolicyObs]" = ()

    def take(self, choose: Callable[[torch.Tensor], torch.Tensor], instruction: Sequence[str]) -> "PolicyObs":
        """Apply ``choose`` to every tensor, those of the past too; ``instruction`` is that of the rows it leaves."""
        more = {name: choose(value) for name, value in self.more.items()}
        past = tuple(before.take(choose, instruction) for before in self.past)
        return PolicyObs(choose(self.image), choose(self.command), instruction, more, past)


@dataclass(frozen=True)
class CorrelatedNoise:
    """The part of each rollout's exploration that stays the same at every step (``policies.exploration``)."""

    value: torch.Tensor  # standard normal draws `[B, A]`
    share: float  # of the variance that lasts, in [0, 1]
    waypoint: torch.Tensor  # how far waypoints are displaced `[B, A]`, in standard deviations of the commands

    def select(self, index: torch.Tensor) -> "CorrelatedNoise":
        """Keep the rows of ``index``."""
        return CorrelatedNoise(self.value[index], self.share, self.waypoint[index])

    def replaced(self, index: torch.Tensor, new: "CorrelatedNoise") -> "CorrelatedNoise":
        """Take the rows of ``index`` from ``new``, which has as many rows."""
        value, waypoint = self.value.clone(), self.waypoint.clone()
        value[index], waypoint[index] = new.value[index], new.waypoint[index]
        return CorrelatedNoise(value, self.share, waypoint)

    @classmethod
    def join(cls, rows: Sequence["CorrelatedNoise"]) -> "CorrelatedNoise":
        """Put rows of one share into one."""
        value, waypoint = (torch.cat([getattr(row, name) for row in rows]) for name in ("value", "waypoint"))
        return cls(value, rows[0].share, waypoint)


@dataclass(frozen=True)
class Chunk:
    """A policy's answer to one observation."""

    action: torch.Tensor  # float32 `[B, L, A]` in the robot's range
    # What was drawn, for `log_prob`: int64 `[B, L, A]`, the discrete action whose centre `action` is; of policies
    # without tokens a float row `[B, N]` (`policies.lerobot.one_step`).
    token: torch.Tensor
    logp: torch.Tensor  # float32 `[B, L, A]`, log-probability of each token or number
    # Float32 `[B, L, A]`, what the network said before it was taken to the robot's range; None where it cannot say
    # anything outside.
    decided: torch.Tensor | None = None


@dataclass(frozen=True)
class Likelihood:
    """What a policy thinks of given draws, with gradient."""

    logp: torch.Tensor  # `[B, L, A]`, log-probability of each token or number
    # `[B, L, A, bins]` where the policy draws from finitely many tokens: their whole distribution; None where it knows
    # the density of what was drawn only.
    logits: torch.Tensor | None = None


@dataclass(frozen=True)
class Imagined:
    """What a world model predicts for one chunk."""

    latent: torch.Tensor  # float32 `[B, F, c, h, w]`, the chunk's predicted latent frames
    frame_steps: tuple[int, ...]  # control step (1..L) that each latent frame shows
    command: torch.Tensor  # float32 `[B, L, A]`, integrated exactly from the actions
    success_prob: torch.Tensor  # float32 `[B, F]`, of its outcome head, or of the mean of an ensemble
    # Float32 `[B, F]`, standard deviation over the ensemble's members (of their probabilities); None where a model has
    # but one head.
    uncertainty: torch.Tensor | None = None
    # Float32 `[B, F, S]`, predicted measured numbers; `state_deviation` their standard deviations. None where a model
    # does not predict them.
    state: torch.Tensor | None = None
    state_deviation: torch.Tensor | None = None


@dataclass(frozen=True)
class ImaginedVideos:
    """Whole imagined videos, as their rewards see them."""

    frames: torch.Tensor  # uint8 `[N, T, Y, X, 3]`; frame 0 is the recorded one that the video continues from
    latent: torch.Tensor  # float32 `[N, T - 1, c, h, w]`, the imagined frames
    frame_s: float  # seconds between frames
    instruction: Sequence[str]  # `N` instructions
    # Float32 `[N, T, A]`, the robot's command at each frame; None where the video was planned.
    command: torch.Tensor | None = None
    # Float32 `[N, S, A]`, the actions of all `S` control steps up to the last frame; None where it was planned.
    action: torch.Tensor | None = None
    # No argument: a copy with other frames (dataclasses.replace) must begin without readings.
    # What was read off these frames so far, by who read it (`rewards.motion.inverse_dynamics.read_once`): several
    # rewards, and whoever executes a plan, ask the same reader.
    readings: dict[object, torch.Tensor] = field(
        init=False, repr=False, compare=False, default_factory=dict[object, torch.Tensor]
    )

    @property
    def rows(self) -> int:
        """How many videos."""
        return len(self.frames)


@dataclass(frozen=True)
class ResetRecord:
    """A state from which an imagined rollout may start."""

    # Uint8 `[Y, X, 3]`, the episode's first frame; of several cameras a sheet (`core.observation`).
    reference: NDArray[np.uint8]
    # Uint8 `[K, Y, X, 3]`, the last `K` model frames up to now; repeats of the reference at an episode's start.
    memory: NDArray[np.uint8]
    command: NDArray[np.float32]  # float32 `[A]` now
    instruction: str  # what the robot is to do
    task: str  # name of the task
    step: int  # control steps already spent (0 for an initial state), taken off the horizon
    source: str  # where it comes from, for example `"demonstrations/12"`
    # Float32 `[M, A]`, the actions that led to the memory's frames, `frame_stride` each, null actions before the
    # episode's start; None where that is all of them.
    memory_action: NDArray[np.float32] | None = None
    # Float32 `[A]` at the reference; None at an episode's start, where it is `command`.
    reference_command: NDArray[np.float32] | None = None
    state: NDArray[np.float32] | None = None  # float32 `[S]`, measured now; None where nobody needs it
    # Float32 `[K, A]` and `[K, S]` at the memory's frames; None where they never differed from `command` and `state`.
    memory_command: NDArray[np.float32] | None = None
    memory_state: NDArray[np.float32] | None = None

    @property
    def first_command(self) -> NDArray[np.float32]:
        """Command at the episode's start, float32 ``[A]``: what null actions hold."""
        return self.command if self.reference_command is None else self.reference_command


def first_frames(records: Sequence[ResetRecord]) -> torch.Tensor:
    """Stack the first frames of the records' episodes: uint8 ``[B, Y, X, 3]``."""
    return torch.as_tensor(np.stack([record.reference for record in records]))
