"""Physics of one task with two arms, driven by joint targets; control steps as in `simulation.py`."""

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.bimanual.control import ACTION_SIZE, ARM_JOINTS, ARMS, SIXAXIS_PAIR, home_command
from worldrl_envs.bimanual.scene import OBJECTS, build_model
from worldrl_envs.engine import mujoco
from worldrl_envs.layouts import Layout
from worldrl_envs.physics import SEGMENTS, Physics, Placement

FINGER_OPEN = 0.045  # metres of travel of each finger


class BimanualSimulation(Physics):
    """MuJoCo model and data of one bimanual task, with objects of `bimanual.scene.OBJECTS`."""

    def __init__(self, objects: tuple[str, ...], fixtures: tuple[str, ...]) -> None:
        model = build_model(objects, fixtures)
        super().__init__(model, {name: OBJECTS[name] for name in objects}, fixtures)
        self._target = home_command().astype(np.float64)
        self._substeps = round(1 / (SIXAXIS_PAIR.control_hz * SEGMENTS * model.opt.timestep))
        self._tcp = {arm: model.site(f"{arm}_tcp").id for arm in ARMS}
        self._pads = {arm: tuple(model.geom(f"{arm}_pad_{f}").id for f in "ab") for arm in ARMS}
        self._joints = np.array([model.joint(name).qposadr[0] for name in self._joint_names("joint", "finger_a")])
        self._fingers = np.array([model.joint(f"{arm}_finger_{f}").qposadr[0] for arm in ARMS for f in "ab"])
        self._servos = np.array([model.actuator(name).id for name in self._joint_names("servo", "grip_a")])
        self._second = np.array([model.actuator(f"{arm}_grip_b").id for arm in ARMS])
        gain, bias = model.actuator_gainprm, model.actuator_biasprm
        arm_joint = np.arange(ACTION_SIZE) % (ARM_JOINTS + 1) < ARM_JOINTS
        # kv / kp, seconds; the grippers' targets are not fed forward, so that they close with a steady force.
        self._lag = np.where(arm_joint, -bias[self._servos, 2] / gain[self._servos, 0], 0.0)
        self._scale = np.where(arm_joint, 1.0, FINGER_OPEN)  # from a command's unit to a joint's
        self._table = model.geom("table").id
        self._table_z = float(model.geom_pos[self._table, 2])

    def _joint_names(self, stem: str, finger: str) -> list[str]:
        parts = (*(f"{stem}{j}" for j in range(1, ARM_JOINTS + 1)), finger)
        return [f"{arm}_{part}" for arm in ARMS for part in parts]

    def home(self) -> None:
        """Put both arms at home, hands open."""
        self._target = home_command().astype(np.float64)
        self.data.qpos[self._joints] = self._target * self._scale
        self.data.qpos[self._fingers] = FINGER_OPEN
        self._drive(self._target)

    def wait(self) -> None:
        """Run one control step with the arms held at home."""
        self.advance(home_command())

    # --- placing ---

    def place(self, layout: Layout) -> None:
        """Put everything where `layout` says, on a table at its own height."""
        self.set_table(0.0)
        super().place(layout)

    def restore(self, placement: Placement) -> None:
        """Start an episode from stored positions, on a table at its own height."""
        self.set_table(0.0)
        super().restore(placement)

    def set_table(self, height: float) -> None:
        """Draw and collide the table at another height, metres; what stands on it stays where it is."""
        self.table_height = height
        self.model.geom_pos[self._table, 2] = self._table_z + height

    def lower_table(self, drop: float) -> None:
        """Lower the table by `drop` metres with everything on it; the arms stay."""
        self.set_table(-drop)
        for start in self._qpos_at.values():
            self.data.qpos[start + 2] -= drop
        self.data.mocap_pos[:, 2] -= drop
        mujoco.mj_forward(self.model, self.data)

    # --- stepping ---

    def advance(self, command: NDArray[np.floating]) -> None:
        """Run one control step (0.05 s) toward `command`, float[14]."""
        start, self._target = self._target, np.asarray(command, np.float64)
        velocity = (self._target - start) * SIXAXIS_PAIR.control_hz
        for segment in range(1, SEGMENTS + 1):
            self._drive(start + (self._target - start) * (segment / SEGMENTS) + self._lag * velocity)
            mujoco.mj_step(self.model, self.data, nstep=self._substeps)
        mujoco.mj_forward(self.model, self.data)  # poses and contacts of the final state

    def _drive(self, target: NDArray[np.float64]) -> None:
        self.data.ctrl[self._servos] = target * self._scale
        self.data.ctrl[self._second] = self.data.ctrl[self._servos[[ARM_JOINTS, ACTION_SIZE - 1]]]

    # --- state ---

    def get_state(self) -> dict[str, NDArray[np.float64]]:
        """Full physics state, warm start included, and the joint targets."""
        return super().get_state() | {"target": self._target.copy()}

    def set_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Restore `get_state()`; the table's height is the environment's to restore first."""
        super().set_state(state)
        self._target = state["target"].copy()

    # --- reading ---

    @property
    def joints(self) -> NDArray[np.float64]:
        """Measured joint positions in the command's order and units, float64[14]."""
        return self.data.qpos[self._joints] / self._scale

    def tcp(self, arm: str) -> NDArray[np.float64]:
        """Measured position of an arm's tool centre point, float64[3], metres."""
        return self.data.site_xpos[self._tcp[arm]].copy()

    def opening_of(self, arm: str) -> float:
        """Distance between an arm's fingers, metres."""
        first = ARMS.index(arm) * 2
        return float(self.data.qpos[self._fingers[first : first + 2]].sum())

    def touched_by(self, arm: str, name: str) -> tuple[bool, bool]:
        """Whether each of an arm's fingers touches the free object `name`, or the drawer's "knob"."""
        first, second = (self.touches((pad,), self._geoms[name]) for pad in self._pads[arm])
        return first, second

    def touches_object(self, name: str, other: str) -> bool:
        """Whether two free objects touch."""
        return self.touches(self._geoms[name], self._geoms[other])

    def contact(self) -> bool:
        """Whether any finger touches any task object or the drawer."""
        return self.touches(frozenset().union(*self._pads.values()), self._task_geoms)

    def point(self, name: str, offset: NDArray[np.float64]) -> NDArray[np.float64]:
        """World position of a point fixed to an object or fixture, float64[3], metres."""
        rotation = self.data.xmat[self._body_of[name]].reshape(3, 3)
        return self.position(name) + rotation @ offset
