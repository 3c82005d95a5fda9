from pathlib import Path

import pytest
import torch

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.world_models.latent.keypoints import KeypointEncoder

SHAPE, REST = (3, 4, 6), 5


def made(keypoints: int = 2, width: int = 8) -> KeypointEncoder:
    with initial_weights(0, "keypoints"):
        return KeypointEncoder(SHAPE, keypoints, width)


def observations(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3 * 4 * 6 + REST, generator=stream(0, "obs"))


@pytest.mark.parametrize(("y", "x"), [(0, 0), (1, 5), (3, 2)])
def test_keypoint_of_a_single_bright_cell_is_its_centre(y: int, x: int) -> None:
    """With convolutions that hand channel 0 on, the first query finds the one bright cell, the second is as flat as 0."""
    encoder = made(keypoints=2)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
        for layer in (encoder.first, encoder.second):
            layer.weight[0, 0, 1, 1] = 1.0
        encoder.query[0, 0] = 10.0
        encoder.value.weight[0, 0] = 1.0
    latent = torch.zeros(1, *SHAPE)
    latent[0, 0, y, x] = 20.0
    obs = torch.cat([latent.flatten(1), torch.arange(5.0)[None]], dim=1)

    out = encoder(obs)[0]

    centre = torch.tensor([(x + 0.5) * 2 / 6 - 1, (y + 0.5) * 2 / 4 - 1])
    torch.testing.assert_close(out[:2], centre)
    torch.testing.assert_close(out[2:4], torch.zeros(2), atol=1e-6, rtol=0)  # every cell alike: the image's middle
    torch.testing.assert_close(out[4:6], torch.tensor([20.0, 20.0 / 24]))  # the value there, and the mean value
    assert torch.equal(out[6:], torch.arange(5.0))


def test_channels_are_standardised_by_what_was_measured() -> None:
    encoder, obs = made(), observations(16)
    encoder.measure(obs)
    plain = encoder(obs)
    shifted = torch.cat([obs[:, :-REST] * 3 + 2, obs[:, -REST:]], dim=1)
    encoder.measure(shifted)
    torch.testing.assert_close(encoder(shifted), plain, atol=1e-5, rtol=1e-5)


def test_points_are_reported_in_units_of_their_deviations_and_the_rest_as_it_is(tmp_path: Path) -> None:
    encoder, obs = made().frozen(), observations(64)
    plain = encoder(obs)
    encoder.standardise(plain)
    seen = encoder(obs)
    points = seen[:, : encoder.points_size]
    torch.testing.assert_close(points.mean(dim=0), torch.zeros(6), atol=1e-3, rtol=0)
    torch.testing.assert_close(points.std(dim=0, correction=0), torch.ones(6), atol=1e-3, rtol=0)
    assert torch.equal(seen[:, encoder.points_size :], obs[:, -REST:])
    back = points * encoder.point_std + encoder.point_mean
    torch.testing.assert_close(back, plain[:, : encoder.points_size])
    encoder.save(tmp_path / "encoder")
    assert torch.equal(KeypointEncoder.load(tmp_path / "encoder")(obs), seen)


def test_a_point_that_never_moves_stays_finite() -> None:
    encoder, obs = made().frozen(), observations(1).expand(4, -1)
    encoder.standardise(encoder(obs))
    assert bool(encoder(observations(3)).isfinite().all())


def test_frozen_encoder_lets_no_gradient_in() -> None:
    encoder, obs = made(), observations(4)
    assert encoder(obs).requires_grad
    assert encoder.frozen() is encoder
    assert not encoder(obs).requires_grad
    assert all(not parameter.requires_grad for parameter in encoder.parameters())


def test_folder_gives_the_same_encoder_back_frozen(tmp_path: Path) -> None:
    encoder, obs = made().frozen(), observations(4)  # with gradients a convolution may round otherwise
    encoder.measure(obs)
    encoder.save(tmp_path / "encoder")
    again = KeypointEncoder.load(tmp_path / "encoder")
    assert torch.equal(again(obs), encoder(obs))
    assert not again(obs).requires_grad
    with pytest.raises(ArtefactError):
        KeypointEncoder.load(tmp_path / "nothing")


def test_no_keypoints_at_all_are_refused() -> None:
    with pytest.raises(SettingError, match="at least 1, got 0"):
        made(keypoints=0)
