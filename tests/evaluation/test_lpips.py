"""Unit under test: LPIPS from a state dict, against the definition written out in NumPy."""

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.rng import numpy_stream, stream
from worldrl.core.storage.tensorfile import save_tensors
from worldrl.evaluation.world_model.lpips import LAYERS, LEAST_SIDE, POOLED, Lpips, expected_shapes


@pytest.fixture(scope="module")
def weights():
    generator = stream(0, "lpips")
    found = {name: 0.05 * torch.randn(shape, generator=generator) for name, shape in expected_shapes().items()}
    found |= {name: tensor.abs() for name, tensor in found.items() if name.startswith("lin")}
    found["scaling_layer.shift"] = torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)
    found["scaling_layer.scale"] = torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1)
    return found


def pictures(seed, count=2, side=34):
    return numpy_stream(seed, "lpips").integers(0, 256, (count, side, side, 3)).astype(np.uint8)


def slow_activations(picture, weights):
    w = {name: tensor.double().numpy() for name, tensor in weights.items()}
    x = (picture.astype(float) / 127.5 - 1).transpose(2, 0, 1)
    x = (x - w["scaling_layer.shift"][0]) / w["scaling_layer.scale"][0]
    found = []
    for number, (name, shape, stride, padding) in enumerate(LAYERS):
        if number in POOLED:
            x = sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(-2, -1))
        x = np.pad(x, [(0, 0), (padding, padding), (padding, padding)])
        windows = sliding_window_view(x, shape[2:], axis=(1, 2))[:, ::stride, ::stride]
        x = np.einsum("cyxhw,ochw->oyx", windows, w[f"{name}.weight"]) + w[f"{name}.bias"][:, None, None]
        x = np.maximum(x, 0)
        found.append(x)
    return found


def slow_distance(a, b, weights):
    total = 0.0
    for number, (x, y) in enumerate(zip(slow_activations(a, weights), slow_activations(b, weights), strict=True)):
        x, y = (value / (np.sqrt((value**2).sum(axis=0)) + 1e-10) for value in (x, y))
        weight = weights[f"lin{number}.model.1.weight"].double().numpy()[0]
        total += (weight * (x - y) ** 2).sum(axis=0).mean()
    return total


def test_agrees_with_the_definition(weights):
    a, b = pictures(1), pictures(2)
    found = Lpips(weights).distance(a, b)
    assert found == pytest.approx([slow_distance(x, y, weights) for x, y in zip(a, b, strict=True)], rel=1e-4)
    assert (found > 0).all()


def test_identical_images_are_at_distance_zero_and_order_does_not_matter(weights):
    lpips, a, b = Lpips(weights), pictures(3), pictures(4)
    assert lpips.distance(a, a).tolist() == [0, 0]
    np.testing.assert_array_equal(lpips.distance(a, b), lpips.distance(b, a))
    near = np.clip(a.astype(int) + 3, 0, 255).astype(np.uint8)
    assert (lpips.distance(a, near) < lpips.distance(a, b)).all()


def test_read_from_a_file_and_further_tensors_ignored(weights, tmp_path):
    save_tensors(tmp_path / "alex.safetensors", {**weights, "another": torch.zeros(1)})
    a, b = pictures(5), pictures(6)
    read = Lpips.load(tmp_path / "alex.safetensors")
    np.testing.assert_array_equal(read.distance(a, b), Lpips(weights).distance(a, b))


def test_other_files_are_refused(weights, tmp_path):
    torch.save(weights, tmp_path / "alex.pth")
    with pytest.raises(ArtefactError, match="not a safetensors file"):
        Lpips.load(tmp_path / "alex.pth")
    with pytest.raises(ArtefactError, match=r"net\.slice3\.6\.weight must have shape .* found none"):
        Lpips({name: tensor for name, tensor in weights.items() if name != "net.slice3.6.weight"})
    with pytest.raises(ArtefactError, match=r"lin0.* found \(1, 32, 1, 1\)"):
        Lpips({**weights, "lin0.model.1.weight": torch.zeros(1, 32, 1, 1)})


def test_images_that_the_network_pools_away_are_refused(weights):
    lpips = Lpips(weights)
    assert lpips.distance(pictures(7, side=LEAST_SIDE), pictures(8, side=LEAST_SIDE)).shape == (2,)
    small = pictures(7, side=LEAST_SIDE - 1)
    with pytest.raises(SettingError, match="31 pixels"):
        lpips.distance(small, small)
