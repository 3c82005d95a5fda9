"""The repeated blocks of a network: what is recomputed, one after the other."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import nn
from torch.utils import checkpoint


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the members of all lists of modules that are called as such and learn something."""
    found: list[nn.Module] = []
    for part in module.modules():
        if isinstance(part, nn.ModuleList):
            found += [child for child in part if not isinstance(child, nn.ModuleList | nn.ModuleDict)]
    return [block for block in found if any(parameter.requires_grad for parameter in block.parameters())]


@contextmanager
def checkpointed_blocks(module: nn.Module) -> Generator[None]:
    """Compute each block again in the backward pass, instead of keeping what it computed."""
    chosen, recompute = blocks(module), cast("Any", checkpoint).checkpoint
    for block in chosen:
        block.forward = partial(recompute, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in chosen:
            del block.forward  # the class's own is behind it
