"""LIBERO in its own environment: hf-libero's tasks behind the worker's interface (``workers/server.py``).

The only place where LIBERO's pictures are turned, its state vector is put together and its episodes are settled; the
numbers are in ``workers/libero_facts.py``. Vendor packages are imported when the suite is built, after the file that
their import would otherwise ask for on standard input has been pointed at.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers import libero_facts as facts
from worldrl.workers.boot import load_file
from worldrl.workers.libero_expert import PickAndPlace
from worldrl.workers.libero_states import load_suite
from worldrl.workers.wire import Arrays

DOWN = np.diag([1.0, -1.0, -1.0])
"""Rotation of a gripper that points straight down, fingers along y; the command's rotation vector counts from it."""


class LiberoError(RuntimeError):
    """The environment is not the one that the protocol names: packages, assets or physics."""


def task_sentence(name: str) -> str:
    """The instruction that a task's file name carries: what published policies are told."""
    return " ".join(re.sub(r"^[A-Z_]+SCENE\d+_", "", name).split("_"))


def axis_angle(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector (rad) of a quaternion (x, y, z, w), with an angle in [0, 2π] as robosuite has it.

    The two quaternions of one rotation are not folded together: published policies were trained on states that were
    not, and the sign carries over (83 % → 97 % on libero_goal for one of them).
    """
    w = float(np.clip(quaternion[3], -1.0, 1.0))
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if sine < 1e-9 else quaternion[:3] * (2.0 * np.arccos(w) / sine)


def rotation_vector(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation vector (rad) of a rotation matrix, with an angle in [0, π)."""
    skew = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]) / 2
    sine, cosine = float(np.linalg.norm(skew)), float((np.trace(matrix) - 1) / 2)
    return skew if sine < 1e-9 else skew * (np.arctan2(sine, cosine) / sine)


def turn(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn a rendered picture by 180°."""
    return np.ascontiguousarray(picture[::-1, ::-1])


def assets_digest(folder: Path) -> str:
    """SHA-256 (16 hex digits) over the names and contents of an assets folder; texts beside them do not count."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md"):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Libero:
    """One suite of LIBERO.

    Args:
        suite: for example ``"libero_goal"``.
        states: folder of the converted stored states.
        assets: folder of meshes, textures and MJCF; empty takes the package's own.
        image_size: pixels of the square pictures.
        cameras: our camera names, the scene camera first; empty renders nothing.
        shadows: the vendor's shadows and anti-aliasing; without them a CPU draws about eight times faster, other
            pictures.
        physics: protocol version whose exact packages are required.

    Raises:
        LiberoError: other packages, or no assets.
    """

    def __init__(
        self,
        *,
        suite: str,
        states: str,
        assets: str = "",
        image_size: int = 256,
        cameras: tuple[str, ...] = (),
        shadows: bool = True,
        physics: str = facts.VERSION,
    ) -> None:
        self.packages = require_packages(physics)
        self.image_size, self.cameras, self.suite = image_size, tuple(cameras), suite
        root = package_root()
        self.assets = find_assets(root, assets)
        vendor: Any = importlib.import_module("libero.libero")
        vendor._assets_path_cache = str(self.assets)  # its own look-up would download
        self._vendor = importlib.import_module("libero.libero.envs.env_wrapper")
        self._bddl = root / "bddl_files"
        self._states_folder = Path(states)
        self._names = task_names(root)
        self.states = load_suite(self._states_folder / f"{suite}.npz", suite)
        if not shadows:
            draw_plainly()

    def describe(self) -> dict[str, Any]:
        """Say what there is."""
        return {
            "suite": self.suite,
            "tasks": [{"name": name, "instruction": task_sentence(name)} for name in self._names[self.suite]],
            "stored_states": facts.STORED_STATES,
            "packages": self.packages,
            "assets": assets_digest(self.assets),
            "control_hz": facts.CONTROL_HZ,
            "action_size": len(facts.NO_OP),
        }

    def make(self, task: str) -> Simulation:
        """Make an environment of one task."""
        if task not in self.states:
            raise LiberoError(f"{self.suite}: no task {task!r}; it has {', '.join(self.states)}")
        return Simulation(self, self._environment(self.suite, task), self.states[task])

    def _environment(self, suite: str, task: str, *, render: bool | None = None) -> Any:
        return self._vendor.ControlEnv(
            bddl_file_name=str(self._bddl / suite / f"{task}.bddl"),
            use_camera_obs=False,  # pictures are drawn only where somebody looks at them
            has_offscreen_renderer=bool(self.cameras) if render is None else render,
            control_freq=facts.CONTROL_HZ,
            **{"ignore_done": True},  # the horizon is the protocol's, counted by the core
        )

    def probe(self) -> dict[str, Any]:
        """Let one telling stored state settle.

        Raises:
            LiberoError: it does not hold: this is not the physics the states were stored with.
        """
        place = facts.SETTLE_PROBE
        task = self._names[place.suite][place.task]
        states = load_suite(self._states_folder / f"{place.suite}.npz", place.suite)[task]
        simulation = Simulation(self, self._environment(place.suite, task, render=False), states)
        try:
            simulation.reset(place.init_id, 0, render=False)
            for _ in range(place.steps - facts.SETTLE_STEPS):
                simulation.step(np.array(facts.NO_OP, np.float32), render=False)
            distance = float(np.linalg.norm((simulation.position(place.upper) - simulation.position(place.lower))[:2]))
        finally:
            simulation.close()
        if distance > place.limit_m:
            raise LiberoError(
                f"settle probe: stored state {place.init_id} of {task} does not hold: {place.upper} ends "
                f"{1000 * distance:.0f} mm beside {place.lower}, at most {1000 * place.limit_m:.0f} mm are allowed; "
                f"this is not the physics of {self.packages}"
            )
        return {"task": task, "init_id": place.init_id, "distance_mm": 1000 * distance}


class Simulation:
    """One environment of one task.

    Args:
        suite: whose settings.
        env: the vendor's environment.
        states: stored states, float64 ``[50, D]``.
    """

    def __init__(self, suite: Libero, env: Any, states: NDArray[np.float64]) -> None:
        self.suite, self.env, self._states = suite, env, states
        self._gripper = facts.NO_OP[6]
        self._expert: PickAndPlace | None = None

    def reset(self, init_id: int, seed: int, *, render: bool) -> Arrays:
        """Start from a stored state and let it settle; the seed moves nothing here."""
        if not 0 <= init_id < len(self._states):
            raise LiberoError(f"stored state {init_id}: there are {len(self._states)}")
        # A hard reset each time (the vendor's default): a soft one keeps the gripper's and the controller's last goal.
        self.env.seed(facts.FIXTURE_SEED)
        self.env.reset()
        self.obs = self.env.set_init_state(self._states[init_id])
        self._expert = None
        fulfilled = False
        for _ in range(facts.SETTLE_STEPS):
            fulfilled = self._advance(np.array(facts.NO_OP))
        return self._row(fulfilled, render)

    def step(self, action: NDArray[np.float32], *, render: bool) -> Arrays:
        """Take one action in [-1, 1]."""
        return self._row(self._advance(np.asarray(action, np.float64)), render)

    def _advance(self, action: NDArray[np.float64]) -> bool:
        self._gripper = float(action[6])
        self.obs, _, fulfilled, _ = self.env.step(action)
        return bool(fulfilled)

    def _row(self, fulfilled: bool, render: bool) -> Arrays:
        row: Arrays = {
            "state": self._state(),
            "command": self._command(),
            "success": np.array(fulfilled),
            "contact": np.array(self._touches()),
        }
        if render:
            for camera in self.suite.cameras:
                row["wrist_image" if camera == "wrist" else "image"] = self._picture(facts.CAMERAS[camera])
        return row

    def _state(self) -> NDArray[np.float32]:
        """End-effector position, axis-angle and two finger positions, float32 ``[8]``."""
        parts = (
            self.obs["robot0_eef_pos"],
            axis_angle(self.obs["robot0_eef_quat"]),
            self.obs["robot0_gripper_qpos"],
        )
        return np.concatenate(parts).astype(np.float32)

    def _command(self) -> NDArray[np.float32]:
        """Measured pose and last gripper command, float32 ``[7]``: LIBERO's controller keeps no goal of its own."""
        x, y, z, w = self.obs["robot0_eef_quat"]
        twice = 2 * np.array(
            [
                [0.5 - y * y - z * z, x * y - z * w, x * z + y * w],
                [x * y + z * w, 0.5 - x * x - z * z, y * z - x * w],
                [x * z - y * w, y * z + x * w, 0.5 - x * x - y * y],
            ]
        )
        parts = (self.obs["robot0_eef_pos"], rotation_vector(twice @ DOWN.T), [self._gripper])
        return np.concatenate(parts).astype(np.float32)

    def _touches(self) -> bool:
        """Whether a finger pad touches a movable object."""
        sim = self.env.sim
        pads = {sim.model.geom_name2id(f"gripper0_finger{n}_pad_collision") for n in (1, 2)}
        movable = set(self.env.env.objects_dict)
        for contact in sim.data.contact[: sim.data.ncon]:
            pair = {contact.geom1, contact.geom2}
            if pair & pads:
                names = {sim.model.geom_id2name(geom) or "" for geom in pair - pads}
                if any(name.rpartition("_g")[0] in movable for name in names):
                    return True
        return False

    def _picture(self, camera: str) -> NDArray[np.uint8]:
        size = self.suite.image_size
        return turn(np.asarray(self.env.sim.render(camera_name=camera, width=size, height=size)))

    def position(self, name: str) -> NDArray[np.float64]:
        """World position of an object, fixture or site (m)."""
        sim, inner = self.env.sim, self.env.env
        if name in inner.obj_body_id:
            return np.array(sim.data.body_xpos[inner.obj_body_id[name]])
        return np.array(sim.data.get_site_xpos(name))

    @property
    def goals(self) -> list[list[str]]:
        """The task's predicates, for example ``[["on", "akita_black_bowl_1", "plate_1"]]``."""
        return self.env.env.parsed_problem["goal_state"]

    @property
    def fixtures(self) -> list[str]:
        """Names of what stands still."""
        return list(self.env.env.fixtures_dict)

    @property
    def movable(self) -> list[str]:
        """Names of the movable objects."""
        return list(self.env.env.objects_dict)

    def expert(self) -> NDArray[np.float32]:
        """Return the scripted expert's next action."""
        if self._expert is None:
            self._expert = PickAndPlace(self)
        return self._expert.act(self)

    def close(self) -> None:
        """Release the environment and its GL context."""
        self.env.close()


# --- the vendor's package ------------------------------------------------------------------------------------------


def require_packages(physics: str) -> dict[str, str]:
    """Return the exact packages of a protocol version.

    Raises:
        LiberoError: others are installed.
    """
    if physics not in facts.PHYSICS:
        raise LiberoError(f"physics {physics!r}: known are {', '.join(facts.PHYSICS)}")
    wanted = facts.PHYSICS[physics]
    found = {name: version(name) for name in wanted}
    if found != wanted:
        raise LiberoError(f"libero@{physics} means {dict(wanted)}, installed are {found}; run `worldrl setup libero`")
    return found


def package_root() -> Path:
    """Folder ``libero/libero`` of the installed package, found without importing it."""
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise LiberoError("hf-libero is not installed in this environment; run `worldrl setup libero`")
    return Path(next(iter(spec.submodule_search_locations))) / "libero"


def task_names(root: Path) -> dict[str, list[str]]:
    """Names of each suite's tasks, in the benchmark's order; read without the package's imports of torch."""
    return load_file("libero_task_map", root / "benchmark" / "libero_suite_task_map.py").libero_task_map


def find_assets(root: Path, given: str) -> Path:
    """Return the assets' folder.

    Raises:
        LiberoError: there are none; the message says where it looked and what to do.
    """
    folder = Path(given) if given else root / "assets"
    if not (folder / "scenes").is_dir():
        raise LiberoError(
            f"LIBERO's assets (meshes, textures) are not in {folder}; its wheel does not bring them: copy "
            "libero/libero/assets of the repository Lifelong-Robot-Learning/LIBERO somewhere, and run "
            "`worldrl setup libero assets=THAT_FOLDER`"
        )
    return folder


def draw_plainly() -> None:
    """Build every later model without shadows and anti-aliasing."""
    base = importlib.import_module("robosuite.environments.base").MujocoEnv
    original = base._initialize_sim

    def initialize(self: Any, xml_string: str | None = None) -> None:
        original(self, xml_string)
        quality = self.sim.model._model.vis.quality
        quality.shadowsize = quality.offsamples = 0

    base._initialize_sim = initialize
