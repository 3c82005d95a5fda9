"""Physics of one task: the model, its state, and the reading of poses and contacts.

One control step of 1/20 s is 25 physics steps of 2 ms. The joint targets run linearly from
the last solution of the inverse kinematics to the next one, in segments of five physics
steps, and the servos get the target's velocity fed forward. Without that a servo lags by
kv/kp = 40 ms, which is 16 mm at full speed.
"""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from worldrl_envs.control import GRIPPER_DOWN, GRIPPER_INDEX, PANDA, home_command, quat_multiply
from worldrl_envs.kinematics import ARM_JOINTS, HOME_QPOS, ArmKinematics
from worldrl_envs.layouts import Layout
from worldrl_envs.scene import OBJECTS, build_model

SEGMENTS = 5
FINGER_OPEN = 0.04  # metres of travel of each finger
FINGER_TRAVEL = 0.01  # metres per control step: 0.2 m/s, so the hand closes in four steps
SETTLE_STEPS = 4  # control steps for objects to come to rest after they are placed
FULL_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


@dataclass(frozen=True)
class Placement:
    """Positions that define a stored initial state; every velocity is zero.

    Attributes:
        qpos: float64[nq], joint positions (m, rad, quaternions w x y z).
        mocap_pos: float64[n_fixtures, 3], metres.
        mocap_quat: float64[n_fixtures, 4], (w, x, y, z).
    """

    qpos: NDArray[np.float64]
    mocap_pos: NDArray[np.float64]
    mocap_quat: NDArray[np.float64]


class Simulation:
    """MuJoCo model and data of one task, driven by commanded poses.

    Args:
        objects: Names of the free objects, from `scene.OBJECTS`.
        fixtures: Names of the fixtures, from `scene.FIXTURES`.
    """

    def __init__(self, objects: tuple[str, ...], fixtures: tuple[str, ...]) -> None:
        self.objects, self.fixtures = objects, fixtures
        self.model = build_model(objects, fixtures)
        self.data = mujoco.MjData(self.model)
        self._arm = ArmKinematics()
        self._arm_target = np.array(HOME_QPOS)
        self._tcp = self.model.site("tcp").id
        self._substeps = round(1 / (PANDA.control_hz * SEGMENTS * self.model.opt.timestep))
        gain, bias = self.model.actuator_gainprm, self.model.actuator_biasprm
        self._lag = -bias[:ARM_JOINTS, 2] / gain[:ARM_JOINTS, 0]  # kv / kp, seconds
        self._qpos_at = {name: self.model.joint(name).qposadr[0] for name in objects}
        self._qvel_at = {name: self.model.joint(name).dofadr[0] for name in objects}
        self._body_of = {self.model.body(i).name: i for i in range(self.model.nbody)}
        self._pads = tuple(self.model.geom(f"{side}_pad").id for side in ("left", "right"))
        self._drawer = self.model.joint("drawer").qposadr[0] if "cabinet" in fixtures else None
        self._geom_of = {name: self.model.geom(name).id for name in (*objects, "table")}
        if self._drawer is not None:
            self._geom_of["knob"] = self.model.geom("knob").id
        self._task_geoms = self._find_task_geoms()

    def _find_task_geoms(self) -> NDArray[np.int64]:
        """Geoms whose touch counts as contact: the free objects and the drawer."""
        bodies = [self._body_of[name] for name in self.objects]
        bodies += [self._body_of["drawer"]] if self._drawer is not None else []
        return np.flatnonzero(np.isin(self.model.geom_bodyid, bodies))

    # --- placing ---

    def place(self, layout: Layout) -> None:
        """Put everything where `layout` says, arm at home, and let it settle."""
        mujoco.mj_resetData(self.model, self.data)
        self._home_arm()
        for name, (x, y, yaw) in layout.poses.items():
            quat = (np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
            if name in self._qpos_at:
                start = self._qpos_at[name]
                self.data.qpos[start : start + 7] = (x, y, OBJECTS[name].rest_height, *quat)
            else:
                mocap = self.model.body(name).mocapid[0]
                self.data.mocap_pos[mocap], self.data.mocap_quat[mocap] = (x, y, 0), quat
        if self._drawer is not None:
            self.data.qpos[self._drawer] = layout.opening
        for _ in range(SETTLE_STEPS):
            self.advance(home_command())
        self.restore(self.placement())

    def _home_arm(self) -> None:
        self._arm_target = np.array(HOME_QPOS)
        self.data.qpos[:ARM_JOINTS] = HOME_QPOS
        self.data.qpos[ARM_JOINTS : ARM_JOINTS + 2] = FINGER_OPEN
        self.data.ctrl[:] = self.data.qpos[: ARM_JOINTS + 2]

    def placement(self) -> Placement:
        """The present positions, for storing."""
        data = self.data
        return Placement(data.qpos.copy(), data.mocap_pos.copy(), data.mocap_quat.copy())

    def restore(self, placement: Placement) -> None:
        """Start an episode from stored positions: velocities zero, arm exactly at home."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = placement.qpos
        self.data.mocap_pos[:], self.data.mocap_quat[:] = placement.mocap_pos, placement.mocap_quat
        self._home_arm()
        mujoco.mj_forward(self.model, self.data)

    # --- stepping ---

    def advance(self, command: NDArray[np.float32]) -> None:
        """Run one control step (0.05 s) toward `command`, float32[7]."""
        start = self._arm_target
        self._arm_target = self._arm.solve(command, start)
        velocity = (self._arm_target - start) * PANDA.control_hz
        fingers = self.data.ctrl[ARM_JOINTS:].copy()
        # The sign alone decides, as on LIBERO's gripper: a hesitant policy still grasps.
        goal = 0.0 if command[GRIPPER_INDEX] > 0 else FINGER_OPEN
        travel = np.clip(goal - fingers, -FINGER_TRAVEL, FINGER_TRAVEL)
        for segment in range(1, SEGMENTS + 1):
            reached = start + (self._arm_target - start) * (segment / SEGMENTS)
            self.data.ctrl[:ARM_JOINTS] = reached + self._lag * velocity
            self.data.ctrl[ARM_JOINTS:] = fingers + travel * (segment / SEGMENTS)
            mujoco.mj_step(self.model, self.data, nstep=self._substeps)
        mujoco.mj_forward(self.model, self.data)  # poses and contacts of the final state

    # --- state ---

    def get_state(self) -> dict[str, NDArray[np.float64]]:
        """Full physics state, warm start included, and the arm's joint targets."""
        state = np.empty(mujoco.mj_stateSize(self.model, FULL_STATE))
        mujoco.mj_getState(self.model, self.data, state, FULL_STATE)
        return {"physics": state, "arm_target": self._arm_target.copy()}

    def set_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Restore `get_state()`; the next `advance` then gives the same bits.

        Raises:
            ValueError: the state belongs to a model of another size.
        """
        expected = mujoco.mj_stateSize(self.model, FULL_STATE)
        if len(state["physics"]) != expected:
            raise ValueError(f"state['physics']: must hold {expected} numbers, received {len(state['physics'])}")
        mujoco.mj_setState(self.model, self.data, state["physics"], FULL_STATE)
        mujoco.mj_forward(self.model, self.data)
        # mj_forward replaced the solver's warm start by its own result; put the stored one back.
        mujoco.mj_setState(self.model, self.data, state["physics"], FULL_STATE)
        self._arm_target = state["arm_target"].copy()

    # --- reading ---

    @property
    def tcp(self) -> NDArray[np.float64]:
        """Measured position of the tool centre point, float64[3], metres."""
        return self.data.site_xpos[self._tcp].copy()

    @property
    def tcp_rotation(self) -> NDArray[np.float64]:
        """Measured rotation relative to gripper-down, quaternion (w, x, y, z), w >= 0."""
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, self.data.site_xmat[self._tcp])
        quat = quat_multiply(quat, GRIPPER_DOWN * (1, -1, -1, -1))
        return -quat if quat[0] < 0 else quat

    @property
    def fingers(self) -> NDArray[np.float64]:
        """Opening of the left and right finger, float64[2], metres in [0, 0.04]."""
        return self.data.qpos[ARM_JOINTS : ARM_JOINTS + 2].copy()

    @property
    def opening(self) -> float:
        """How far the drawer is open, metres; 0 in a scene without one."""
        return 0.0 if self._drawer is None else float(self.data.qpos[self._drawer])

    def position(self, name: str) -> NDArray[np.float64]:
        """World position of an object's or fixture's body, float64[3], metres."""
        return self.data.xpos[self._body_of[name]].copy()

    def pose(self, name: str) -> NDArray[np.float64]:
        """World pose of a body, float64[7]: position (m) and quaternion (w, x, y, z)."""
        body = self._body_of[name]
        return np.concatenate([self.data.xpos[body], self.data.xquat[body]])

    def height(self, name: str) -> float:
        """Height of a free object above its resting height, metres."""
        return float(self.data.xpos[self._body_of[name], 2]) - OBJECTS[name].rest_height

    def yaw(self, name: str) -> float:
        """Heading of a body about the vertical, rad."""
        matrix = self.data.xmat[self._body_of[name]]
        return float(np.arctan2(matrix[3], matrix[0]))

    def axis(self, name: str) -> NDArray[np.float64]:
        """Direction of a body's own z axis in the world, float64[3]; up for one that stands."""
        return self.data.xmat[self._body_of[name]][2::3].copy()

    def speed(self, name: str) -> float:
        """Linear speed of a free object, m/s."""
        start = self._qvel_at[name]
        return float(np.linalg.norm(self.data.qvel[start : start + 3]))

    def poses(self) -> dict[str, NDArray[np.float64]]:
        """Pose of every object and fixture, and of the drawer where there is one."""
        names = (*self.objects, *self.fixtures, *(("drawer",) if self._drawer is not None else ()))
        return {name: self.pose(name) for name in names}

    def targets(self) -> list[NDArray[np.float64]]:
        """Positions worth reaching for: the objects, or the drawer's knob."""
        points = [self.position(name) for name in self.objects]
        return points if self._drawer is None else [*points, self.knob]

    @property
    def knob(self) -> NDArray[np.float64]:
        """Position of the drawer's knob, float64[3], metres."""
        return self.data.geom_xpos[self._geom_of["knob"]].copy()

    def local(self, name: str, frame: str) -> NDArray[np.float64]:
        """Position of body `name` in the frame of body `frame`, float64[3], metres."""
        rotation = self.data.xmat[self._body_of[frame]].reshape(3, 3)
        return rotation.T @ (self.position(name) - self.position(frame))

    def touched_by(self, name: str) -> tuple[bool, bool]:
        """Whether the (left, right) finger touches the free object `name`, or the drawer's "knob"."""
        geom = self._geom_of[name]
        left, right = (self._touch(pad, geom) for pad in self._pads)
        return left, right

    def on_table(self, name: str) -> bool:
        """Whether the free object `name` touches the table."""
        return self._touch(self._geom_of[name], self._geom_of["table"])

    def contact(self) -> bool:
        """Whether any finger touches any task object or the drawer."""
        pairs = self.data.contact.geom
        return bool(np.any(np.isin(pairs, self._pads).any(1) & np.isin(pairs, self._task_geoms).any(1)))

    def _touch(self, first: int, second: int) -> bool:
        pairs = self.data.contact.geom
        return bool(np.any((pairs == (first, second)).all(1) | (pairs == (second, first)).all(1)))
