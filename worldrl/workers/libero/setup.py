"""Setup inside LIBERO's environment, once per ``worldrl setup libero``: ``python -I boot.py libero.setup FOLDER``.

LIBERO's first import would ask for its configuration on standard input. The stored initial states become one checked
``initial_states/<suite>.npz`` per suite.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.workers.libero import facts
from worldrl.workers.libero.package import package_root, require_packages, task_names
from worldrl.workers.libero.states import check_digest, convert_suite


def vendor_config(root: Path) -> dict[str, str]:
    """Content of LIBERO's ``config.yaml``; JSON is YAML."""
    return {
        "benchmark_root": str(root),
        "bddl_files": str(root / "bddl_files"),
        "init_states": str(root / "init_files"),
        "datasets": str(root.parent / "datasets"),
        "assets": str(root / "assets"),
    }


def main(folder: str) -> None:
    """Prepare the environment in ``folder``; LiberoError for other packages, StatesError for other stored states."""
    require_packages(facts.VERSION)
    root, here = package_root(), Path(folder)
    config = here / "libero_config" / "config.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(vendor_config(root), indent=2) + "\n")
    names = task_names(root)
    (here / "initial_states").mkdir(exist_ok=True)
    for suite in facts.SUITES:
        states: dict[str, Any] = convert_suite(root / "init_files" / suite, names[suite])
        check_digest(suite, states)
        np.savez(here / "initial_states" / f"{suite}.npz", **states)
