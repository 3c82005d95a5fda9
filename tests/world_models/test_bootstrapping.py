"""Latent rollouts: rows walk recorded episodes on the model's own latents, and training on them resumes bit for bit."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.evaluation.world_model.rollout_error import padded_actions, replay
from worldrl.world_models.video import bootstrapping, training
from worldrl.world_models.video.bootstrapping import LatentRollouts
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.training import fit_dynamics, latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

CONFIG = WorldModelTraining(
    dtype="float32", unroll=1, steps=6, batch=3, warmup=2, checkpoint_every=2, bootstrap=0.7, bootstrap_rows=5
)


@pytest.fixture
def make_rollouts(world_model):
    def make(episodes, rows):
        sampler = latent_sampler(world_model, episodes, CONFIG)
        return LatentRollouts(sampler.store, sampler.layout, rows)

    return make


def walk(rollouts, model, steps, rows=3, seed=0):
    seen = []
    for step in range(steps):
        generator = stream(seed, "walk", step)
        context = rollouts.draw(rows, generator)
        seen.append((context.rows.tolist(), rollouts.step[context.rows].tolist(), context))
        rollouts.advance(model, context, generator)
    return seen


def test_a_row_walks_its_episode_to_the_end_and_begins_another(make_rollouts, world_model, push_episode):
    episodes = [push_episode(n, 12) for n in range(3)]
    rollouts, steps = make_rollouts(episodes, 1), []
    for _, (step,), context in walk(rollouts, world_model, 12, rows=1):
        steps.append(step)
        assert context.batch.start.tolist() == [step]
        assert context.batch.episode.tolist() == [int(rollouts.episode[0])] or not rollouts.begun[0]
    assert 0 in steps
    length, last = world_model.chunk_length, 12 - world_model.frame_stride
    for before, after in pairwise(steps):
        assert after == before + length or before + length > last  # on, or the episode was over
    assert max(steps) <= last


def test_a_row_gets_the_images_of_imagination(make_rollouts, world_model, push_episode):
    """Three chunks on its own latents are those of a closed-loop replay under the same noise."""
    episode = push_episode(0, 12)
    rollouts, record = make_rollouts([episode], 1), []
    rollouts.begun[:] = True
    rollouts.memory[:] = rollouts.store.frames[0]
    for chunk in range(3):
        context = rollouts.draw(1, stream(0, "draw", chunk))
        record.append(context.batch.memory.float())
        rollouts.advance(world_model, context, stream(0, "replay", 0, chunk))
    result = replay(world_model, [episode], padded_actions(episode, 12)[None], seed=0)
    first = torch.from_numpy(episode.frames[:1, 0])
    for chunk in (1, 2):
        newest = world_model.decode(record[chunk][:, -1:], first)[0, 0].numpy().astype(int)
        there = result.imagined[0, chunk * world_model.config.dynamics.chunk_frames - 1]
        assert np.abs(newest - there).max() <= 1  # the buffer keeps half precision


def test_rows_that_plan_walk_on_their_plans(make_world_model, push_episodes, monkeypatch):
    """A row given the instruction alone imagines its chunk from the instruction of that step, without actions."""
    model, seen = make_world_model(planning=True, spread=0.3), []
    imagine = bootstrapping.imagine_chunk

    def spy(model, state, batch, chunk, generator, hidden=None):
        seen.append((batch.instruction, hidden))
        return imagine(model, state, batch, chunk, generator, hidden)

    monkeypatch.setattr(bootstrapping, "imagine_chunk", spy)
    sentences = TaskInstructions({"PickRedCube": ("lift it",), "PickGreenCylinder": ("lift it",)}, {})
    config = replace(CONFIG, action_dropout=0.5, bootstrap=1.0, static_share=0.0)
    fit_dynamics(model, push_episodes, config, instructions=sentences, seed=3, folder=None, log=None)
    assert {sentence for told, _ in seen for sentence in told} == {"lift it"}
    rows = torch.cat([hidden for _, hidden in seen])
    assert 0 < rows.float().mean() < 1


def test_memory_does_not_grow_with_depth_and_rows_are_drawn_once(make_rollouts, world_model, push_episodes):
    rollouts = make_rollouts(push_episodes, 6)
    size = sum(buffer.numel() for buffer in rollouts.buffers())
    for rows, _, _ in walk(rollouts, world_model, 8, rows=4):
        assert len(set(rows)) == 4
    assert sum(buffer.numel() for buffer in rollouts.buffers()) == size
    assert len(rollouts.draw(100, stream(0, "all")).rows) == 6
    with pytest.raises(SettingError, match="bootstrap_rows"):
        make_rollouts(push_episodes, 0)


def test_the_same_draws_walk_the_same_way(make_rollouts, world_model, push_episodes, same_tree):
    first, second, other = (make_rollouts(push_episodes, 5) for _ in range(3))
    for rollouts, seed in ((first, 0), (second, 0), (other, 1)):
        walk(rollouts, world_model, 6, seed=seed)
    same_tree(dict(first.state_dict()), dict(second.state_dict()))
    assert not torch.equal(first.memory, other.memory)


@pytest.mark.parametrize("stop", [1, 4])
def test_a_bootstrapped_training_interrupted_resumes_to_the_same_bits(make_world_model, push_episodes, resumed, stop):
    sentences = TaskInstructions({}, {})

    def train(folder):
        model = make_world_model()
        fit_dynamics(model, push_episodes, CONFIG, instructions=sentences, seed=3, folder=folder, log=None)
        return model

    assert resumed(train, training, "chunk_loss", stop=stop)[1] > stop


def test_impossible_settings_are_refused():
    with pytest.raises(SettingError, match="bootstrap_rows"):
        WorldModelTraining(bootstrap_rows=-1)
    with pytest.raises(SettingError, match="bootstrap"):
        WorldModelTraining(unroll=1, bootstrap=0.5)
    WorldModelTraining(unroll=1, bootstrap=0.5, bootstrap_rows=8)
