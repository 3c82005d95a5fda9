"""Unit under test: ``worldrl.recipes.offline.latent_actor``."""

from typing import Any

import pytest
import torch

from worldrl.core.rng import initial_weights
from worldrl.core.types import Episode
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.bc import Bc, BcConfig
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import Neubay, NeubayConfig
from worldrl.recipes.offline.latent_actor import LatentActor, forgetful, recurrent
from worldrl.rollout.imagined.latent_world import recorded_latents
from worldrl.rollout.real.rows import Row
from worldrl.rollout.real.specs import EpisodeSpec
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.latent.keypoints import KeypointEncoder


def row_at(episode: Episode, step: int) -> Row:
    obs = {"image": episode.frames[step, 0], "command": episode.command[step]}
    return Row(EpisodeSpec(episode.task, 0, 0), None, obs, episode.instruction)


@pytest.fixture(scope="module")
def recorded(push_episodes: list[Episode], world_model: Any) -> Any:
    return recorded_latents(world_model, push_episodes)


@pytest.mark.parametrize("keypoints", [0, 3])
def test_simulator_and_data_show_the_same_observation(
    push_episodes: list[Episode], world_model: Any, recorded: Any, keypoints: int
) -> None:
    """What the actor decides on in a frame is the recorded row of that frame, so its chunk is the agent's there."""
    encoder, rows = None, recorded.rows
    with initial_weights(0, "bc"):
        if keypoints:
            encoder = KeypointEncoder(world_model.codec.latent_shape, keypoints, width=4).frozen()
            rows = recorded.through(encoder).rows
        agent = Bc(BcConfig((8,)), Facts.of(rows, [0.0, 1.0]))
    told: list[torch.Tensor] = []
    deciders = forgetful(agent)

    def remembered() -> Any:
        decide = deciders()
        return lambda obs: (told.append(obs), decide(obs))[1]

    actor = LatentActor(world_model, remembered, encoder).build()
    seen = [row_at(push_episodes[0], 0), row_at(push_episodes[0], world_model.chunk_length)]
    for row in seen:
        actor.begin(row)
    expected = agent.act(rows.obs[:2], generator=None).reshape(2, world_model.chunk_length, 7)
    torch.testing.assert_close(torch.from_numpy(actor.act(seen)), expected)
    torch.testing.assert_close(torch.cat(told), rows.obs[:2])


def test_an_agent_of_components_plays_the_chunk_they_stand_for(
    push_episodes: list[Episode], world_model: Any, recorded: Any
) -> None:
    basis = ChunkBasis.of(recorded.rows.action, 2)
    rows = recorded.in_basis(basis).rows
    with initial_weights(0, "bc"):
        agent = Bc(BcConfig((8,)), Facts.of(rows, [0.0, 1.0]))
    actor, row = LatentActor(world_model, forgetful(agent), basis=basis).build(), row_at(push_episodes[0], 0)
    actor.begin(row)
    expected = basis.decode(agent.act(rows.obs[:1], generator=None)).reshape(1, world_model.chunk_length, 7)
    torch.testing.assert_close(torch.from_numpy(actor.act([row])), expected)


def test_an_episode_remembers_its_own_chunks_alone(
    push_episodes: list[Episode], world_model: Any, recorded: Any
) -> None:
    rows = recorded.rows
    with initial_weights(0, "neubay"):
        agent = Neubay(NeubayConfig(MemoryConfig(8, 4), hidden=(8,), critics=2), Facts.of(rows, [0.0, 1.0]))
        for parameter in agent.modules["actor"].parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    actor = LatentActor(world_model, recurrent(agent))
    row, other = row_at(push_episodes[0], 0), row_at(push_episodes[1], 0)
    actor.begin(row)
    actor.begin(other)
    first, again = actor.act([row]), actor.act([row])
    assert not (first == again).all()  # the second chunk knows of the first
    actor.act([other])
    actor.begin(row)
    torch.testing.assert_close(torch.from_numpy(actor.act([row])), torch.from_numpy(first))
