"""The video world model's latents as a world: what agents see, when they succeed, and recorded rows in the same space.

Units under test: ``LatentWorld`` and ``recorded_latents``, on a small random world model.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import ActionError, SettingError
from worldrl.core.interfaces import StateWorld
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.core.types import Episode
from worldrl.rewards.success import SuccessRule, first_success
from worldrl.rollout.imagined.latent_world import (
    LatentWorld,
    episode_chunks,
    latent_obs,
    padded_chunk,
    recorded_latents,
    start_states,
)
from worldrl.world_models.latent.chunk_basis import ChunkBasis
from worldrl.world_models.latent.keypoints import KeypointEncoder

RULE = SuccessRule(threshold=0.9, debounce=2)


@pytest.fixture(scope="module")
def episodes(push_episodes: list[Episode], world_model: Any) -> list[Episode]:
    size = world_model.config.codec.image_size
    assert push_episodes[0].frames.shape[2] == size
    return push_episodes


@pytest.fixture(scope="module")
def recorded(episodes: list[Episode], world_model: Any) -> Any:
    return recorded_latents(world_model, episodes)


def test_observations_are_latent_pose_and_instruction(world_model: Any, recorded: Any) -> None:
    state = start_states(world_model, recorded.records)
    obs = latent_obs(world_model, state)
    c, h, w = world_model.codec.latent_shape
    assert torch.equal(obs[:, : c * h * w], state.memory[:, -1].flatten(1))
    assert torch.equal(obs[:, c * h * w + 7 :], state.instruction)
    low, high = (np.array(getattr(world_model.embodiment, f"workspace_{end}")) for end in ("low", "high"))
    pose = obs[0, c * h * w : c * h * w + 7].numpy()
    expected = recorded.records[0].command
    assert pose[:3] == pytest.approx(2 * (expected[:3] - low) / (high - low) - 1, abs=1e-5)
    assert pose[3:] == pytest.approx(expected[3:])


def test_a_step_is_the_models_chunk(world_model: Any, recorded: Any) -> None:
    world = LatentWorld(world_model, recorded.records, RULE)
    checked: StateWorld = world
    state, obs = checked.start(torch.tensor([2, 0]), generator=stream(0, "start"))
    torch.testing.assert_close(obs, recorded.rows.obs[[2, 0]])
    assert (checked.obs_size, checked.action_size) == (obs.shape[1], recorded.rows.action.shape[1])
    action = torch.rand(2, checked.action_size, generator=stream(0, "action")) * 2 - 1
    after, outcome = checked.step(state, action, generator=stream(0, "step"))
    seed = int(torch.randint(2**62, (), generator=stream(0, "step")))
    chunk = action.view(2, world_model.chunk_length, 7)
    video, imagined = world_model.imagine(state.video, chunk, generators=row_streams(seed, ["latent"], 2))
    assert torch.equal(outcome.obs, latent_obs(world_model, video))
    first, streak = first_success(imagined.success_prob, RULE, torch.zeros(2, dtype=torch.int64))
    assert torch.equal(outcome.terminated, first >= 0)
    assert torch.equal(after.streak, streak)
    kept = checked.select(after, torch.tensor([1]))
    assert torch.equal(kept.video.memory[0], video.memory[1])


def test_an_encoder_shows_recorded_and_imagined_moments_alike(world_model: Any, recorded: Any) -> None:
    """Rows, the beginning of a rollout and what a step leads to: the encoder of the latents, and of nothing else."""
    with initial_weights(0, "keypoints"):
        encoder = KeypointEncoder(world_model.codec.latent_shape, 3, width=4).frozen()
    seen = recorded.through(encoder)
    torch.testing.assert_close(seen.rows.obs, encoder(recorded.rows.obs))
    torch.testing.assert_close(seen.rows.next_obs, encoder(recorded.rows.next_obs))
    plain, world = (LatentWorld(world_model, recorded.records, RULE, kind) for kind in (None, encoder))
    assert world.obs_size == seen.rows.obs.shape[1] == 9 + 7 + world_model.embed(["lift"]).shape[1]
    index, action = torch.tensor([2, 0]), torch.zeros(2, world.action_size)
    state, obs = world.start(index, generator=stream(0, "start"))
    torch.testing.assert_close(obs, seen.rows.obs[index])
    state_plain, _ = plain.start(index, generator=stream(0, "start"))
    after, after_plain = (
        w.step(s, action, generator=stream(0, "step"))[1].obs for w, s in ((world, state), (plain, state_plain))
    )
    torch.testing.assert_close(after, encoder(after_plain))
    assert not after.requires_grad


def test_a_step_in_components_is_the_step_of_the_chunk_they_stand_for(world_model: Any, recorded: Any) -> None:
    basis = ChunkBasis.of(recorded.rows.action, 3)
    told = recorded.in_basis(basis).rows.action
    torch.testing.assert_close(told, basis.encode(recorded.rows.action))
    plain, world = (LatentWorld(world_model, recorded.records, RULE, None, kind) for kind in (None, basis))
    assert world.action_size == 3 < plain.action_size
    index = torch.tensor([2, 0])
    (state, _), (same, _) = (w.start(index, generator=stream(0, "start")) for w in (world, plain))
    _, outcome = world.step(state, told[index], generator=stream(0, "step"))
    _, whole = plain.step(same, basis.decode(told[index]), generator=stream(0, "step"))
    assert torch.equal(outcome.obs, whole.obs)
    assert not torch.equal(
        outcome.obs, plain.step(same, recorded.rows.action[index] * 0, generator=stream(0, "step"))[1].obs
    )


@pytest.mark.parametrize(("certainty", "debounce", "ends"), [(0.99, 1, [1]), (0.99, 3, [2]), (0.5, 1, [])])
def test_success_is_debounced_over_chunk_borders(
    make_world_model: Any, recorded: Any, certainty: float, debounce: int, ends: list[int]
) -> None:
    world_model = make_world_model()
    frames = world_model.chunk_length // world_model.frame_stride
    assert frames == 2  # three frames in a row are there in the second chunk only

    class Sure(type(world_model)):
        def imagine(self, state: Any, action: Any, *, generators: Any) -> Any:
            after, imagined = super().imagine(state, action, generators=generators)
            return after, replace(imagined, success_prob=torch.full_like(imagined.success_prob, certainty))

    world_model.__class__ = Sure
    world = LatentWorld(world_model, recorded.records, SuccessRule(0.9, debounce))
    state, _ = world.start(torch.tensor([0]), generator=stream(0, "start"))
    hits = []
    for step in (1, 2):
        state, outcome = world.step(state, torch.zeros(1, world.action_size), generator=stream(step, "step"))
        assert torch.equal(outcome.reward > 0, outcome.terminated)
        hits += [step] if bool(outcome.terminated) else []
    assert hits[:1] == ends


def test_rows_are_repeatable_and_wrong_actions_refused(world_model: Any, recorded: Any) -> None:
    world = LatentWorld(world_model, recorded.records, RULE)
    state, _ = world.start(torch.tensor([0, 1]), generator=stream(0, "start"))
    action = torch.zeros(2, world.action_size)
    one, two = (world.step(state, action, generator=stream(0, "step"))[1].obs for _ in range(2))
    assert torch.equal(one, two)
    with pytest.raises(ActionError):
        world.step(state, torch.zeros(2, world.action_size + 7), generator=stream(0, "step"))
    with pytest.raises(SettingError, match="at least one record"):
        LatentWorld(world_model, [], RULE)


# --- recorded episodes ---------------------------------------------------------------------------------------------


def test_recorded_rows_follow_each_other(recorded: Any, episodes: list[Episode]) -> None:
    rows, episode = recorded.rows, recorded.episode
    same = episode[1:] == episode[:-1]
    torch.testing.assert_close(rows.next_obs[:-1][same], rows.obs[1:][same])
    ends = rows.terminated | rows.truncated
    assert torch.equal(ends[:-1], ~same)
    assert bool(ends[-1])
    assert int(rows.terminated.sum()) == sum(e.success for e in episodes)
    assert torch.equal(rows.reward > 0, rows.terminated)


def plain_episode(steps: int, success_at: int | None) -> Any:
    class Short:
        actions = TOOL_ACTIONS
        action = np.arange(steps * 7, dtype=np.float32).reshape(steps, 7) / 1000
        first_success = success_at

        def __len__(self) -> int:
            return steps

    return Short()


def test_chunks_of_a_success_end_with_it_and_are_filled_with_stillness() -> None:
    chunks = episode_chunks(plain_episode(10, 6), 0, 4)
    assert [(c.step, c.end, c.success, c.last) for c in chunks] == [(0, 4, False, False), (4, 6, True, True)]
    filled = chunks[1].action
    assert filled[:2] == pytest.approx(plain_episode(10, 6).action[4:6])
    assert (filled[2:, :6] == 0).all()
    assert (filled[2:, 6] == filled[1, 6]).all()


def test_chunks_of_a_failure_end_with_the_last_full_one() -> None:
    chunks = episode_chunks(plain_episode(11, None), 1, 4)
    assert [(c.step, c.end, c.success, c.last) for c in chunks] == [(1, 5, False, False), (5, 9, False, True)]
    assert episode_chunks(plain_episode(3, None), 0, 4) == []


def test_a_full_chunk_is_left_as_it_is() -> None:
    action = np.random.default_rng(0).random((4, 7)).astype(np.float32)
    assert np.array_equal(padded_chunk(action, 4, TOOL_ACTIONS), action)


def test_a_smaller_stride_gives_more_trajectories(world_model: Any, episodes: list[Episode]) -> None:
    length = world_model.chunk_length
    every = recorded_latents(world_model, episodes[:1], stride=1)
    assert int(every.episode.max()) == length - 1
    steps = [record.step for record, t in zip(every.records, every.episode.tolist(), strict=True) if t == 1]
    assert steps == list(range(1, 1 + length * len(steps), length))
    assert (every.source == 0).all()
    with pytest.raises(SettingError, match="must divide"):
        recorded_latents(world_model, episodes, stride=length + 1)


def test_every_trajectory_of_an_episode_ends_as_the_episode_did(world_model: Any, push_episodes: list[Episode]) -> None:
    """With a stride of 1 a success is the end of as many trajectories as began before it, and of nothing else."""
    dense = recorded_latents(world_model, push_episodes, stride=1)
    rows, length = dense.rows, world_model.chunk_length
    ends = rows.terminated | rows.truncated
    assert torch.equal(ends[:-1], dense.episode[1:] != dense.episode[:-1])
    assert torch.equal(rows.reward > 0, rows.terminated)
    assert not (rows.terminated & rows.truncated).any()
    for number, episode in enumerate(push_episodes):
        mine = dense.source == number
        success = episode.first_success
        expected = 0 if success is None else min(length, success)
        assert int(rows.terminated[mine].sum()) == expected
        assert len(dense.episode[mine].unique()) == int(ends[mine].sum())
    same = ~ends[:-1]
    torch.testing.assert_close(rows.next_obs[:-1][same], rows.obs[1:][same])
