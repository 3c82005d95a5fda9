"""Refusal of lerobot policy folders that name code: lerobot runs what its files name, and checks it only afterwards.

A step of a saved processor may hold ``class`` instead of ``registry_name``; lerobot imports that class and calls it
with the step's ``config`` (huggingface/lerobot 4219). Names of language models may be paths, and transformers reads
code from their folders. Here a folder may name the steps that the supported policies save, hub ids, and files beside
it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.jsonfile import read_json

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
VLM = "vlm"  # folder in a policy's folder with the language model's config and tokenizer
STEPS = frozenset(
    {
        "absolute_actions_processor",
        "delta_actions_processor",
        "device_processor",
        "normalizer_processor",
        "pi0_new_line_processor",
        "relative_actions_processor",
        "rename_observations_processor",
        "smolvla_new_line_processor",
        "to_batch_processor",
        "tokenizer_processor",
        "unnormalizer_processor",
    }
)
"""Steps that lerobot 0.4 to 0.6 saves with the supported policies."""
ENTRY_KEYS = frozenset({"registry_name", "config", "state_file"})
STATE_FILE = re.compile(r"[\w-][\w.-]*\.safetensors")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_NAMES = ("vlm_model_name", "tokenizer_name")
"""Keys of the config and of a step's config that name a model on the hub."""
CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "custom_generate", "trust_remote_code"})
ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Attention implementations of transformers itself."""
LANGUAGE_FILES = frozenset({".json", ".txt", ".model", ".jinja", ".safetensors", ".md"})


def processor_steps(folder: Path, file: str) -> list[dict[str, Any]]:
    """Read a saved processor's steps; ArtefactError: any that could run other code than a known step."""
    path = folder / file
    steps = read_json(path, error=ArtefactError).get("steps")
    if not isinstance(steps, list):
        raise ArtefactError(f"{path}: 'steps' must be a list; save the policy with its processors again")
    # Where the folder has a language model of its own, the loader replaces the preprocessor's name by that folder.
    overridden = file == PREPROCESSOR and (folder / VLM).is_dir()
    for number, entry in enumerate(cast("list[Any]", steps)):
        _check_step(f"{path}: step {number}", entry, overridden=overridden)
    return cast("list[dict[str, Any]]", steps)


def _check_step(where: str, entry: Any, *, overridden: bool) -> None:
    if not isinstance(entry, dict):
        raise ArtefactError(f"{where} must be an object, got {entry!r}; save the policy's processors again")
    step = cast("dict[str, Any]", entry)
    name, unknown = str(step.get("registry_name")), sorted(set(map(str, step)) - ENTRY_KEYS)
    if unknown or name not in STEPS:
        shown = f"key {unknown[0]!r}" if unknown else f"registry_name {name!r}"
        raise ArtefactError(
            f"{where}: {shown} is refused, since loading it could run code of the folder's author; "
            f"known steps are {', '.join(sorted(STEPS))}"
        )
    config, state = step.get("config", {}), step.get("state_file")
    if not isinstance(config, dict):
        raise ArtefactError(f"{where}: config must be an object, got {config!r}; save the policy's processors again")
    if state is not None and (not isinstance(state, str) or STATE_FILE.fullmatch(state) is None):
        raise ArtefactError(
            f"{where}: state_file must be a .safetensors file beside it, got {state!r}; save the processors again"
        )
    check_hub_names(where, cast("dict[str, Any]", config), replaced=overridden)


def check_hub_names(where: str, config: Mapping[str, Any], *, replaced: bool) -> None:
    """Refuse names of code, and models named by a path unless ``replaced`` by the folder's own (ArtefactError)."""
    if key := _code_key(config):
        raise ArtefactError(f"{where}: key {key!r} names code, which is not run; use a policy without it")
    for key in () if replaced else HUB_NAMES:
        name = config.get(key)
        if name is not None and (not isinstance(name, str) or HUB_ID.fullmatch(name) is None):
            raise ArtefactError(
                f"{where}: {key} must be a hub id such as 'user/model', got {name!r}; "
                f"put the language model's config and tokenizer into the policy's folder {VLM!r} instead"
            )


def check_language_model(folder: Path) -> None:
    """Refuse a language model's folder, if there is one, that holds or names code (ArtefactError)."""
    for path in _files(folder / VLM):
        if path.suffix.lower() not in LANGUAGE_FILES or path.is_symlink() or not path.is_file():
            raise ArtefactError(
                f"{path}: is refused; a language model's folder may hold {', '.join(sorted(LANGUAGE_FILES))} files only"
            )
        if path.name.endswith("config.json") and (key := _code_key(read_json(path, error=ArtefactError))):
            raise ArtefactError(f"{path}: key {key!r} names code, which is not run; use a model without it")


def _files(folder: Path) -> Sequence[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _code_key(value: Any) -> str:
    """Find a key by which transformers loads code from files or from the hub; empty for none."""
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        named = next((key for key, part in held.items() if part and _names_code(key, part)), "")
        return named or next((found for part in held.values() if (found := _code_key(part))), "")
    return ""


def _names_code(key: str, value: Any) -> bool:
    # CVE-2026-4372: transformers before 5.3 fetches attention code from the repository that such a key names.
    return key in CODE_KEYS or ("attn_implementation" in key and isinstance(value, str) and value not in ATTENTION)
