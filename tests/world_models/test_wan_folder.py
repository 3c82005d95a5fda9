"""A folder of published Wan weights: its layout, what is refused, and what is read."""

import json
import shutil

import pytest
import torch

from worldrl.core import extras
from worldrl.core.errors import ArtefactError, MissingExtraError, SettingError
from worldrl.world_models.wan import folder as wan_folder
from worldrl.world_models.wan.folder import (
    download_command,
    frame_tokens,
    latent_shape,
    load_transformer,
    load_vae,
    open_base,
)

pytest.importorskip("diffusers")

SHARD = "transformer/diffusion_pytorch_model-00002-of-00002.safetensors"
INDEX = "transformer/diffusion_pytorch_model.safetensors.index.json"
VAE = "vae/diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(wan_base, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(wan_base, tmp_path / "Wan2.1-T2V-1.3B")


def test_layout_is_the_published_one(wan_base):
    assert open_base(wan_base).files == (
        "transformer/config.json",
        INDEX,
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
        SHARD,
        "vae/config.json",
        VAE,
    )


@pytest.mark.parametrize("name", ["transformer/config.json", SHARD, "vae/config.json", VAE])
def test_a_missing_file_is_named_with_the_command_that_brings_it(folder, name):
    (folder / name).unlink()
    with pytest.raises(ArtefactError) as caught:
        open_base(folder)
    text = str(caught.value)
    assert text.startswith(f"{folder / name}: missing; download it with: hf download")
    assert f"Wan-AI/Wan2.1-T2V-1.3B-Diffusers --exclude 'text_encoder/*' --local-dir {folder}" in text


def test_no_folder_at_all_says_what_to_download(tmp_path):
    with pytest.raises(ArtefactError, match=r"nowhere: no such folder; download it with: hf download Wan-AI/Wan2.2"):
        open_base(tmp_path / "nowhere")
    with pytest.raises(
        SettingError, match=r"wan.folder: .*hf download .* --local-dir weights/Wan2.2-TI2V-5B-Diffusers"
    ):
        open_base("")
    assert "'a b'" in download_command(tmp_path.relative_to(tmp_path) / "a b")


def test_a_shard_cut_short_is_distinguished_from_a_whole_one(folder):
    data = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtefactError, match=r"00002-of-00002.safetensors: not a whole safetensors file .* hf download"):
        open_base(folder)


def test_pickles_are_not_read(folder):
    (folder / VAE).rename(folder / "vae" / "diffusion_pytorch_model.bin")
    with pytest.raises(ArtefactError, match=r"missing \(found diffusion_pytorch_model.bin, but only .safetensors"):
        open_base(folder)
    index = json.loads((folder / INDEX).read_text())
    for name, message in {"weights.bin": "may run code", "../x.safetensors": "not beside it"}.items():
        index["weight_map"]["proj_out.bias"] = name
        (folder / INDEX).write_text(json.dumps(index))
        with pytest.raises(ArtefactError, match=message):
            open_base(folder)


def test_another_class_or_another_kind_of_diffusion_is_refused(folder):
    def edit(name, **change):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    edit("scheduler/scheduler_config.json", prediction_type="epsilon")
    with pytest.raises(ArtefactError, match="'epsilon'"):
        open_base(folder)
    edit("scheduler/scheduler_config.json", prediction_type="flow_prediction")
    open_base(folder)
    edit("vae/config.json", _class_name="AutoencoderKL")
    with pytest.raises(
        ArtefactError, match=r"vae/config.json: describes a 'AutoencoderKL', expected 'AutoencoderKLWan'"
    ):
        open_base(folder)


def test_weights_that_do_not_fit_their_config_are_refused(folder):
    path = folder / "transformer" / "config.json"
    config = json.loads(path.read_text())
    for change in ({"num_layers": 3}, {"ffn_dim": 48}):
        path.write_text(json.dumps(config | change))
        with pytest.raises(ArtefactError, match="transformer: "):
            load_transformer(open_base(folder))


def test_what_is_read_is_what_was_published_bit_for_bit(publish_wan, tmp_path, same_tree):
    import diffusers

    folder = publish_wan(tmp_path / "wan", seed=3)
    base = open_base(folder)
    for part, load in (("transformer", load_transformer), ("vae", load_vae)):
        kind = getattr(diffusers, wan_folder.CLASSES[part])
        straight = kind.from_pretrained(str(folder / part), local_files_only=True)
        same_tree(dict(load(base).state_dict()), dict(straight.state_dict()))
    half = load_transformer(base, torch.bfloat16)
    assert half.proj_out.weight.dtype == torch.bfloat16
    assert half.blocks[0].scale_shift_table.dtype == torch.float32  # the published class's own choice


def test_identity_is_content_not_place(folder, wan_base):
    assert open_base(folder).hash() == open_base(wan_base).hash()
    data = bytearray((folder / SHARD).read_bytes())
    data[-1] ^= 1
    (folder / SHARD).write_bytes(bytes(data))
    assert open_base(folder).hash() != open_base(wan_base).hash()


def test_published_autoencoders_compress_by_8_and_by_16():
    old = {"dim_mult": [1, 2, 4, 4], "z_dim": 16}
    new = {"dim_mult": [1, 2, 4, 4], "z_dim": 48, "patch_size": 2}
    assert latent_shape(old, 256) == (16, 32, 32)
    assert latent_shape(new, 256) == (48, 16, 16)
    assert frame_tokens({"patch_size": [1, 2, 2], "in_channels": 48}, (48, 16, 16)) == 64
    assert frame_tokens({"patch_size": [1, 2, 2], "in_channels": 36}, (16, 32, 32)) == 256
    with pytest.raises(SettingError, match="multiple of 16"):
        latent_shape(new, 250)
    for config, shape, message in (
        ({"in_channels": 16}, (48, 16, 16), "takes 16 channels, but the autoencoder has 48"),
        ({"in_channels": 48}, (48, 15, 15), "does not divide"),
        ({"in_channels": 48, "patch_size": [2, 2, 2]}, (48, 16, 16), "packs 2 latent frames"),
    ):
        with pytest.raises(SettingError, match=message):
            frame_tokens(config, shape)


def test_without_the_extra_the_message_names_it(monkeypatch, wan_base):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    base = open_base(wan_base)
    monkeypatch.setattr(extras.importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"diffusers is not installed; the extra 'wan' brings it: pip install"):
        load_transformer(base)
