import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.world_models.video.codec import IdentityCodec, PatchCodec, quantise, salience_weight, to_uint8, to_unit
from worldrl.world_models.video.config import CodecConfig
from worldrl.world_models.video.training import fit_codec
from worldrl.world_models.video.training_config import WorldModelTraining


def test_bytes_survive_the_unit_range():
    frames = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(1, 16, 16, 3)
    unit = to_unit(frames)
    assert unit.shape == (1, 3, 16, 16)
    assert (unit.min().item(), unit.max().item()) == (-1, 1)
    assert torch.equal(to_uint8(unit), frames)
    assert to_uint8(torch.tensor([-7.0, 7.0, 0.0]).reshape(3, 1, 1)).flatten().tolist() == [0, 255, 128]


def test_quantising_is_a_trip_through_bytes():
    frames = torch.randn(2, 3, 8, 8, generator=stream(0, "frames"))
    once = quantise(frames)
    assert torch.equal(once, to_unit(to_uint8(frames)))
    assert torch.equal(quantise(once), once)
    assert (once - frames.clamp(-1, 1)).abs().max() <= 0.5 / 127.5 + 1e-6
    assert torch.isnan(quantise(torch.tensor(torch.nan)))  # damage stays visible


def test_pixels_pass_the_identity_codec_unchanged():
    codec = IdentityCodec(CodecConfig(image_size=8))
    frames = torch.rand(2, 5, 3, 8, 8, generator=stream(0, "frames")) * 2 - 1
    assert codec.latent_shape == frames.shape[2:]
    assert torch.equal(codec.decode(codec.encode(frames)), frames)
    assert list(codec.parameters()) == []


def test_latents_have_unit_size_per_token_in_both_precisions(world_model):
    frames = torch.rand(3, 5, 3, 16, 16, generator=stream(0, "frames")) * 2 - 1
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            latent = world_model.codec.encode(frames)
        assert latent.shape == (3, 5, 4, 2, 2)
        size = latent.float().square().mean(dim=2).sqrt()
        torch.testing.assert_close(size, torch.ones_like(size), atol=2e-2 if enabled else 1e-3, rtol=0)


def test_frames_are_encoded_and_decoded_one_at_a_time(world_model):
    frames = torch.rand(2, 3, 3, 16, 16, generator=stream(0, "frames")) * 2 - 1
    latent = world_model.codec.encode(frames)
    torch.testing.assert_close(latent[1:, 2:], world_model.codec.encode(frames[1:, 2:]))
    decoded = world_model.codec.decode(latent)
    assert decoded.shape == frames.shape
    torch.testing.assert_close(decoded[1:, 2:], world_model.codec.decode(latent[1:, 2:]))


def test_salience_has_mean_one_and_favours_what_differs():
    frames = torch.zeros(8, 3, 16, 16)
    frames[0, :, :4, :4] = 1
    weight = salience_weight(frames, 8.0)
    assert weight.shape == (8, 1, 16, 16)
    assert weight.mean().item() == pytest.approx(1)
    assert weight[0, 0, 0, 0] / weight[0, 0, 8, 8] == pytest.approx(9)
    assert torch.equal(salience_weight(frames, 0.0), torch.ones(8, 1, 16, 16))


def test_one_batch_is_learned_by_heart(make_world_model, push_episodes):
    """Four pushed squares: reconstruction gains 15 dB, and decode after encode is nearly the image."""
    import numpy as np

    model = make_world_model(spread=0.0, codec={"width": 32, "channels": 8})
    frames = torch.from_numpy(np.concatenate([e.frames[:2, 0] for e in push_episodes[:2]]))
    config = WorldModelTraining(codec_steps=250, codec_batch=8, codec_learning_rate=5e-3, warmup=10, dtype="float32")

    def psnr():
        with torch.no_grad():
            unit = to_unit(frames)[:, None]
            return -10 * torch.log10((model.codec.decode(model.codec.encode(unit)) - unit).square().mean() / 4).item()

    before = psnr()
    report = fit_codec(model, frames, config, seed=0, folder=None, log=None)
    assert psnr() > before + 15
    assert report.logs["codec/psnr_db"] > 20


def test_codec_settings_that_do_not_divide_are_refused():
    for over, text in (({"image_size": 60}, "patch"), ({"width": 30}, "heads")):
        with pytest.raises(SettingError, match=text):
            CodecConfig(**over)
    assert PatchCodec(CodecConfig()).latent_shape == (16, 8, 8)
