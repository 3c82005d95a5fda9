"""``worldrl/Warp-v0``: an embedded single-arm task without images, many copies stepped together by MuJoCo Warp.

Importing this module registers the id; it needs ``pip install 'worldrl[warp]'``::

    import gymnasium, worldrl.rollout.suites.warp

    env = gymnasium.make_vec("worldrl/Warp-v0", num_envs=1024, task="PickRedCube", device="cuda:0")

Actions, observation vector, success and starts are those of ``gymnasium.make("worldrl/PickRedCube-v0", obs="state")``.
Physics is float32, so an episode of the same start and actions ends slightly elsewhere. It has run on warp's CPU device
only, which is slower than C MuJoCo and serves to test that both agree.

Shapes legend: ``N`` copies, ``D`` numbers of the state vector.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from worldrl.core.embodiment import next_command, quaternion_product
from worldrl.core.errors import SettingError
from worldrl.core.rng import numpy_stream
from worldrl.rollout.real.embedded import embedded_embodiment
from worldrl.rollout.spaces import check_action, checked_mode, checked_options, checked_rows, checked_seed, whole
from worldrl.rollout.suites.batched_arm import BatchedArm
from worldrl.rollout.suites.env import register_vector
from worldrl.rollout.suites.warp_physics import Readings, WarpPhysics

Vector = NDArray[np.float32]
ENV_ID = "worldrl/Warp-v0"
CONTACTS, CONSTRAINTS = 64, 384
"""Room per copy: the suite's largest task needs under half of it at its start."""


class WarpVecEnv(VectorEnv):
    """Copies of one single-arm task.

    Observation: float32 ``[D]``, ``worldrl_envs.observations.state_vector``. Action: float32 ``[7]`` in [-1, 1].
    Reward: 1 on the step that fulfils the task, else 0; ``terminated`` with it. ``truncated`` at the task's horizon.
    Info: ``task``, ``is_success``, ``contact`` (a finger touches something of the task) and ``stage``.

    A row's episode depends on ``(task, seed, row, number of its episode)`` alone; ``reset(seed=...)`` gives another
    seed. An empty ``device`` takes a GPU if available. ``contacts`` is the room for contacts per copy on average,
    ``constraints`` that for constraint rows of each copy. ``autoreset_mode`` is ``NEXT_STEP`` (Gymnasium's default) or
    ``DISABLED`` (rows that are over continue unobserved until they are reset). Raises MissingExtraError (mujoco-warp is
    not installed). Raises SettingError (another autoreset mode, unknown device, or a task of two arms). Raises
    UnknownNameError (no such task).
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        *,
        num_envs: int,
        device: str = "",
        seed: int = 0,
        contacts: int = CONTACTS,
        constraints: int = CONSTRAINTS,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        from worldrl_envs.control import home_command
        from worldrl_envs.observations import state_space
        from worldrl_envs.simulation import Simulation
        from worldrl_envs.tasks import BIMANUAL, get_task, task_names

        mode = checked_mode(autoreset_mode)
        self.task = get_task(task)
        if self.task.name in task_names(BIMANUAL):
            raise SettingError(f"task: {self.task.name} is of two arms; {ENV_ID} plays tasks of one")
        self.num_envs, self._seed = num_envs, seed
        self.metadata = {**self.metadata, "autoreset_mode": mode}
        # One scene in C MuJoCo places objects and serves the predicates; its data is replaced by a copy's.
        self._scene = Simulation(self.task.objects, self.task.fixtures)
        self._real: Any = self._scene.data
        model = self._scene.model
        self.physics = WarpPhysics(model, copies=num_envs, device=device, contacts=contacts, constraints=constraints)
        self._robot, self._arm = embedded_embodiment([self.task.name]), BatchedArm()
        self._geom_id = {model.geom(geom).name: geom for geom in range(model.ngeom)}
        self._home = home_command()
        self._command = np.tile(self._home, (num_envs, 1))
        self._target, self._ctrl = np.zeros((num_envs, self._arm.joints)), np.zeros((num_envs, model.nu))
        self._count, self._elapsed = np.full(num_envs, -1, np.int64), np.zeros(num_envs, np.int64)
        self._stage, self._over = np.zeros(num_envs, np.int64), np.ones(num_envs, bool)
        self.single_observation_space = state_space(self._scene)
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (len(self._home),), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start rows; without a seed, each at its next episode.

        A seed is a new root of the layouts, with episodes numbered from 0. Options: ``init_id``, one number of a stored
        state per reset row; ``reset_mask`` bool ``[N]``. Raises SettingError (an unknown option, or another number of
        stored states than rows). Raises OptionError (no such stored state).
        """
        options = checked_options(options, ("init_id", "reset_mask"))
        rows = checked_rows(options.get("reset_mask"), self.num_envs, first=bool((self._count < 0).all()))
        root, stored = checked_seed(seed), self._check_stored(options.get("init_id"), len(rows))
        if root is not None:
            self._seed, self._count[:] = root, -1
        self._begin(rows, stored)
        readings = self.physics.read()
        return self._observe(readings), self._info(readings, np.zeros(self.num_envs, bool))

    def _check_stored(self, stored: Any, count: int) -> list[int] | None:
        """Numbers of stored states, one per reset row; None where none are given."""
        from worldrl_envs.starts import load_placement

        if stored is None:
            return None
        if np.shape(stored) != (count,):
            raise SettingError(f"init_id: needs one per reset row, {count}, got {stored!r}")
        numbers = [whole("init_id", number, 0) for number in stored]
        for number in numbers:
            load_placement(self.task.name, number, self._scene)  # raises for a number beyond the last
        return numbers

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[Vector, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take one control step of 0.05 s in every row that is not over.

        Under ``NEXT_STEP`` a row that is over is reset here and its action ignored, as Gymnasium prescribes. Raises
        ActionError (not float, not finite, outside the action space or of another shape; no state was changed). Raises
        SettingError (a copy has more contacts or constraints than there is room for). Raises ResetNeeded (no episode
        was started).
        """
        actions = check_action(actions, (self.num_envs,))
        if (self._count < 0).any():
            raise gymnasium.error.ResetNeeded("call reset() before stepping worldrl/Warp-v0")
        over = self._over.copy()
        moved = next_command(self._robot, torch.from_numpy(self._command).double(), torch.from_numpy(actions).double())
        self._command = np.where(over[:, None], self._command, moved.float().numpy())
        self._drive()
        if over.any() and self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            self._begin(np.flatnonzero(over))
        self._elapsed[~over] += 1
        readings = self.physics.read()
        success = self._advance_stages(readings, np.flatnonzero(~over))
        truncated = ~success & ~over & (self._elapsed >= self.task.horizon)
        self._over[~over] = (success | truncated)[~over]
        return self._observe(readings), success.astype(float), success, truncated, self._info(readings, success)

    def _drive(self) -> None:
        from worldrl_envs.control import GRIPPER_INDEX
        from worldrl_envs.simulation import servo_path

        start, fingers = self._target, self._ctrl[:, self._arm.joints :]
        self._target = self._arm.solve(torch.from_numpy(self._command), torch.from_numpy(start)).numpy()
        path = servo_path(start, self._target, fingers, self._command[:, GRIPPER_INDEX], self._scene.lag)
        for targets in path:
            self.physics.step(targets, self._scene.substeps)
        self._ctrl = path[-1].copy()

    def _advance_stages(self, readings: Readings, live: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Count the stages met by rows that are not over; success is the last one at this very frame."""
        stages, success = self.task.stages, np.zeros(self.num_envs, bool)
        for row in live:
            self._scene.data = readings.view(row, self._geom_id)
            stage = min(int(self._stage[row]), len(stages) - 1)
            self._stage[row] = stage + bool(stages[stage](self._scene))
            success[row] = self._stage[row] == len(stages)
        return success

    def _begin(self, rows: NDArray[np.int64], stored: Any = None) -> None:
        from worldrl_envs.kinematics import HOME_QPOS
        from worldrl_envs.layouts import sample_layout
        from worldrl_envs.starts import load_placement

        scene, self._scene.data = self._scene, self._real
        starts: list[dict[str, NDArray[np.float64]]] = []
        self._count[rows] += 1
        for place, row in enumerate(rows):
            if stored is None:
                draw = numpy_stream(self._seed, "warp episode", self.task.name, int(row), int(self._count[row]))
                scene.place(sample_layout(self.task.layout, generator=draw))
            else:
                scene.restore(load_placement(self.task.name, stored[place], scene))
            names = ("qpos", "mocap_pos", "mocap_quat", "ctrl")
            starts.append({name: getattr(self._real, name).copy() for name in names})
        states = {name: np.stack([start[name] for start in starts]) for name in starts[0]}
        self.physics.restore(rows, states)
        self._command[rows], self._target[rows], self._ctrl[rows] = self._home, HOME_QPOS, states["ctrl"]
        self._elapsed[rows], self._stage[rows], self._over[rows] = 0, 0, False

    def _observe(self, readings: Readings) -> NDArray[np.float32]:
        """The suite's state vector of every row, float32 ``[N, D]``."""
        from worldrl_envs.observations import BOUND

        scene, joints = self._scene, self._arm.joints
        tcp, body_of = scene.model.site("tcp"), {n: scene.model.body(n).id for n in (*scene.objects, *scene.fixtures)}
        site_quat = torch.from_numpy(tcp.quat.copy()).expand(self.num_envs, 4)
        hand = torch.from_numpy(readings.xquat[:, int(tcp.bodyid[0])])
        quat = quaternion_product(hand, site_quat).numpy()
        quat = np.where(quat[:, 1:2] < 0, -quat, quat)  # the axis keeps its x component positive
        sine = np.linalg.norm(quat[:, 1:], axis=1, keepdims=True)
        axis_angle = 2 * np.arctan2(sine, quat[:, :1]) * quat[:, 1:] / sine
        fingers = readings.qpos[:, joints : joints + 2] * (1, -1)
        poses = [np.concatenate([readings.xpos[:, b], readings.xquat[:, b]], axis=1) for b in body_of.values()]
        drawer = readings.qpos[:, scene.drawer_at, None] if scene.drawer_at is not None else np.zeros((len(quat), 1))
        parts = [readings.site_xpos[:, tcp.id], axis_angle, fingers, self._command, *poses, drawer]
        return np.clip(np.concatenate(parts, axis=1), -BOUND, BOUND).astype(np.float32)

    def _info(self, readings: Readings, success: NDArray[np.bool_]) -> dict[str, Any]:
        touching, (pads, things) = np.zeros(self.num_envs, bool), self._scene.contact_geoms
        first, second = readings.pair.T
        meets = (np.isin(first, pads) & np.isin(second, things)) | (np.isin(second, pads) & np.isin(first, things))
        touching[readings.world[meets]] = True
        task = np.full(self.num_envs, self.task.name)
        return {"task": task, "is_success": success, "contact": touching, "stage": self._stage.copy()}


def make_vec(
    *, num_envs: int, task: str, autoreset_mode: AutoresetMode | str = "NextStep", **settings: Any
) -> WarpVecEnv:
    """Make ``worldrl/Warp-v0`` with the settings of :class:`WarpVecEnv`."""
    return WarpVecEnv(task, num_envs=num_envs, autoreset_mode=autoreset_mode, **settings)


register_vector(ENV_ID, "worldrl.rollout.suites.warp:make_vec")
