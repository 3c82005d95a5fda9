"""A world model as a Gymnasium vector environment.

The model predicts chunks of ``L`` control steps. ``step`` collects actions, and the image changes on every ``L``-th
step; ``chunk_step`` takes a whole chunk and is what training uses. Every row has its own step counter, chunk phase,
horizon and noise, and is reset alone.

Noise is counter-based: row ``r``'s chunk ``k`` of episode ``e`` draws from ``stream(seed, r, e, k)``, so a saved state
needs only counters to continue bit by bit.

Shapes legend: ``B`` rows (``num_envs``), ``L`` control steps per chunk, ``F`` frames per chunk, ``A`` numbers of an
action and of a command.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from worldrl.core.actions import ActionSpec
from worldrl.core.errors import ActionError, SettingError
from worldrl.core.interfaces import WorldModel, WorldState
from worldrl.core.observation import images_among, require_consecutive, stack_views
from worldrl.core.rng import stream
from worldrl.core.types import ResetRecord
from worldrl.rewards.success import SuccessRule, first_success
from worldrl.rollout.imagined.checks import (
    check_counters,
    check_records,
    check_state,
    check_tensors,
    horizons,
    share,
    stored_records,
)
from worldrl.rollout.imagined.recent import Recent, after_chunk, recorded
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.spaces import (
    check_action,
    checked_mode,
    checked_options,
    checked_rows,
    checked_seed,
    command_bounds,
    given_spaces,
    observed_spaces,
    set_spaces,
    whole,
)


class WorldModelVecEnv(VectorEnv):
    """Imagined rollouts of a :class:`~worldrl.core.interfaces.WorldModel`.

    Observation (``Dict``): ``image`` uint8 ``[Y, X, 3]``, and the model's other cameras, for example ``wrist_image``;
    ``state`` float32 ``[S]`` of a model that predicts it; ``command`` float32 ``[A]``, integrated from the actions;
    ``instruction`` text. Action: float32 ``[A]`` in the robot's range. Reward: 1 on the first step whose success
    probability satisfies ``rule``, else 0; ``terminated`` on that step's chunk. ``truncated`` at the end of the row's
    own horizon.

    ``horizon`` counts control steps from an episode's true beginning, one number or one per task; keyframe starts get
    the rest of it. ``group_size`` consecutive rows share a start state, a keyframe with probability ``p_keyframe``.
    ``seed`` is the root of all draws, until ``reset(seed=...)``. ``stop_at_success`` is off for ablations only.
    ``autoreset_mode`` is ``NEXT_STEP`` (Gymnasium's default) or ``DISABLED`` (rows wait for ``reset``).
    ``n_obs_steps`` counts the newest observations of :meth:`observed`, one per control step. Raises SettingError (a
    number outside its range, a task without horizon, another autoreset mode, a start state whose command is not finite,
    or more observations than the model keeps).
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self,
        world_model: WorldModel,
        store: ResetStore,
        rule: SuccessRule,
        *,
        num_envs: int,
        horizon: int | dict[str, int],
        group_size: int = 1,
        p_keyframe: float = 0.0,
        seed: int = 0,
        stop_at_success: bool = True,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        n_obs_steps: int = 1,
    ):
        if whole("num_envs", num_envs, 1) % whole("group_size", group_size, 1):
            raise SettingError(f"group_size must divide num_envs {num_envs}, got {group_size}")
        self.world_model, self.store, self.rule = world_model, store, rule
        self.num_envs, self.group_size = int(num_envs), int(group_size)
        self.horizon, self.p_keyframe = horizons(horizon, store.tasks), share("p_keyframe", p_keyframe)
        self.metadata = {**self.metadata, "autoreset_mode": checked_mode(autoreset_mode)}
        self._seed, self._stop_at_success = whole("seed", seed, 0), stop_at_success
        self.n_obs_steps = whole("n_obs_steps", n_obs_steps, 1)
        require_consecutive(self.n_obs_steps, world_model.frame_stride, world_model.memory_frames, "the policy")
        self._state: WorldState | None = None
        self._recent: Recent = {}
        self._reset_counters()
        self._make_spaces(store)

    @property
    def actions(self) -> ActionSpec:
        """What the numbers of an action are."""
        return self.world_model.embodiment.actions

    def _make_spaces(self, store: ResetStore) -> None:
        record = store.sample(1, 0.0, generator=stream(0, "spaces"))[0]
        commands = np.stack([record.command for record in store.records])
        if not np.isfinite(commands).all():
            raise SettingError("start states: a command is not finite; leave out the episodes that hold it")
        low, high = command_bounds(self.world_model.embodiment, commands)
        given = given_spaces(low, high, {record.instruction for record in store.records})
        shown = observed_spaces(record, self.world_model.more)
        self._row_space = gymnasium.spaces.Dict({**shown, **given})
        set_spaces(self, self._row_space.spaces, self.actions)

    def _reset_counters(self) -> None:
        rows, length = self.num_envs, self.world_model.chunk_length
        self.records: list[ResetRecord] = []
        self.elapsed = np.zeros(rows, np.int64)  # control steps since the row's start state
        self.episode = np.zeros(rows, np.int64)
        self.phase = np.zeros(rows, np.int64)  # actions collected for the chunk in hand
        self.streak = np.zeros(rows, np.int64)
        self.succeeded = np.zeros(rows, bool)
        self.over = np.zeros(rows, bool)  # terminated or truncated, waiting for a reset
        self.buffer = np.zeros((rows, length, self.actions.size), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start rows; without a seed, each at its next episode.

        A seed is for all rows together: a new root of all draws, with episode counters from 0. Options: ``records``
        gives one :class:`ResetRecord` per reset row instead of draws from the store; ``reset_mask`` (bool ``[B]``)
        selects rows. Raises SettingError (an unknown option, a mask, seed or record that does not fit, or another
        number of records; nothing was changed).
        """
        options = checked_options(options, ("records", "reset_mask"))
        records = options.get("records")
        rows = checked_rows(options.get("reset_mask"), self.num_envs, first=self._state is None)
        root = checked_seed(seed)
        if root is not None and len(rows) != self.num_envs:
            raise SettingError(f"seed is one number, the root of every row's draws; got {seed!r}, {len(rows)} rows")
        given = None if records is None else self._check_records(records, len(rows))
        episode = self.episode.copy()
        if root is not None:
            episode[:] = 0
        elif self._state is not None:
            episode[rows] += 1
        self._start(rows, given, self._seed if root is None else root, episode)
        return self._observe(), self._info()

    def _check_records(self, records: object, count: int) -> list[ResetRecord]:
        tasks = self.horizon if isinstance(self.horizon, dict) else None
        return check_records(records, count, world_model=self.world_model, space=self._row_space, tasks=tasks)

    def _draw_records(self, rows: NDArray[np.int64], seed: int, episode: NDArray[np.int64]) -> list[ResetRecord]:
        # A row's start depends on its group and on that row's episode number alone, so group mates agree.
        draws = {}
        for row in rows:
            key = (int(row) // self.group_size, int(episode[row]))
            if key not in draws:
                generator = stream(seed, "start", *key)
                draws[key] = self.store.sample(1, self.p_keyframe, generator=generator)[0]
        return [draws[int(row) // self.group_size, int(episode[row])] for row in rows]

    def _start(
        self, rows: NDArray[np.int64], given: list[ResetRecord] | None, seed: int, episode: NDArray[np.int64]
    ) -> None:
        # Everything that can fail comes before the first change.
        records = self._draw_records(rows, seed, episode) if given is None else given
        fresh = self.world_model.start(records)
        shown = recorded(records, self.world_model.more, self.n_obs_steps)
        if len(rows) == self.num_envs:
            self._state, self._recent, self.records = fresh, shown, records
        else:
            self._state = _merge_rows(self.world_model, self._require_state(), fresh, rows)
            self._show(rows, shown)
            for row, record in zip(rows, records, strict=True):
                self.records[row] = record
        self._seed, self.episode = seed, episode
        for counter in (self.elapsed, self.phase, self.streak, self.succeeded, self.over):
            counter[rows] = 0

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Collect one action per row; rows whose chunk is full are imagined.

        Under ``NEXT_STEP`` a row that is over is reset here and its action ignored, as Gymnasium prescribes.
        """
        actions = check_action(actions, (self.num_envs,), self.actions)
        self._require_state()
        over = self.over.copy()
        if over.any() and self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            rows = np.flatnonzero(over)
            episode = self.episode.copy()
            episode[rows] += 1
            self._start(rows, None, self._seed, episode)
        live = np.flatnonzero(~over)
        self.buffer[live, self.phase[live]] = actions[live]
        self.phase[live] += 1
        self.elapsed[live] += 1
        return self._advance(np.flatnonzero(self.phase == self.world_model.chunk_length))

    def chunk_step(
        self, actions: NDArray[np.float32]
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take a whole chunk ``[B, L, A]``; rows that are over do not change."""
        actions = check_action(actions, (self.num_envs, self.world_model.chunk_length), self.actions)
        self._require_state()
        live = np.flatnonzero(~self.over)
        if self.phase[live].any():
            raise ActionError("chunk_step in the middle of a chunk begun with step; no state was changed")
        self.buffer[live] = actions[live]
        self.elapsed[live] += self.world_model.chunk_length
        return self._advance(live)

    def _advance(self, rows: NDArray[np.int64]):
        reward = np.zeros(self.num_envs)
        info = self._info()
        horizon = np.array([self._row_horizon(record) for record in self.records])
        if len(rows):
            hit, probability = self._imagine(rows)
            step = self._success_step(rows, hit)
            # The last chunk may reach beyond the horizon, where a real episode would be over already.
            step = np.where(step <= horizon[rows], step, -1)
            reward[rows] = (step > 0) & ~self.succeeded[rows]
            self.succeeded[rows] |= step > 0
            info["first_success_step"][rows] = step
            info["success_prob"][rows] = probability
        terminated = (reward > 0) & self._stop_at_success
        truncated = ~terminated & ~self.over & (self.elapsed >= horizon) & (self.phase == 0)
        self.over |= terminated | truncated
        return self._observe(), reward, terminated, truncated, info

    def _imagine(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        state, index = self._require_state(), torch.from_numpy(rows)
        chunk = self.elapsed // self.world_model.chunk_length
        generators = [stream(self._seed, "noise", int(r), int(self.episode[r]), int(chunk[r])) for r in rows]
        action = torch.from_numpy(self.buffer[rows])
        after, imagined = self.world_model.imagine(state.select(index), action, generators=generators)
        first, streak = first_success(imagined.success_prob.cpu(), self.rule, torch.from_numpy(self.streak[rows]))
        self._state = after if len(rows) == self.num_envs else _merge_rows(self.world_model, state, after, rows)
        self._show(rows, after_chunk(self.observed(rows), self.world_model, after, imagined))
        self.streak[rows], self.phase[rows] = streak.numpy(), 0
        return first.numpy(), imagined.success_prob.cpu().numpy()

    def _success_step(self, rows: NDArray[np.int64], hit: NDArray[np.int64]) -> NDArray[np.int64]:
        stride, length = self.world_model.frame_stride, self.world_model.chunk_length
        return np.where(hit >= 0, self.elapsed[rows] - length + (hit + 1) * stride, -1)

    def _row_horizon(self, record: ResetRecord) -> int:
        horizon = self.horizon if isinstance(self.horizon, int) else self.horizon[record.task]
        return max(horizon - record.step, self.world_model.chunk_length)

    def _require_state(self) -> WorldState:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before stepping the imagined environment")
        return self._state

    def observed(self, rows: NDArray[np.int64]) -> Recent:
        """Return the newest ``n_obs_steps`` observations of ``rows``."""
        return {name: value[torch.from_numpy(rows)] for name, value in self._recent.items()}

    def _show(self, rows: NDArray[np.int64], recent: Recent) -> None:
        for name, value in recent.items():
            self._recent[name][torch.from_numpy(rows)] = value

    def _observe(self) -> dict[str, Any]:
        newest = {name: value[:, -1].numpy().copy() for name, value in self._recent.items()}
        return {**newest, "instruction": tuple(record.instruction for record in self.records)}

    def _info(self) -> dict[str, Any]:
        frames = self.world_model.chunk_length // self.world_model.frame_stride
        return {
            "task": np.array([record.task for record in self.records]),
            "start_step": np.array([record.step for record in self.records]),
            "first_success_step": np.full(self.num_envs, -1, np.int64),
            "success_prob": np.zeros((self.num_envs, frames), np.float32),
            "imagined": np.ones(self.num_envs, bool),
        }

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """Return the current image of each row, of all cameras one below the other."""
        views = [self._recent[name][:, -1].numpy() for name in images_among(self.world_model.more)]
        return tuple(stack_views(views).copy())

    _COUNTERS = ("elapsed", "episode", "phase", "streak", "succeeded", "over", "buffer")

    def get_state(self) -> dict[str, Any]:
        """Return everything that a later ``set_state`` needs to continue bit by bit."""
        state = self._require_state().state_dict()
        return {
            "seed": self._seed,
            "counters": {name: getattr(self, name).copy() for name in self._COUNTERS},
            "records": [asdict(record) for record in self.records],
            "recent": {name: value.clone() for name, value in self._recent.items()},
            "world": {name: value.clone() for name, value in state.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`get_state`'s value.

        Raises SettingError (a part is missing, unknown, not finite, or of another environment's rows; nothing was
        changed).
        """
        parts = check_state(state)
        seed = whole("state['seed']", parts["seed"], 0)
        records = self._check_records(stored_records(parts["records"]), self.num_envs)
        own = {name: getattr(self, name) for name in self._COUNTERS}
        counters = check_counters(parts["counters"], own, self.world_model.chunk_length)
        fresh = self.world_model.start(records).state_dict()
        world = self.world_model.restore(check_tensors("world", parts["world"], fresh))
        shown = recorded(records, self.world_model.more, self.n_obs_steps)
        self._recent = check_tensors("recent", parts["recent"], shown)
        self._state, self._seed, self.records = world, seed, records
        for name, value in counters.items():
            setattr(self, name, value)


def _merge_rows(model: WorldModel, old: WorldState, new: WorldState, rows: NDArray[np.int64]) -> WorldState:
    """Return ``old`` with ``rows`` replaced by the rows of ``new``."""
    index = torch.from_numpy(rows)
    merged = {name: value.clone() for name, value in old.state_dict().items()}
    for name, value in new.state_dict().items():
        merged[name][index.to(value.device)] = value
    return model.restore(merged)
