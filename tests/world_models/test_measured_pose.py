"""Robots whose command is the measured pose: imagination reads it from its frames, since actions only estimate it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from worldrl.core.embodiment import integrate_commands
from worldrl.core.rng import initial_weights, row_streams
from worldrl.data.windows.windows import WindowSampler
from worldrl.evaluation.world_model.further import further_errors
from worldrl.evaluation.world_model.rollout_error import padded_actions, replay
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.world_models.video.extension import extended
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import fit_dynamics, recorded_poses
from worldrl.world_models.video.training_config import WorldModelTraining

POSE = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.2, 0.3])


def late(episode):
    """Poses that follow the actions with a velocity of their own, as an impedance controller's do."""
    pose, velocity = [episode.command[0, :6]], np.zeros(6, np.float32)
    for action in episode.action:
        velocity = 0.6 * velocity + 0.002 * action[:6]
        pose.append(pose[-1] + velocity)
    return replace(episode, command=np.concatenate([np.stack(pose), episode.command[:, 6:]], axis=1).astype(np.float32))


@pytest.fixture(scope="module")
def episodes(push_episodes):
    return [late(episode) for episode in push_episodes]


@pytest.fixture
def model(make_world_model, robot):
    with initial_weights(0, "pose"):
        return VideoWorldModel(make_world_model().config, replace(robot, response=0.25)).eval()


def begun(model, episodes, step=0):
    records = [record_at(e, step, memory_frames=model.memory_frames, frame_stride=2, source="x") for e in episodes]
    return model.start(records)


def sampler_of(model, episodes):
    sizes = {"chunk_length": model.chunk_length, "frame_stride": model.frame_stride, "unroll": 2}
    return WindowSampler(episodes, **sizes, static_share=0.0, robot=model.embodiment)


def imagined_commands(model, episodes, chunks):
    """Commands ``[B, T, A]`` that follow from the recorded actions, chunk by chunk, and those at the chunks' ends."""
    state, found, ends = begun(model, episodes), [], []
    for k in range(chunks):
        span = slice(k * model.chunk_length, (k + 1) * model.chunk_length)
        action = torch.stack([torch.from_numpy(e.action[span]) for e in episodes])
        state, imagined = model.imagine(state, action, generators=row_streams(0, ["g", k], len(episodes)))
        found.append(imagined.command)
        ends.append(state.command)
    return torch.cat(found, dim=1), torch.stack(ends, dim=1)


def test_an_exact_command_has_no_pose_head(make_world_model, model):
    assert make_world_model().pose_head is None
    assert model.pose_head is not None


def test_between_frames_the_difference_from_the_integrated_command_grows_evenly(model, episodes):
    with torch.no_grad():  # the head begins without images: it measures this pose whatever is seen
        model.pose_head.offset.copy_(POSE)
        model.pose_head.scaled.fill_(True)
    two, length = episodes[:2], model.chunk_length
    found, ends = imagined_commands(model, two, 2)
    action = torch.stack([torch.from_numpy(e.action[: 2 * length]) for e in two])
    alone = integrate_commands(model.embodiment, begun(model, two).command, action[:, :length])
    left = POSE - alone[:, 1::2, :6]
    torch.testing.assert_close(found[:, 1:length:2, :6], POSE.expand(2, length // 2, 6))
    torch.testing.assert_close(found[:, 0, :6] - alone[:, 0, :6], left[:, 0] / 2)
    torch.testing.assert_close(found[:, 2, :6] - alone[:, 2, :6], (left[:, 0] + left[:, 1]) / 2)
    assert torch.equal(found[:, :length, 6:], alone[..., 6:])
    assert torch.equal(ends[:, 0], found[:, length - 1])
    again = integrate_commands(model.embodiment, ends[:, 0], action[:, length:])
    assert torch.equal(found[:, length:, 6:], again[..., 6:])


def test_recorded_poses_teach_how_far_the_robot_follows(model, episodes):
    """With the fitted line alone, without images, imagined commands lie closer to the recorded ones than integrated ones."""
    sampler = sampler_of(model, episodes)
    model.pose_head.scale_to(*recorded_poses(model, sampler.store))
    chunks = min(map(len, episodes)) // model.chunk_length
    found, _ = imagined_commands(model, episodes, chunks)
    action = torch.stack([torch.from_numpy(e.action[: found.shape[1]]) for e in episodes])
    alone = integrate_commands(model.embodiment, begun(model, episodes).command, action)
    real = torch.stack([torch.from_numpy(e.command[1 : found.shape[1] + 1]) for e in episodes])
    error, before = ((each - real)[:, -1, :3].norm(dim=-1).mean() for each in (found, alone))
    assert error < 0.75 * before


def test_a_window_integrates_each_chunk_from_the_recorded_pose_before_it(model, episodes):
    sampler = sampler_of(model, episodes)
    batch = sampler.sample(8, torch.Generator().manual_seed(0))
    for row, (number, start) in enumerate(zip(batch.episode.tolist(), batch.start.tolist(), strict=True)):
        ends = [start, min(start + model.chunk_length, len(episodes[number]))]
        assert torch.equal(batch.starts[row], torch.from_numpy(episodes[number].command[ends]))


def test_training_moves_the_pose_head_and_a_folder_keeps_it(model, episodes, tmp_path):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sizes = {"steps": 6, "batch": 4, "warmup": 2, "dtype": "float32", "unroll": 2, "codec_batch": 4}
    config = WorldModelTraining(**sizes)
    none = TaskInstructions(same={}, other={})
    report = fit_dynamics(model, episodes, config, instructions=none, seed=0, folder=None, log=None)
    assert np.isfinite(report.logs["wm/pose_nll"])
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {"pose_head.gain", "pose_head.scaled", "pose_head.command.weight"} <= moved
    model.save(tmp_path / "new")
    again = VideoWorldModel.load(tmp_path / "new")
    assert torch.equal(again.pose_head.gain, model.pose_head.gain)


def test_weights_of_before_integrate_the_actions_and_get_a_head_with_further_training(model, episodes, tmp_path):
    model.pose_head = None
    model.save(tmp_path / "old")
    old = VideoWorldModel.load(tmp_path / "old")
    assert old.pose_head is None
    found, _ = imagined_commands(old, episodes[:2], 2)
    action = torch.stack([torch.from_numpy(e.action[: found.shape[1]]) for e in episodes[:2]])
    torch.testing.assert_close(found, integrate_commands(old.embodiment, begun(old, episodes[:2]).command, action))
    larger = extended(old, old.config, seed=0)
    assert larger.pose_head is not None
    assert torch.equal(imagined_commands(larger, episodes[:2], 2)[0], found)  # until it has learned


def test_the_error_of_the_seen_pose_is_reported_as_a_measured_state(model, episodes, make_world_model):
    with torch.no_grad():
        model.pose_head.offset.copy_(torch.tensor([0.5, 0.0, 0.1, 0.0, 0.0, 0.0]))
        model.pose_head.scaled.fill_(True)
    chosen = [episode for episode in episodes if len(episode) >= 8][:3]
    found = further_errors(whole(model, chosen), (8,))
    error = [np.linalg.norm(e.command[8, :3] - [0.5, 0.0, 0.1]) for e in chosen]
    assert found["closed_loop.state_cm@8"] == pytest.approx(100 * np.median(error), rel=1e-4)
    assert further_errors(whole(make_world_model(), chosen), (8,)) == {}


def whole(model, episodes):
    return replay(model, episodes, np.stack([padded_actions(e, 8) for e in episodes]), seed=0)
