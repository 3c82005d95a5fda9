"""Distillation: in fewer steps where the teacher's many lead, resumable, and of the flow transformer only."""

import copy
from dataclasses import replace

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.diffusion.flow import sigma_grid
from worldrl.world_models.video import distillation
from worldrl.world_models.video.distillation import Consistency, fit_distilled
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.losses import window_state
from worldrl.world_models.video.training import latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

NOTHING = TaskInstructions({}, {})
CONFIG = WorldModelTraining(
    dtype="float32", unroll=2, batch=8, warmup=5, checkpoint_every=2, ema_decay=0.0, learning_rate=3e-3,
    distill_steps=6, distill_teacher_steps=8, distill_sampling_steps=1,
)  # fmt: skip


@pytest.fixture
def chunk(world_model, push_episodes):
    """Recorded chunks with their context, as a backend's loss gets them."""
    batch = latent_sampler(world_model, push_episodes, CONFIG).sample(16, stream(0, "chunk"))
    state, target = window_state(batch)
    length, frames = world_model.chunk_length, world_model.config.dynamics.chunk_frames
    condition = world_model.condition(batch.action[:, :length], batch.commands[:, :length])
    return target[:, :frames], batch.valid[:, :frames], state.reference, state.memory, condition


def consistency(model, steps=8):
    teacher = copy.deepcopy(model.dynamics).requires_grad_(False)
    return Consistency(model.dynamics, teacher, sigma_grid(steps))


def test_a_network_that_is_right_everywhere_has_no_loss(world_model, chunk, monkeypatch):
    """If every answer is the recorded chunk, both ends of each step agree, and so does the end of the grid."""
    loss = consistency(world_model)
    for network in (loss.student, loss.teacher):
        monkeypatch.setattr(network, "forward", lambda x, *rest: (chunk[0], torch.zeros(len(x), 4, 16)))
    assert loss(*chunk, generator=stream(0, "loss")).loss.item() == pytest.approx(0, abs=1e-10)


def test_one_step_distils_to_nothing_but_the_teacher(make_world_model, chunk):
    """With a grid of one step the target is the teacher's own answer from pure noise."""
    model = make_world_model()
    loss = consistency(model, steps=1)
    assert loss(*chunk, generator=stream(0, "loss")).loss.item() == pytest.approx(0, abs=1e-10)
    with torch.no_grad():
        model.dynamics.tokens_out.bias.add_(0.1)  # the student leaves the teacher by 0.1 everywhere
    found = loss(*chunk, generator=stream(0, "loss"))
    valid = chunk[1].float()
    assert found.loss.item() == pytest.approx(0.01 * valid.mean().item(), rel=0.2)
    assert found.level.unique().tolist() == [1.0]


def test_the_student_learns_and_the_teacher_does_not(make_world_model, chunk):
    model = make_world_model()
    loss = consistency(model)
    loss(*chunk, generator=stream(0, "loss")).loss.backward()
    assert all(p.grad is None for p in loss.teacher.parameters())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.dynamics.parameters())


def test_one_step_comes_nearer_to_the_teachers_eight(make_world_model, push_episodes, chunk):
    model = make_world_model(spread=0.3)
    _, _, reference, memory, condition = chunk
    noise = torch.randn(16, *model.noise_shape, generator=stream(0, "noise"))

    def sample(steps):
        model.dynamics.config.sampling_steps = steps
        with torch.no_grad():
            return model.dynamics.sample(noise, reference, memory, condition)[0]

    far, near = sample(8), sample(1)
    before = (near - far).square().mean().item()
    config = replace(CONFIG, distill_steps=150)
    fit_distilled(model, push_episodes, config, instructions=NOTHING, seed=0, folder=None, log=None)
    assert model.config.dynamics.sampling_steps == 1
    assert model.dynamics.config.sampling_steps == 1
    assert (sample(1) - far).square().mean().item() < 0.5 * before


class StopError(Exception):
    """Raised in the middle of a training."""


def test_a_distillation_cut_short_goes_on_to_the_same_bits(
    make_world_model, push_episodes, monkeypatch, tmp_path, same_tree
):
    true_step, calls = distillation.euler_step, []

    def run(folder, at=None):
        def step(*args):
            calls.append(len(calls))
            if at is not None and len(calls) == at + 1:
                raise StopError
            return true_step(*args)

        calls.clear()
        monkeypatch.setattr(distillation, "euler_step", step)
        model = make_world_model()
        fit_distilled(model, push_episodes, CONFIG, instructions=NOTHING, seed=3, folder=folder, log=None)
        return dict(model.state_dict())

    whole = run(tmp_path / "whole")
    with pytest.raises(StopError):
        run(tmp_path / "cut", at=3)
    same_tree(run(tmp_path / "cut"), whole)


def test_what_cannot_be_distilled_is_refused(make_world_model, push_episodes):
    model = make_world_model(kind="edm_unet")
    with pytest.raises(SettingError, match="flow transformer"):
        fit_distilled(model, push_episodes, CONFIG, instructions=NOTHING, seed=0, folder=None, log=None)
    with pytest.raises(SettingError, match="distill_sampling_steps"):
        WorldModelTraining(distill_sampling_steps=0)
