"""A folder of published Wan weights in diffusers' layout, checked before it is read, never downloaded by us.

::

    FOLDER/
      transformer/config.json
      transformer/diffusion_pytorch_model.safetensors.index.json
      transformer/diffusion_pytorch_model-00001-of-0000N.safetensors ...   (or one diffusion_pytorch_model.safetensors)
      vae/config.json
      vae/diffusion_pytorch_model.safetensors
      scheduler/scheduler_config.json                                      (read where it is there)

Text encoder and tokenizer are not needed: actions take the place of the text.
"""

import hashlib
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.extras import require
from worldrl.core.storage.artefact import PICKLES
from worldrl.core.storage.jsonfile import digest, read_json

EXTRA = "wan"
PUBLISHED = (
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
    "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
    "Wan-AI/Wan2.1-T2V-14B-Diffusers",
)
"""Repositories in this layout; the first is what the message about an unknown folder names."""

CLASSES = {"transformer": "WanTransformer3DModel", "vae": "AutoencoderKLWan"}
WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
CONFIG = "config.json"
MASK_CHANNELS = 4
"""Channels by which image-to-video transformers learn which of a latent frame's four frames are given."""


@dataclass(frozen=True)
class WanBase:
    """A checked folder."""

    folder: Path  # where it is.
    transformer: Mapping[str, Any]  # its configuration.
    vae: Mapping[str, Any]  # the autoencoder's.
    files: tuple[str, ...]  # everything that is read, relative to ``folder``.

    def hash(self) -> str:
        """Return the SHA-256 over names and contents of all files; it reads every byte, one thread per file."""
        with ThreadPoolExecutor() as pool:
            sums = pool.map(lambda name: _sha256(self.folder / name), self.files)
            return digest(dict(zip(self.files, sums, strict=True)))


def open_base(folder: Path | str) -> WanBase:
    """Check a folder of published weights without reading the weights themselves; SettingError: none is named.

    Raises ArtefactError with the file (missing, cut short, of another class, no safetensors) and the command that
    gets it.
    """
    if not str(folder):
        place = Path("weights") / PUBLISHED[0].split("/")[1]
        raise SettingError(
            f"wan.folder: give the folder of published Wan weights, for example from: {download_command(place)}"
        )
    folder = Path(folder)
    if not folder.is_dir():
        raise _missing(folder, folder, "no such folder")
    configs, files = {}, []
    for part, expected in CLASSES.items():
        configs[part] = _read_config(folder, part, expected)
        files += [f"{part}/{CONFIG}", *_weight_files(folder, part)]
    _check_scheduler(folder)
    return WanBase(folder, configs["transformer"], configs["vae"], tuple(files))


def download_command(folder: Path) -> str:
    """Return what to type to fill ``folder``; the repository is guessed from its name."""
    names = {name.split("/")[1].lower(): name for name in PUBLISHED}
    own = folder.name.lower()
    repository = names.get(own) or names.get(f"{own}-diffusers") or PUBLISHED[0]
    return f"hf download {repository} --exclude 'text_encoder/*' --local-dir {shlex.quote(str(folder))}"


def load_transformer(base: WanBase, dtype: torch.dtype = torch.float32) -> Any:
    """Read the transformer to the CPU, in its published types; ArtefactError: configuration and weights differ."""
    return _load(base, "transformer", dtype)


def load_vae(base: WanBase) -> Any:
    """Read the autoencoder to the CPU in float32; errors as :func:`load_transformer`."""
    return _load(base, "vae", torch.float32)


def blank_transformer(config: Mapping[str, Any]) -> Any:
    """Make a transformer of these sizes with weights of its own, wherever torch's default device is."""
    return _class("transformer").from_config(dict(config))


def blank_vae(config: Mapping[str, Any]) -> Any:
    """Make an autoencoder of these sizes with weights of its own, wherever torch's default device is."""
    return _class("vae").from_config(dict(config))


def latent_shape(vae: Mapping[str, Any], image_size: int) -> tuple[int, int, int]:
    """Return ``(c, h, w)`` of one latent frame of the autoencoder; SettingError: the image does not divide."""
    compression = 2 ** (len(vae.get("dim_mult", (1, 2, 4, 4))) - 1) * (vae.get("patch_size") or 1)
    if image_size % compression:
        raise SettingError(
            f"codec.image_size must be a multiple of {compression} for this autoencoder, got {image_size}"
        )
    return int(vae.get("z_dim", 16)), image_size // compression, image_size // compression


def frame_tokens(transformer: Mapping[str, Any], shape: tuple[int, int, int]) -> int:
    """Return the tokens of one latent frame ``(c, h, w)``; SettingError: it does not fit the transformer."""
    across, down, right = transformer.get("patch_size", (1, 2, 2))
    channels, height, width = shape
    if across != 1:
        raise SettingError(f"wan.folder: the transformer packs {across} latent frames into a token; 1 is needed")
    if height % down or width % right:
        raise SettingError(
            f"codec.image_size: a latent frame of {height} by {width} does not divide into patches of {down} by {right}; "
            "take a larger multiple"
        )
    own = transformer.get("in_channels", 16)
    if own not in (channels, 2 * channels + MASK_CHANNELS):
        raise SettingError(
            f"wan.folder: the transformer takes {own} channels, but the autoencoder has {channels}: text-to-video models "
            f"take {channels}, image-to-video models {2 * channels + MASK_CHANNELS}"
        )
    return (height // down) * (width // right)


# -- parts -----------------------------------------------------------------------------------------------------------


def _read_config(folder: Path, part: str, expected: str) -> dict[str, Any]:
    path = folder / part / CONFIG
    if not path.is_file():
        raise _missing(folder, path, "missing")
    config = read_json(path, error=ArtefactError)
    if config.get("_class_name") != expected:
        raise ArtefactError(
            f"{path}: describes a {config.get('_class_name')!r}, expected {expected!r}; give wan.folder a Wan folder in "
            f"diffusers' layout, for example from: {download_command(folder)}"
        )
    return config


def _weight_files(folder: Path, part: str) -> list[str]:
    index = folder / part / INDEX
    if index.is_file():
        shards = read_json(index, error=ArtefactError).get("weight_map", {}).values()
        names = [INDEX, *sorted(set(shards))]
    else:
        names = [WEIGHTS]
    for name in names:
        if Path(name).name != name:
            raise ArtefactError(f"{index}: names {name!r}, which is not beside it; download it again")
        _check_file(folder, folder / part / name)
    return [f"{part}/{name}" for name in names]


def _check_file(folder: Path, path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        raise ArtefactError(f"{path}: a {path.suffix} file may run code when loaded; only .safetensors is read")
    if not path.is_file():
        pickles = sorted(p.name for p in path.parent.glob("*") if p.suffix.lower() in PICKLES)
        found = f"missing (found {pickles[0]}, but only .safetensors is read)" if pickles else "missing"
        raise _missing(folder, path, found)
    if path.suffix == ".safetensors":
        try:
            with safe_open(str(path), framework="pt"):
                pass  # opening compares the header with the file's length
        except (SafetensorError, OSError) as reason:
            raise _missing(folder, path, f"not a whole safetensors file ({reason})") from reason


def _check_scheduler(folder: Path) -> None:
    path = folder / "scheduler" / "scheduler_config.json"
    if not path.is_file():
        return
    config = read_json(path, error=ArtefactError)
    kind = config.get("prediction_type", "flow_prediction")
    if kind != "flow_prediction":
        raise ArtefactError(
            f"{path}: prediction_type is {kind!r}; the sampler here integrates 'flow_prediction' models"
        )


def _missing(folder: Path, path: Path, what: str) -> ArtefactError:
    return ArtefactError(f"{path}: {what}; download it with: {download_command(folder)}")


def _class(part: str) -> Any:
    return getattr(require("diffusers", extra=EXTRA), CLASSES[part])


def _load(base: WanBase, part: str, dtype: torch.dtype) -> Any:
    try:
        model, info = _class(part).from_pretrained(
            str(base.folder / part),
            torch_dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, OSError, RuntimeError, KeyError) as reason:
        raise ArtefactError(f"{base.folder / part}: configuration and weights do not fit: {reason}") from reason
    for what in ("missing_keys", "mismatched_keys"):
        if info[what]:
            raise ArtefactError(
                f"{base.folder / part}: {what.replace('_', ' ')}, first {sorted(map(str, info[what]))[0]}; "
                f"download it again: {download_command(base.folder)}"
            )
    return model


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
