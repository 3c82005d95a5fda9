"""Running episodes: as actors observe them, as they are recorded step by step; and the interface of actors."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import SettingError, WorldrlError
from worldrl.core.observation import image_name
from worldrl.core.types import Episode, PolicyObs
from worldrl.data.lerobot.format import RECOVERY, Recovery
from worldrl.rollout.real.specs import MONITORED, PLANNED, EpisodeOutcome, EpisodeSpec, Monitored, PlannedChunks


@dataclass(frozen=True)
class Takeover:
    """An earlier ``state`` of an embedded simulator, its control step, and who acts from there on."""

    state: Mapping[str, Any]
    step: int
    actor: Actor


@dataclass
class Row:
    """One running episode as an actor observes it.

    ``env`` is its Gymnasium environment, already reset, or None where it is in another process; ``slot`` its simulator's
    number. ``obs`` is the newest observation (``image``, ``command``, ...). ``horizon`` is its time limit (control steps).
    ``planned`` counts what a planner chose, ``monitored`` are a monitor's scores, None without one. ``takeover`` is an
    earlier state of the simulator with who acts from there on; an actor sets it where its own way leads to failure.
    ``actor_state`` is the actor's own state of this episode. ``past`` holds observations of earlier control steps, the
    oldest first, as many as the actor asked for.
    """

    spec: EpisodeSpec
    env: Any
    obs: Mapping[str, Any]
    instruction: str
    slot: int = 0
    horizon: int | None = None
    planned: PlannedChunks | None = None
    monitored: Monitored | None = None
    takeover: Takeover | None = field(default=None, repr=False)
    actor_state: Any = field(default=None, repr=False)
    past: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=0), repr=False)

    def keep(self, n_obs_steps: int) -> None:
        """Store the newest ``n_obs_steps`` observations from now on; the present one stands for those before it."""
        self.past = deque([self.obs] * (n_obs_steps - 1), maxlen=n_obs_steps - 1)

    def newest(self, count: int | None) -> Sequence[Mapping[str, Any]]:
        """Return so many stored observations, the oldest first; None: all."""
        return (*self.past, self.obs)[-count if count else None :]

    def see(self, obs: Mapping[str, Any]) -> None:
        """Add the observation after a control step."""
        self.past.append(self.obs)
        self.obs = obs


class Actor(Protocol):
    """Chooses actions for several episodes at once."""

    @property
    def images_needed(self) -> int:
        """Newest observations whose images a decision needs; 0 where it needs none."""
        ...

    def begin(self, row: Row) -> None:
        """Prepare ``row.actor_state`` for an episode that was just reset."""
        ...

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Return the next actions as decided, float32 ``[B, L, A]``; ``L`` is the actor's own.

        The caller clips them to the robot's range and counts the clipped numbers.
        """
        ...


def stack_obs(rows: Sequence[Row], device: str, more: Sequence[str] = (), n_obs_steps: int | None = None) -> PolicyObs:
    """Batch the rows' ``n_obs_steps`` newest observations (None: all kept) for a policy; ``more`` names further ones of it.

    Raises SettingError (the simulator lacks one of them).
    """
    for name in more:
        if name not in rows[0].obs:
            raise SettingError(f"{name}: the policy needs it, the simulator shows {', '.join(sorted(rows[0].obs))}")
    instruction = [row.instruction for row in rows]
    *past, newest = (
        _batched(shown, instruction, device, more)
        for shown in zip(*(row.newest(n_obs_steps) for row in rows), strict=True)
    )
    return replace(newest, past=tuple(past))


def _batched(
    shown: Sequence[Mapping[str, Any]], instruction: Sequence[str], device: str, more: Sequence[str]
) -> PolicyObs:
    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([obs[name] for obs in shown])).to(device)

    command = np.stack([np.asarray(obs["command"], np.float32) for obs in shown])
    return PolicyObs(
        image=stacked("image"),
        command=torch.from_numpy(command).to(device),
        instruction=instruction,
        more={name: stacked(name) for name in more},
    )


def camera_frames(obs: Mapping[str, Any], cameras: tuple[str, ...]) -> NDArray[np.uint8]:
    """Stack the cameras of one observation, uint8 ``[V, Y, X, 3]``."""
    return np.stack([obs[image_name(camera)] for camera in cameras])


class Recording:
    """One running episode.

    The episode ends ``hold_steps`` steps after the task was first fulfilled, or when the environment ends it.
    ``terminated`` means that the task was fulfilled, also when it is undone while holding; every other end is a
    truncation.

    ``cameras`` are in the order of the frames' axis ``V``. Without ``keep`` only the outcome is known. The attribute
    ``restarted`` marks an episode that a worker lost; ``planned`` and ``monitored`` are the row's. ``domain`` is stored where not ``clean``.
    """

    def __init__(
        self,
        spec: EpisodeSpec,
        *,
        cameras: tuple[str, ...],
        keep: bool,
        hold_steps: int,
        actions: ActionSpec = TOOL_ACTIONS,
        domain: str = "clean",
    ) -> None:
        self.spec, self._actions = spec, actions
        self._domain = {} if domain == "clean" else {"domain": domain}
        self._cameras, self._keep, self._hold_steps, self.restarted = cameras, keep, hold_steps, False
        self.planned: PlannedChunks | None = None
        self.monitored: Monitored | None = None
        self._recovery: Recovery | None = None
        self._frames: list[NDArray[np.uint8]] = []
        self._state: list[NDArray[np.float32]] = []
        self._command: list[NDArray[np.float32]] = []
        self._action: list[NDArray[np.float32]] = []
        self._contact: list[bool] = []
        self._reward: list[float] = []
        self._first_success: int | None = None
        self._clipped = 0
        self.ended = False

    def observe(self, obs: Mapping[str, Any]) -> None:
        """Store one frame's observation, with ``success`` and ``contact``."""
        if not self._keep:
            return
        self._frames.append(camera_frames(obs, self._cameras))
        self._state.append(np.array(obs["state"], np.float32))
        self._command.append(np.array(obs["command"], np.float32))
        self._contact.append(bool(obs["contact"]))

    def step(
        self,
        action: NDArray[np.float32],
        obs: Mapping[str, Any],
        *,
        env_ended: bool = False,
        clipped: int = 0,
    ) -> None:
        """Store one executed action float32 ``[A]`` and the frame after it.

        ``env_ended`` is the environment's terminated | truncated; ``clipped`` counts numbers decided outside the
        robot's range.
        """
        success = bool(obs["success"])
        self._clipped += clipped
        if self._keep:
            self._action.append(np.array(action, np.float32))
        self._reward.append(float(success))
        self.observe(obs)
        if success and self._first_success is None:
            self._first_success = len(self._reward)
        held = self._first_success is not None and len(self._reward) >= self._first_success + self._hold_steps
        self.ended = env_ended or held

    def rewind(self, obs: Mapping[str, Any], step: int) -> None:
        """Continue from the frame of an earlier control step; what lies between stays in the record, apart from the rest."""
        self._recovery = Recovery(alarm=len(self._reward), rewound=step)
        if self._keep:
            self._action.append(self._actions.hold(self._command[-1]))
        self._reward.append(0.0)
        self.observe(obs)

    @property
    def fulfilled(self) -> bool:
        """Whether the task was fulfilled in some step so far."""
        return self._first_success is not None

    def outcome(self) -> EpisodeOutcome:
        """Return the episode's outcome."""
        return EpisodeOutcome(
            spec=self.spec,
            success_once=self._first_success is not None,
            success_at_end=self._reward[-1] > 0,
            steps=len(self._reward),
            first_success=self._first_success,
            restarted=self.restarted,
            clipped=self._clipped,
            planned=self.planned,
            monitored=self._monitored,
        )

    @property
    def _monitored(self) -> Monitored | None:
        """Scores up to the first success: beyond it there is nothing to warn of."""
        return self.monitored and self.monitored.until(self._first_success)

    def episode(self, instruction: str) -> Episode:
        """Return the full record; its ``meta`` is the spec's fields, ``restarted`` and ``clipped``."""
        if not self._keep:
            raise WorldrlError(f"{self.spec.describe()}: was run without keeping frames; ask with record=True")
        counts: dict[str, Any] = {"restarted": self.restarted, "clipped": self._clipped}
        if self.planned is not None:
            counts[PLANNED] = self.planned.counts()
        if (monitored := self._monitored) is not None:
            counts[MONITORED] = asdict(monitored)
        if self._recovery is not None:
            counts[RECOVERY] = asdict(self._recovery)
        return Episode(
            frames=np.stack(self._frames),
            state=np.stack(self._state),
            command=np.stack(self._command),
            action=np.stack(self._action),
            reward=np.array(self._reward, np.float32),
            contact=np.array(self._contact, np.bool_),
            terminated=self._first_success is not None,
            truncated=self._first_success is None,
            instruction=instruction,
            task=self.spec.task,
            cameras=self._cameras,
            meta={**self.spec.to_json(), **counts, **self._domain},
            actions=self._actions,
        )
