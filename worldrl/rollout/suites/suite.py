"""A suite of an external simulator as a value: tasks, robot, conventions and workers, known before any worker starts.

One class per family derives from :class:`Suite`, in the family's own file; :mod:`~worldrl.rollout.suites.registry` finds
a suite by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from worldrl.core.actions import ActionSpec
from worldrl.core.embodiment import AnyEmbodiment, JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit, ImageFit
from worldrl.core.observation import MAIN_CAMERAS
from worldrl.simulators.process import Launch

Conventions = dict[str, str | int | float | bool]
EMBODIMENT, UNKNOWN = "embodiment", "unknown"
GRIPPER, WORLD, BASE = "-1 open, +1 closed", "world", "the robot's base"
MEASURED, HELD_GOAL, UPRIGHT = "the measured pose", "the controller's goal", "upright"
ONE_TOOL, JOINTS = "pose changes of one tool", "absolute joint targets"
OWN_IMAGES = "own_images"
"""Convention of adapters: sizes of the cameras' own images, and how they become squares."""
WORDS = ("frame", "counted_from", "picture")


def tool_meaning(position: float, rotation: float, control_hz: float, words: Sequence[str]) -> dict[str, Any]:
    """Meaning of seven numbers that move a tool: scales (m, rad) at 1, and ``words`` for :data:`WORDS`."""
    return {
        EMBODIMENT: ONE_TOOL,
        "position_scale": position,
        "rotation_scale": rotation,
        **dict(zip(WORDS, words, strict=True)),
        "gripper": GRIPPER,
        "control_hz": control_hz,
    }


def robot_meaning(robot: AnyEmbodiment, control_hz: float, words: Sequence[str]) -> dict[str, Any]:
    """Meaning of a robot's actions, from its constants."""
    if isinstance(robot, JointEmbodiment):
        return {EMBODIMENT: JOINTS, "gripper": "0 closed, 1 open", "control_hz": control_hz}
    return tool_meaning(robot.position_scale, robot.rotation_scale, control_hz, words)


@dataclass(frozen=True)
class SuiteSpec:
    """Inputs and outputs of a suite's robot.

    ``cameras`` begin with the main one and are empty in a suite without images. ``picture`` is the rows and columns of
    its own images, rendered where ``image_size`` is 0; None where all are square. ``fit`` is how those become squares;
    None leaves it to the policy. ``vector`` is the size of the vector for agents, unknown before the worker states it;
    None where the suite has none.
    """

    actions: ActionSpec
    cameras: tuple[str, ...]
    picture: tuple[int, int] | None = None
    fit: Fit | None = None
    vector: int | None = None


@dataclass(frozen=True)
class Workers:
    """What a job asks of a suite's workers.

    ``cameras`` are the suite's; empty renders nothing. ``image_size`` is the side of square images (pixels); 0 renders
    the suite's own. ``slots`` counts environments in all, ``restarts`` those of a worker per episode. A worker is
    replaced after ``recycle_after`` episodes; None never. ``shadows`` and ``assets`` are LIBERO's. ``fit`` is how images of
    a simulator that renders one size get ``image_size``.
    """

    cameras: tuple[str, ...]
    image_size: int
    workers: int
    slots: int
    restarts: int = 2
    recycle_after: int | None = 50
    shadows: bool = True
    assets: str = ""
    fit: Fit = Fit.stretch


@dataclass(frozen=True)
class WorkerConfig:
    """How a suite's workers are started and restarted, as its simulator allows; fields as of :class:`Workers`.

    ``images`` are fitted by the pool; None where the workers render the size that was asked for.
    """

    launch: Launch
    workers: int
    slots: int
    restarts: int
    recycle_after: int | None
    images: ImageFit | None = None

    @property
    def pool(self) -> dict[str, Any]:
        """Arguments of :class:`~worldrl.simulators.pool.SimulatorPool` besides the launch."""
        return {name: getattr(self, name) for name in ("workers", "slots", "restarts", "recycle_after", "images")}


class Suite(ABC):
    """One suite; a family's class says what its simulator has.

    ``spec`` is of its robot's inputs and outputs. ``stored_states`` counts the initial states of each task, and
    ``drawn_states`` further ones for training, whose numbers follow. ``embodiment`` is the robot's; None where
    datasets of it cannot be recorded.
    """

    family: ClassVar[str]
    spec: SuiteSpec
    stored_states: int
    drawn_states: int = 0
    embodiment: AnyEmbodiment | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def setting(self) -> str:
        """The value of ``suite=`` that selects it."""
        return self.name

    @abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """Names of all tasks; WorkerEnvironmentError where its environment is needed for them and not set up."""

    @abstractmethod
    def horizon(self, task: str) -> int:
        """Time limit of a task (control steps)."""

    @abstractmethod
    def worker_config(self, asked: Workers) -> WorkerConfig:
        """How its workers are started; SettingError (unknown camera), WorkerEnvironmentError (not set up)."""

    @abstractmethod
    def conventions(self, described: Mapping[str, Any], *, shadows: bool, assets_note: str) -> tuple[str, Conventions]:
        """Version of the suite, and its conventions as a protocol stores them, from a worker's description."""

    @abstractmethod
    def meaning(self, control_hz: float) -> dict[str, Any]:
        """Meaning of its actions and images, field by field."""

    def without_expert(self) -> tuple[str, ...] | None:
        """Tasks that the scripted expert does not support; None where no expert acts step by step."""
        return None

    def assets_note(self, described: Mapping[str, Any], *, assets: str, given: str) -> str:
        """The note on its assets for every result; empty where they are the benchmark's own."""
        return given

    def fit_of(self, asked: Fit) -> Fit:
        """How its own images become squares: as it says, else as ``asked``; ``refuse`` where it draws squares."""
        rows, columns = self.spec.picture or (0, int(self.spec.fit is not None))
        return Fit.refuse if rows == columns else self.spec.fit or asked

    @property
    def main_camera(self) -> str:
        """The camera whose image is called ``image``."""
        return self.spec.cameras[0] if self.spec.cameras else "scene"

    @property
    def trainable(self) -> bool:
        """Whether episodes of it can be recorded and trained on."""
        return self.embodiment is not None and self.main_camera in MAIN_CAMERAS and bool(self.spec.cameras)


def recorded_robot(suite: Suite) -> AnyEmbodiment:
    """The robot of a suite's recordings; SettingError where none can be made."""
    if suite.embodiment is None or not suite.trainable:
        without = "images" if suite.embodiment is not None else "a robot that recordings describe"
        raise SettingError(
            f"suite: {suite.name} is without {without}: it can be measured on, and not recorded; choose another suite"
        )
    return suite.embodiment


def require_expert(setting: str, suite: Suite, tasks: Sequence[str]) -> None:
    """Refuse a scripted expert that some of the tasks do not have, before any worker is started.

    ``setting`` is the one that asks for the expert; empty ``tasks`` takes all. Raises SettingError (there is none, or
    not for some tasks; with the tasks that have one, as a setting to copy). Raises WorkerEnvironmentError (LIBERO is
    not set up).
    """
    without = suite.without_expert()
    if without is None:
        raise SettingError(
            f"{setting}: {suite.name} has no scripted expert that acts step by step; give 0 and a policy "
            "(policy=FOLDER, in collect with policy_episodes=N), or recordings (data=FOLDER in train-vla)"
        )
    if missing := [name for name in without if not tasks or name in tasks]:
        others = [name for name in tasks or suite.tasks() if name not in missing]
        select = f"select others with tasks=[{','.join(others)}]" if others else "choose other tasks, or give a policy"
        raise SettingError(
            f"{setting}: the scripted expert of {suite.name} does not play {', '.join(missing)}; {select}"
        )


def drawn_size(suite: Suite, picture: tuple[int, int]) -> int:
    """The ``image_size`` of a suite for images of these rows and columns; 0 for its own size.

    Raises SettingError (it cannot render them).
    """
    rows, columns = picture
    if rows == columns:
        return rows
    if picture != suite.spec.picture:
        raise SettingError(f"{suite.name} draws square images; the policy's are {rows} by {columns} pixels")
    return 0
