"""Isaac Lab in its own environment: one task, many environments moved by one call (``BatchedSuite`` of ``server.py``).

The launcher must run before any other import of it, one application runs in a process, and its end ends the process.
Written against the sources of version 2.3.2 and tested against a double of them; it never ran against the real one.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.isaac import facts
from worldrl.workers.link.rotations import axis_angle, rotation_matrix, turn_from_down
from worldrl.workers.link.server import Refusal, installed
from worldrl.workers.link.wire import Arrays

NEVER_S = 1e9


class IsaacError(Refusal):
    """Isaac Lab differs from the adapter's version, or a request exceeds one process."""


def xyzw(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quaternion (w, x, y, z) with w last."""
    return np.roll(quaternion, -1, axis=-1)


def vendor_action(action: NDArray[np.float32], *, gripper: bool) -> NDArray[np.float32]:
    """LIBERO's actions ``[..., 7]`` as Isaac's ``[..., 7]`` or ``[..., 6]``: other scales and gripper sign."""
    position = action[..., :3] * (facts.POSITION_SCALE / facts.VENDOR_SCALE)
    rotation = action[..., 3:6] * (facts.ROTATION_SCALE / facts.VENDOR_SCALE)
    return np.concatenate([position, rotation, *([-action[..., 6:]] if gripper else [])], axis=-1).astype(np.float32)


def episode_seed(task: str, init_id: int, seed: int) -> int:
    """Isaac's seed of one episode, a function of these arguments alone."""
    digest = hashlib.sha256(f"{task}/{init_id}/{seed}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


class Isaac:
    """One task of Isaac Lab in ``num_envs`` environments; without ``cameras`` the application has none."""

    def __init__(
        self, *, suite: str, num_envs: int, cameras: Sequence[str] = (), image_size: int = 84, device: str = "cuda:0"
    ) -> None:
        self.suite, self.task, self.cameras = suite, facts.SUITES[suite], tuple(cameras)
        self.image_size, self.num_envs = image_size, num_envs
        launcher: Any = importlib.import_module("isaaclab.app").AppLauncher
        # Before any other import of isaaclab: they need the running application.
        self._app = launcher(headless=True, enable_cameras=bool(cameras), device=device).app
        self._torch: Any = importlib.import_module("torch")
        importlib.import_module("isaaclab_tasks")
        self._succeeds: Any = None
        config = self._configuration(device)
        gymnasium: Any = importlib.import_module("gymnasium")
        self.env = gymnasium.make(self.task.id, cfg=config).unwrapped
        self._rows: dict[int, int] = {}
        self._gripper = np.full(num_envs, -1.0, np.float32)
        self._started = False

    def _configuration(self, device: str) -> Any:
        """Isaac's configuration of the task, changed as ``isaac/facts.py`` describes."""
        parse: Any = importlib.import_module("isaaclab_tasks.utils").parse_env_cfg
        config = parse(self.task.id, device=device, num_envs=self.num_envs)
        success = getattr(config.terminations, "success", None)
        self._succeeds = None if success is None else (success.func, dict(success.params))
        for name in [name for name, term in vars(config.terminations).items() if term is not None]:
            setattr(config.terminations, name, None)
        config.episode_length_s = NEVER_S
        config.observations.policy.enable_corruption = False
        if self.task.goal:
            getattr(config.commands, self.task.goal).resampling_time_range = (NEVER_S, NEVER_S)
        for camera in self.cameras:
            sensor = getattr(config.scene, facts.CAMERAS[camera])
            sensor.height = sensor.width = self.image_size
        return config

    def describe(self) -> dict[str, Any]:
        """Task, protocol and versions in JSON values."""
        return {
            "suite": self.suite,
            "tasks": [{"name": self.task.id, "instruction": self.task.instruction, "horizon": self.task.horizon}],
            "stored_states": facts.STORED_STATES,
            "packages": {name: installed(name) for name in ("isaaclab", "isaacsim")},
            "assets": "of Isaac Sim",
            "control_hz": self.task.control_hz,
            "success": self.task.success,
            "policy_size": int(self._policy(self.env.observation_manager.compute()["policy"]).shape[1]),
        }

    def probe(self) -> dict[str, Any]:
        """Check the size of Isaac's action; IsaacError where the adapter sends another."""
        sent, taken = 6 + self.task.gripper, int(self.env.action_manager.total_action_dim)
        if sent != taken:
            raise IsaacError(
                f"{self.task.id} takes actions of {taken} numbers, the adapter, written for isaaclab "
                f"{facts.WRITTEN_FOR}, sends {sent}; installed is {installed('isaaclab')}"
            )
        return {"distance_mm": 0.0}

    def reset_rows(self, episodes: Sequence[Sequence[Any]]) -> list[Arrays]:
        """Start episodes, each from its own seed; the other environments are unchanged."""
        if not self._started:
            self.env.reset(seed=0)
            self._started = True
        for slot, task, init_id, seed, _ in episodes:
            row = self._row_of(slot, task)
            ids = self._torch.tensor([row], dtype=self._torch.int64, device=self.env.device)
            # One environment at a time: what is drawn depends on the seed and on how many are drawn for.
            self.env.reset(seed=episode_seed(task, init_id, seed), env_ids=ids)
            self._gripper[row] = -1.0
        return self._observe([episode[0] for episode in episodes], [bool(episode[4]) for episode in episodes])

    def step_rows(self, slots: Sequence[int], actions: NDArray[np.float32], render: Sequence[bool]) -> list[Arrays]:
        """Move all environments; those not in ``slots`` hold their pose."""
        everyone = np.zeros((self.num_envs, 7), np.float32)
        everyone[:, 6] = self._gripper
        rows = [self._rows[slot] for slot in slots]
        everyone[rows] = actions
        self._gripper[rows] = everyone[rows, 6]
        sent = vendor_action(everyone, gripper=self.task.gripper)
        self.env.step(self._torch.as_tensor(sent, device=self.env.device))
        return self._observe(slots, render)

    def close(self) -> None:
        """End the environment and the application; Isaac ends this process with it."""
        self.env.close()
        self._app.close()

    def _row_of(self, slot: int, task: str) -> int:
        if task != self.task.id:
            raise IsaacError(f"{self.suite}: this process holds {self.task.id}, not {task!r}")
        if slot not in self._rows and len(self._rows) == self.num_envs:
            raise IsaacError(f"{self.suite}: a slot more than the {self.num_envs} environments of this process")
        return self._rows.setdefault(slot, len(self._rows))

    # -- observations --------------------------------------------------------------------------------------------

    def _observe(self, slots: Sequence[int], render: Sequence[bool]) -> list[Arrays]:
        group = self.env.observation_manager.compute()["policy"]
        numbers, success = self._policy(group), self._success()
        position, quaternion = self._tool()
        robot = self.env.scene["robot"]
        fingers = _numpy(robot.data.joint_pos)[:, -2:]
        found: list[Arrays] = []
        for slot, drawn in zip(slots, render, strict=True):
            row = self._rows[slot]
            state = [*position[row], *axis_angle(quaternion[row]), fingers[row, 0], -fingers[row, 1]]
            turn = turn_from_down(quaternion[row])
            arrays: Arrays = {
                "state": np.array(state, np.float32),
                "command": np.array([*position[row], *turn, self._gripper[row]], np.float32),
                "policy": numbers[row],
                "success": np.array(bool(success[row])),
                "contact": np.array(False),  # these tasks have no contact sensors
            }
            if drawn:
                arrays |= self._images(group, row)
            found.append(arrays)
        return found

    def _tool(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Positions in the environments' own frames ``[N, 3]`` (m) and quaternions ``[N, 4]`` (w last)."""
        robot = self.env.scene["robot"]
        hand = robot.find_bodies("panda_hand")[0][0]
        quaternion = xyzw(_numpy(robot.data.body_quat_w)[:, hand].astype(np.float64))
        origin = _numpy(robot.data.body_pos_w)[:, hand] - _numpy(self.env.scene.env_origins)
        axis = np.stack([rotation_matrix(q)[:, 2] for q in quaternion])
        return origin + facts.TOOL_OFFSET_M * axis, quaternion

    def _policy(self, group: Any) -> NDArray[np.float32]:
        """Isaac's group as one vector per environment, without images."""
        terms = group.values() if isinstance(group, dict) else [group]
        flat = [_numpy(term).reshape(self.num_envs, -1) for term in terms if term.dtype != self._torch.uint8]
        return np.concatenate(flat, axis=1).astype(np.float32)

    def _images(self, group: Any, row: int) -> Arrays:
        drawn: Arrays = {}
        for camera in self.cameras:
            image = _numpy(group[facts.CAMERAS[camera]])[row, ..., :3]
            drawn["image" if camera == "scene" else f"{camera}_image"] = np.array(image, np.uint8)
        return drawn

    def _success(self) -> NDArray[np.bool_]:
        """Success of each environment, as in ``isaac/facts.py``."""
        if self._succeeds is not None:
            function, parameters = self._succeeds
            return _numpy(function(self.env, **parameters)).astype(bool)
        scene = self.env.scene
        if self.suite == "isaac_drawer":
            drawer = scene["cabinet"].find_joints("drawer_top_joint")[0][0]
            return _numpy(scene["cabinet"].data.joint_pos)[:, drawer] > facts.DRAWER_OPEN_M
        goal = self._goal()
        if self.suite == "isaac_reach":
            hand = scene["robot"].find_bodies("panda_hand")[0][0]
            place = _numpy(scene["robot"].data.body_pos_w)[:, hand]
            return np.linalg.norm(place - goal, axis=1) < facts.REACH_GOAL_M
        return np.linalg.norm(_numpy(scene["object"].data.root_pos_w) - goal, axis=1) < facts.LIFT_GOAL_M

    def _goal(self) -> NDArray[np.float64]:
        """Commanded positions in the world (m): Isaac gives them in the robot's frame."""
        command = _numpy(self.env.command_manager.get_command(self.task.goal)).astype(np.float64)
        base = self.env.scene["robot"].data
        turn = [rotation_matrix(q) for q in xyzw(_numpy(base.root_quat_w).astype(np.float64))]
        return _numpy(base.root_pos_w) + np.einsum("nij,nj->ni", np.stack(turn), command[:, :3])


def _numpy(tensor: Any) -> NDArray[Any]:
    """A copy: Isaac writes into its tensors again."""
    return np.array(tensor.detach().cpu().numpy())
