"""Resampled rollouts of the same actions: other noise, nothing else."""

import numpy as np
import torch

from worldrl.core.rng import stream
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.rollout.trust.resampled import ResampledRollouts, resample_rollouts


def ask(world_model, episodes, count, *, seed=3, batch=64, rows=slice(None)):
    starts = [
        record_at(e, 0, memory_frames=world_model.memory_frames, frame_stride=world_model.frame_stride, source="")
        for e in episodes
    ][rows]
    steps = 2 * world_model.chunk_length
    action = torch.from_numpy(np.stack([e.action[:steps] for e in episodes]))[rows]
    return resample_rollouts(world_model, starts, action, count, seed=seed, batch=batch), starts, action


def test_a_resampled_rollout_is_an_imagination_of_its_own_noise(world_model, push_episodes):
    found, starts, action = ask(world_model, push_episodes, 3)
    state, parts = world_model.start(starts), []
    for k, chunk in enumerate(action.split(world_model.chunk_length, dim=1)):
        generators = [stream(3, "opinion", 1, row, k) for row in range(len(starts))]
        state, imagined = world_model.imagine(state, chunk.contiguous(), generators=generators)
        parts.append(imagined.success_prob)
    np.testing.assert_array_equal(found.probability[1], torch.cat(parts, dim=1).numpy())
    assert not np.array_equal(found.probability[0], found.probability[1])
    assert found.spread.shape == found.uncertainty.shape == found.probability.shape[1:]
    assert (found.spread > 0).all()


def test_a_batch_more_changes_nothing_but_rounding(world_model, push_episodes):
    together, *_ = ask(world_model, push_episodes, 2)
    apart, *_ = ask(world_model, push_episodes, 2, batch=3)
    np.testing.assert_allclose(apart.probability, together.probability, atol=1e-5)
    np.testing.assert_allclose(apart.spread, together.spread, atol=1e-5)


def test_resampled_rollouts_are_written_and_read(world_model, push_episodes, tmp_path):
    found, *_ = ask(world_model, push_episodes, 2, rows=slice(2))
    found.save(tmp_path / "opinions.npz")
    again = ResampledRollouts.load(tmp_path / "opinions.npz")
    for name in ("probability", "uncertainty", "spread"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
