"""What a user's adapter class says about its environment, checked in the environment's own Python.

The class attributes of an adapter, with their defaults::

    robot     dict: an embodiment as in a dataset's header: {"kind": "joints", "names", "low", "high", "max_speed",
              "control_hz"} for absolute joint targets, or {"position_scale", "rotation_scale", "workspace_low",
              "workspace_high", "max_rotation", "control_hz"} for LIBERO's seven numbers, with "response" below 1 where the
              controller counts each action from the measured pose
    tasks     dict: name → instruction, or name → {"instruction", "horizon"}
    horizon   control steps of tasks without their own, 300
    cameras   ("scene",): the first is the main one and is called scene
    camera_sizes  {}: rows and columns of each camera's own images, {"scene": (480, 640)}; without them the adapter draws
              squares of the image_size that it is asked for
    fit       how own images become these squares: "crop", "letterbox" or "stretch"
    states    initial states of each task, 10,000, numbered from 0
    packages  distributions whose versions are stored with each result, ()
    unscripted  tasks that ``expert`` does not play, ()
    name      of the suite in datasets and results, the class's own in lower case
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from worldrl.workers.link.server import Refusal

STATE_NAMES = ("x", "y", "z", "rx", "ry", "rz", "finger_left", "finger_right")
REQUIRED = ("reset", "step", "state", "success", "images")
HORIZON, STATES = 300, 10_000
FITS = ("crop", "letterbox", "stretch")
MAIN_CAMERA = "scene"


@dataclass(frozen=True)
class Description:
    """A checked adapter class ``kind``; ``low``, ``high`` and ``step`` (units per control step) are of joint targets."""

    kind: type[Any]
    name: str
    robot: Mapping[str, Any]
    tasks: Mapping[str, Mapping[str, Any]]
    cameras: tuple[str, ...]
    camera_sizes: Mapping[str, tuple[int, int]]
    fit: str
    states: int
    packages: Mapping[str, str]
    unscripted: tuple[str, ...]

    @property
    def joints(self) -> bool:
        """Whether actions are absolute joint targets."""
        return self.robot.get("kind") == "joints"

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the measured numbers."""
        return tuple(self.robot["names"]) if self.joints else STATE_NAMES

    @property
    def digest(self) -> str:
        """SHA-256 of the file that holds the class."""
        return hashlib.sha256(Path(inspect.getfile(self.kind)).read_bytes()).hexdigest()


def describe(kind: type[Any]) -> Description:
    """Read and check the attributes of an adapter class; Refusal names the attribute and the rule."""
    for method in REQUIRED:
        if not callable(getattr(kind, method, None)):
            raise Refusal(f"{where(kind)} has no method {method}(); an adapter needs {', '.join(REQUIRED)}")
    cameras = _texts(kind, "cameras", (MAIN_CAMERA,))
    if not cameras or cameras[0] != MAIN_CAMERA or len(set(cameras)) < len(cameras):
        raise _wrong(kind, "cameras", f"names, each once, the main one first and called {MAIN_CAMERA}", cameras)
    tasks = _tasks(kind)
    unscripted = _texts(kind, "unscripted", ())
    if unknown := sorted(set(unscripted) - set(tasks)):
        raise _wrong(kind, "unscripted", f"names of tasks ({', '.join(tasks)})", unknown)
    return Description(
        kind,
        str(getattr(kind, "name", kind.__name__.lower())),
        _robot(kind),
        tasks,
        cameras,
        *_own_images(kind, cameras),
        _count(kind, "states", getattr(kind, "states", STATES)),
        {name: _version(kind, name) for name in _texts(kind, "packages", ())},
        unscripted if callable(getattr(kind, "expert", None)) else tuple(tasks),
    )


def where(kind: type[Any]) -> str:
    """An adapter class for messages: file and name."""
    return f"{Path(inspect.getfile(kind)).name}:{kind.__name__}"


def _wrong(kind: type[Any], name: str, rule: str, value: object) -> Refusal:
    return Refusal(f"{where(kind)}: {name} must be {rule}, got {value!r}")


def _tasks(kind: type[Any]) -> dict[str, dict[str, Any]]:
    given = getattr(kind, "tasks", None)
    if not isinstance(given, Mapping) or not given:
        raise _wrong(kind, "tasks", 'a dict such as {"reach": "reach the red mark"}', given)
    limit, tasks = getattr(kind, "horizon", HORIZON), dict[str, dict[str, Any]]()
    for name, facts in given.items():
        facts = {"instruction": facts} if isinstance(facts, str) else facts
        if not isinstance(facts, Mapping) or not str(facts.get("instruction", "")).strip():
            raise _wrong(kind, f"tasks[{name!r}]", "an instruction, or a dict with one", facts)
        if unknown := sorted(set(facts) - {"instruction", "horizon"}):
            raise _wrong(kind, f"tasks[{name!r}]", "a dict of instruction and horizon", unknown)
        horizon = _count(kind, f"tasks[{name!r}].horizon", facts.get("horizon", limit))
        tasks[str(name)] = {"name": str(name), "instruction": str(facts["instruction"]), "horizon": horizon}
    return tasks


def _robot(kind: type[Any]) -> Mapping[str, Any]:
    robot = getattr(kind, "robot", None)
    if not isinstance(robot, Mapping) or not isinstance(robot.get("control_hz"), int | float):
        raise _wrong(kind, "robot", "the dict of an embodiment with control_hz (see the guide)", robot)
    if robot.get("kind") == "joints":
        for name in ("names", "low", "high", "max_speed"):
            if not isinstance(robot.get(name), Sequence) or len(robot[name]) != len(robot.get("names", ())):
                raise _wrong(kind, f"robot[{name!r}]", "a list with one entry per joint", robot.get(name))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in robot.items()}


def _own_images(kind: type[Any], cameras: tuple[str, ...]) -> tuple[dict[str, tuple[int, int]], str]:
    """Sizes of the cameras' own images, and their fit; empty where the adapter draws squares."""
    sizes, fit = getattr(kind, "camera_sizes", {}), getattr(kind, "fit", "")
    if sizes or fit:
        if not isinstance(sizes, Mapping) or set(sizes) != set(cameras):
            raise _wrong(kind, "camera_sizes", f"a dict with rows and columns of {', '.join(cameras)}", sizes)
        if fit not in FITS:
            raise _wrong(kind, "fit", f"{', '.join(FITS[:-1])} or {FITS[-1]}, with camera_sizes", fit)
    return {camera: _pair(kind, camera, size) for camera, size in sizes.items()}, fit


def _pair(kind: type[Any], camera: str, size: Any) -> tuple[int, int]:
    name = f"camera_sizes[{camera!r}]"
    if not isinstance(size, Sequence) or len(size) != 2:
        raise _wrong(kind, name, "rows and columns, such as (480, 640)", size)
    return _count(kind, name, size[0]), _count(kind, name, size[1])


def _texts(kind: type[Any], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    given = getattr(kind, name, default)
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(item, str) for item in given):
        raise _wrong(kind, name, "a list of names", given)
    return tuple(given)


def _count(kind: type[Any], name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(kind, name, "a whole number from 1", value)
    return value


def _version(kind: type[Any], name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError as error:
        raise Refusal(f"{where(kind)}: packages names {name}, which is not installed in its Python") from error
