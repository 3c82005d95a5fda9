"""Finished videos are read as if they had just been sampled, and a critic of plans learns from recorded frames."""

import numpy as np
import pytest
import torch

from worldrl.core.errors import ActionError, SettingError
from worldrl.core.rng import stream
from worldrl.core.statistics.intervals import auroc
from worldrl.diffusion.flow import sigma_grid
from worldrl.rewards.success import debounced_score
from worldrl.world_models.video.dynamics import hide_actions
from worldrl.world_models.video.head_predictions import read_findings, read_success
from worldrl.world_models.video.instructions import TaskInstructions, hide_rows
from worldrl.world_models.video.outcome_training import fit_outcome, imagine_episodes
from worldrl.world_models.video.training import latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

SENTENCES = TaskInstructions(same={"PickRedCube": ("pick up the red cube",)}, other={})


@pytest.fixture
def judge(make_world_model):
    model = make_world_model(planning=True, spread=0.3)
    model.config.outcome.conditioning = "instruction"
    return model


def video(rows=2, frames=4, seed=0):
    return torch.randint(0, 256, (rows, 1 + frames, 16, 16, 3), dtype=torch.uint8, generator=stream(seed, "video"))


def test_what_is_read_is_what_the_sampler_saw_last(make_world_model):
    """Its last evaluation reads half noise, half the first prediction: reading that prediction with that noise is the same."""
    dynamics, draw = make_world_model(planning=True, spread=0.3).dynamics, stream(0, "given")
    noise, reference = torch.randn(3, 2, 4, 2, 2, generator=draw), torch.randn(3, 4, 2, 2, generator=draw)
    memory, action = torch.randn(3, 2, 4, 2, 2, generator=draw), torch.randn(3, 4, 14, generator=draw)
    condition = hide_actions(action, torch.randn(3, 16, generator=draw), torch.tensor([True, False, True]))
    assert dynamics.read_level == sigma_grid(2)[-2] == 0.5
    first, _ = dynamics(noise, torch.ones(3), reference, memory, condition)
    _, features = dynamics.sample(noise, reference, memory, condition)
    torch.testing.assert_close(dynamics.read(first, noise, reference, memory, condition), features)


@pytest.mark.parametrize(("over", "level"), [({"sampling_steps": 1}, 0.5), ({"sampling_steps": 4}, 0.25)])
def test_an_image_is_never_read_through_more_noise_than_image(make_world_model, over, level):
    assert make_world_model(**over).dynamics.read_level == pytest.approx(level)


def test_later_frames_change_nothing_before_and_earlier_ones_are_remembered(judge, make_record):
    state = judge.start([make_record(20), make_record(90, task="PickGreenCylinder")])
    draw = stream(0, "frames")
    latent, noise = (torch.randn(2, 4, *judge.codec.latent_shape, generator=draw) for _ in range(2))
    found = read_findings(judge, state, latent, None, noise)
    assert found.shape == (2, 4, 2 * judge.dynamics.width)
    for place, changed in ((3, slice(2, 4)), (0, slice(0, 4))):
        other = latent.clone()
        other[:, place] += 1
        differs = (read_findings(judge, state, other, None, noise) != found).any(dim=-1)
        assert differs[:, changed].all()
        assert not differs[:, : changed.start].any()
    with pytest.raises(SettingError, match="whole chunks of 2 frames, got 3"):
        read_findings(judge, state, latent[:, :3], None, noise[:, :3])


def test_a_videos_answer_depends_on_that_video_and_its_instruction(judge):
    frames, said = video(), ["pick up the red cube", "pick up the green cylinder"]
    found = read_success(judge, frames, said)
    assert found.shape == (2, 4)
    torch.testing.assert_close(read_success(judge, frames[1:], said[1:])[0], found[1])
    assert not torch.allclose(read_success(judge, frames, said[::-1]), found)
    with pytest.raises(SettingError, match=r"the model takes 16 pixels, the videos have \(8, 8\)"):
        read_success(judge, frames[:, :, :8, :8], said)


def test_videos_that_were_given_their_actions_are_read_with_them(make_world_model):
    model, frames = make_world_model(spread=0.3), video()
    command, action = torch.zeros(2, 7), torch.rand(2, 8, 7, generator=stream(0, "action"))
    found = read_success(model, frames, ["a", "b"], command, action)
    assert not torch.allclose(read_success(model, frames, ["a", "b"], command, -action), found)
    with pytest.raises(ActionError, match="needs a world model that plans"):
        read_success(model, frames, ["a", "b"])


def test_a_critic_of_plans_learns_from_recorded_frames_alone(judge, lit_episode):
    """What is seen decides; actions are never given, and failures are among the episodes."""
    episodes = [lit_episode(n) for n in range(80)]
    config = WorldModelTraining(dtype="float32", outcome_steps=60, outcome_batch=32, warmup=5, checkpoint_every=1000)
    before = {name: value.clone() for name, value in judge.state_dict().items()}
    fit_outcome(judge, episodes[:40], config, instructions=SENTENCES, seed=0, folder=None, log=None)
    moved = {name.split(".")[0] for name, value in judge.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"outcome"}
    unseen = episodes[40:]
    frames = torch.from_numpy(np.stack([e.frames[::2, 0] for e in unseen]))
    probability = read_success(judge, frames, [e.instruction for e in unseen]).numpy()
    score, true = debounced_score(probability, 1), np.array([e.success for e in unseen])
    assert 10 < true.sum() < 30
    assert auroc(score[true], score[~true]) > 0.95


def test_what_a_critic_learns_from_does_not_depend_on_actions(judge, push_episode):
    one = push_episode(0, 16)
    other = push_episode(0, 16, action=-one.action, command=one.command + 0.01)
    config = WorldModelTraining(dtype="float32")
    told = [imagine_episodes(judge, [e], config, SENTENCES, seed=0) for e in (one, other)]
    assert torch.equal(told[0].findings, told[1].findings)
    judge.config.outcome.conditioning = "actions"
    told = [imagine_episodes(judge, [e], config, SENTENCES, seed=0) for e in (one, other)]
    assert not torch.equal(told[0].findings, told[1].findings)


def test_nobody_is_taught_to_plan_a_failure(world_model, push_episode):
    """Episodes that failed keep their actions; of the others about the share that is asked for loses them."""
    episodes = [push_episode(n, 16) for n in range(12)]
    success = torch.tensor([e.success for e in episodes])
    assert success.any()
    assert not success.all()
    config = WorldModelTraining(dtype="float32", unroll=2, static_share=0.0)
    batch = latent_sampler(world_model, episodes, config).sample(400, stream(0, "windows"))
    hidden = hide_rows(batch, 0.5, stream(0, "hide"))
    assert torch.equal(batch.fulfilled, success[batch.episode])
    assert not hidden[~batch.fulfilled].any()
    assert 0.4 < hidden[batch.fulfilled].float().mean() < 0.6
