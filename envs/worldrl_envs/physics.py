"""Model and data of one scene: placing things, saving and restoring, reading poses and contacts."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl_envs.engine import mujoco
from worldrl_envs.layouts import Layout
from worldrl_envs.scene import ObjectSpec

SEGMENTS = 5  # straight pieces of a control step's joint path, so that a servo never sees a jump
SETTLE_STEPS = 4  # control steps for objects to come to rest after they are placed
FULL_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


@dataclass(frozen=True)
class Placement:
    """Positions that define a stored initial state; every velocity is zero."""

    qpos: NDArray[np.float64]  # float64[nq], joint positions (m, rad, quaternions w x y z)
    mocap_pos: NDArray[np.float64]  # float64[n_fixtures, 3], metres
    mocap_quat: NDArray[np.float64]  # float64[n_fixtures, 4], (w, x, y, z)


class Physics(ABC):
    """MuJoCo model and data of one task: free objects with joints of their names, fixtures as mocap bodies."""

    def __init__(self, model: mujoco.MjModel, objects: Mapping[str, ObjectSpec], fixtures: tuple[str, ...]) -> None:
        self.objects, self.fixtures = tuple(objects), fixtures
        self.model, self.data = model, mujoco.MjData(model)
        self._specs = dict(objects)
        self.table_height = 0.0  # metres
        self._qpos_at = {name: model.joint(name).qposadr[0] for name in objects}
        self._qvel_at = {name: model.joint(name).dofadr[0] for name in objects}
        self._body_of = {model.body(i).name: i for i in range(model.nbody)}
        self.drawer_at = model.joint("drawer").qposadr[0] if "cabinet" in fixtures else None
        self._geoms = {name: self._geoms_of_body(name) for name in objects}
        self._geoms |= {
            name: frozenset([model.geom(name).id])
            for name in (("table",) if self.drawer_at is None else ("table", "knob"))
        }
        bodies = (*objects, "drawer") if self.drawer_at is not None else tuple(objects)
        self._task_geoms = frozenset(geom for name in bodies for geom in self._geoms_of_body(name))

    @abstractmethod
    def home(self) -> None:
        """Put the robot at home: positions and targets."""

    @abstractmethod
    def advance(self, command: NDArray[Any]) -> None:
        """Run one control step (0.05 s) toward a command of the robot."""

    @abstractmethod
    def wait(self) -> None:
        """Run one control step with the robot held at home."""

    def _geoms_of_body(self, name: str) -> frozenset[int]:
        return frozenset(np.flatnonzero(self.model.geom_bodyid == self._body_of[name]).tolist())

    # --- placing ---

    def place(self, layout: Layout) -> None:
        """Put everything where `layout` says, robot at home, and let it settle."""
        self._put(layout)
        for _ in range(SETTLE_STEPS):
            self.wait()
        self.restore(self.placement())

    def _put(self, layout: Layout) -> None:
        mujoco.mj_resetData(self.model, self.data)
        self.home()
        for name, (x, y, yaw) in layout.poses.items():
            quat = (np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
            if name in self._qpos_at:
                start = self._qpos_at[name]
                self.data.qpos[start : start + 7] = (x, y, self._specs[name].rest_height, *quat)
            else:
                mocap = self.model.body(name).mocapid[0]
                self.data.mocap_pos[mocap], self.data.mocap_quat[mocap] = (x, y, 0), quat
        if self.drawer_at is not None:
            self.data.qpos[self.drawer_at] = layout.opening

    def placement(self) -> Placement:
        """The present positions, for storing."""
        data = self.data
        return Placement(data.qpos.copy(), data.mocap_pos.copy(), data.mocap_quat.copy())

    def restore(self, placement: Placement) -> None:
        """Start an episode from stored positions: velocities zero, robot exactly at home."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = placement.qpos
        self.data.mocap_pos[:], self.data.mocap_quat[:] = placement.mocap_pos, placement.mocap_quat
        self.home()
        mujoco.mj_forward(self.model, self.data)

    # --- state ---

    def get_state(self) -> dict[str, NDArray[np.float64]]:
        """Full physics state, warm start included."""
        state = np.empty(mujoco.mj_stateSize(self.model, FULL_STATE))
        mujoco.mj_getState(self.model, self.data, state, FULL_STATE)
        return {"physics": state}

    def set_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Restore `get_state()` bit for bit; ValueError for a model of another size."""
        expected = mujoco.mj_stateSize(self.model, FULL_STATE)
        if len(state["physics"]) != expected:
            raise ValueError(f"state['physics']: must hold {expected} numbers, got {len(state['physics'])}")
        mujoco.mj_setState(self.model, self.data, state["physics"], FULL_STATE)
        mujoco.mj_forward(self.model, self.data)
        # mj_forward replaced the solver's warm start by its own result; put the stored one back.
        mujoco.mj_setState(self.model, self.data, state["physics"], FULL_STATE)

    # --- reading ---

    @property
    def opening(self) -> float:
        """How far the drawer is open, metres; 0 in a scene without one."""
        return 0.0 if self.drawer_at is None else float(self.data.qpos[self.drawer_at])

    def position(self, name: str) -> NDArray[np.float64]:
        """World position of an object's or fixture's body, float64[3], metres."""
        return self.data.xpos[self._body_of[name]].copy()

    def pose(self, name: str) -> NDArray[np.float64]:
        """World pose of a body, float64[7]: position (m) and quaternion (w, x, y, z)."""
        body = self._body_of[name]
        return np.concatenate([self.data.xpos[body], self.data.xquat[body]])

    def height(self, name: str) -> float:
        """Height of a free object above its resting height, metres."""
        return float(self.data.xpos[self._body_of[name], 2]) - (self._specs[name].rest_height + self.table_height)

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
        names = (*self.objects, *self.fixtures, *(("drawer",) if self.drawer_at is not None else ()))
        return {name: self.pose(name) for name in names}

    def targets(self) -> list[NDArray[np.float64]]:
        """Positions worth reaching for: the objects, or the drawer's knob."""
        points = [self.position(name) for name in self.objects]
        return points if self.drawer_at is None else [*points, self.knob]

    @property
    def knob(self) -> NDArray[np.float64]:
        """Position of the drawer's knob, float64[3], metres."""
        return self.data.geom("knob").xpos.copy()

    def local(self, name: str, frame: str) -> NDArray[np.float64]:
        """Position of body `name` in the frame of body `frame`, float64[3], metres."""
        rotation = self.data.xmat[self._body_of[frame]].reshape(3, 3)
        return rotation.T @ (self.position(name) - self.position(frame))

    def on_table(self, name: str) -> bool:
        """Whether the free object `name` touches the table."""
        return self.touches(self._geoms[name], self._geoms["table"])

    def touches(self, first: Collection[int], second: Collection[int]) -> bool:
        """Whether a geom of `first` (ids) touches one of `second`."""
        pairs = self.data.contact.geom.tolist()
        return any((a in first and b in second) or (b in first and a in second) for a, b in pairs)
