"""timm's networks as encoders; without timm, only the error that names the extra. Weights are random or a file's."""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from worldrl.core.errors import ArtefactError, MissingExtraError, SettingError
from worldrl.core.rng import initial_weights, stream
from worldrl.nn.backbone import BackboneEncoder, make_trunk
from worldrl.rewards.config import IdmConfig, IdmTraining
from worldrl.rewards.motion.inverse_dynamics import InverseDynamics
from worldrl.rewards.motion.readout import Column
from worldrl.rewards.motion.training import IdmFrames, begin_with, fit_idm, new_idm

NAME = "test_resnet"  # timm's smallest, of half a million weights
with_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed (extra timm)")
PLACE = (Column("command", 0, "x"), Column("command", 1, "y"))


def make(seed=0, **over):
    with initial_weights(seed, "backbone"):
        return BackboneEncoder(4, **({"name": NAME, "stride": 8, "width": 16, "keypoints": 3, "value_width": 5} | over))


def config(**over):
    return IdmConfig(**({"width": 16, "keypoints": 4, "value_width": 4, "hidden": 32, "backbone": NAME} | over))


def pictures(rows=2):
    return torch.randint(0, 256, (rows, 64, 64, 3), dtype=torch.uint8, generator=stream(0, "pictures"))


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_without_timm_the_extra_is_named():
    with pytest.raises(
        MissingExtraError, match=r"timm is not installed; the extra 'timm' brings it: pip install .*\[timm\]"
    ):
        InverseDynamics(config(), PLACE)


def test_weights_need_a_backbone():
    plain = InverseDynamics(IdmConfig(width=8, blocks=1, keypoints=2, value_width=2, hidden=8), PLACE)
    assert begin_with(plain, IdmTraining()) is None
    with pytest.raises(
        SettingError, match=r"training\.backbone_weights: file needs a backbone; give model\.backbone=NAME too"
    ):
        begin_with(plain, IdmTraining(backbone_weights="file"))
    with pytest.raises(SettingError, match=r"model\.backbone_stride: must be at least 1"):
        config(backbone_stride=0)


class Planted:
    """Unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_pickle_is_no_file_of_weights(tmp_path):
    """Without timm, too: what reads weights is the same for every network."""
    encoder = SimpleNamespace(trunk=torch.nn.Linear(2, 2), name="any")
    for name in ("weights.safetensors", "weights.pth"):
        torch.save({"weight": Planted(tmp_path / "ran")}, tmp_path / name)
        with pytest.raises(ArtefactError, match=rf"cannot read .*{name}.*give a \.safetensors file"):
            BackboneEncoder.load_weights(encoder, tmp_path / name)
    assert not (tmp_path / "ran").exists()
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "short.safetensors")
    with pytest.raises(ArtefactError, match=r"is not of 'any': 1 of 2 tensors are missing"):
        BackboneEncoder.load_weights(encoder, tmp_path / "short.safetensors")


@with_timm
def test_it_reads_points_off_all_levels_from_the_stride_on():
    encoder = make().eval()
    frames, text = pictures(), torch.randn(2, 4, generator=stream(0, "text"))
    cells, place = encoder.features(frames)
    assert cells.shape == (2, 64, 16)  # 64 pixels, 8 to a cell
    assert place.shape == (64, 2)
    assert len(encoder.levels) == 3  # 8, 16 and 32 pixels
    found = encoder(frames, text)
    assert found.shape == (2, encoder.out_width) == (2, 3 * 7)
    assert (found[:, :6].abs() <= 1).all()
    torch.testing.assert_close(encoder(frames[1:], text[1:]), found[1:])  # rows are not mixed
    for level in encoder.levels:
        torch.nn.init.zeros_(level.weight)
        changed = encoder(frames, text)
        assert not torch.allclose(changed, found)
        found = changed


@with_timm
@pytest.mark.parametrize(
    ("name", "stride", "words"),
    [
        ("test_resnett", 8, "timm has no model 'test_resnett'"),
        ("resnet18x", 8, "timm has no model"),
        (NAME, 5, r"'test_resnet' has levels of .* pixels per cell, not a pyramid with one of 5"),
        ("vit_tiny_patch16_224", 16, "or a convolutional backbone"),
    ],
)
def test_what_is_no_pyramid_is_refused(name, stride, words):
    with pytest.raises(SettingError, match=words):
        make_trunk(name, stride)


@with_timm
@pytest.mark.parametrize("name", [NAME, "test_convnext"])
def test_weights_are_those_of_the_file_and_nothing_is_fetched(tmp_path, monkeypatch, name):
    import timm

    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail("something was fetched"))
    whole = timm.create_model(name, pretrained=False)
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    encoder, frames = make(name=name).eval(), pictures()
    pixels = (frames.permute(0, 3, 1, 2) / 255 - encoder.mean) / encoder.deviation
    expected = whole.eval().forward_features(pixels)
    assert not torch.allclose(encoder.trunk(pixels)[-1], expected)
    encoder.load_weights(tmp_path / "whole.safetensors")
    if name == NAME:  # ConvNeXt ends with a norm of its own
        torch.testing.assert_close(encoder.trunk(pixels)[-1], expected)
    tensors = {key.replace(".", "_"): value for key, value in whole.state_dict().items()}
    assert all(torch.equal(value, tensors[key.replace(".", "_")]) for key, value in encoder.trunk.state_dict().items())


@with_timm
def test_a_file_of_another_model_leaves_the_trunk_as_it_is(tmp_path):
    import timm

    encoder = make()
    before = {name: value.clone() for name, value in encoder.trunk.state_dict().items()}
    save_file(timm.create_model("test_convnext", pretrained=False).state_dict(), tmp_path / "other.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    for file, words in (
        ("other", "is not of 'test_resnet': .* tensors are missing"),
        ("torn", "cannot read"),
        ("none", "cannot read"),
    ):
        with pytest.raises(ArtefactError, match=words):
            encoder.load_weights(tmp_path / f"{file}.safetensors")
    assert all(torch.equal(value, before[name]) for name, value in encoder.trunk.state_dict().items())


@with_timm
def test_an_inverse_dynamics_on_a_backbone_is_trained_saved_and_says_what_it_began_with(push_episode, tmp_path):
    episodes = [push_episode(n, 16, size=32) for n in range(3)]
    data = IdmFrames.of(episodes, PLACE, frame_stride=1, camera="scene", restore=None)
    training = IdmTraining(steps=3, batch=4, dtype="float32")
    idm = new_idm(config(), PLACE, data, frame_stride=1, seed=0)
    assert "begins at random" in begin_with(idm, training)
    save_file(idm.encoder.trunk.state_dict(), tmp_path / "trunk.safetensors")
    told = IdmTraining(backbone_weights=str(tmp_path / "trunk.safetensors"))
    idm.begun = begin_with(idm, told)
    assert idm.begun.startswith(f"backbone {NAME} begins with {tmp_path}/trunk.safetensors (")
    fit_idm(idm, data, training, seed=0, folder=tmp_path / "checkpoints", log=None)
    assert not idm.training  # batch statistics are those of the training from here on
    idm.save(tmp_path / "idm")
    again = InverseDynamics.load(tmp_path / "idm")
    frames = torch.from_numpy(episodes[0].frames[:, 0])[None]
    torch.testing.assert_close(again.decode(frames).mean, idm.decode(frames).mean)
    assert again.begun == idm.begun
