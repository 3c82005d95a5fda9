"""Training checkpoints: ``<folder>/step-00000020/`` artefacts of which the newest two are kept.

The newest that verifies is loaded bit for bit, so a kill at any moment costs at most the steps since the last one.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from worldrl.core.errors import ArtefactError
from worldrl.core.interfaces import Stateful
from worldrl.core.storage.artefact import Artefact, read_artefact, write_artefact
from worldrl.core.storage.atomic import recover, remove_folder
from worldrl.core.storage.tree import flatten, unflatten

KIND = "checkpoint"
KEEP = 2
STEP = re.compile(r"step-(\d{8,})")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What was loaded."""

    step: int  # how many steps had been taken
    extra: dict[str, Any]  # the extra state that was saved
    folder: Path  # the checkpoint's folder
    skipped: tuple[str, ...] = field(default=())  # why newer checkpoints were passed over, one statement each


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    modules: Mapping[str, Stateful],
    optimizers: Mapping[str, Optimizer],
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Save the state after ``step`` steps, then drop all but the newest two; return the new folder.

    ``extra`` (numbers, text, lists, tuples, dicts, tensors) comes back equal. ArtefactError where a value cannot be
    stored, or the disk refuses; older checkpoints stay.
    """
    tensors: dict[str, Tensor] = {}
    state = {
        "modules": {name: dict(module.state_dict()) for name, module in modules.items()},
        "optimizers": {name: _optimizer_state(optimizer) for name, optimizer in optimizers.items()},
        "extra": dict(extra or {}),
    }
    config = {"step": step, "state": flatten(state, "state", tensors)}
    path = folder / f"step-{step:08d}"
    write_artefact(path, kind=KIND, config=config, tensors=tensors)
    _prune(folder, step)
    return path


def load_checkpoint(
    folder: Path, *, modules: Mapping[str, Stateful], optimizers: Mapping[str, Optimizer]
) -> Checkpoint | None:
    """Load the newest checkpoint that verifies, or None without any; tensors go to each module's device.

    ArtefactError, with nothing loaded, where all are damaged or the newest good one belongs to other modules.
    """
    if not folder.is_dir():
        return None
    recover(folder)
    skipped: list[str] = []
    for _, path in sorted(_steps(folder), reverse=True):
        try:
            artefact = read_artefact(path, kind=KIND)
        except ArtefactError as reason:
            skipped.append(str(reason))
            _log.warning("skipped a damaged checkpoint: %s", reason)
            continue
        return _restore(artefact, modules, optimizers, tuple(skipped))
    if skipped:
        raise ArtefactError(
            f"{folder}: no checkpoint can be read; delete the folder to start again. {'; '.join(skipped)}"
        )
    return None


def _restore(
    artefact: Artefact, modules: Mapping[str, Stateful], optimizers: Mapping[str, Optimizer], skipped: tuple[str, ...]
) -> Checkpoint:
    state = unflatten(artefact.config["state"], artefact.tensors)
    _check_names(artefact.folder, "modules", state["modules"], modules)
    _check_names(artefact.folder, "optimizers", state["optimizers"], optimizers)
    for name, module in modules.items():
        _check_module(artefact.folder, name, state["modules"][name], module)
    for name, optimizer in optimizers.items():
        _check_optimizer(artefact.folder, name, state["optimizers"][name], optimizer)
    for name, module in modules.items():
        module.load_state_dict(state["modules"][name])
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name]["state_dict"])
    return Checkpoint(artefact.config["step"], state["extra"], artefact.folder, skipped)


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    return {"class": type(optimizer).__name__, "state_dict": optimizer.state_dict()}


def _check_names(folder: Path, what: str, saved: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    if set(saved) != set(given):
        raise ArtefactError(f"{folder}: holds {what} {sorted(saved)}, got {sorted(given)}; give the same names")


def _check_module(folder: Path, name: str, saved: Mapping[str, Any], module: Stateful) -> None:
    own = module.state_dict()
    if differing := sorted(set(saved) ^ set(own)):
        side = "only in the checkpoint" if differing[0] in saved else "only in the module"
        raise ArtefactError(f"{folder}: module {name!r}: {differing[0]} is {side}; use the config it was trained with")
    for key, tensor in own.items():
        if isinstance(tensor, Tensor) and _layout(tensor) != _layout(saved[key]):
            raise ArtefactError(
                f"{folder}: module {name!r}: {key} is {_layout(saved[key])} in the checkpoint and {_layout(tensor)} "
                "in the module; use the config it was trained with"
            )


def _check_optimizer(folder: Path, name: str, saved: Mapping[str, Any], optimizer: Optimizer) -> None:
    own = _optimizer_state(optimizer)
    if saved["class"] != own["class"]:
        raise ArtefactError(f"{folder}: optimizer {name!r} is {saved['class']}, got {own['class']}; use the same")
    sizes = [[len(g["params"]) for g in s["state_dict"]["param_groups"]] for s in (saved, own)]
    if sizes[0] != sizes[1]:
        raise ArtefactError(f"{folder}: optimizer {name!r} has groups of {sizes[0]} parameters, got {sizes[1]}")


def _layout(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(cast("object", value)).__name__


def _steps(folder: Path) -> list[tuple[int, Path]]:
    matches = ((STEP.fullmatch(path.name), path) for path in folder.iterdir())
    return [(int(match[1]), path) for match, path in matches if match]


def _prune(folder: Path, step: int) -> None:
    """Keep the newest two up to ``step``; later ones did not verify when this training resumed before them."""
    recover(folder)
    kept = sorted(s for s, _ in _steps(folder) if s <= step)[-KEEP:]
    for other, path in _steps(folder):
        if other not in kept:
            remove_folder(path)
