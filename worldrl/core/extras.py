"""Optional packages, imported where they are needed, or one error that names the extra which brings them."""

import importlib
from typing import Any

from worldrl.core.errors import MissingExtraError

REINSTALL = "pip install -c constraints.txt -e ."  # Brings everything that is not optional


def require(module: str, *, extra: str | None) -> Any:
    """Import an optional module; where it is not installed MissingExtraError names the ``extra``, if one brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != module.split(".")[0]:
            raise  # it is there and broken: its own message says more
        package = module.split(".")[0]
        bring = f"the extra {extra!r} brings it: pip install -c constraints.txt -e '.[{extra}]'"
        raise MissingExtraError(
            f"{package} is not installed; {bring if extra else f'pip install {package}'}"
        ) from error
