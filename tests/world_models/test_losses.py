"""Losses of the dynamics and the success head, and the windows they are fed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.data.windows.windows import WindowSampler
from worldrl.world_models.video.config import SuccessHeadConfig
from worldrl.world_models.video.dynamics import motion_weight
from worldrl.world_models.video.heads import SuccessHead, success_loss
from worldrl.world_models.video.losses import (
    chunk_loss,
    draw_depth,
    dynamics_loss,
    imagine_ahead,
    noisy_memory,
    window_state,
)
from worldrl.world_models.video.training import latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining
from worldrl.world_models.wan.config import WanSuccessConfig

CONFIG = WorldModelTraining(dtype="float32", unroll=2, event_share=0.3, static_share=0.2, first_chunk_share=0.2)


@pytest.fixture
def batch(world_model, push_episodes):
    return latent_sampler(world_model, push_episodes, CONFIG).sample(12, stream(0, "windows"))


def test_latent_windows_are_encoded_pixel_windows(world_model, push_episodes, batch):
    pixels = WindowSampler(
        push_episodes, chunk_length=4, memory_frames=2, frame_stride=2, unroll=2,
        event_share=0.3, static_share=0.2, first_chunk_share=0.2,
    ).sample(12, stream(0, "windows"))  # fmt: skip
    for name in ("reference", "memory", "frames"):
        frames = getattr(pixels, name)
        frames = frames[:, None] if name == "reference" else frames
        with torch.no_grad():
            encoded = world_model.codec.encode(frames.movedim(-1, -3).float() / 127.5 - 1)
        encoded = encoded[:, 0] if name == "reference" else encoded
        assert getattr(batch, name).dtype == torch.float16
        torch.testing.assert_close(getattr(batch, name).float(), encoded, atol=2e-3, rtol=2e-3)
    for name in ("action", "command", "commands", "success", "valid", "static", "episode", "start"):
        assert torch.equal(getattr(batch, name), getattr(pixels, name)), name
    assert batch.instruction == pixels.instruction


def test_an_untrained_dynamics_predicts_the_newest_frame(make_world_model, push_episodes):
    """Whatever the noise, the actions and the reference."""
    model = make_world_model(spread=0.0)
    state, target = window_state(latent_sampler(model, push_episodes, CONFIG).sample(6, stream(0, "windows")))
    noise = torch.randn(6, *target.shape[1:], generator=stream(0, "noise"))[:, :2]
    condition = torch.randn(6, 4, 14, generator=stream(0, "condition"))
    latent, _ = model.sample(state, condition, noise)
    torch.testing.assert_close(latent, state.memory[:, -1:].expand_as(latent), atol=1e-5, rtol=0)


def test_motion_weight_has_mean_one_and_favours_what_changes():
    now = torch.randn(3, 1, 4, 2, 2, generator=stream(0, "now"))
    target = now.expand(3, 2, 4, 2, 2).clone()
    target[0, 1, :, 0, 0] += 1
    target[1, 1, :, 0, 0] += 5  # clipped: a token cannot change by more than itself
    weight = motion_weight(target, now, 4.0)
    assert weight.shape == (3, 2, 1, 2, 2)
    assert weight.mean().item() == pytest.approx(1)
    assert (weight[0, 1, 0, 0, 0] / weight[2, 0, 0, 0, 0]).item() == pytest.approx(5, rel=1e-4)
    assert weight[0, 1, 0, 0, 0].item() == pytest.approx(weight[1, 1, 0, 0, 0].item(), rel=1e-4)
    assert motion_weight(target, now, 0.0).unique().tolist() == [1]


def test_memory_noise_has_one_level_per_row_up_to_its_strength():
    memory = torch.zeros(400, 2, 4, 8, 8)
    size = noisy_memory(memory, 0.2, stream(0, "noise")).flatten(1).std(dim=1)
    assert size.max() < 0.25
    assert size.mean().item() == pytest.approx(0.1, abs=0.01)
    assert torch.equal(noisy_memory(memory, 0.0, stream(0, "noise")), memory)


def test_success_loss_by_hand():
    logit, level = torch.tensor([[2.0, -1.0], [0.5, 9.0]]), torch.tensor([[1.0], [0.0]])
    success, valid = torch.tensor([[True, False], [False, True]]), torch.tensor([[True, True], [True, False]])
    entropy = F.softplus(torch.tensor([-2.0, -1.0, 0.5]))  # of the three valid frames
    weight = torch.tensor([0.5 * 3, 0.5, 1.0])  # 1 - level/2, and 3 for a success
    expected = (weight * entropy).sum() / weight.sum()
    torch.testing.assert_close(success_loss(logit, success, valid, level, 3.0, 0.5), expected)
    wild = torch.where(valid, logit, 1e6)
    torch.testing.assert_close(success_loss(wild, success, valid, level, 3.0, 0.5), expected)
    torch.testing.assert_close(success_loss(logit, success, valid, level.expand(2, 2), 3.0, 0.5), expected)
    assert success_loss(logit, success, torch.zeros_like(valid), level, 1.0, 0.5) == 0


def test_the_noise_weight_says_how_much_less_noisy_frames_count():
    entropy = F.softplus(torch.tensor([-2.0, -1.0]))
    logit, level, success = torch.tensor([[2.0], [-1.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([[True], [False]])

    def loss(noise_weight):
        return success_loss(logit, success, torch.ones_like(success), level, 1.0, noise_weight)

    torch.testing.assert_close(loss(0.0), entropy.mean())
    torch.testing.assert_close(loss(0.4), (0.6 * entropy[0] + entropy[1]) / 1.6)
    torch.testing.assert_close(loss(1.0), entropy[1])
    with pytest.raises(SettingError, match=r"success\.noise_weight must be in \[0, 1\], got 2"):
        SuccessHeadConfig(noise_weight=2)
    with pytest.raises(SettingError, match=r"success\.noise_weight"):
        WanSuccessConfig(noise_weight=-1)


def test_the_noise_weight_of_the_settings_is_the_losses(make_world_model, push_episodes, kind):
    model = make_world_model(kind=kind)
    batch = latent_sampler(model, push_episodes, CONFIG).sample(12, stream(0, "windows"))
    _, half = dynamics_loss(model, batch, generator=stream(0, "loss"))
    model.config.success.noise_weight = 0.0
    _, alike = dynamics_loss(model, batch, generator=stream(0, "loss"))
    assert half["wm/success_loss"] != alike["wm/success_loss"]
    assert half["wm/gripper_loss"] == alike["wm/gripper_loss"]


def test_frames_beyond_the_end_are_not_learned_from(make_world_model, push_episodes):
    """Loss and gradient do not change when the target latents of invalid frames do."""
    model = make_world_model()
    anywhere = WorldModelTraining(dtype="float32", unroll=2, event_share=0, static_share=0, first_chunk_share=0)
    batch = latent_sampler(model, push_episodes, anywhere).sample(32, stream(0, "windows"))
    state, target = window_state(batch)
    assert not batch.valid[:, 2:].all()
    results = []
    for filler in (0.0, 1.0):
        filled = torch.where(batch.valid[:, :, None, None, None], target, filler)
        # The motion weight is normalised over all frames, so it is switched off to see the mask alone.
        model.config.dynamics.motion_weight = 0.0
        # Noise goes in with the frame; at σ = 1 the frame itself does not.
        model.config.dynamics.pure_noise_share = 1.0
        loss, _ = chunk_loss(model, state, batch, filled, 1, stream(0, "loss"))
        results.append((loss, *torch.autograd.grad(loss, list(model.dynamics.parameters()))))
    torch.testing.assert_close(results[0], results[1])


def test_imagining_ahead_is_what_the_simulator_would_do(make_world_model, push_episodes, kind):
    """The same noise through ``imagine`` and through the training's rollout gives the same memory and command."""
    world_model = make_world_model(kind=kind)
    batch = latent_sampler(world_model, push_episodes, CONFIG).sample(12, stream(0, "windows"))
    keep = batch.static.logical_not() & batch.valid.all(dim=1)
    index = keep.nonzero()[:, 0]
    state, _ = window_state(batch)
    ahead = imagine_ahead(world_model, state, batch, 1, stream(0, "ahead"))
    noise = torch.randn(12, *world_model.noise_shape, generator=stream(0, "ahead"))
    condition = world_model.condition(batch.action[:, :4], batch.commands[:, :4])
    with torch.no_grad():
        latent, _ = world_model.sample(state, condition, noise)
    torch.testing.assert_close(ahead.memory, latent)
    assert torch.equal(ahead.command, batch.commands[:, 3])
    _, imagined = world_model.imagine(
        world_model.start([_record(push_episodes, batch, row) for row in index.tolist()]),
        batch.action[index, :4],
        generators=[stream(0, row) for row in range(len(index))],
    )
    torch.testing.assert_close(imagined.command, batch.commands[index, :4], atol=1e-5, rtol=0)


def _record(episodes, batch, row):
    from worldrl.rollout.imagined.reset_store import record_at

    episode = episodes[int(batch.episode[row])]
    return record_at(episode, int(batch.start[row]), memory_frames=2, frame_stride=2, source="window")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("depth", [0, 1])
def test_every_weight_is_learned_also_after_imagining_ahead(make_world_model, push_episodes, kind, depth, dtype):
    """In autocast too, whose cache of half-precision weights must not cut the gradient of a second use."""
    model = make_world_model(kind=kind)
    batch = latent_sampler(model, push_episodes, CONFIG).sample(12, stream(0, "windows"))
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        loss, logs = dynamics_loss(model, batch, generator=stream(0, "loss"), depth=depth)
    loss.backward()
    for part in (model.dynamics, model.success, model.gripper):
        for name, parameter in part.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name
    assert all(parameter.grad is None for parameter in model.codec.parameters())
    own = {"flow_transformer": "wm/flow_loss", "edm_unet": "wm/edm_loss"}[kind]
    assert logs.keys() == {own, "wm/success_loss", "wm/gripper_loss"}
    assert not any(value.requires_grad for value in logs.values())


def test_the_joint_loss_and_its_gradient_are_the_weighted_sums_of_the_parts(make_world_model, push_episodes, kind):
    """Linear in each weight; at weight 0 the trunk learns as if no head read its features."""
    model = make_world_model(kind=kind)
    batch = latent_sampler(model, push_episodes, CONFIG).sample(12, stream(0, "windows"))
    state, target = window_state(batch)
    trunk, success = list(model.dynamics.parameters()), list(model.success.out.parameters())

    def unread(*given, **more):
        told = model.dynamics.loss(*given, **more)
        return replace(told, features=told.features.detach())

    def learned(weights, denoise=None):
        model.config.success.loss_weight, model.config.gripper.loss_weight = weights
        loss, logs = chunk_loss(model, state, batch, target, 0, stream(0, "loss"), denoise)
        (own,) = (value for name, value in logs.items() if name not in ("wm/success_loss", "wm/gripper_loss"))
        parts = own + weights[0] * logs["wm/success_loss"] + weights[1] * logs["wm/gripper_loss"]
        torch.testing.assert_close(loss.detach(), parts)
        grads = torch.autograd.grad(loss, trunk + success, materialize_grads=True)
        return tuple(torch.cat([g.flatten() for g in part]) for part in (grads[: len(trunk)], grads[len(trunk) :]))

    alone, none = learned((0.0, 0.0))
    torch.testing.assert_close(learned((1.0, 1.0), unread)[0], alone)
    assert none.abs().max() == 0
    (one, head), (two, twice), (grip, _), (both, _) = (
        learned(w) for w in ((0.5, 0.0), (1.0, 0.0), (0.0, 0.7), (1.0, 0.7))
    )
    near = {"rtol": 1e-3, "atol": 1e-5 * alone.abs().max().item() + 1e-7}
    for part in (one - alone, grip - alone, head):
        assert part.abs().max() > 100 * near["atol"]
    torch.testing.assert_close(two - alone, 2 * (one - alone), **near)
    torch.testing.assert_close(twice, 2 * head)
    torch.testing.assert_close(both - alone, (two - alone) + (grip - alone), **near)


def test_bootstrap_uses_the_models_own_frames(make_world_model, push_episodes, kind):
    model = make_world_model(kind=kind)
    batch = latent_sampler(model, push_episodes, CONFIG).sample(12, stream(0, "windows"))
    plain, ahead = (dynamics_loss(model, batch, generator=stream(0, "loss"), depth=depth)[0].item() for depth in (0, 1))
    assert plain != ahead
    model.config.dynamics.memory_noise = 0.0
    state, target = window_state(batch)
    draw = stream(0, "loss")
    state = imagine_ahead(model, state, batch, 1, draw)
    expected, _ = chunk_loss(model, state, batch, target, 1, draw)
    assert expected.item() == pytest.approx(ahead)


def test_bootstrap_imagines_every_depth_as_often_as_it_says():
    depths = [draw_depth(4, 0.6, stream(0, "depth", k)) for k in range(3000)]
    counts = np.bincount(depths, minlength=4) / 3000
    np.testing.assert_allclose(counts, [0.4, 0.2, 0.2, 0.2], atol=0.03)
    assert {draw_depth(1, 1.0, stream(0, "depth", k)) for k in range(9)} == {0}
    assert {draw_depth(3, 0.0, stream(0, "depth", k)) for k in range(9)} == {0}


def test_the_success_head_reads_instruction_frame_and_features():
    from worldrl.core.rng import initial_weights

    with initial_weights(0, "head"):
        head = SuccessHead(16, 2, 3).eval()
    features = torch.randn(2, 4, 16, generator=stream(0, "features"))
    words = head.embed(["pick up the red cube", "pick up the green cylinder"])
    plain = head(features, words)
    assert plain.shape == (2, 3)
    assert (head(features, words.flip(0)) - plain).abs().max() > 1e-4
    assert (head(features.flip(0), words) - plain).abs().max() > 1e-4
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(head(features[:, order], words), plain, atol=1e-6, rtol=1e-5)
    assert np.ptp(plain.detach().numpy(), axis=1).min() > 1e-6


def test_rows_without_actions_imagine_their_context_without_them(make_world_model, push_episodes):
    """A plan continues from what was planned: its context follows the instruction, the others' their true actions."""
    model = make_world_model(planning=True, spread=0.3)
    batch = latent_sampler(model, push_episodes, CONFIG).sample(12, stream(0, "windows"))
    hidden = torch.arange(12) % 2 == 0
    state, _ = window_state(batch)
    told = [imagine_ahead(model, state, batch, 1, stream(0, "ahead"), rows).memory for rows in (None, hidden)]
    assert torch.equal(told[0][~hidden], told[1][~hidden])
    noise = torch.randn(12, *model.noise_shape, generator=stream(0, "ahead"))
    with torch.no_grad():
        instruction = model.success.embed(batch.instruction)
        planned, _ = model.sample(state, model.plan(replace(state, instruction=instruction)), noise)
    torch.testing.assert_close(told[1][hidden], planned[hidden])
    model.config.dynamics.memory_noise = 0.0
    target, draw = window_state(batch)[1], stream(0, "loss")
    after = imagine_ahead(model, state, batch, 1, draw, hidden)
    expected, _ = chunk_loss(model, after, batch, target, 1, draw, hidden=hidden)
    found, _ = dynamics_loss(model, batch, generator=stream(0, "loss"), depth=1, hidden=hidden)
    assert found.item() == pytest.approx(expected.item())
