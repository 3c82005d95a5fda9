"""One LIBERO task in its simulator: settled starts, steps, and the scripted expert's view of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.libero import facts
from worldrl.workers.libero.held import HeldGoal
from worldrl.workers.libero.observation import command_vector, state_vector, turn
from worldrl.workers.libero.package import LiberoError
from worldrl.workers.libero.several import make_expert
from worldrl.workers.libero.skills import Expert
from worldrl.workers.link.wire import Arrays

if TYPE_CHECKING:
    from worldrl.workers.libero.worker import Libero

PADS = ("gripper0_finger1_pad_collision", "gripper0_finger2_pad_collision")  # Geoms of the finger pads


class Simulation:
    """One environment of one task; ``states`` are its stored states, float64 ``[50, D]``."""

    def __init__(self, suite: Libero, env: Any, states: NDArray[np.float64]) -> None:
        self.suite, self.env, self._states = suite, env, states
        self._gripper = facts.NO_OP[6]
        self._expert: Expert | None = None
        self._goal: HeldGoal | None = None
        self._pads = self._movable = np.zeros(0, bool)

    def reset(self, init_id: int, seed: int, *, render: bool) -> Arrays:
        """Start from a stored or drawn state and let it settle; the seed has no effect here."""
        drawn = init_id - len(self._states)
        if not 0 <= init_id < len(self._states) + facts.DRAWN_STATES:
            raise LiberoError(
                f"initial state {init_id}: there are {len(self._states)} and {facts.DRAWN_STATES} drawn ones"
            )
        if drawn < 0:
            self._begin(self._states[init_id])
        else:
            self._begin(None, facts.FIXTURE_SEED + 1 + drawn)
        fulfilled = False
        for _ in range(facts.SETTLE_STEPS):
            fulfilled = self._advance(np.array(facts.NO_OP))
        self._goal = HeldGoal(self.obs) if self.suite.held else None
        return self._row(fulfilled, render)

    def reset_to(self, state: NDArray[np.float64], *, render: bool) -> Arrays:
        """Start from a demonstration's settled state; the suite places the fixtures, which are not part of it."""
        if state.shape != self._states[0].shape:
            raise LiberoError(f"a given state has {state.size} numbers, those of this task have {self._states[0].size}")
        self._begin(state)
        self._goal = HeldGoal(self.obs) if self.suite.held else None
        return self._row(False, render)

    def _begin(self, state: NDArray[np.float64] | None, seed: int = facts.FIXTURE_SEED) -> None:
        """Begin at a state; None keeps the one that the reset draws."""
        # A hard reset each time (the vendor's default): a soft one keeps the gripper's and the controller's last goal.
        self.env.seed(seed)
        # Each hard reset appends the initial properties (a drawer open, a stove on) to this list again. Each is drawn,
        # so the fixtures, which are drawn later, would be elsewhere after every reset.
        self.env.env.object_property_initializers.clear()
        self._own_context()
        self.env.reset()
        self._know_geoms()
        self.obs = self.env.set_init_state(self.env.get_sim_state() if state is None else state)
        self._expert, self._gripper = None, facts.NO_OP[6]

    def step(self, action: NDArray[np.float32], *, render: bool) -> Arrays:
        """Take one action in [-1, 1]."""
        asked = np.asarray(action, np.float64)
        if self._goal is not None:
            self._goal.move(asked)
            asked = self._goal.left(self.obs, asked[6])
        return self._row(self._advance(asked), render)

    def _advance(self, action: NDArray[np.float64]) -> bool:
        self._gripper = float(action[6])
        self.obs, _, fulfilled, _ = self.env.step(action)
        return bool(fulfilled)

    def _row(self, fulfilled: bool, render: bool) -> Arrays:
        row: Arrays = {
            "state": state_vector(self.obs),
            "command": self._command(),
            "success": np.array(fulfilled),
            "contact": np.array(self._touches()),
        }
        if render:
            for camera in self.suite.cameras:
                row["wrist_image" if camera == "wrist" else "image"] = self._image(facts.CAMERAS[camera])
        return row

    def _command(self) -> NDArray[np.float32]:
        """Return the held goal, or the measured pose, with the last gripper command."""
        held = self._goal
        return command_vector(self.obs, self._gripper) if held is None else held.command(self._gripper)

    def _know_geoms(self) -> None:
        """Look up the finger pads and the movable geoms; a reset makes a new model."""
        model, movable = self.env.sim.model, set(self.env.env.objects_dict)
        names = [model.geom_id2name(geom) or "" for geom in range(model.ngeom)]
        self._pads = np.array([name in PADS for name in names])
        self._movable = np.array([name.rpartition("_g")[0] in movable for name in names])

    def _touches(self) -> bool:
        """Whether a finger pad touches a movable object."""
        geoms = np.asarray(self.env.sim.data.contact.geom)  # [contacts, 2]; one by one they would cost 2 % of a step
        return bool((self._pads[geoms].any(axis=1) & self._movable[geoms].any(axis=1)).any())

    def _image(self, camera: str) -> NDArray[np.uint8]:
        size = self.suite.image_size
        self._own_context()
        return turn(np.asarray(self.env.sim.render(camera_name=camera, width=size, height=size)))

    def _own_context(self) -> None:
        """Make this environment's GL context current: robosuite draws and frees in whichever one of the process is."""
        context = self.env.sim._render_context_offscreen
        if context is not None:  # there is none without cameras
            context.gl_ctx.make_current()

    def position(self, name: str) -> NDArray[np.float64]:
        """World position of an object, fixture or site (m)."""
        sim, inner = self.env.sim, self.env.env
        if name in inner.obj_body_id:
            return np.array(sim.data.body_xpos[inner.obj_body_id[name]])
        return np.array(sim.data.get_site_xpos(name))

    def matrix(self, name: str) -> NDArray[np.float64]:
        """Rotation matrix of an object, fixture or region."""
        sim, inner = self.env.sim, self.env.env
        if name in inner.obj_body_id:
            return np.array(sim.data.body_xmat[inner.obj_body_id[name]]).reshape(3, 3)
        return np.array(sim.data.get_site_xmat(name))

    def pulled(self, name: str) -> float | None:
        """Extension of a region's drawer (m); None for other regions."""
        sim, site = self.env.sim, self.env.env.object_sites_dict.get(name)
        slides = [joint for joint in (getattr(site, "joints", None) or ()) if "level" in joint]
        return abs(float(sim.data.get_joint_qpos(slides[0]))) if slides else None

    @property
    def goals(self) -> list[list[str]]:
        """The task's predicates, for example ``[["on", "akita_black_bowl_1", "plate_1"]]``."""
        return self.env.env.parsed_problem["goal_state"]

    def holds(self, goal: list[str]) -> bool:
        """Whether one predicate of the goal holds."""
        return bool(self.env.env._eval_predicate(goal))

    @property
    def fixtures(self) -> list[str]:
        """Names of the fixtures."""
        return list(self.env.env.fixtures_dict)

    @property
    def movable(self) -> list[str]:
        """Names of the movable objects."""
        return list(self.env.env.objects_dict)

    def expert(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action."""
        if self._expert is None:
            self._expert = make_expert(self)
        action = self._expert.act(self)
        return action if self._goal is None else self._goal.towards(action, self.obs)

    def close(self) -> None:
        """Release the environment and its GL context."""
        self._own_context()
        self.env.close()
