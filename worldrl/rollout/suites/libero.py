"""How a LIBERO worker is started, and ``worldrl/Libero-v0``: a suite's tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.libero

    env = gymnasium.make_vec("worldrl/Libero-v0", num_envs=4, suite="libero_goal", workers=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldrl.core.actions import TOOL_ACTIONS
from worldrl.core.errors import WorkerEnvironmentError
from worldrl.data.lerobot.external.libero_robot import held_embodiment, libero_embodiment
from worldrl.rollout.suites.env import SuiteVecEnv, check_names, register_vector
from worldrl.rollout.suites.suite import (
    HELD_GOAL,
    MEASURED,
    WORLD,
    Conventions,
    Suite,
    SuiteSpec,
    WorkerConfig,
    Workers,
    tool_meaning,
)
from worldrl.simulators.environments import find_environment
from worldrl.simulators.process import Launch
from worldrl.simulators.renderer import given_backend
from worldrl.workers.libero import facts
from worldrl.workers.libero.package import LiberoError, task_instruction
from worldrl.workers.libero.pro import ProTask, read_suite
from worldrl.workers.libero.several import known_goal
from worldrl.workers.libero.states import StatesError, load_suite
from worldrl.workers.link.rendering import BACKENDS, choose_backend

ENV_ID = "worldrl/Libero-v0"
TARGET = "worldrl.workers.libero.worker:Libero"
RENDER_TIMEOUT_S = 120.0
NOT_OWN = "not LIBERO's own files"


def libero_launch(
    suite: str, *, cameras: Sequence[str] = ("scene",), image_size: int = 256, shadows: bool = True, assets: str = ""
) -> Launch:
    """Return how a LIBERO worker is started.

    ``suite`` may have a variant such as ``@lerobot``. ``cameras`` are ``scene`` and ``wrist``, the scene camera first;
    empty renders nothing, eight times faster. ``image_size`` is the side of the images (pixels), ``shadows`` the
    vendor's shadows and anti-aliasing. Empty ``assets`` takes the folder of LIBERO's assets given at setup, else the
    package's own. Raises SettingError (unknown suite or camera). Raises WorkerEnvironmentError (not set up, or nothing
    renders there).
    """
    name, variant = facts.split_suite(suite)
    check_names(suite, facts.suite_names(), cameras, facts.CAMERAS)
    environment = find_environment("libero")
    variables = {"LIBERO_CONFIG_PATH": str(environment.folder / "libero_config")}
    if cameras:
        variables["MUJOCO_GL"] = render_backend(environment.python)
    return Launch(
        name=suite,
        python=environment.python,
        target=TARGET,
        options={
            "suite": name,
            "states": str(environment.folder / "initial_states"),
            "assets": assets or str(environment.record.get("assets", "")),
            "image_size": image_size,
            "cameras": list(cameras),
            "shadows": shadows,
            "pro": str(environment.folder / facts.PRO_FOLDER),
            "held": variant == facts.HELD,
        },
        variables=variables,
    )


class LiberoSuite(Suite):
    """A suite of LIBERO, with or without a variant such as ``@lerobot``."""

    family = "libero"
    stored_states = facts.STORED_STATES
    spec = SuiteSpec(TOOL_ACTIONS, tuple(facts.CAMERAS))

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._plain, variant = facts.split_suite(name)
        self.held = variant == facts.HELD
        self.drawn_states = 0 if self._plain in facts.PRO_SUITES else facts.DRAWN_STATES  # PRO's are to be measured on
        self.embodiment = self.robot = held_embodiment() if self.held else libero_embodiment()

    def tasks(self) -> tuple[str, ...]:
        """In the suite's order, from the stored states."""
        return tuple(libero_tasks(self.name))

    def horizon(self, task: str) -> int:
        """The suite's one limit."""
        return facts.horizon(self.name)

    def worker_config(self, asked: Workers) -> WorkerConfig:
        """One environment per slot."""
        launch = libero_launch(
            self.name,
            cameras=asked.cameras,
            image_size=asked.image_size,
            shadows=asked.shadows,
            assets=asked.assets,
        )
        return WorkerConfig(launch, asked.workers, asked.slots, asked.restarts, asked.recycle_after)

    def without_expert(self) -> tuple[str, ...]:
        """Those whose goals the skills do not cover."""
        if self._plain in facts.PRO_SUITES:
            tasks = pro_tasks(self.name)
            return tuple(name for name, task in tasks.items() if not known_goal(task.goals, task.movable))
        return facts.UNSCRIPTED.get(self._plain, ())

    def assets_note(self, described: Mapping[str, Any], *, assets: str, given: str) -> str:
        """The note given at setup, of the assets' content in any folder and of their folder with any content.

        Files that are not LIBERO's own have a note in any case.
        """
        record = find_environment("libero").record
        folder = str(record.get("assets", ""))
        notes = [record.get("assets_notes", {}).get(described["assets"], "")]
        if not assets or Path(assets).resolve() == Path(folder).resolve():
            notes.append(str(record.get("assets_note", "")))
        known = dict.fromkeys(note for note in (*notes, given) if note)
        return "; ".join(known) or ("" if described["assets"] == facts.OWN_ASSETS else NOT_OWN)

    def conventions(self, described: Mapping[str, Any], *, shadows: bool, assets_note: str) -> tuple[str, Conventions]:
        """Settling, fixtures, images, actions, assets and sources."""
        base = facts.base_suite(self.name)
        change = facts.PRO_SUITES.get(self._plain, ("", ""))[1]
        moved = "delta of the held goal" if self.held else "delta pose"
        scales = f"1 = {self.robot.position_scale} m and {self.robot.rotation_scale} rad"
        return facts.VERSION, {
            "settle_steps": facts.SETTLE_STEPS,
            "settle_action": " ".join(f"{number:g}" for number in facts.NO_OP),
            "fixture_seed": facts.FIXTURE_SEED,
            # hf-libero draws them again at each reset; results until 2026-11-23 did the same.
            **({"initial_properties": "drawn once"} if facts.SUITES[base].properties else {}),
            "image": f"turned by {facts.IMAGE_TURN}",
            **({"change": facts.PRO_CHANGES[change]} if change else {}),
            "shadows": shadows,
            "action": f"{moved}, {scales}; gripper -1 open, +1 closed",
            "state": "position, axis-angle, two fingers",
            "assets": f"{described['assets']} ({assets_note})" if assets_note else described["assets"],
            "sources": ", ".join(f"{name} {digest}" for name, digest in described["sources"].items()),
        }

    def meaning(self, control_hz: float) -> dict[str, Any]:
        """Changes of the measured pose, or of the held goal, in the world's frame; images are turned."""
        words = WORLD, HELD_GOAL if self.held else MEASURED, facts.IMAGE_TURN
        return tool_meaning(self.robot.position_scale, self.robot.rotation_scale, control_hz, words)


def libero_tasks(suite: str) -> list[str]:
    """Names of a suite's tasks in its order, from the stored states; no worker is started.

    Raises WorkerEnvironmentError (not set up, or the stored states are damaged).
    """
    return list(libero_instructions(suite))


def libero_instructions(suite: str) -> dict[str, str]:
    """Instruction of each of a suite's tasks; errors of :func:`libero_tasks`."""
    name, _ = facts.split_suite(suite)
    if name in facts.PRO_SUITES:
        return {name: task.instruction for name, task in pro_tasks(suite).items()}
    try:
        states = load_suite(find_environment("libero").folder / "initial_states" / f"{name}.npz", name)
    except StatesError as error:
        raise WorkerEnvironmentError(f"libero: {error}") from error
    return {task: task_instruction(task) for task in states}


def pro_tasks(suite: str) -> dict[str, ProTask]:
    """Tasks of a suite of LIBERO-PRO; errors of :func:`libero_tasks`."""
    try:
        return read_suite(find_environment("libero").folder / facts.PRO_FOLDER, facts.split_suite(suite)[0])
    except LiberoError as error:
        raise WorkerEnvironmentError(f"libero: {error}") from error


def render_backend(python: str | Path) -> str:
    """Choose the GL back end: the user's MUJOCO_GL, else the first that renders there.

    Raises WorkerEnvironmentError (none renders).
    """
    given = given_backend()
    backend, reasons = choose_backend(python, RENDER_TIMEOUT_S, (given,) if given else BACKENDS)
    if backend is None:
        raise WorkerEnvironmentError(
            f"libero: nothing renders in its environment ({'; '.join(reasons)}); install EGL or OSMesa: "
            "apt-get install -y libegl1 libgl1-mesa-dri libglvnd0"
        )
    return backend


def make_vec(
    *,
    num_envs: int,
    suite: str = "libero_spatial",
    workers: int = 1,
    cameras: Sequence[str] = ("scene", "wrist"),
    image_size: int = 256,
    shadows: bool = True,
    assets: str = "",
    **settings: Any,
) -> SuiteVecEnv:
    """Make ``worldrl/Libero-v0`` with the settings of :func:`libero_launch`.

    The other settings are those of :class:`~worldrl.rollout.suites.env.SuiteVecEnv`.
    """
    launch = libero_launch(suite, cameras=cameras, image_size=image_size, shadows=shadows, assets=assets)
    return SuiteVecEnv(
        launch,
        num_envs=num_envs,
        workers=workers,
        horizon=facts.horizon(suite),
        cameras=tuple(cameras),
        image_size=image_size,
        **settings,
    )


register_vector(ENV_ID, "worldrl.rollout.suites.libero:make_vec")
