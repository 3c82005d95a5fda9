"""An external simulator's suite as a Gymnasium vector environment, its environments in worker processes.

A row's episode depends on ``(seed, row, number of its episode)`` alone, or is named by the caller; never on the number
of workers, on the end of other rows, or on lost workers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from worldrl.core.actions import suite_actions
from worldrl.core.embodiment import STATE_NAMES
from worldrl.core.errors import SettingError, nearest
from worldrl.core.image_fit import ImageFit
from worldrl.core.rng import numpy_stream
from worldrl.core.types import MAIN_CAMERAS
from worldrl.rollout.spaces import (
    check_action,
    checked_mode,
    checked_options,
    checked_rows,
    checked_seed,
    given_spaces,
    set_spaces,
    whole,
)
from worldrl.simulators.pool import Row, SimulatorPool, Start
from worldrl.simulators.process import Launch

BOUND = 1e3
Step = tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class SuiteVecEnv(VectorEnv):
    """Rows of a suite.

    Observation (``Dict``): ``image`` and ``<camera>_image`` (of the launched ``cameras``) uint8 ``[Y, X, 3]``;
    ``state`` float32 ``[8]``, end-effector position (m), axis-angle (rad), two fingers (m); ``command`` float32
    ``[7]``; ``instruction`` text. Action: float32 ``[7]`` in [-1, 1], LIBERO's. A suite may describe other sizes and
    bounds, and a vector for state-based agents under ``policy``. Reward: 1 on the step that fulfils the task, else 0;
    ``terminated`` with it. ``truncated`` at the horizon. Info: ``task``, ``init_id``, ``is_success``, ``contact`` and
    ``restarted`` (the row's worker was lost in this episode, which was played again).

    ``horizon`` (control steps) is of tasks without their own; empty ``tasks`` takes all. ``seed`` is the root of the
    choice of episodes. ``autoreset_mode`` is ``NEXT_STEP`` (Gymnasium's default) or ``DISABLED`` (rows that are over
    wait for ``reset``, and are not stepped). The other settings are those of
    :class:`~worldrl.simulators.pool.SimulatorPool`. Raises SettingError (an unknown task, or another autoreset mode).
    Raises WorkerError (a worker cannot be started).
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self,
        launch: Launch,
        *,
        num_envs: int,
        workers: int,
        horizon: int,
        tasks: Sequence[str] = (),
        cameras: tuple[str, ...] = ("scene",),
        image_size: int = 64,
        seed: int = 0,
        timeout_s: float = 300.0,
        recycle_after: int | None = 50,
        restarts: int = 2,
        images: ImageFit | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.metadata = {**self.metadata, "autoreset_mode": checked_mode(autoreset_mode)}
        self.num_envs, self.horizon, self._seed = num_envs, horizon, seed
        self._cameras, self._image_size = cameras, image_size
        limits: dict[str, Any] = {
            "timeout_s": timeout_s,
            "recycle_after": recycle_after,
            "restarts": restarts,
            "images": images,
        }
        self.pool = SimulatorPool(launch, workers=workers, slots=num_envs, **limits).__enter__()
        self.instruction = {task["name"]: task["instruction"] for task in self.pool.suite["tasks"]}
        self._horizon = {task["name"]: int(task.get("horizon", horizon)) for task in self.pool.suite["tasks"]}
        self.tasks = list(tasks) or list(self.instruction)
        self._check_tasks()
        self._rows: dict[int, Row] = {}
        self._starts: dict[int, Start] = {}
        self._instructions = [""] * num_envs
        self._count = np.full(num_envs, -1, np.int64)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, bool)
        self._make_spaces()

    def _check_tasks(self) -> None:
        for task in self.tasks:
            if task not in self.instruction:
                self.pool.close()
                raise SettingError(f"tasks: unknown task {task!r}{nearest(task, self.instruction)}")

    def _make_spaces(self) -> None:
        box, suite = gymnasium.spaces.Box, self.pool.suite
        self.actions = suite_actions(suite)
        bound = np.full(self.actions.size, BOUND, np.float32)
        height, width = suite.get("picture") or (self._image_size, self._image_size)
        spaces: dict[str, Any] = {
            "state": box(-BOUND, BOUND, (suite.get("state_size", len(STATE_NAMES)),), np.float32),
            **given_spaces(-bound, bound, self.instruction.values()),
        }
        if "policy_size" in suite:
            spaces["policy"] = box(-np.inf, np.inf, (suite["policy_size"],), np.float32)
        for camera in self._cameras:
            name = "image" if camera in MAIN_CAMERAS else f"{camera}_image"
            spaces[name] = box(0, 255, (height, width, 3), np.uint8)
        set_spaces(self, spaces, self.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start rows; without a seed, each at its next episode.

        A seed is a new root of the choice of episodes, with their numbers from 0. Options: ``episodes``, one ``{"task",
        "init_id", "seed"}`` per reset row; ``reset_mask`` bool ``[B]``. Raises SettingError (an unknown option, task or
        stored state, another number of episodes than rows, or a mask or seed that does not fit; nothing was changed).
        """
        options = checked_options(options, ("episodes", "reset_mask"))
        rows = checked_rows(options.get("reset_mask"), self.num_envs, first=not self._rows).tolist()
        root = checked_seed(seed)
        named = self._all_named(options.get("episodes"), len(rows), self._seed if root is None else root)
        if root is not None:
            self._seed, self._count[:] = root, -1
        self._begin(rows, named)
        return self._observe(), self._info()

    def _all_named(self, episodes: object, count: int, seed: int) -> list[Start] | None:
        """The episodes named by the caller, one per reset row; None where none is."""
        if episodes is None:
            return None
        if not isinstance(episodes, list | tuple) or len(episodes) != count:
            got = len(episodes) if isinstance(episodes, list | tuple) else type(episodes).__name__
            raise SettingError(f"reset needs one episode per reset row: {count}, got {got}")
        return [self._named(episode, seed) for episode in episodes]

    def _begin(self, rows: Sequence[int], named: Sequence[Start] | None = None) -> None:
        starts: dict[int, Start] = {}
        for place, row in enumerate(rows):
            self._count[row] += 1
            starts[row] = self._draw(row) if named is None else named[place]
        fresh = self.pool.reset(starts, render=bool(self._cameras))
        self._rows |= fresh
        self._starts |= starts
        for row, start in starts.items():
            self._instructions[row] = str(fresh[row].get("instruction", self.instruction[start.task]))
        self._elapsed[list(rows)], self._over[list(rows)] = 0, False

    def _draw(self, row: int) -> Start:
        draw = numpy_stream(self._seed, "suite episode", row, int(self._count[row]))
        task = self.tasks[int(draw.integers(len(self.tasks)))]
        return Start(task, int(draw.integers(self.pool.suite["stored_states"])), self._seed)

    def _named(self, episode: object, seed: int) -> Start:
        if not isinstance(episode, Mapping) or not {"task", "init_id"} <= set(episode) <= {"task", "init_id", "seed"}:
            raise SettingError(f"episodes: each needs task and init_id, and may have seed; got {episode!r}")
        task, stored = episode["task"], self.pool.suite["stored_states"]
        if task not in self.instruction:
            raise SettingError(f"episodes: unknown task {task!r}{nearest(str(task), self.instruction)}")
        init_id = whole("episodes: init_id", episode["init_id"], 0)
        if init_id >= stored:
            raise SettingError(f"episodes: init_id must be below {stored}, got {init_id}")
        return Start(task, init_id, whole("episodes: seed", episode.get("seed", seed), 0))

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Take one action per row that is not over.

        Under ``NEXT_STEP`` a row that is over is reset here and its action ignored, as Gymnasium prescribes. Raises
        ActionError (not float, not finite, outside the action space or of another shape; no state was changed). Raises
        WorkerError (an episode lost its worker too often).
        """
        actions = check_action(actions, (self.num_envs,), self.actions)
        if not self._rows:
            raise gymnasium.error.ResetNeeded("call reset() before stepping the suite's environment")
        over = self._over.copy()
        live = np.flatnonzero(~over)
        if over.any() and self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            self._begin([int(row) for row in np.flatnonzero(over)])
        rendered = None if self._cameras else ()
        self._rows |= self.pool.step({int(row): actions[row] for row in live}, render=rendered) if len(live) else {}
        self._elapsed[live] += 1
        terminated = np.zeros(self.num_envs, bool)
        terminated[live] = [bool(self._rows[int(row)]["success"]) for row in live]
        truncated = ~terminated & ~over & (self._elapsed >= self._limits())
        self._over[live] = (terminated | truncated)[live]
        return self._observe(), terminated.astype(float), terminated, truncated, self._info()

    def _limits(self) -> NDArray[np.int64]:
        return np.array([self._horizon[self._starts[row].task] for row in range(self.num_envs)])

    def _stack(self, name: str) -> NDArray[Any]:
        return np.stack([self._rows[row][name] for row in range(self.num_envs)])

    def _observe(self) -> dict[str, Any]:
        names = [name for name in self.single_observation_space.spaces if name != "instruction"]  # pyright: ignore[reportAttributeAccessIssue]
        return {**{name: self._stack(name) for name in names}, "instruction": tuple(self._instructions)}

    def _info(self) -> dict[str, Any]:
        rows = range(self.num_envs)
        return {
            "task": np.array([self._starts[row].task for row in rows]),
            "init_id": np.array([self._starts[row].init_id for row in rows]),
            "is_success": self._stack("success"),
            "contact": self._stack("contact"),
            "restarted": np.array([self.pool.restarted(row) for row in rows]),
        }

    def expert(self) -> NDArray[np.float32]:
        """Return the scripted expert's actions, float32 ``[B, A]``; zeros in rows that are over."""
        action = np.zeros((self.num_envs, self.actions.size), np.float32)
        for row, chosen in self.pool.expert([int(row) for row in np.flatnonzero(~self._over)]).items():
            action[row] = chosen
        return action

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """Return the scene camera's image of each row."""
        return tuple(self._stack("image"))

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the workers."""
        self.pool.close()


def check_names(suite: str, suites: Collection[str], cameras: Sequence[str], known: Collection[str]) -> None:
    """Raise SettingError for a suite or a camera that is not among the known ones; names the nearest."""
    if suite not in suites:
        raise SettingError(f"suite: unknown value {suite!r}{nearest(suite, suites)}")
    for camera in cameras:
        if camera not in known:
            raise SettingError(f"cameras: unknown camera {camera!r}{nearest(camera, known)}")


def register_vector(env_id: str, entry: str) -> None:
    """Register a suite, made by ``entry`` (``module:function``), with Gymnasium as a vector environment only."""

    def refuse(**_: Any) -> Any:
        raise SettingError(
            f"{env_id} is a vector environment; make it with gymnasium.make_vec({env_id!r}, num_envs=1, suite=...)"
        )

    if env_id not in gymnasium.registry:
        gymnasium.register(env_id, entry_point=refuse, vector_entry_point=entry)
