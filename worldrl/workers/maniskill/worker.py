"""ManiSkill in its own environment behind the worker's interface (``link/server.py``); each slot is an environment.

Only here are its gripper, rotation signs and state vector converted; numbers in ``maniskill/facts.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.link.rotations import axis_angle, rotation_matrix, turn_from_down
from worldrl.workers.link.server import Refusal
from worldrl.workers.link.wire import Arrays
from worldrl.workers.maniskill import facts
from worldrl.workers.maniskill.expert import CubeExpert

TOUCH_N = 1e-3  # Force (N) between a finger and an object that counts as contact


class ManiSkillError(Refusal):
    """The environment differs from the protocol's, or a task is unknown."""


def vendor_action(action: NDArray[np.float32]) -> NDArray[np.float32]:
    """LIBERO's action as ManiSkill's: rotation and gripper with the other sign."""
    return np.concatenate([action[:3], -action[3:7]]).astype(np.float32)


class ManiSkill:
    """Tasks of a suite of ``facts.SUITES``; ManiSkillError for other packages than the protocol's."""

    def __init__(self, *, suite: str, image_size: int = 128, cameras: Sequence[str] = (), device: str = "cpu") -> None:
        self.packages = {name: version(name) for name in facts.PACKAGES}
        if self.packages != facts.PACKAGES:
            raise ManiSkillError(
                f"{facts.VERSION} means {dict(facts.PACKAGES)}, installed are {self.packages}; "
                "run `worldrl setup maniskill`"
            )
        self.suite, self.image_size, self.cameras, self.device = suite, image_size, tuple(cameras), device
        importlib.import_module("mani_skill.envs")  # registers the tasks
        self._gymnasium = importlib.import_module("gymnasium")

    def describe(self) -> dict[str, Any]:
        """Tasks, protocol and versions in JSON values."""
        tasks = [
            {"name": name, "instruction": facts.TASKS[name].instruction, "horizon": facts.TASKS[name].horizon}
            for name in facts.SUITES[self.suite]
        ]
        return {
            "suite": self.suite,
            "tasks": tasks,
            "stored_states": facts.STORED_STATES,
            "packages": self.packages,
            "assets": "of the mani-skill wheel",
            "device": self.device,
            "control_hz": facts.CONTROL_HZ,
        }

    def make(self, task: str) -> Simulation:
        """Make an environment of one task."""
        if task not in facts.SUITES[self.suite]:
            raise ManiSkillError(f"{self.suite}: no task {task!r}; it has {', '.join(facts.SUITES[self.suite])}")
        env = self._gymnasium.make(
            task,
            num_envs=1,
            obs_mode="state_dict",  # images are rendered on request only
            control_mode="pd_ee_delta_pose",
            sim_backend="physx_cpu",
            render_backend={"cuda": "gpu", "cpu": "cpu"}[self.device],
            sensor_configs={"width": self.image_size, "height": self.image_size},
        )
        return Simulation(self, task, env)

    def probe(self) -> dict[str, Any]:
        """Leave a scene alone for ten steps; ManiSkillError where an object moves by more than a centimetre."""
        simulation = self.make(facts.SUITES[self.suite][0])
        try:
            simulation.reset(0, 0, render=False)
            before = simulation.objects()
            for _ in range(10):
                simulation.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32), render=False)
            after = simulation.objects()
        finally:
            simulation.close()
        moved = max(float(np.linalg.norm(after[name] - before[name])) for name in before)
        if moved > 0.01:
            raise ManiSkillError(
                f"probe: an object moved by {1000 * moved:.0f} mm in half a second with nobody near it"
            )
        return {"distance_mm": 1000 * moved}


class Simulation:
    """One environment of one task."""

    def __init__(self, suite: ManiSkill, task: str, env: Any) -> None:
        self.suite, self.task, self._made = suite, task, env
        self.env = env.unwrapped  # without its time limit: the horizon is the protocol's, counted by the core
        self._gripper, self._expert = -1.0, None

    def reset(self, init_id: int, seed: int, *, render: bool) -> Arrays:
        """Draw the initial state of task, number and seed."""
        self.env.reset(seed=facts.episode_seed(self.task, init_id, seed))
        self._gripper, self._expert = -1.0, None
        return self._row(render)

    def step(self, action: NDArray[np.float32], *, render: bool) -> Arrays:
        """Take one action in [-1, 1], LIBERO's convention."""
        self._gripper = float(action[6])
        self.env.step(vendor_action(action)[None])
        return self._row(render)

    def _row(self, render: bool) -> Arrays:
        position, quaternion = self.tool()
        fingers = self.env.agent.robot.get_qpos()[0, -2:].cpu().numpy()
        state = np.concatenate([position, axis_angle(quaternion), [fingers[0], -fingers[1]]])
        turn = turn_from_down(quaternion)
        row: Arrays = {
            "state": state.astype(np.float32),
            "command": np.concatenate([position, turn, [self._gripper]]).astype(np.float32),
            "success": np.array(bool(self.env.evaluate()["success"][0])),
            "contact": np.array(self._touches()),
        }
        if render and self.suite.cameras:
            row["image"] = self._image()
        return row

    def tool(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position (m) and quaternion (x, y, z, w; SAPIEN has w first) of the tool centre point."""
        pose = self.env.agent.tcp.pose.raw_pose[0].cpu().numpy().astype(np.float64)
        return pose[:3], np.roll(pose[3:], -1)

    def objects(self) -> dict[str, NDArray[np.float64]]:
        """World positions (m) of movable objects and of marks, by ManiSkill's names."""
        return {name: np.asarray(actor.pose.p[0].cpu(), np.float64) for name, actor in self.env.scene.actors.items()}

    def heading(self, name: str) -> float:
        """Angle (rad) of an object about the vertical."""
        pose = self.env.scene.actors[name].pose.raw_pose[0].cpu().numpy()
        matrix = rotation_matrix(np.roll(pose[3:], -1).astype(np.float64))
        return float(np.arctan2(matrix[1, 0], matrix[0, 0]))

    def _touches(self) -> bool:
        fingers = (self.env.agent.finger1_link, self.env.agent.finger2_link)
        movable = [actor for actor in self.env.scene.actors.values() if actor.px_body_type == "dynamic"]
        return any(
            float(self.env.scene.get_pairwise_contact_forces(finger, actor).norm()) > TOUCH_N
            for finger in fingers
            for actor in movable
        )

    def _image(self) -> NDArray[np.uint8]:
        images = self.env.get_sensor_images()[facts.CAMERAS["scene"]]["rgb"]
        return np.ascontiguousarray(images[0].cpu().numpy())

    def expert(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action."""
        if self._expert is None:
            self._expert = CubeExpert(self.task, self)
        return self._expert.act(self)

    def close(self) -> None:
        """Release the environment and its renderer."""
        self._made.close()
