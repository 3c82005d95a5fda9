"""Supported releases of lerobot, and the calls in which their networks differ.

A release line is one :class:`Release`. Each call that differs is a function here, and callers take it from
:func:`installed_release`. Other differences are described in ``docs/guide/lerobot.md``.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor

from worldrl.core.errors import ArtefactError, WorkerEnvironmentError

LATER = (
    "pretrained_revision",  # of which commit of the hub training began
    "gradient_checkpointing",  # memory of training
    "use_relative_actions",  # π0; switched on, its processors are refused (policies.lerobot_folder)
    "relative_exclude_joints",
    "action_feature_names",
)
"""Keys of ``config.json`` that 0.5 and 0.6 added and that do not change what a policy does with an observation."""


# --- what the lines call differently -------------------------------------------------------------------------------


def fill_dictionary(language_model: Any, **prefix: Any) -> Any:
    """SmolVLA of 0.4: an argument requests the keys and values of the prefix, in a dictionary."""
    return language_model.forward(past_key_values=None, fill_kv_cache=True, **prefix)[1]


def fill_cache(language_model: Any, **prefix: Any) -> Any:
    """SmolVLA of 0.6.1: it makes transformers' own cache, which each ``denoise_step`` extends and crops again."""
    return language_model.forward(past_key_values=None, **prefix)[1]


def own_mask(model: Any, attention: Tensor) -> Tensor:
    """π0 of 0.4: a method makes the additive mask ``[B, 1, N, N]`` from the attention ``[B, N, N]``."""
    return model._prepare_attention_masks_4d(attention)


def shared_mask(model: Any, attention: Tensor) -> Tensor:
    """π0 of 0.6.1: a function for several policies makes that mask."""
    return importlib.import_module("lerobot.policies.common.vla_utils").prepare_attention_masks_4d(attention)


@dataclass(frozen=True)
class Release:
    """A line of releases."""

    first: tuple[int, int, int]  # oldest release of the line that has these methods.
    tried: str  # the release of the tests.
    left_out: tuple[str, ...]  # keys of ``config.json`` that it does not know and that do not matter.
    # keys and values of SmolVLA's prefix, from ``vlm_with_expert`` and arguments of its ``forward``.
    fill_prefix: Callable[..., Any]
    mask_4d: Callable[[Any, Tensor], Tensor]  # π0's additive attention mask, from its network and the attention.

    @property
    def name(self) -> str:
        """Its first two numbers."""
        return f"{self.first[0]}.{self.first[1]}"

    def __str__(self) -> str:
        since = f" from {'.'.join(map(str, self.first))} on" if self.first[2] else ""
        return f"{self.name}{since} (tried with {self.tried})"


RELEASES = (
    Release((0, 4, 0), "0.4.4", LATER, fill_dictionary, own_mask),
    Release((0, 6, 1), "0.6.1", (), fill_cache, shared_mask),
)


# --- which one is here ---------------------------------------------------------------------------------------------


def served_release(release: str) -> Release | None:
    """The line of a release; None if it is not supported."""
    numbers = tuple(int(part) for part in release.split(".")[:3] if part.isdecimal())
    return next((line for line in RELEASES if line.first[:2] == numbers[:2] and line.first <= numbers), None)


def refusal(release: str) -> str | None:
    """Why a release is not supported; None if it is."""
    if served_release(release) is not None:
        return None
    return (
        f"lerobot {release} is not supported: its networks are called by the methods of "
        f"{' and '.join(map(str, RELEASES))}, and other releases have others"
    )


def installed_refusal() -> str | None:
    """:func:`refusal` of this interpreter's lerobot; None without one."""
    try:
        return refusal(version("lerobot"))
    except PackageNotFoundError:
        return None


def installed_release() -> Release:
    """The line of this interpreter's lerobot; WorkerEnvironmentError: it is not supported."""
    release = version("lerobot")
    line = served_release(release)
    if line is None:
        raise WorkerEnvironmentError(
            f"{refusal(release)}; `worldrl setup lerobot` builds one of them in an environment of its own"
        )
    return line


def served_config(config: Mapping[str, Any], known: Collection[str], folder: Path, line: Release) -> dict[str, Any]:
    """Remove keys of other releases that do not change what the policy does; ArtefactError: any other unknown key."""
    if unknown := sorted(set(config) - set(known) - set(line.left_out)):
        raise ArtefactError(
            f"{folder / 'config.json'}: lerobot {line.name} does not know {', '.join(unknown)}: another release saved it, and "
            f"what that means for its actions is not known here; save the policy with {line.name}"
        )
    return {key: value for key, value in config.items() if key in known}
