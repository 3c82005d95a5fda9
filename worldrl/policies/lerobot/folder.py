"""A lerobot policy's folder as lerobot publishes it, read and checked without lerobot.

::

    folder/
      config.json                    type, sizes, input and output features, normalisation
      model.safetensors              weights
      policy_preprocessor.json       steps before the network, with *.safetensors of their statistics
      policy_postprocessor.json      steps after it
      worldrl.json                   optional, worldrl's: {"inputs": {feature: the suite's observation}, "actions": ActionSpec,
                                     "trained_on": data of the fine-tuning with worldrl}
      worldrl_head.safetensors       optional, worldrl's: ACT's learned standard deviations

lerobot passes a number through unchanged without its statistics, and starts from random weights without weights: both
seem a bad policy. Here both are errors.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec, suite_actions
from worldrl.core.errors import ArtefactError, SettingError, nearest
from worldrl.core.storage.jsonfile import digest, read_json, write_json
from worldrl.core.storage.tensorfile import load_tensors
from worldrl.policies.lerobot.safety import (
    POSTPROCESSOR,
    PREPROCESSOR,
    VLM,
    check_hub_names,
    check_language_model,
    processor_steps,
)
from worldrl.workers.robotwin import facts as robotwin_facts

CONFIG, WEIGHTS, OURS, HEAD = "config.json", "model.safetensors", "worldrl.json", "worldrl_head.safetensors"
TYPES = ("act", "diffusion", "pi0", "smolvla")
WINDOWED = "diffusion"  # the kind with several observations as input
ACTION, TRAINED_ON = "action", "trained_on"
EMPTY_CAMERA = "observation.images.empty_camera_"  # prefix of cameras that a policy fills in itself
_STATISTICS = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
    "IDENTITY": (),
}
_RELATIVE = ("relative_actions_processor", "absolute_actions_processor", "delta_actions_processor")
_REFUSED = {
    "temporal_ensemble_coeff": "temporal ensembling decides at every step; chunks are executed here, so set it to null",
    "adapt_to_pi_aloha": "its conversion to another robot's joints is not done here; set it to false",
    "rtc_config": "real-time chunking changes the sampler; set it to null, latency= aligns chunks in time instead",
}


@dataclass(frozen=True)
class Feature:
    """One input or output of a policy: ``kind`` is lerobot's VISUAL, STATE, ENV or ACTION."""

    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LerobotFolder:
    """A complete policy folder."""

    path: Path
    kind: str  # lerobot's type, for example ``"smolvla"``.
    inputs: Mapping[str, Feature]  # features that a suite must show, by name.
    sources: Mapping[str, str]  # the suite's names for them, as far as ``worldrl.json`` has them.
    action_size: int  # numbers of an action.
    # their specification: from ``worldrl.json``, else RoboTwin's joint targets for 14 numbers, else LIBERO's.
    actions: ActionSpec
    chunk_size: int  # actions that the network decides at once.
    chunk_length: int  # number of executed ones (``n_action_steps``), from the newest observation's step on.
    hash: str = field(repr=False)  # identity of every file that determines the policy's actions.
    trained_on: Mapping[str, Any] | None = None  # data of the fine-tuning with worldrl; None if unknown.
    n_obs_steps: int = 1  # newest observations in a decision; the network's chunk begins at the oldest one's step.

    @property
    def windowed(self) -> bool:
        """Whether its features have an axis of observations ``[B, n_obs_steps, ...]``, of length 1 or more."""
        return self.kind == WINDOWED

    @property
    def executed(self) -> slice:
        """The executed actions of the network's chunk, without those before the newest observation."""
        return slice(self.n_obs_steps - 1, self.n_obs_steps - 1 + self.chunk_length)

    @property
    def picture(self) -> tuple[int, int]:
        """Rows and columns of the images; SettingError where cameras differ."""
        sizes = {feature.shape[1:] for feature in self.inputs.values() if feature.kind == "VISUAL"}
        if len(sizes) != 1:
            raise SettingError(f"{self.path}: cameras must be of one size, config.json says {sorted(sizes)}")
        rows, columns = next(iter(sizes))
        return rows, columns


def is_lerobot_folder(folder: Path) -> bool:
    """Whether a folder is a published lerobot policy rather than an artefact of worldrl."""
    if (folder / PREPROCESSOR).is_file() or (folder / POSTPROCESSOR).is_file():
        return True
    return (folder / CONFIG).is_file() and "input_features" in read_json(folder / CONFIG, error=ArtefactError)


def read_lerobot_folder(folder: Path) -> LerobotFolder:
    """Read a folder and check that it is complete.

    Raises ArtefactError: a file, a processor or its statistics are missing; SettingError: an unsupported kind or
    setting.
    """
    config = read_json(_present(folder, CONFIG, "the policy's config"), error=ArtefactError)
    kind = str(config.get("type"))
    if kind not in TYPES:
        raise SettingError(f"{folder / CONFIG}: type {kind!r} is not supported{nearest(kind, TYPES)}")
    for name, why in _REFUSED.items():
        if config.get(name):
            raise SettingError(f"{folder / CONFIG}: {name}: {why}")
    _present(folder, WEIGHTS, "the checkpoint")
    check_language_model(folder)
    check_hub_names(str(folder / CONFIG), config, replaced=(folder / VLM).is_dir())
    inputs, outputs = (_features(config[name]) for name in ("input_features", "output_features"))
    _check_processors(folder, config, {**inputs, **outputs})
    _refuse_relative_actions(folder)
    ours = read_json(folder / OURS, error=ArtefactError) if (folder / OURS).is_file() else {}
    sources = ours.get("inputs", {})
    if unknown := sorted(set(sources) - set(inputs)):
        raise ArtefactError(f"{folder / OURS}: inputs: unknown feature {unknown[0]!r}{nearest(unknown[0], inputs)}")
    chunk_size, chunk_length, n_obs_steps = _times(folder, config)
    return LerobotFolder(
        path=folder,
        kind=kind,
        inputs={name: feature for name, feature in inputs.items() if not name.startswith(EMPTY_CAMERA)},
        sources=sources,
        action_size=outputs[ACTION].shape[0],
        actions=_actions(folder, ours, outputs[ACTION].shape[0]),
        chunk_size=chunk_size,
        chunk_length=chunk_length,
        hash=_identity(folder),
        trained_on=ours.get(TRAINED_ON),
        n_obs_steps=n_obs_steps,
    )


def write_trained_on(folder: Path, trained_on: Mapping[str, Any] | None) -> None:
    """Store the data of a fine-tuning in a policy's folder; None changes nothing."""
    if trained_on is None:
        return
    ours = read_json(folder / OURS, error=ArtefactError) if (folder / OURS).is_file() else {}
    write_json(folder / OURS, {**ours, TRAINED_ON: trained_on}, error=ArtefactError)


def _actions(folder: Path, ours: Mapping[str, Any], size: int) -> ActionSpec:
    if "actions" not in ours:
        return suite_actions({"joints": robotwin_facts.joints()}) if size == robotwin_facts.SIZE else TOOL_ACTIONS
    spec = ActionSpec.from_json(ours["actions"])
    if spec.size != size:
        raise ArtefactError(f"{folder / OURS}: actions: names {spec.size} numbers, the policy's actions have {size}")
    return spec


def _times(folder: Path, config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Control steps of the network's chunk, number of executed ones, and observations of a decision."""
    windowed = config["type"] == WINDOWED
    chunk_size, chunk_length = int(config["horizon" if windowed else "chunk_size"]), int(config["n_action_steps"])
    n_obs_steps = int(config.get("n_obs_steps", 2 if windowed else 1))  # lerobot's defaults
    if n_obs_steps != 1 and not windowed:
        raise SettingError(
            f"{folder / CONFIG}: n_obs_steps is {n_obs_steps}; a network of type {config['type']} takes one "
            "observation, so it must be 1"
        )
    if n_obs_steps < 1 or not 1 <= chunk_length <= chunk_size - n_obs_steps + 1:
        raise SettingError(
            f"{folder / CONFIG}: needs n_obs_steps >= 1 and 1 <= n_action_steps <= chunk - n_obs_steps + 1, "
            f"got n_obs_steps {n_obs_steps}, n_action_steps {chunk_length}, a chunk of {chunk_size}"
        )
    return chunk_size, chunk_length, n_obs_steps


def _features(listed: Mapping[str, Any]) -> dict[str, Feature]:
    return {name: Feature(item["type"], tuple(item["shape"])) for name, item in listed.items()}


def _present(folder: Path, name: str, what: str) -> Path:
    path = folder / name
    if not path.is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "no such folder"
        raise ArtefactError(
            f"{path}: {what} is missing (found there: {found or 'nothing'}); fetch the whole policy, for example with "
            f"`hf download <user>/<policy> --local-dir {folder}`"
        )
    return path


# --- processors ----------------------------------------------------------------------------------------------------


def _check_processors(folder: Path, config: Mapping[str, Any], features: Mapping[str, Feature]) -> None:
    """Require the statistics of every normalised feature beside the processor that uses them."""
    modes: Mapping[str, str] = config["normalization_mapping"]
    for file, step, wanted in (
        (PREPROCESSOR, "normalizer_processor", list(features)),
        (POSTPROCESSOR, "unnormalizer_processor", [ACTION]),
    ):
        needed = [
            f"{name}.{number}"
            for name in wanted
            for number in _statistics(folder, modes.get(features[name].kind, "IDENTITY"))
            if not name.startswith(EMPTY_CAMERA)
        ]
        held = _held_statistics(folder, file, step)
        if missing := sorted(set(needed) - held):
            raise ArtefactError(
                f"{folder / file}: statistics {', '.join(missing[:4])} are missing, and lerobot would pass those numbers "
                f"through unscaled; save the policy with its processors, or convert an older one with "
                f"`python -m lerobot.processor.migrate_policy_normalization --pretrained-path {folder}`"
            )


def _refuse_relative_actions(folder: Path) -> None:
    """Refuse chunks relative to the measured state (from lerobot 0.5 on): their two processors are coupled."""
    for file in (PREPROCESSOR, POSTPROCESSOR):
        for entry in processor_steps(folder, file):
            name = entry["registry_name"]
            if name in _RELATIVE and entry.get("config", {}).get("enabled", False):
                raise SettingError(
                    f"{folder / file}: step {name!r} counts actions from the measured state, which is not done here; "
                    "train the policy again without relative actions"
                )


def _statistics(folder: Path, mode: str) -> tuple[str, ...]:
    if mode not in _STATISTICS:
        raise SettingError(
            f"{folder / CONFIG}: normalization_mapping: unknown mode {mode!r}{nearest(mode, _STATISTICS)}"
        )
    return _STATISTICS[mode]


def _held_statistics(folder: Path, file: str, step: str) -> set[str]:
    held: set[str] = set()
    _present(folder, file, "the saved processor")
    for entry in processor_steps(folder, file):
        if entry["registry_name"] == step and "state_file" in entry:
            held |= load_tensors(_present(folder, entry["state_file"], "the processor's statistics")).keys()
    return held


def _identity(folder: Path) -> str:
    files = sorted(p for p in folder.iterdir() if p.suffix in (".json", ".safetensors") and p.is_file())
    sums: dict[str, str] = {}
    for path in files:
        with path.open("rb") as stream:
            sums[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digest(sums)
