"""One drive in two worlds: the world model imagines each chunk, and MuJoCo executes the same actions.

A command of the hand is held for one chunk. Each chunk keeps both worlds' states at its end. Undo returns to such a
state, and what follows is the same bits as at the first time.

Shapes legend: ``L`` control steps and ``F`` frames of a chunk, ``V Y X`` cameras and pixels, ``A`` numbers of an
action, ``S`` measured numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import SettingError, nearest
from worldrl.core.interfaces import Policy
from worldrl.core.observation import STATE, images_among, stack_views
from worldrl.core.rng import stream
from worldrl.core.types import Imagined, PolicyObs, ResetRecord, first_frames
from worldrl.evaluation.world_model.rollout_error import decibels, pixel_error
from worldrl.rewards.success import SuccessRule, success_step
from worldrl.rollout.imagined.recent import after_chunk, policy_obs, recorded
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.slots import EnvSlot, Observed
from worldrl.rollout.real.specs import EnvOptions, EpisodeSpec
from worldrl.rollout.spaces import check_action
from worldrl.world_models.loading import AnyVideoModel

HAND, POLICY = "hand", "policy"
MOST_BYTES = 2**28
"""Images that one drive keeps for undo and for recording."""

T = TypeVar("T")


@dataclass(frozen=True)
class Worlds:
    """What all sessions share. ``simulator`` has one thread, to which the OpenGL contexts belong."""

    model: AnyVideoModel
    robot: Embodiment
    policy: Policy | None
    tasks: tuple[str, ...]
    options: EnvOptions
    seed: int
    simulator: ThreadPoolExecutor

    @property
    def rule(self) -> SuccessRule:
        """When an imagined drive counts as a success."""
        return SuccessRule.of(self.model.config.outcome)

    @property
    def has_ensemble(self) -> bool:
        """Whether several members predict success, so that their spread says anything."""
        return self.model.config.outcome.ensemble_size > 1

    @property
    def images(self) -> tuple[str, ...]:
        """Names of the cameras' images, in the order of a sheet."""
        return images_among(self.model.more)

    @property
    def frames_per_chunk(self) -> int:
        """Frames ``F`` that the model predicts of a chunk."""
        return self.model.chunk_length // self.model.frame_stride

    @property
    def most_chunks(self) -> int:
        """Chunks that fit into a drive's memory."""
        images = self.model.chunk_length + self.frames_per_chunk
        return MOST_BYTES // (images * len(self.images) * 3 * self.options.image_size**2)


@dataclass(frozen=True)
class Start:
    """Where a drive begins: in the simulator (first observation, state) and in the world model."""

    spec: EpisodeSpec
    observed: Observed
    physics: Mapping[str, Any]
    record: ResetRecord
    world: Any  # the model's state; opaque


@dataclass(frozen=True)
class Chunk:
    """One chunk in both worlds, and their states at its end."""

    action: NDArray[np.float32]  # float32 `[L, A]`
    by: str  # who drove: `HAND` or `POLICY`
    sheets: NDArray[np.uint8]  # uint8 `[F, V Y, X, 3]`, imagined
    imagined: Imagined
    world: Any  # the model's state; opaque
    observed: list[Observed]  # `L` observations of MuJoCo
    physics: Mapping[str, Any]
    images: tuple[str, ...]
    seconds: float

    @cached_property
    def real_frames(self) -> list[Observed]:
        """MuJoCo's observations at the imagined frames."""
        return [self.observed[step - 1] for step in self.imagined.frame_steps]

    @cached_property
    def real_sheets(self) -> NDArray[np.uint8]:
        """MuJoCo's images at the imagined frames, uint8 ``[F, V Y, X, 3]``."""
        return np.stack([stack_views([shown[name] for name in self.images]) for shown in self.real_frames])

    @property
    def psnr(self) -> NDArray[np.float64]:
        """Peak signal-to-noise ratio (dB) of the imagined main images against MuJoCo's, ``[F]``."""
        rows = self.sheets.shape[1] // len(self.images)
        return decibels(pixel_error(self.real_sheets[None, :, :rows], self.sheets[None, :, :rows])[0])

    @property
    def tool_error(self) -> NDArray[np.float64] | None:
        """Distance (m) of the predicted from the measured tool position ``[F]``; None where it is not predicted."""
        if self.imagined.state is None:
            return None
        measured = np.stack([shown[STATE] for shown in self.real_frames])
        return np.linalg.norm(self.imagined.state[0].float().cpu().numpy()[:, :3] - measured[:, :3], axis=1)

    @property
    def probability(self) -> NDArray[np.float32]:
        """Imagined probability of success, float32 ``[F]``."""
        return self.imagined.success_prob[0].float().cpu().numpy()


class Session:
    """One person's drive. Calls come from one thread at a time."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds, self.chunks = worlds, list[Chunk]()
        self._start: Start | None = None
        self._slot = EnvSlot(worlds.options)

    @property
    def started(self) -> bool:
        """Whether there is a drive."""
        return self._start is not None

    @property
    def begun(self) -> Start:
        """Where the drive begins; SettingError before the first start."""
        if self._start is None:
            raise SettingError("start: choose a task and a start first")
        return self._start

    def start(self, task: str, index: int) -> Start:
        """Begin a new drive at an initial state; SettingError for an unknown task or a number below 0."""
        if task not in self.worlds.tasks:
            raise SettingError(f"task: unknown task {task!r}{nearest(task, self.worlds.tasks)}")
        spec = EpisodeSpec(task, index, self.worlds.seed, source="play")
        self._start, self.chunks = None, []
        observed, physics = self._simulate(lambda: (self._slot.reset(spec), self._physics()))
        record = initial_record(
            stack_views([observed[name] for name in self.worlds.images]),
            observed["command"],
            memory_frames=self.worlds.model.memory_frames,
            instruction=observed["instruction"],
            task=task,
            source=f"index {index}, seed {spec.seed}",
            state=observed[STATE] if STATE in self.worlds.model.more else None,
        )
        self._start = Start(spec, observed, physics, record, self.worlds.model.start([record]))
        return self._start

    def drive(self, action: NDArray[np.floating]) -> Chunk:
        """Hold one action ``[A]`` for a chunk; ActionError for an action out of range, with nothing changed."""
        held = check_action(action[None], (1,), self.worlds.robot.actions)
        return self._advance(np.repeat(held, self.worlds.model.chunk_length, axis=0), HAND)

    def follow_policy(self) -> Chunk:
        """Let the policy decide one chunk from what is imagined; greedy. SettingError without a policy."""
        policy = self.worlds.policy
        if policy is None:
            raise SettingError("policy: none was given; start worldrl play again with policy=FOLDER")
        noise = [stream(self.worlds.seed, "play", "policy", len(self.chunks))] if policy.needs_noise else None
        with torch.inference_mode():
            decided = policy.act(self._shown(policy), generators=noise, temperature=0.0 if noise else 1.0)
        return self._advance(policy.actions.within(decided.action[0].float().cpu().numpy()), POLICY)

    def undo(self, keep: int) -> None:
        """Return to the end of the first ``keep`` chunks; SettingError where there are fewer."""
        if not 0 <= keep <= len(self.chunks):
            raise SettingError(f"keep: must be from 0 to {len(self.chunks)}, the chunks driven, got {keep}")
        self._restore(self.chunks[keep - 1].physics if keep else self.begun.physics)
        del self.chunks[keep:]

    def first_success(self) -> int | None:
        """Control step of the drive's first imagined success, or None."""
        if not self.chunks:
            return None
        probability = torch.cat([chunk.imagined.success_prob for chunk in self.chunks], dim=1).float().cpu()
        step = int(success_step(probability, self.worlds.rule, self.worlds.model.frame_stride)[0])
        return None if step < 0 else step

    def close(self) -> None:
        """Release the simulator."""
        self._simulate(self._slot.close)

    def _advance(self, actions: NDArray[np.float32], by: str) -> Chunk:
        start, model, began_s = self.begun, self.worlds.model, time.perf_counter()
        if len(self.chunks) >= self.worlds.most_chunks:
            raise SettingError(
                f"this drive has {len(self.chunks)} chunks, and memory keeps no more; save it, then undo or reset"
            )
        now = self.chunks[-1] if self.chunks else start
        executing = self.worlds.simulator.submit(self._execute, actions)
        with ExitStack() as failed:
            failed.callback(
                self._restore, now.physics
            )  # MuJoCo has moved, and must not where the world model could not
            # The noise of `worldrl imagine`: the same actions give the same images there.
            noise = [stream(self.worlds.seed, "replay", 0, len(self.chunks))]
            world, imagined = model.imagine(now.world, torch.from_numpy(actions[None]), generators=noise)
            sheets = model.decode(imagined.latent, first_frames([start.record]))[0].cpu().numpy()
            observed, physics = executing.result()
            failed.pop_all()
        seconds = time.perf_counter() - began_s
        chunk = Chunk(actions, by, sheets, imagined, world, observed, physics, self.worlds.images, seconds)
        self.chunks.append(chunk)
        return chunk

    def _shown(self, policy: Policy) -> PolicyObs:
        """What is imagined now, as a policy observes it."""
        record, model = self.begun.record, self.worlds.model
        recent = recorded([record], model.more, policy.n_obs_steps)
        for chunk in self.chunks[-policy.n_obs_steps :]:
            recent = after_chunk(recent, model, chunk.world, chunk.imagined)
        return policy_obs(recent, [record.instruction], policy)

    # -- in the simulator's thread ---------------------------------------------------------------------------

    def _simulate(self, call: Callable[[], T]) -> T:
        return self.worlds.simulator.submit(call).result()

    def _execute(self, actions: NDArray[np.float32]) -> tuple[list[Observed], Mapping[str, Any]]:
        return [self._slot.step(action) for action in actions], self._physics()

    def _physics(self) -> Mapping[str, Any]:
        return self._slot.env.unwrapped.get_state()

    def _restore(self, physics: Mapping[str, Any]) -> None:
        self._simulate(lambda: self._slot.env.unwrapped.set_state(physics))
