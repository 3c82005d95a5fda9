"""Parts by name: ``"module:attribute"``, imported when it is looked up."""

import importlib
from typing import Any


def named(target: str) -> Any:
    """Import a part; AttributeError where its module has none of that name."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
