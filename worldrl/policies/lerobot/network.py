"""A lerobot policy loaded from its folder: network, saved processors, sampler. Runs in lerobot's Python environment.

lerobot is imported inside functions. It imports torchvision, whose wheel brings CUDA kernels that do not load beside a
CPU torch. Declaring the two operators of its import is enough, since none of these policies calls them.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.jsonfile import json_bytes, read_json
from worldrl.core.storage.tensorfile import load_tensors, save_tensors
from worldrl.policies.lerobot.folder import ACTION, CONFIG, HEAD, OURS, WEIGHTS, LerobotFolder, read_lerobot_folder
from worldrl.policies.lerobot.one_step import StepSampler
from worldrl.policies.lerobot.release import Release, installed_release, served_config
from worldrl.policies.lerobot.safety import POSTPROCESSOR, PREPROCESSOR, VLM, processor_steps
from worldrl.policies.lerobot.samplers import (
    LOG_STD,
    DiffusionSampler,
    FlowSampler,
    RegressionSampler,
    encode_pi0,
    encode_smolvla,
)

PACKAGES = ("lerobot", "torch", "transformers", "diffusers")
LANGUAGE_MODELS = {"smolvla": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "pi0": "google/paligemma-3b-pt-224"}
"""Default language model of each kind."""
_OPERATORS: list[Any] = []  # keeps the declared operators alive


def import_lerobot() -> Release:
    """Import lerobot's policies, with or without a torchvision whose kernels load; returns the release's line."""
    release = installed_release()
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, ImportError, OSError):
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _OPERATORS.append(library)
    importlib.import_module("lerobot.policies.factory")
    return release


def installed() -> dict[str, str]:
    """Versions of the packages that determine a policy's actions."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class LerobotNetwork:
    """A policy with its processors; ArtefactError: an incomplete folder, or weights that do not fill the network."""

    def __init__(self, folder: Path, device: str) -> None:
        self.release = import_lerobot()
        self.folder: LerobotFolder = read_lerobot_folder(folder)
        self.policy = self._load_policy(device)
        self.preprocess, self.postprocess = self._load_processors(device)
        self.device = torch.device(device)
        self.sampler: StepSampler = self._make_sampler()
        check_weights(self.policy, folder)

    # --- loading ---------------------------------------------------------------------------------------------------

    def _load_policy(self, device: str) -> Any:
        factory = importlib.import_module("lerobot.policies.factory")
        configs = importlib.import_module("lerobot.configs.policies")
        config = read_config(configs.PreTrainedConfig, self.folder, self.release)
        config.device, config.pretrained_path = device, None
        if getattr(config, "pretrained_backbone_weights", None):
            config.pretrained_backbone_weights = None  # the checkpoint holds the backbone
        language_weights = getattr(config, "load_vlm_weights", False)
        if language_weights:
            config.load_vlm_weights = False  # the checkpoint holds them
        if (self.folder.path / VLM).is_dir():
            config.vlm_model_name = str(self.folder.path / VLM)
        try:
            policy = factory.get_policy_class(self.folder.kind).from_pretrained(str(self.folder.path), config=config)
        except OSError as error:  # transformers' word for a name that is neither a folder nor in its cache
            raise ArtefactError(missing_language_model(self.folder.path, self.folder.kind, error)) from error
        except ValueError as error:
            raise ArtefactError(
                f"{self.folder.path}: lerobot {self.release.name} cannot make the network, whose files another release, or "
                f"another transformers, may have saved: {error}"
            ) from error
        if language_weights:
            config.load_vlm_weights = True  # saved with the policy again
            keep_stored_types(policy, self.folder.path)
        return policy.to(device).eval()

    def _load_processors(self, device: str) -> tuple[Any, Any]:
        pipelines = importlib.import_module("lerobot.processor")
        converters = importlib.import_module("lerobot.processor.converters")
        names = {step for step in ("device_processor", "tokenizer_processor") if self._has_step(step)}
        overrides: dict[str, Any] = {}
        if "device_processor" in names:
            overrides["device_processor"] = {"device": device}
        if "tokenizer_processor" in names and (self.folder.path / VLM).is_dir():
            overrides["tokenizer_processor"] = {"tokenizer_name": str(self.folder.path / VLM)}
        load = pipelines.PolicyProcessorPipeline.from_pretrained
        try:
            before = load(
                str(self.folder.path),
                config_filename=PREPROCESSOR,
                overrides=overrides,
                to_transition=converters.batch_to_transition,
                to_output=converters.transition_to_batch,
            )
            after = load(
                str(self.folder.path),
                config_filename=POSTPROCESSOR,
                to_transition=converters.policy_action_to_transition,
                to_output=converters.transition_to_policy_action,
            )
        except OSError as error:
            raise ArtefactError(missing_language_model(self.folder.path, self.folder.kind, error)) from error
        except (ImportError, ValueError) as error:
            raise ArtefactError(
                f"{self.folder.path}: lerobot {installed()['lerobot']} cannot read the processors, which another release may "
                f"have saved: {error}"
            ) from error
        return before, after

    def _has_step(self, name: str) -> bool:
        return any(step["registry_name"] == name for step in processor_steps(self.folder.path, PREPROCESSOR))

    def _make_sampler(self) -> StepSampler:
        kind, config = self.folder.kind, self.policy.config
        if kind == "smolvla":
            return FlowSampler(self.policy, int(config.num_steps), partial(encode_smolvla, release=self.release))
        if kind == "pi0":
            return FlowSampler(self.policy, int(config.num_inference_steps), partial(encode_pi0, release=self.release))
        if kind == "diffusion":
            return DiffusionSampler(self.policy)
        head = self.folder.path / HEAD
        log_std = load_tensors(head)[LOG_STD] if head.is_file() else None
        return RegressionSampler(self.policy, log_std).to(self.device)

    # --- use -------------------------------------------------------------------------------------------------------

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Trained and saved modules by name: the policy, and worldrl's head for ACT."""
        own = {"head": self.sampler} if isinstance(self.sampler, nn.Module) else {}
        return {"policy": self.policy, **own}

    def batch(self, features: Mapping[str, Tensor], instructions: Sequence[str], action: Tensor | None = None) -> Any:
        """Preprocess observations, float images ``[B, ..., 3, Y, X]`` in [0, 1], and actions ``[B, H, A]`` if given."""
        given = {**features, "task": list(instructions)}
        if action is not None:
            given[ACTION] = action
        return self.preprocess(given)

    def actions(self, chunk: Tensor) -> Tensor:
        """Postprocess normalised chunks ``[B, H, A]`` to the robot's numbers."""
        return self.postprocess(chunk)

    def loss(self, batch: Any) -> Tensor:
        """The policy's own supervised loss of a preprocessed batch with actions ``[B, H, A]``."""
        loss, _ = self.policy.forward(batch)
        return loss

    def save(self, folder: Path) -> None:
        """Write the published layout, with worldrl's files."""
        self.policy.save_pretrained(folder)
        self.preprocess.save_pretrained(folder)
        self.postprocess.save_pretrained(folder)
        if isinstance(self.sampler, RegressionSampler):
            save_tensors(folder / HEAD, {LOG_STD: self.sampler.log_std.detach().cpu()})
        if (self.folder.path / OURS).is_file():
            (folder / OURS).write_bytes((self.folder.path / OURS).read_bytes())
        if (self.folder.path / VLM).is_dir():
            (folder / VLM).mkdir()
            for path in (self.folder.path / VLM).iterdir():
                (folder / VLM / path.name).write_bytes(path.read_bytes())


def read_config(base: Any, folder: LerobotFolder, release: Release) -> Any:
    """Read ``config.json`` of any supported release for the installed one; ArtefactError: a key unknown to it."""
    saved = read_json(folder.path / CONFIG, error=ArtefactError)
    known = {"type", *(field.name for field in fields(base.get_choice_class(folder.kind)))}
    with TemporaryDirectory() as temp:
        (Path(temp) / CONFIG).write_bytes(json_bytes(served_config(saved, known, folder.path, release)))
        return base.from_pretrained(temp)


def check_weights(policy: nn.Module, folder: Path) -> None:
    """Refuse weights that do not fill the network (ArtefactError); lerobot only warns about missing tensors."""
    stored = load_tensors(folder / WEIGHTS)
    state = policy.state_dict()
    given = {name: name if name in state else f"model.{name}" for name in stored}
    filled = {state[own].data_ptr() for own in given.values() if own in state}
    missing = [name for name, tensor in state.items() if tensor.numel() and tensor.data_ptr() not in filled]
    wrong = [
        name
        for name, own in given.items()
        if own not in state or not torch.equal(state[own].cpu(), stored[name].to(state[own].dtype))
    ]
    if missing or wrong:
        raise ArtefactError(
            f"{folder / WEIGHTS}: {len(missing)} tensors of the network are not in it ({', '.join(missing[:3])}), "
            f"{len(wrong)} of its tensors were not taken ({', '.join(wrong[:3])}); its config.json is of another network, or "
            "of another lerobot release"
        )


def keep_stored_types(policy: nn.Module, folder: Path) -> None:
    """Give each weight the number type of the file.

    lerobot holds a SmolVLA that begins from its language model's own weights mostly in bfloat16, and its results
    differ: in float32, transformers 4.57 gives each row and column of patches the position of the one before it.
    """
    stored = load_tensors(folder / WEIGHTS)
    for name, weight in policy.state_dict(keep_vars=True).items():
        if name in stored:
            weight.data = weight.data.to(stored[name].dtype)


def missing_language_model(folder: Path, kind: str, error: Exception) -> str:
    """Message for a missing config or tokenizer of the language model, which is named but not part of the folder."""
    first = str(error).splitlines()[0]
    return (
        f"{folder}: the language model's config or tokenizer is missing: {first} Looked in {folder / VLM} and in the "
        "Hugging Face cache, without the network; fetch its small files once, for example with `hf download "
        f"{LANGUAGE_MODELS[kind]} --include '*.json' '*.txt' --local-dir {folder / VLM}`"
    )
