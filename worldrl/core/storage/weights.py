"""Weights into a module: by name, of its shapes and number types, and finite."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.artefact import Artefact

COUNTS = frozenset({"blocks", "depth", "levels", "layers", "members", "critics", "ensemble_size", "jury"})
"""Settings that say how many modules of a kind there are."""
SIZES = frozenset(
    [
        "width",
        "hidden",
        "channels",
        "text_width",
        "value_width",
        "condition",
        "keypoints",
        "bins",
        "heads",
        "image_size",
    ]
)
"""Settings that some tensor's shape shows, up to a small factor."""
MOST_MODULES, LARGEST_FACTOR = 1000, 64
"""A count up to this is always tried; a size may be this many times the largest dimension in the file."""


@contextmanager
def fitting(artefact: Artefact) -> Generator[None]:
    """Make a module within; ArtefactError for sizes beyond the weights, or what is no module of this version."""
    check_sizes(artefact)
    try:
        yield
    except MemoryError as error:
        raise ArtefactError(f"{artefact.folder}: the machine has too little memory for it") from error
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError, AssertionError) as error:
        raise ArtefactError(f"{artefact.folder}: config and weights do not fit this version: {error}") from error


def load_weights(module: nn.Module, artefact: Artefact, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Fill a module with an artefact's weights, or with ``tensors`` of changed names; ArtefactError for others."""
    given = artefact.tensors if tensors is None else tensors
    own = module.state_dict()
    if lost := sorted(set(own) ^ set(given)):
        kind = "is missing" if lost[0] in own else "is unknown"
        raise ArtefactError(f"{artefact.folder}: tensor {lost[0]!r} {kind}; config and weights do not fit this version")
    for name, tensor in given.items():
        where, made = f"{artefact.folder}: tensor {name!r}", own[name]
        if tensor.shape != made.shape or tensor.dtype != made.dtype:
            raise ArtefactError(
                f"{where}: is {tensor.dtype} {list(tensor.shape)}, the config makes it {made.dtype} {list(made.shape)}; "
                "config and weights do not fit this version"
            )
        check_finite(where, tensor)
    module.load_state_dict(given)


def check_finite(where: str, tensor: Tensor) -> None:
    """ArtefactError for NaN and infinity in weights: an argmax over them is an action all the same."""
    if tensor.is_floating_point() and (bad := int((~tensor.isfinite()).sum())):
        raise ArtefactError(
            f"{where}: {bad} of {tensor.numel()} values are not finite; train it again, or copy it again"
        )


def check_sizes(artefact: Artefact) -> None:
    """ArtefactError, before any is made, for a config of far larger modules than its weights fill."""
    if not artefact.tensors:
        return
    largest = max((max(t.shape, default=1) for t in artefact.tensors.values()), default=1)
    most = max(MOST_MODULES, len(artefact.tensors))
    for name, value in _integers(artefact.config):
        last = name.rpartition(".")[2]
        limit = most if last in COUNTS else LARGEST_FACTOR * largest if last in SIZES else value
        if value > limit:
            raise ArtefactError(
                f"{artefact.folder}: {name} is {value}, but its weights are of {len(artefact.tensors)} tensors with at "
                f"most {largest} in a dimension; config and weights do not belong together"
            )


def _integers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """All whole numbers of a config with their dotted names; those of a list under the list's name."""
    if isinstance(value, dict):
        for key, part in cast("dict[str, Any]", value).items():
            yield from _integers(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            yield from _integers(part, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value
