"""First file of a process in a simulator's own Python: ``python -I boot.py MODULE ARGUMENT ...`` runs its ``main``.

``worldrl.workers`` becomes importable without a search path, so no package of the core's environment is visible.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parents[2]


def load_file(name: str, path: Path, *, package: bool = False) -> ModuleType:
    """Import one file under a name, without a search path."""
    locations = [str(path.parent)] if package else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    load_file("worldrl", PACKAGE / "__init__.py", package=True)
    importlib.import_module(f"worldrl.workers.{sys.argv[1]}").main(*sys.argv[2:])
