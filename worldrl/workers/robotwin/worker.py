"""A RoboTwin 2.0 checkout behind the worker's interface (``workers/server.py``); facts in ``workers/robotwin_facts.py``.

RoboTwin is a folder of scripts, not a package: it is put on the path of this process, which works inside it. Its
global generators are seeded by each scene, so a process holds one environment at a time.

Written against the commit of ``robotwin_facts`` and tested against a double with its interface; it never ran against the
real one.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """The commit that a checkout is at; ``unknown`` where it is no git folder."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def scene_arguments(root: Path, task: str, config: str) -> dict[str, Any]:
    """Keyword arguments of the checkout's ``setup_demo``, as its evaluation puts them together."""
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
    """All tasks of a checkout, clean or randomised.

    Args:
        suite: a key of :data:`~worldrl.workers.robotwin.facts.CONFIGS`.
        checkout: folder of RoboTwin 2.0.
        seeds: folder that keeps which seeds the expert solved.
        cameras: our camera names; empty draws nothing.
        image_size: pixels of squared pictures; 0 keeps RoboTwin's 240 by 320.
    """

    def __init__(
        self, *, suite: str, checkout: str, seeds: str, cameras: Sequence[str] = (), image_size: int = 0
    ) -> None:
        self.suite, self.config, self.cameras, self.image_size = suite, facts.CONFIGS[suite], tuple(cameras), image_size
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
        """Say what there is."""
        limits = read_yaml(self.root / "env_cfg" / "task_config" / "_eval_step_limit.yml")
        tasks = [
            {"name": name, "instruction": name.replace("_", " "), "horizon": int(limits.get(name, facts.DEFAULT_STEPS))}
            for name in sorted(limits)
        ]
        return {
            "suite": self.suite,
            "tasks": tasks,
            "stored_states": facts.STORED_STATES,
            "packages": {"robotwin": self.commit, **{name: _version(name) for name in ("sapien", "mplib")}},
            "assets": "of the checkout",
            "control_hz": facts.FRAME_HZ,
            "joints": facts.joints(),
            "state_size": facts.SIZE,
            "picture": [self.image_size or facts.IMAGE[0], self.image_size or facts.IMAGE[1]],
        }

    def make(self, task: str) -> Simulation:
        """Make an environment of one task."""
        module: Any = importlib.import_module(f"envs.{task}")
        return Simulation(self, task, getattr(module, task)())

    def starts(self, task: str, env: Any) -> VerifiedSeeds:
        """Search, or know already, which seeds of a task the expert solves."""
        unstable: Any = importlib.import_module("envs.utils.create_actor").UnStableError
        arguments = scene_arguments(self.root, task, self.config)

        def verify(candidate: int) -> Verdict:
            self.pulse(f"the expert tries seed {candidate} of {task}", -1)
            return play_expert(env, candidate, arguments, unstable)

        return VerifiedSeeds(self._seeds / task, verify)

    def sentence(self, task: str, candidate: int, info: dict[str, Any]) -> str:
        """One of RoboTwin's sentences for a scene, chosen by task and seed; its own choice is not repeatable."""
        sentences: Any = importlib.import_module("generate_episode_instructions")
        kind = read_yaml(self.root / "env_cfg" / "task_config" / f"{self.config}.yml")["eval_instruction"]
        # It fills its templates from what it calls ``random``: a generator of its own, and nobody else's is touched.
        make: Any = getattr(sentences.random, "Random", type(sentences.random))
        sentences.random = make(f"{task}/{candidate}")
        told = sentences.generate_episode_descriptions(task, [info], 100)
        candidates = told[0].get(kind, []) if told else []
        return sentences.random.choice(candidates) if candidates else task.replace("_", " ")

    def probe(self) -> dict[str, Any]:
        """RoboTwin has no telling stored state; that each start is solved by its expert is checked at each start."""
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
    """One task's environment.

    Args:
        suite: whose settings.
        task: its name.
        env: the checkout's object.
    """

    def __init__(self, suite: RoboTwin, task: str, env: Any) -> None:
        self.suite, self.task, self.env = suite, task, env
        self.instruction = ""
        self._starts = suite.starts(task, env)
        self._arguments = scene_arguments(suite.root, task, suite.config)
        self._open = False
        self._command = np.zeros(facts.SIZE, np.float32)

    def reset(self, init_id: int, seed: int, *, render: bool) -> Arrays:
        """Set up the ``init_id``-th scene that the expert solves."""
        self._shut()
        candidate, info = self._starts.find(init_id, seed)
        self.env.setup_demo(now_ep_num=init_id, seed=candidate, is_test=True, **self._arguments)
        self._open = True
        self.instruction = self.suite.sentence(self.task, candidate, info)
        self.env.set_instruction(instruction=self.instruction)
        self._command = self._joints()
        return self._row(render)

    def step(self, action: NDArray[np.float32], *, render: bool) -> Arrays:
        """Run one motion to 14 joint targets."""
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
            "contact": np.array(False),  # RoboTwin answers by name of object only
        }
        if render and self.suite.cameras:
            seen = self.env.get_obs()["observation"]
            for camera in self.suite.cameras:
                name = "image" if camera == "head" else f"{camera}_image"
                row[name] = self._image(seen[facts.CAMERAS[camera]]["rgb"])
        return row

    def _image(self, picture: Any) -> NDArray[np.uint8]:
        picture, size = np.asarray(picture, np.uint8), self.suite.image_size
        if not size:
            return np.ascontiguousarray(picture)
        cv2: Any = importlib.import_module("cv2")
        return cv2.resize(picture, (size, size), interpolation=cv2.INTER_AREA)

    def expert(self) -> NDArray[np.float32]:
        """RoboTwin's expert plays whole episodes and cannot be asked for one action.

        Raises:
            RoboTwinError: always.
        """
        raise RoboTwinError(
            "RoboTwin's expert plays whole episodes; every start was solved by it before it is given out"
        )

    def _shut(self) -> None:
        if self._open:
            self.env.close_env()
            self._open = False

    def close(self) -> None:
        """Release the scene."""
        self._shut()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
