"""Unit under test: I3D and its file of weights, against a count by hand and a convolution written out."""

import numpy as np
import pytest
import torch

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.tensorfile import save_tensors
from worldrl.evaluation.world_model.i3d import WIDTHS, I3d, Pool, Unit, expected_shapes, load_i3d


@pytest.fixture(scope="module")
def network():
    with initial_weights(0, "i3d"):
        return I3d().eval()


@pytest.fixture(scope="module")
def file(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("i3d") / "i3d.safetensors"
    save_tensors(path, network.state_dict())
    return path


def test_as_many_parameters_as_counted_by_hand(network):
    """Convolutions, two numbers of normalisation per channel, and a linear map with bias."""
    count = 3 * 64 * 7**3 + 2 * 64 + 64 * 64 + 2 * 64 + 64 * 192 * 27 + 2 * 192
    channels = 192
    for b0, b1a, b1b, b2a, b2b, b3b in WIDTHS.values():
        count += channels * (b0 + b1a + b2a + b3b) + 27 * (b1a * b1b + b2a * b2b)
        count += 2 * (b0 + b1a + b1b + b2a + b2b + b3b)
        channels = b0 + b1b + b2b + b3b
    count += channels * 400 + 400
    assert channels == 1024
    assert sum(tensor.numel() for tensor in network.parameters()) == count == 12_697_264
    assert len(expected_shapes(network)) == 5 * (3 + 6 * 9) + 2


def test_names_are_those_of_the_published_file(network):
    shapes = expected_shapes(network)
    assert shapes["Conv3d_1a_7x7.conv3d.weight"] == (64, 3, 7, 7, 7)
    assert shapes["Mixed_4b.b1b.bn.running_var"] == (208,)
    assert shapes["Mixed_5c.b3b.conv3d.weight"] == (128, 832, 1, 1, 1)
    assert shapes["logits.conv3d.bias"] == (400,)


def test_sixteen_frames_become_two_by_seven_by_seven_cells_and_400_logits(network):
    seen = []
    hook = network.Mixed_5c.register_forward_hook(lambda _module, _given, out: seen.append(tuple(out.shape)))
    clip = torch.rand(1, 3, 16, 224, 224, generator=stream(0, "clip")) * 2 - 1
    with torch.no_grad():
        logits = network(clip)
    hook.remove()
    assert seen == [(1, 1024, 2, 7, 7)]
    assert logits.shape == (1, 400)
    assert logits.std() > 0


def test_a_unit_is_a_same_padded_convolution_normalised_and_rectified():
    """In one dimension, by hand: seven taps, stride two, three zeros before and three or two behind."""
    with initial_weights(0, "unit"):
        unit = Unit(1, 1, (7, 1, 1), (2, 1, 1)).eval()
    unit.bn.running_mean.fill_(0.2)
    unit.bn.running_var.fill_(4.0)
    unit.bn.weight.data.fill_(3.0)
    unit.bn.bias.data.fill_(0.5)
    taps = unit.conv3d.weight.detach().double().numpy().ravel()
    for size in (8, 9):  # TensorFlow pads 5 of an even size (2 before), 6 of an odd one (3 before)
        x = np.arange(1.0, size + 1)
        before, behind = ((2, 3), (3, 3))[size % 2]
        padded = np.pad(x, (before, behind))
        product = [padded[at : at + 7] @ taps for at in range(0, size, 2)]
        expected = np.maximum(3 * (np.array(product) - 0.2) / np.sqrt(4 + 1e-3) + 0.5, 0)
        with torch.no_grad():
            found = unit(torch.tensor(x, dtype=torch.float32).view(1, 1, -1, 1, 1)).double().numpy().ravel()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert (expected > 0).any()


def test_pooling_keeps_each_size_over_the_stride_rounded_up():
    x = torch.arange(7.0).view(1, 1, 7, 1, 1)
    assert Pool((3, 1, 1), (2, 1, 1))(x).ravel().tolist() == [1, 3, 5, 6]  # one zero at each end
    assert Pool((3, 1, 1), (2, 1, 1))(x[:, :, :6]).ravel().tolist() == [2, 4, 5]  # none before, one behind


def test_weights_come_back_from_a_file_with_and_without_counters(network, file, tmp_path):
    read = load_i3d(file)
    assert not read.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor), name
    save_tensors(tmp_path / "old.safetensors", {n: t for n, t in network.state_dict().items() if "tracked" not in n})
    assert torch.equal(load_i3d(tmp_path / "old.safetensors").logits.conv3d.bias, network.logits.conv3d.bias)


def test_other_tensors_are_an_error_that_names_them(network, tmp_path):
    weights = dict(network.state_dict())
    del weights["Mixed_3c.b2a.bn.weight"]
    weights |= {"fc.weight": torch.zeros(1), "logits.conv3d.bias": torch.zeros(600)}
    save_tensors(tmp_path / "other.safetensors", weights)
    with pytest.raises(ArtefactError) as error:
        load_i3d(tmp_path / "other.safetensors")
    for part in (
        "missing: Mixed_3c.b2a.bn.weight;",
        "unexpected: fc.weight;",
        "of another shape: logits.conv3d.bias)",
        "other.safetensors",
    ):
        assert part in str(error.value)
    save_tensors(tmp_path / "empty.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(ArtefactError, match="and 283 more"):
        load_i3d(tmp_path / "empty.safetensors")


def test_a_file_of_pickles_is_refused(network, tmp_path):
    torch.save(network.state_dict(), tmp_path / "rgb_imagenet.pt")
    with pytest.raises(ArtefactError, match="not a safetensors file"):
        load_i3d(tmp_path / "rgb_imagenet.pt")
