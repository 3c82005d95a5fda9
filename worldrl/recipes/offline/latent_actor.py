"""Controls the simulator with an agent of video latents, which receives the latents of the world model's codec.

An actor of one process, since an offline agent is no policy folder: an ``EmbeddedPlayer`` with ``workers=0``.
Shapes: ``S`` latent observation, ``A = a L`` a whole chunk of ``a`` numbers a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.types import Episode
from worldrl.evaluation.offline.scores import OfflineEvaluation
from worldrl.evaluation.policy.protocol import embedded_protocol
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.rollout.imagined.latent_world import latent_obs
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.rows import Row
from worldrl.rollout.vector.episodes import remembering
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.latent.keypoints import KeypointEncoder
from worldrl.world_models.video.model import VideoWorldModel

DecideChunk = Callable[[Tensor], Tensor]
"""Maps an observation ``[1, S]`` to a chunk ``[1, A]``, or its components, in [-1, 1]; called once per chunk, may have a state."""


def recurrent(agent: Neubay) -> Callable[[], DecideChunk]:
    """Begin episodes of an agent with a memory. Its reward input is 0, since success ends the episode."""
    begin = remembering(agent, agent.facts.action_size)

    def begin_chunks() -> DecideChunk:
        decide = begin()
        return lambda obs: decide(obs[0], 0.0, None)[None]

    return begin_chunks


def forgetful(agent: Any) -> Callable[[], DecideChunk]:
    """Begin episodes of an agent that receives only the newest observation."""
    return lambda: lambda obs: agent.act(obs, generator=None)


@dataclass(frozen=True, eq=False)
class LatentActor:
    """Most likely chunks of one agent."""

    model: VideoWorldModel  # its codec and instruction encoder make the observations
    begins: Callable[[], DecideChunk]  # makes a decision function for each episode
    encoder: KeypointEncoder | None = None  # of observations, as in training; None passes the latents
    basis: ChunkBasis | None = None  # of actions, as in training; None where the agent chooses all numbers of a chunk

    images_needed: ClassVar[int] = 1

    def build(self) -> "LatentActor":
        """Itself: there is no other process."""
        return self

    def begin(self, row: Row) -> None:
        """Make the decision function of an episode."""
        row.actor_state = self.begins()

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """One chunk per row, float32 ``[B, L, a]``."""
        return np.stack([self._chunk(row) for row in rows])

    @torch.no_grad()
    def _chunk(self, row: Row) -> NDArray[np.float32]:
        record = initial_record(
            np.asarray(row.obs["image"]),
            np.asarray(row.obs["command"]),
            instruction=row.instruction,
            task=row.spec.task,
            memory_frames=self.model.memory_frames,
            source="simulator",
        )
        # Only the newest frame of the memory is used.
        obs = latent_obs(self.model, self.model.start([record]), self.encoder)
        actions = self.model.embodiment.actions
        chunk = row.actor_state(obs)
        if self.basis is not None:
            chunk = self.basis.decode(chunk)
        return actions.unscaled(chunk.reshape(-1, actions.size)).cpu().numpy()


def played(actor: LatentActor, task: str, episodes: int, seed: int) -> list[Episode]:
    """Episodes from the first initial states of a task, numbered as in ``worldrl evaluate``."""
    size, length = actor.model.config.codec.image_size, actor.model.chunk_length
    protocol = embedded_protocol([task], episodes_per_task=episodes, seed=seed, chunk_length=length, image_size=size)
    driver: Any = actor
    found = EmbeddedPlayer(protocol.env_options, workers=0).play([(spec, driver) for spec in protocol.specs()])
    return [item for item in found if isinstance(item, Episode)]


def embedded_tasks() -> set[str]:
    """Names of all tasks of the embedded suite, of one arm and of two."""
    from worldrl_envs.tasks import BIMANUAL, task_names

    return {*task_names(), *task_names(BIMANUAL)}


def limit_in_chunks(tasks: Sequence[str], model: VideoWorldModel) -> int:
    """Chunks within the longest time limit of some tasks."""
    protocols = [embedded_protocol([task], episodes_per_task=1, seed=0, chunk_length=1) for task in tasks]
    return max(limit for protocol in protocols for limit in protocol.horizon.values()) // model.chunk_length


@dataclass(frozen=True, eq=False)
class LatentEnvironment:
    """The embedded suite for agents of latents: an episode returns 1 for success, else 0; fields as in :class:`LatentActor`."""

    model: VideoWorldModel
    tasks: tuple[str, ...]
    encoder: KeypointEncoder | None = None
    basis: ChunkBasis | None = None

    def play(self, agent: Any, *, seed: int, episodes: int, gamma: float) -> OfflineEvaluation:
        """Play ``episodes`` initial states of each task with the most likely chunks; lengths in control steps."""
        begins = recurrent(agent) if isinstance(agent, Neubay) else forgetful(agent)
        actor = LatentActor(self.model, begins, self.encoder, self.basis)
        found = [episode for task in self.tasks for episode in played(actor, task, episodes, seed)]
        lengths = np.array([len(episode) for episode in found], np.int64)
        success = np.array([episode.success for episode in found])
        chunks = np.ceil(lengths / self.model.chunk_length)
        return OfflineEvaluation(
            index=np.arange(len(found), dtype=np.int64),
            returns=success.astype(np.float64),
            discounted=success * gamma ** (chunks - 1),
            lengths=lengths,
            terminated=success,
            predicted=None,
            seed=seed,
            gamma=gamma,
            deterministic=True,
        )
