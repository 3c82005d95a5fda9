"""Physics of one task with one arm, driven by commanded poses.

One control step of 1/20 s is 25 physics steps. The joint targets run linearly to the next solution of the inverse
kinematics, in segments, with the target's velocity fed forward: without it a servo lags by kv/kp = 40 ms, 16 mm.
"""

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.arrangements import Arrangement
from worldrl_envs.control import GRIPPER_DOWN, GRIPPER_INDEX, PANDA, home_command, quat_multiply
from worldrl_envs.engine import mujoco
from worldrl_envs.kinematics import ARM_JOINTS, HOME_QPOS, ArmKinematics
from worldrl_envs.physics import SEGMENTS, Physics
from worldrl_envs.scene import OBJECTS, build_model

FINGER_OPEN = 0.04  # metres of travel of each finger
FINGER_TRAVEL = 0.01  # metres per control step: 0.2 m/s, so the hand closes in four steps
REACH = 8  # solutions of the inverse kinematics, each bounded, from home to anywhere in the workspace
REACHED = 1e-4  # rad; a solution that moves no joint further is the last one


def servo_path(
    start: NDArray[np.float64],
    goal: NDArray[np.float64],
    fingers: NDArray[np.float64],
    gripper: NDArray[np.floating] | np.floating,
    lag: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Servo targets of one control step, float64[SEGMENTS, ..., 9], of one scene or of many.

    From `start` to `goal` (rad, [..., 7]) and from `fingers` (m, [..., 2]); a `gripper` above 0 closes; `lag`: kv / kp,
    s.
    """
    velocity = (goal - start) * PANDA.control_hz
    # The sign alone decides, as on LIBERO's gripper: a hesitant policy still grasps.
    wanted = np.where(np.asarray(gripper) > 0, 0.0, FINGER_OPEN)[..., None]
    travel = np.clip(wanted - fingers, -FINGER_TRAVEL, FINGER_TRAVEL)
    shares = [segment / SEGMENTS for segment in range(1, SEGMENTS + 1)]
    arm = [start + (goal - start) * share + lag * velocity for share in shares]
    hand = [fingers + travel * share for share in shares]
    return np.concatenate([np.stack(arm), np.stack(hand)], axis=-1)


class Simulation(Physics):
    """MuJoCo model and data of one task, driven by commanded poses; objects of `scene.OBJECTS`."""

    def __init__(self, objects: tuple[str, ...], fixtures: tuple[str, ...]) -> None:
        model = build_model(objects, fixtures)
        super().__init__(model, {name: OBJECTS[name] for name in objects}, fixtures)
        self._arm = ArmKinematics()
        self._arm_target = np.array(HOME_QPOS)
        self._tcp = model.site("tcp").id
        self.substeps = round(1 / (PANDA.control_hz * SEGMENTS * model.opt.timestep))
        gain, bias = model.actuator_gainprm, model.actuator_biasprm
        self.lag = -bias[:ARM_JOINTS, 2] / gain[:ARM_JOINTS, 0]  # kv / kp, seconds
        self._pads = tuple(model.geom(f"{side}_pad").id for side in ("left", "right"))

    def home(self) -> None:
        """Put the arm at home, hand open."""
        self._arm_target = np.array(HOME_QPOS)
        self.data.qpos[:ARM_JOINTS] = HOME_QPOS
        self.data.qpos[ARM_JOINTS : ARM_JOINTS + 2] = FINGER_OPEN
        self.data.ctrl[:] = self.data.qpos[: ARM_JOINTS + 2]

    def wait(self) -> None:
        """Run one control step with the arm held at home."""
        self.advance(home_command())

    def arrange(self, arrangement: Arrangement) -> None:
        """Put arm, hand and everything else somewhere at once, without physics: nothing falls or is pushed away."""
        self._put(arrangement.layout)
        for name, pose in arrangement.poses.items():
            start = self._qpos_at[name]
            self.data.qpos[start : start + 7] = pose
        for _ in range(REACH):
            before, self._arm_target = self._arm_target, self._arm.solve(arrangement.command, self._arm_target)
            if np.abs(self._arm_target - before).max() < REACHED:
                break
        self.data.qpos[:ARM_JOINTS] = self._arm_target
        self.data.qpos[ARM_JOINTS : ARM_JOINTS + 2] = arrangement.finger
        self.data.ctrl[:] = self.data.qpos[: ARM_JOINTS + 2]
        mujoco.mj_forward(self.model, self.data)

    # --- stepping ---

    def advance(self, command: NDArray[np.float32]) -> None:
        """Run one control step (0.05 s) toward `command`, float32[7]."""
        start = self._arm_target
        self._arm_target = self._arm.solve(command, start)
        fingers = self.data.ctrl[ARM_JOINTS:]
        for targets in servo_path(start, self._arm_target, fingers, command[GRIPPER_INDEX], self.lag):
            self.data.ctrl[:] = targets
            mujoco.mj_step(self.model, self.data, nstep=self.substeps)
        mujoco.mj_forward(self.model, self.data)  # poses and contacts of the final state

    # --- state ---

    def get_state(self) -> dict[str, NDArray[np.float64]]:
        """Full physics state, warm start included, and the arm's joint targets."""
        return super().get_state() | {"arm_target": self._arm_target.copy()}

    def set_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Restore `get_state()`; the next `advance` then gives the same bits."""
        super().set_state(state)
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

    def touched_by(self, name: str) -> tuple[bool, bool]:
        """Whether the (left, right) finger touches the free object `name`, or the drawer's "knob"."""
        left, right = (self.touches((pad,), self._geoms[name]) for pad in self._pads)
        return left, right

    @property
    def contact_geoms(self) -> tuple[list[int], list[int]]:
        """Ids of the fingers' pads, and of what counts when they touch it: the task's objects and the drawer."""
        return list(self._pads), sorted(self._task_geoms)

    def contact(self) -> bool:
        """Whether any finger touches any task object or the drawer."""
        return self.touches(self._pads, self._task_geoms)
