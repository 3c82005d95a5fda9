"""A user's own environment behind the worker's interface (``link/server.py``): one class, one object per environment.

::

    class Lab:
        robot = {...}; tasks = {...}                # see description.py
        def __init__(self, task, cameras, image_size): ...
        def reset(self, index, seed): ...           # the initial state depends on task, index and seed alone
        def step(self, action): ...                 # one control step
        def state(self): ...                        # measured numbers, in the order of the robot's names
        def success(self): ...                      # whether the task is fulfilled now
        def images(self): ...                       # {camera: uint8 [Y, X, 3]}: squares, or the camera's own size
        def expert(self): ...                       # optional: the scripted expert's next action
        def command(self): ...                      # optional: the commanded pose or targets
        def contact(self): ...                      # optional: whether the gripper touches an object
        def close(self): ...                        # optional

Each value is checked where it arrives: an error names the method, the task and what to change.
"""

from __future__ import annotations

import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.workers.adapter.description import MAIN_CAMERA, Description, describe, where
from worldrl.workers.adapter.rendering import draw_in_own_context
from worldrl.workers.link.server import IMAGE, Refusal, find_suite
from worldrl.workers.link.wire import Arrays


class Adapter:
    """The suite of a class ``target``, ``module:Class`` or ``/path/to/file.py:Class``; Refusal where it is unusable."""

    def __init__(self, *, target: str, cameras: Sequence[str] = (), image_size: int = 64) -> None:
        self.description = describe(_load(target))
        self.cameras, self.image_size = tuple(cameras), image_size

    def describe(self) -> dict[str, Any]:
        """The description in JSON values."""
        known = self.description
        joints = {"joints": {name: known.robot[name] for name in ("names", "low", "high")}} if known.joints else {}
        return {
            "suite": known.name,
            "tasks": list(known.tasks.values()),
            "stored_states": known.states,
            "packages": {"python": platform.python_version(), "numpy": version("numpy"), **known.packages},
            "assets": "of the adapter",
            "control_hz": float(known.robot["control_hz"]),
            "robot": known.robot,
            "cameras": list(known.cameras),
            "camera_sizes": {camera: list(size) for camera, size in known.camera_sizes.items()},
            "fit": known.fit,
            "unscripted": list(known.unscripted),
            "adapter": known.digest,
            "state_size": len(known.state_names),
            **joints,
        }

    def make(self, task: str) -> Simulation:
        """Make an environment of one task."""
        if task not in self.description.tasks:
            raise Refusal(
                f"{where(self.description.kind)}: no task {task!r}; it has {', '.join(self.description.tasks)}"
            )
        return Simulation(self, task)

    def probe(self) -> dict[str, Any]:
        """Begin the first task twice at the same state; Refusal where the two differ."""
        simulation = self.make(next(iter(self.description.tasks)))
        try:
            first, second = (simulation.reset(0, 0, render=False)["state"] for _ in range(2))
        finally:
            simulation.close()
        if not np.array_equal(first, second):
            moved = float(np.abs(first - second).max())
            raise Refusal(
                f"{where(self.description.kind)}: reset(0, 0) of {simulation.task} gave two states that differ by "
                f"{moved:g}; seed every draw of reset() from index and seed, and see `worldrl check-suite`"
            )
        return {"distance_mm": None}


class Simulation:
    """One environment of one task."""

    def __init__(self, suite: Adapter, task: str) -> None:
        self.suite, self.task, self._known = suite, task, suite.description
        arguments = {"task": task, "cameras": suite.cameras, "image_size": suite.image_size}
        self._env = self._guarded("__init__", lambda: self._known.kind(**arguments))
        draw_in_own_context()  # the adapter may load its renderer as late as this
        self._command = np.zeros(0, np.float32)
        self._gripper = np.float32(-1)

    def reset(self, init_id: int, seed: int, *, render: bool) -> Arrays:
        """Begin at the initial state ``init_id`` of ``seed``."""
        self._call("reset", init_id, seed)
        self._command, self._gripper = self._state(), np.float32(-1)
        return self._row(render)

    def step(self, action: NDArray[np.float32], *, render: bool) -> Arrays:
        """Take one action."""
        self._call("step", action)
        if self._known.joints:
            self._command = follow(self._command, action, self._known)
        else:
            self._gripper = action[-1]
        return self._row(render)

    def expert(self) -> NDArray[np.float32]:
        """Ask the scripted expert; Refusal for an action of another size, or one that is not finite."""
        numbers = self._known.robot["names"] if self._known.joints else range(7)
        return self._vector("expert", self._call("expert"), len(numbers))

    def close(self) -> None:
        """Release the environment."""
        if hasattr(self._env, "close"):
            self._call("close")

    def _row(self, render: bool) -> Arrays:
        state = self._state()
        row: Arrays = {
            "state": state,
            "command": self._commanded(state),
            "success": self._flag("success"),
            "contact": self._flag("contact") if hasattr(self._env, "contact") else np.array(False),
        }
        return row | (self._images() if render and self.suite.cameras else {})

    def _state(self) -> NDArray[np.float32]:
        return self._vector("state", self._call("state"), len(self._known.state_names))

    def _commanded(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """The adapter's command, else the followed targets, else the measured pose and the last gripper command."""
        size = len(self._known.state_names) if self._known.joints else 7
        if hasattr(self._env, "command"):
            return self._vector("command", self._call("command"), size)
        return self._command if self._known.joints else np.append(state[:6], self._gripper).astype(np.float32)

    def _images(self) -> Arrays:
        images, side = self._call("images"), self.suite.image_size
        if not isinstance(images, dict):
            raise self._wrong("images", "a dict of camera and image", type(images).__name__)
        found: Arrays = {}
        for camera in self.suite.cameras:
            image, (rows, columns) = np.asarray(images.get(camera)), self._known.camera_sizes.get(camera, (side, side))
            if image.dtype != np.uint8 or image.shape != (rows, columns, 3):
                got = f"{image.dtype} {list(image.shape)}" if camera in images else f"cameras {', '.join(images)}"
                why = "camera_sizes" if self._known.camera_sizes else f"image_size is {side}"
                raise self._wrong("images", f"uint8 [{rows}, {columns}, 3] of {camera} ({why})", got)
            found[IMAGE if camera == MAIN_CAMERA else f"{camera}_{IMAGE}"] = np.ascontiguousarray(image)
        return found

    def _flag(self, method: str) -> NDArray[np.bool_]:
        value = np.asarray(self._call(method))
        if value.shape != () or value.dtype.kind not in "biuf" or value not in (0, 1):
            raise self._wrong(method, "True or False", repr(value)[:80])
        return np.array(bool(value))

    def _vector(self, method: str, value: Any, size: int) -> NDArray[np.float32]:
        vector = np.asarray(value, np.float64)
        if vector.shape != (size,):
            raise self._wrong(method, f"{size} numbers", f"shape {list(vector.shape)}")
        if not np.isfinite(vector).all():
            raise self._wrong(method, "finite numbers", vector.tolist())
        return vector.astype(np.float32)

    def _wrong(self, method: str, rule: str, got: object) -> Refusal:
        return Refusal(f"{where(self._known.kind)}: {method}() of task {self.task} must return {rule}, got {got}")

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._guarded(method, lambda: getattr(self._env, method)(*arguments))

    def _guarded(self, method: str, call: Callable[[], Any]) -> Any:
        """Run code of the adapter; its exception becomes one line with the place in its own file."""
        try:
            return call()
        except Exception as error:
            place = _place(error, self._known.kind)
            raise Refusal(
                f"{where(self._known.kind)}{place}: {method}() of task {self.task} raised {type(error).__name__}: {error}"
            ) from error


def follow(command: NDArray[np.float32], target: NDArray[np.float32], known: Description) -> NDArray[np.float32]:
    """Follow joint targets no faster than the joints turn: c' = c + clip(clip(a, low, high) - c, -v/f, v/f)."""
    low, high, speed = (np.asarray(known.robot[name], np.float64) for name in ("low", "high", "max_speed"))
    step, before = speed / float(known.robot["control_hz"]), command.astype(np.float64)
    return np.clip(np.clip(target, low, high), before - step, before + step).astype(np.float32)


def _load(target: str) -> type[Any]:
    try:
        kind = find_suite(target)
    except Exception as error:
        raise Refusal(f"{target}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(kind, type):
        raise Refusal(f"{target}: must be a class, got {type(kind).__name__}")
    return kind


def _place(error: BaseException, kind: type[Any]) -> str:
    """The last line of the adapter's file in a traceback, as ``:12``."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f":{lines[-1]}" if lines else ""
