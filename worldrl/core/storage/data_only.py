"""Configs of artefacts are data: keys and texts by which a library would call or read something are refused."""

from typing import Any

from worldrl.core.errors import ArtefactError

CODE_KEYS = frozenset({"_target_", "_partial_", "_args_", "_recursive_", "_convert_"})
"""Keys by which Hydra turns a config into calls."""


def refuse_code(config: Any, *, where: str) -> None:
    """ArtefactError for a key such as ``_target_`` or an interpolation ``${...}``: a config is data only."""
    if isinstance(config, dict):
        for key, value in config.items():  # pyright: ignore[reportUnknownVariableType]
            if key in CODE_KEYS:
                raise ArtefactError(f"{where}: key {key!r} names code to run; an artefact's config is data, remove it")
            refuse_code(key, where=where)
            refuse_code(value, where=f"{where}.{key}")
    elif isinstance(config, list):
        for index, value in enumerate(config):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            refuse_code(value, where=f"{where}[{index}]")
    elif isinstance(config, str) and "${" in config:
        raise ArtefactError(f"{where}: {config!r} is an interpolation; store the resolved value instead")
