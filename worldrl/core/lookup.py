"""Parts by name: ``"module:attribute"``, imported when it is looked up."""

import importlib
from typing import Any


class Lazy:
    """A module that is imported with its first use; SciPy's take up to a second, and most commands never need them."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """The module's attribute."""
        return getattr(importlib.import_module(self._module), name)


def named(target: str) -> Any:
    """Import a part; AttributeError where its module has none of that name."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
