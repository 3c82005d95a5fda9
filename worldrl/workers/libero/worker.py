"""LIBERO in its own environment: hf-libero's tasks behind the worker's interface (``link/server.py``).

Vendor packages are imported once the suite is built: their first import would ask for a file that setup writes.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from worldrl.workers.libero import facts
from worldrl.workers.libero.observation import OBSERVED
from worldrl.workers.libero.package import (
    LiberoError,
    assets_digest,
    draw_plainly,
    find_assets,
    package_root,
    require_packages,
    sources_digests,
    task_instruction,
    task_names,
)
from worldrl.workers.libero.pro import add_kinds, folder_of, read_suite
from worldrl.workers.libero.simulation import Simulation
from worldrl.workers.libero.states import load_suite
from worldrl.workers.link.rendering import current_renderer
from worldrl.workers.link.server import IMAGE
from worldrl.workers.link.wire import Arrays


class Libero:
    """One suite of LIBERO with the exact packages of ``physics``; LiberoError for others, or without assets.

    ``states`` is the folder of converted states, ``pro`` that of LIBERO-PRO's data, for its suites; empty ``assets`` are the package's. ``cameras`` begin with the
    scene's; none renders nothing. Without the vendor's ``shadows`` a CPU renders other images, about eight times
    faster. Where ``held``, the controller keeps a goal of its own (``held.py``).
    """

    def __init__(
        self,
        *,
        suite: str,
        states: str,
        assets: str = "",
        image_size: int = 256,
        cameras: tuple[str, ...] = (),
        shadows: bool = True,
        physics: str = facts.VERSION,
        pro: str = "",
        held: bool = False,
    ) -> None:
        self.packages = require_packages(physics)
        self.image_size, self.cameras, self.suite, self.held = image_size, tuple(cameras), suite, held
        root = self._root = package_root()
        self.assets = find_assets(root, assets)
        vendor: Any = importlib.import_module("libero.libero")
        vendor._assets_path_cache = str(self.assets)  # its own look-up would download
        self._vendor = importlib.import_module("libero.libero.envs.env_wrapper")
        self._tasks = root / "bddl_files"  # folder of each suite's tasks
        self._states_folder = Path(states)
        self._names = task_names(root)
        if suite in facts.PRO_SUITES:
            self._take_pro(Path(pro))
        else:
            self.states = load_suite(self._states_folder / f"{suite}.npz", suite)
            self.instructions = {name: task_instruction(name) for name in self._names[suite]}
            self._suite_folder = self._tasks / suite
        if not shadows:
            draw_plainly()

    def _take_pro(self, data: Path) -> None:
        """Take tasks, instructions and states of a suite of LIBERO-PRO."""
        tasks = read_suite(data, self.suite)
        if facts.PRO_SUITES[self.suite][1] == "object":
            add_kinds(self.assets)
        self.states = {name: task.states for name, task in tasks.items()}
        self.instructions = {name: task.instruction for name, task in tasks.items()}
        self._suite_folder = data / "bddl_files" / folder_of(self.suite)

    def describe(self) -> dict[str, Any]:
        """Tasks, protocol and versions in JSON values."""
        return {
            "suite": self.suite,
            "tasks": [{"name": name, "instruction": said} for name, said in self.instructions.items()],
            "stored_states": min(len(states) for states in self.states.values()),
            "packages": self.packages,
            "assets": assets_digest(self.assets),
            "sources": sources_digests(self._root, self._suite_folder),
            "control_hz": facts.CONTROL_HZ,
            "action_size": len(facts.NO_OP),
        }

    def make(self, task: str) -> Simulation:
        """Make an environment of one task."""
        if task not in self.states:
            raise LiberoError(f"{self.suite}: no task {task!r}; it has {', '.join(self.states)}")
        return Simulation(self, self._environment(self._suite_folder / f"{task}.bddl"), self.states[task])

    def _environment(self, task: Path) -> Any:
        env = self._vendor.ControlEnv(
            bddl_file_name=str(task),
            use_camera_obs=False,  # images are rendered on request only
            has_offscreen_renderer=bool(self.cameras),
            control_freq=facts.CONTROL_HZ,
            **{"ignore_done": True},  # the horizon is the protocol's, counted by the core
        )
        for name in env.env.observation_names.difference(OBSERVED):
            env.env.modify_observable(name, "enabled", False)
        return env

    def probe(self) -> dict[str, Any]:
        """Let one stored state settle that differs between physics versions; LiberoError where it does not hold."""
        place = facts.SETTLE_PROBE
        task = self._names[place.suite][place.task]
        states = load_suite(self._states_folder / f"{place.suite}.npz", place.suite)[task]
        simulation = Simulation(self, self._environment(self._tasks / place.suite / f"{task}.bddl"), states)
        try:
            drawn = drawn_frame(simulation.reset(place.init_id, 0, render=bool(self.cameras)))
            for _ in range(place.steps - facts.SETTLE_STEPS):
                simulation.step(np.array(facts.NO_OP, np.float32), render=False)
            distance = float(np.linalg.norm((simulation.position(place.upper) - simulation.position(place.lower))[:2]))
        finally:
            simulation.close()
        if distance > place.limit_m:
            raise LiberoError(
                f"settle probe: stored state {place.init_id} of {task} does not hold: {place.upper} ends "
                f"{1000 * distance:.0f} mm beside {place.lower}, at most {1000 * place.limit_m:.0f} mm are allowed; "
                f"this is not the physics of {self.packages}"
            )
        return {"task": task, "init_id": place.init_id, "distance_mm": 1000 * distance, **drawn}


def drawn_frame(row: Arrays) -> dict[str, str]:
    """Digest of a row's main image and the renderer; empty without cameras."""
    if IMAGE not in row:
        return {}
    return {"frame": hashlib.sha256(row[IMAGE].tobytes()).hexdigest()[:16], "renderer": current_renderer()}
