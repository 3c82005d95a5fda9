"""The video world model as a world of vectors: offline agents train in its latents.

An observation is the newest latent frame, flattened, the scaled command, and the embedded instruction. With an encoder
(:class:`~worldrl.world_models.latent.keypoints.KeypointEncoder`) its keypoints replace the frame. One step is one
chunk: an action holds all ``a L`` numbers of its ``L`` control steps, or the few components of a basis
(:class:`~worldrl.world_models.latent.chunk_basis.ChunkBasis`). The reward is 1 where the outcome head satisfies the
rule of success, and there the task ends; else 0. The world measures no uncertainty.

Recorded episodes become rows of the same space: same codec for the frames, same chunks of actions, recorded success as
reward. An agent can therefore mix both.

Shapes legend: ``N`` recorded moments, ``B`` rows, ``L`` control steps per chunk, ``c h w`` a latent frame, ``d``
instruction, ``a`` numbers of one control step's action, ``S = c h w + a + d``, ``A = a L``, ``K`` memory frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import SettingError
from worldrl.core.rng import row_streams
from worldrl.core.transitions import Outcome, Transitions
from worldrl.core.types import Episode, ResetRecord
from worldrl.rewards.success import SuccessRule, first_success
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.latent.keypoints import KeypointEncoder
from worldrl.world_models.video.following import VideoState
from worldrl.world_models.video.model import VideoWorldModel

ENCODED_AT_ONCE = 64  # records in one pass of the codec
ROWS_AT_ONCE = 512  # rows in one pass of an encoder of observations


def latent_obs(model: VideoWorldModel, state: VideoState, encoder: KeypointEncoder | None = None) -> Tensor:
    """Return an agent's observation of a state: float32 ``[B, S]``, or the encoder's output for it."""
    features = model.embodiment.scaled_command(state.command)
    obs = torch.cat([state.memory[:, -1].flatten(1), features, state.instruction], dim=1).float()
    return obs if encoder is None else encoder(obs)


def start_states(model: VideoWorldModel, records: Sequence[ResetRecord]) -> VideoState:
    """Begin one rollout per record, a few at a time; SettingError without records."""
    if not records:
        raise SettingError("a latent world needs at least one record to start from, got none")
    parts = [model.start(records[at : at + ENCODED_AT_ONCE]) for at in range(0, len(records), ENCODED_AT_ONCE)]
    names = parts[0].state_dict()
    return VideoState(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True)
class LatentState:
    """Rows between chunks; ``streak`` int64 ``[B]`` counts the newest frames in a row that count as success."""

    video: VideoState
    streak: Tensor


class LatentWorld:
    """A :class:`~worldrl.core.interfaces.StateWorld` in the latents of a video world model.

    ``records`` are the ``N`` possible starts, a dataset's (:func:`recorded_latents`) or a reset store's; they are
    encoded once, here. ``encoder`` of observations and ``basis`` of actions must be on the model's device; None uses
    all numbers.
    """

    measures_uncertainty = False

    def __init__(
        self,
        model: VideoWorldModel,
        records: Sequence[ResetRecord],
        rule: SuccessRule,
        encoder: KeypointEncoder | None = None,
        basis: ChunkBasis | None = None,
    ):
        self.model, self.rule, self.encoder, self.basis = model, rule, encoder, basis
        self.starts = start_states(model, records)

    @property
    def obs_size(self) -> int:
        """Numbers ``S`` per observation."""
        return self._obs(self.starts.select(torch.zeros(1, dtype=torch.int64))).shape[1]

    @property
    def action_size(self) -> int:
        """Numbers per action: a whole chunk's ``A``, or its components."""
        if self.basis is not None:
            return self.basis.components
        return self.model.chunk_length * self.model.embodiment.actions.size

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[LatentState, Tensor]:
        """Begin at the records of ``index`` int64 ``[B]``. Draws nothing."""
        video = self.starts.select(index)
        return LatentState(video, torch.zeros(len(index), dtype=torch.int64)), self._obs(video)

    def select(self, state: LatentState, index: Tensor) -> LatentState:
        """Keep the rows of ``index``."""
        return LatentState(state.video.select(index), state.streak[index.to(state.streak.device)])

    def step(self, state: LatentState, action: Tensor, *, generator: torch.Generator) -> tuple[LatentState, Outcome]:
        """Imagine one chunk: ``action`` is float32 ``[B, a L]`` in [-1, 1], or its components ``[B, C]``.

        Raises ActionError (wrong shape or non-finite values; ``state`` is untouched). Raises NonFiniteError (the model
        imagined NaN or infinity).
        """
        rows = state.video.rows
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        actions = self.model.embodiment.actions
        chunk = (action if self.basis is None else self.basis.decode(action)).reshape(rows, -1, actions.size)
        executed = chunk if actions.unit else actions.unscaled(chunk)
        video, imagined = self.model.imagine(state.video, executed, generators=row_streams(seed, ["latent"], rows))
        first, streak = first_success(imagined.success_prob.cpu(), self.rule, state.streak)
        success = (first >= 0).to(action.device)
        obs = self._obs(video).to(action.device)
        no_uncertainty = torch.zeros(rows, device=action.device)
        return LatentState(video, streak), Outcome(obs, success.float(), success, no_uncertainty)

    @torch.no_grad()
    def _obs(self, video: VideoState) -> Tensor:
        return latent_obs(self.model, video, self.encoder)


@dataclass(frozen=True)
class RecordedLatents:
    """A dataset in the world's own space: ``N`` transitions, trajectories back to back.

    ``episode`` int64 ``[N]`` numbers the trajectory; with a stride below ``L`` an episode gives several, which begin at
    different steps. ``source`` int64 ``[N]`` numbers the recorded episode. ``records`` hold where each row began.
    """

    rows: Transitions
    episode: Tensor
    source: Tensor
    records: tuple[ResetRecord, ...]

    @torch.no_grad()
    def through(self, encoder: KeypointEncoder) -> RecordedLatents:
        """Return the same rows with an encoder's observations; ``self`` must hold latents."""

        def seen(obs: Tensor) -> Tensor:
            return torch.cat([encoder(part.to(encoder.mean.device)).cpu() for part in obs.split(ROWS_AT_ONCE)])

        rows = replace(self.rows, obs=seen(self.rows.obs), next_obs=seen(self.rows.next_obs))
        return replace(self, rows=rows)

    def in_basis(self, basis: ChunkBasis) -> RecordedLatents:
        """Return the same rows with their chunks as components; ``self`` must hold whole chunks."""
        return replace(self, rows=replace(self.rows, action=basis.encode(self.rows.action)))


@dataclass(frozen=True)
class _Chunk:
    """Rows ``step`` to ``end`` of an episode, with its padded actions."""

    step: int
    end: int
    action: NDArray[np.float32]
    success: bool
    last: bool


def recorded_latents(
    model: VideoWorldModel, episodes: Sequence[Episode], *, stride: int | None = None
) -> RecordedLatents:
    """Turn recorded episodes into transitions in latent space, in order.

    A successful episode ends with the chunk of its success; the rest of that chunk holds the arm still. Any other
    episode ends with its last full chunk, truncated. ``stride`` is the number of control steps between the beginnings
    of trajectories of one episode; ``L``, the default, uses each action once. Raises SettingError (no episode holds a
    chunk, or the stride does not divide ``L``).
    """
    length = model.chunk_length
    stride = length if stride is None else stride
    if stride < 1 or length % stride:
        raise SettingError(f"stride must divide the chunk length {length}, got {stride}")
    chunks: list[tuple[int, int, _Chunk]] = []  # trajectory, episode, chunk
    for number, episode in enumerate(episodes):
        for offset in range(0, length, stride):
            trajectory = chunks[-1][0] + 1 if chunks else 0
            chunks += [(trajectory, number, chunk) for chunk in episode_chunks(episode, offset, length)]
    if not chunks:
        raise SettingError(f"no episode is as long as a chunk of {length} control steps; record longer ones")
    return _encode(model, episodes, chunks)


def episode_chunks(episode: Episode, offset: int, length: int) -> list[_Chunk]:
    """Cut an episode into chunks of ``length`` from control step ``offset`` on, up to its first success."""
    success = episode.first_success
    stop = len(episode) if success is None else success
    chunks = []
    for step in range(offset, stop, length):
        end = min(step + length, stop)
        if end < step + length and success is None:
            break
        succeeds = end == success
        last = succeeds or (success is None and end + length > stop)
        action = padded_chunk(episode.action[step:end], length, episode.actions)
        chunks.append(_Chunk(step, end, action, succeeds, last))
    return chunks


def padded_chunk(action: NDArray[np.float32], length: int, actions: ActionSpec) -> NDArray[np.float32]:
    """Fill actions ``[n, a]`` up to ``length`` steps by holding the last one."""
    return np.concatenate([action, np.tile(actions.hold(action[-1]), (length - len(action), 1))])


def _encode(
    model: VideoWorldModel, episodes: Sequence[Episode], chunks: Sequence[tuple[int, int, _Chunk]]
) -> RecordedLatents:
    begin = [(number, chunk.step) for _, number, chunk in chunks]
    end = [(number, chunk.end) for _, number, chunk in chunks]
    obs, next_obs = _seen(model, episodes, begin, end)
    success = torch.tensor([chunk.success for _, _, chunk in chunks])
    last = torch.tensor([chunk.last for _, _, chunk in chunks])
    rows = Transitions(
        obs=obs,
        action=model.embodiment.actions.scaled(torch.from_numpy(np.stack([c.action for _, _, c in chunks]))).flatten(1),
        reward=success.float(),
        next_obs=next_obs,
        terminated=success,
        truncated=last & ~success,
    )
    memory: dict[str, Any] = {"memory_frames": model.memory_frames, "frame_stride": model.frame_stride}
    records = tuple(record_at(episodes[n], step, **memory, source=f"episode {n}, step {step}") for n, step in begin)
    return RecordedLatents(
        rows, torch.tensor([t for t, _, _ in chunks]), torch.tensor([n for _, n, _ in chunks]), records
    )


def _seen(
    model: VideoWorldModel, episodes: Sequence[Episode], *places: Sequence[tuple[int, int]]
) -> tuple[Tensor, ...]:
    """Observe moments (episode, step), each through the codec once; an observation needs the newest frame only."""
    index = {place: row for row, place in enumerate(dict.fromkeys(place for part in places for place in part))}
    newest = {"memory_frames": 1, "frame_stride": 1, "source": "recorded"}
    records = [record_at(episodes[n], step, **newest) for n, step in index]
    parts = [records[at : at + ENCODED_AT_ONCE] for at in range(0, len(records), ENCODED_AT_ONCE)]
    obs = torch.cat([latent_obs(model, model.start(part)).cpu() for part in parts])
    return tuple(obs[[index[place] for place in part]] for part in places)
