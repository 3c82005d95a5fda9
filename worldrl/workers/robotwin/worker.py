"""A RoboTwin 2.0 checkout behind the worker's interface (``link/server.py``); facts in ``robotwin/facts.py``.

A folder of scripts: the process works inside it, with one environment, since each scene seeds its global generators.
Written against the commit of the facts and tested against a double; it never ran against the real one.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.link.server import installed
from worldrl.workers.link.wire import Arrays
from worldrl.workers.robotwin import facts
from worldrl.workers.robotwin.starts import FAILED, SOLVED, UNSOLVED, UNSTABLE, RoboTwinError, Verdict, VerifiedSeeds


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one of the checkout's files."""
    loaded: Any = importlib.import_module("yaml").safe_load(path.read_text())
    if not isinstance(loaded, dict):
        raise RoboTwinError(f"{path} does not hold a table")
    return loaded


def checkout_commit(root: Path) -> str:
    """Commit of a checkout; ``unknown`` without git."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def scene_arguments(root: Path, task: str, config: str) -> dict[str, Any]:
    """Keyword arguments of the checkout's ``setup_demo``, as in its evaluation."""
    folder = root / "env_cfg" / "task_config"
    arguments = read_yaml(folder / f"{config}.yml")
    names = arguments["embodiment"]
    if list(names) != [facts.EMBODIMENT]:
        raise RoboTwinError(
            f"{config}.yml: embodiment must be [{facts.EMBODIMENT}] for 14 joint targets, it is {names}"
        )
    robot = read_yaml(folder / "_embodiment_config.yml")[facts.EMBODIMENT]["file_path"]
    camera = read_yaml(folder / "_camera_config.yml")[arguments["camera"]["head_camera_type"]]
    embodiment = read_yaml(root / robot / "config.yml")
    arguments["data_type"] = {**arguments.get("data_type", {}), "rgb": True, "qpos": True, "endpose": True}
    return {
        **arguments,
        "task_name": task,
        "task_config": config,
        "render_freq": 0,
        "eval_mode": True,
        "head_camera_h": camera["h"],
        "head_camera_w": camera["w"],
        "left_robot_file": robot,
        "right_robot_file": robot,
        "left_embodiment_config": embodiment,
        "right_embodiment_config": read_yaml(root / robot / "config.yml"),  # the simulator writes into both
        "dual_arm_embodied": True,
    }


class RoboTwin:
    """All tasks of a checkout, clean or randomised; ``seeds`` is the folder of the expert's verdicts."""

    def __init__(self, *, suite: str, checkout: str, seeds: str, cameras: Sequence[str] = ()) -> None:
        self.suite, self.config, self.cameras = suite, facts.CONFIGS[suite], tuple(cameras)
        self.root = Path(checkout).resolve()
        missing = [name for name in facts.NEEDED if not (self.root / name).is_file()]
        if missing:
            raise RoboTwinError(f"{self.root} is no checkout of RoboTwin 2.0: it lacks {', '.join(missing)}")
        os.chdir(self.root)  # its files name each other from here
        sys.path[:0] = [str(self.root), str(self.root / "description" / "utils")]
        self.commit = checkout_commit(self.root)
        self._seeds = Path(seeds) / self.commit[:12] / self.config
        self.pulse: Callable[[str, int], None] = lambda call, slot: None

    def describe(self) -> dict[str, Any]:
        """Tasks, protocol and versions in JSON values."""
        limits = read_yaml(self.root / facts.LIMITS)
        tasks = [
            {"name": name, "instruction": name.replace("_", " "), "horizon": int(limits.get(name, facts.DEFAULT_STEPS))}
            for name in sorted(limits)
        ]
        return {
            "suite": self.suite,
            "tasks": tasks,
            "stored_states": facts.STORED_STATES,
            "packages": {"robotwin": self.commit, **{name: installed(name) for name in ("sapien", "mplib")}},
            "assets": "of the checkout",
            "control_hz": facts.FRAME_HZ,
            "joints": facts.joints(),
            "state_size": facts.SIZE,
            "picture": list(facts.IMAGE),
        }

    def make(self, task: str) -> Simulation:
        """Make an environment of one task."""
        module: Any = importlib.import_module(f"envs.{task}")
        return Simulation(self, task, getattr(module, task)())

    def starts(self, task: str, env: Any) -> VerifiedSeeds:
        """Solved seeds of a task, searched or stored."""
        unstable: Any = importlib.import_module("envs.utils.create_actor").UnStableError
        arguments = scene_arguments(self.root, task, self.config)

        def verify(candidate: int) -> Verdict:
            self.pulse(f"the expert tries seed {candidate} of {task}", -1)
            return play_expert(env, candidate, arguments, unstable)

        return VerifiedSeeds(self._seeds / task, verify)

    def instruction(self, task: str, candidate: int, info: dict[str, Any]) -> str:
        """One of RoboTwin's instructions for a scene, chosen by task and seed; its own choice is not repeatable."""
        module: Any = importlib.import_module("generate_episode_instructions")
        kind = read_yaml(self.root / "env_cfg" / "task_config" / f"{self.config}.yml")["eval_instruction"]
        # It fills its templates from its name ``random``: a separate generator leaves the global one alone.
        make: Any = getattr(module.random, "Random", type(module.random))
        module.random = make(f"{task}/{candidate}")
        found = module.generate_episode_descriptions(task, [info], 100)
        instructions = found[0].get(kind, []) if found else []
        return module.random.choice(instructions) if instructions else task.replace("_", " ")

    def probe(self) -> dict[str, Any]:
        """RoboTwin has no stored state to test; its expert solves each start instead."""
        return {"distance_mm": 0.0}


def play_expert(env: Any, candidate: int, arguments: dict[str, Any], unstable: type[Exception]) -> Verdict:
    """Let RoboTwin's expert play one seed."""
    try:
        env.setup_demo(now_ep_num=0, seed=candidate, is_test=True, **arguments)
        info = env.play_once()
        solved = bool(env.plan_success) and bool(env.check_success())
    except unstable:
        return {"verdict": UNSTABLE}
    except Exception as error:
        return {"verdict": FAILED, "why": f"{type(error).__name__}: {error}"}
    finally:
        env.close_env()
    return {"verdict": SOLVED, "info": info.get("info", {})} if solved else {"verdict": UNSOLVED}


class Simulation:
    """One environment of one task."""

    def __init__(self, suite: RoboTwin, task: str, env: Any) -> None:
        self.suite, self.task, self.env = suite, task, env
        self.instruction = ""
        self._starts = suite.starts(task, env)
        self._arguments = scene_arguments(suite.root, task, suite.config)
        self._open = False
        self._command = np.zeros(facts.SIZE, np.float32)

    def reset(self, init_id: int, seed: int, *, render: bool) -> Arrays:
        """Set up the ``init_id``-th scene that the expert solves."""
        self.close()
        candidate, info = self._starts.find(init_id, seed)
        self.env.setup_demo(now_ep_num=init_id, seed=candidate, is_test=True, **self._arguments)
        self._open = True
        self.instruction = self.suite.instruction(self.task, candidate, info)
        self.env.set_instruction(instruction=self.instruction)
        self._command = self._joints()
        return self._row(render)

    def step(self, action: NDArray[np.float32], *, render: bool) -> Arrays:
        """Execute one motion to 14 joint targets."""
        self._command = np.array(action, np.float32)
        self.env.take_action(np.array(action, np.float64), action_type="qpos")
        return self._row(render)

    def _joints(self) -> NDArray[np.float32]:
        """Measured joints and grippers, left arm first."""
        robot = self.env.robot
        found = np.array([*robot.get_left_arm_jointState(), *robot.get_right_arm_jointState()], np.float32)
        if found.shape != (facts.SIZE,):
            raise RoboTwinError(f"{self.task}: the robot has {found.size} joints and grippers, not {facts.SIZE}")
        return found

    def _row(self, render: bool) -> Arrays:
        row: Arrays = {
            "state": self._joints(),
            "command": self._command.copy(),
            "success": np.array(bool(self.env.eval_success)),
            "contact": np.array(False),  # RoboTwin reports contacts by name of object only
        }
        if render and self.suite.cameras:
            seen = self.env.get_obs()["observation"]
            for camera in self.suite.cameras:
                name = "image" if camera == "head" else f"{camera}_image"
                row[name] = np.ascontiguousarray(seen[facts.CAMERAS[camera]]["rgb"], np.uint8)
        return row

    def expert(self) -> NDArray[np.float32]:
        """RoboTwinError always: RoboTwin's expert plays whole episodes, not single actions."""
        raise RoboTwinError(
            "RoboTwin's expert plays whole episodes; every start was solved by it before it is given out"
        )

    def close(self) -> None:
        """Release the scene."""
        if self._open:
            self.env.close_env()
            self._open = False
