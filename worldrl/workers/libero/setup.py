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


def main(folder: str) -> None:
    """Prepare the environment in ``folder``; LiberoError for other packages, StatesError for other stored states."""
    require_packages(facts.VERSION)
    root, here = package_root(), Path(folder)
    config = here / "libero_config" / "config.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    places = {"benchmark_root": root, "bddl_files": root / "bddl_files", "init_states": root / "init_files"}
    places |= {"datasets": root.parent / "datasets", "assets": root / "assets"}
    config.write_text(json.dumps({name: str(place) for name, place in places.items()}, indent=2) + "\n")  # JSON is YAML
    names = task_names(root)
    (here / "initial_states").mkdir(exist_ok=True)
    for suite in facts.SUITES:
        states: dict[str, Any] = convert_suite(root / "init_files" / suite, names[suite])
        check_digest(suite, states)
        np.savez(here / "initial_states" / f"{suite}.npz", **states)
