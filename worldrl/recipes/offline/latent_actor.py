"""An agent of video latents at the controls of the simulator: it sees what the world model's codec makes of a frame.

``train-offline world=latent`` and ``reproduce offline-video`` score their agents here (:class:`LatentEnvironment`).

An actor of :mod:`worldrl.rollout.agents.actors` in all but its passport: it exists in one process only, since an offline agent
is no policy folder that a worker could open. Give it to ``rollout_episodes`` with ``workers=0`` and ``record=True`` (pixels
are rendered for recorded episodes).

Shapes legend: ``S`` latent observation, ``A = a L`` a whole chunk of ``a`` numbers a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from worldrl.rollout.real.rollouts import rollout_episodes
from worldrl.rollout.real.rows import Row
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.latent.keypoints import KeypointEncoder
from worldrl.world_models.video.model import VideoWorldModel

DecideChunk = Callable[[Tensor], Tensor]
"""Maps an observation ``[1, S]`` to a chunk ``[1, A]``, or its components, in [-1, 1]; called once per chunk, so it may remember."""


def recurrent(agent: Neubay) -> Callable[[], DecideChunk]:
    """Begin episodes of an agent with a memory. It is told no reward: success would end the episode."""

    def begin() -> DecideChunk:
        memory, last = agent.begin(1), torch.zeros(1, agent.facts.action_size)

        def decide(obs: Tensor) -> Tensor:
            nonlocal memory, last
            last, memory = agent.step(obs, last, torch.zeros(1), memory, generator=None)
            return last

        return decide

    return begin


def forgetful(agent: Any) -> Callable[[], DecideChunk]:
    """Begin episodes of an agent that sees the newest observation alone."""
    return lambda: lambda obs: agent.act(obs, generator=None)


@dataclass(frozen=True, eq=False)
class LatentActor:
    """Most likely chunks of one agent.

    Attributes:
        model: its codec and instruction encoder make the observations.
        begins: gives every episode a decider of its own.
        encoder: of observations, the one that the agent learned with; None shows it the latents themselves.
        basis: of its actions, likewise; None where it chooses all numbers of a chunk.
    """

    model: VideoWorldModel
    begins: Callable[[], DecideChunk]
    encoder: KeypointEncoder | None = None
    basis: ChunkBasis | None = None

    def build(self) -> LatentActor:
        """Return itself: there is no other process to build it in."""
        return self

    def begin(self, row: Row) -> None:
        """Give the episode its decider."""
        row.actor_state = self.begins()

    def act(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Choose one chunk per row, float32 ``[B, L, a]``."""
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
        # Of the memory it shows the newest frame alone.
        obs = latent_obs(self.model, self.model.start([record]), self.encoder)
        actions = self.model.embodiment.actions
        told = row.actor_state(obs)
        chunk = told if self.basis is None else self.basis.decode(told)
        return actions.unscaled(chunk.reshape(-1, actions.size)).cpu().numpy()


def played(actor: LatentActor, task: str, episodes: int, seed: int) -> list[Episode]:
    """Play the first initial states of a task, as ``worldrl evaluate`` numbers them."""
    size, length = actor.model.config.codec.image_size, actor.model.chunk_length
    protocol = embedded_protocol([task], episodes_per_task=episodes, seed=seed, chunk_length=length, image_size=size)
    driver: Any = actor
    found = rollout_episodes(protocol.specs(), actor=driver, env_options=protocol.env_options, workers=0, record=True)
    return [item for item in found if isinstance(item, Episode)]


def embedded_tasks() -> set[str]:
    """Return the names of all tasks of the embedded suite, of one arm and of two."""
    from worldrl_envs.tasks import BIMANUAL, task_names

    return {*task_names(), *task_names(BIMANUAL)}


def limit_in_chunks(tasks: Sequence[str], model: VideoWorldModel) -> int:
    """Return the chunks that fit into the time limit of the longest of some tasks."""
    protocols = [embedded_protocol([task], episodes_per_task=1, seed=0, chunk_length=1) for task in tasks]
    return max(limit for protocol in protocols for limit in protocol.horizon.values()) // model.chunk_length


@dataclass(frozen=True, eq=False)
class LatentEnvironment:
    """The embedded suite, as agents of latents play it: an episode returns 1 where it succeeded, else 0.

    Attributes:
        model: its codec and instruction encoder make the observations.
        tasks: names.
        encoder: of observations; None shows the latents themselves.
        basis: of actions; None takes all numbers of a chunk.
    """

    model: VideoWorldModel
    tasks: tuple[str, ...]
    encoder: KeypointEncoder | None = None
    basis: ChunkBasis | None = None

    def play(self, agent: Any, *, seed: int, episodes: int, gamma: float) -> OfflineEvaluation:
        """Play the first ``episodes`` initial states of each task with the most likely chunks.

        Args:
            agent: of this model's latents.
            seed: of the states.
            episodes: of each task.
            gamma: discount per chunk.

        Returns:
            One entry per episode, task after task; lengths in control steps, without what a critic promised.
        """
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
