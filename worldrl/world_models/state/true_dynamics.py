"""The true simulator as a world: Gymnasium's own environment, set to recorded states, stepped row by row.

It shows which effects remain without model error (RAVL: every uncertainty penalty is then zero, and methods that rely
on it collapse), and it measures the dynamics error of generated trajectories.

A row's state is MuJoCo's whole integration state with the solver's warm start, so rows are independent. A start is
the recorded ``qpos`` and ``qvel``: the solver starts cold there and agrees with the recorded successor to its
tolerance. Two threads would gain at most half as much again (``docs/log/offline-speed.md``).

Shapes legend: ``B`` rows, ``S`` observation, ``A`` action, ``N`` rows of the dataset, ``n`` numbers of a physics state.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.extras import require
from worldrl.core.transitions import Outcome
from worldrl.world_models.state.ensemble import check_rows


class Simulator:
    """One MuJoCo environment of Gymnasium with a settable state and no wrappers, so no time limit.

    Raises SettingError: no such environment with MuJoCo and a box of actions; MissingExtraError: a package of them is
    missing.
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None = None):
        if ":" in env_id:
            raise SettingError(f"environment {env_id!r}: a setting may not name a module to import; register it first")
        require("imageio", extra="offline")  # Gymnasium's MuJoCo environments import it
        gymnasium = importlib.import_module("gymnasium")
        self.mujoco: Any = importlib.import_module("mujoco")
        try:
            self.env: Any = gymnasium.make(env_id, **(env_kwargs or {})).unwrapped
        except (gymnasium.error.Error, TypeError) as error:
            raise SettingError(f"cannot make environment {env_id!r} with {dict(env_kwargs or {})}: {error}") from error
        box = getattr(self.env, "action_space", None)
        if not (hasattr(self.env, "set_state") and hasattr(self.env, "data") and hasattr(box, "low")):
            raise SettingError(
                f"{env_id!r} is not one of Gymnasium's MuJoCo environments; true dynamics need one whose state can be set"
            )
        if len(getattr(self.env.observation_space, "shape", None) or ()) != 1:
            raise SettingError(
                f"{env_id!r} has observations in {self.env.observation_space}; true dynamics need one vector"
            )
        self.env.reset(seed=0)
        self._centre = ((box.high + box.low) / 2).astype(np.float32)  # pyright: ignore[reportOptionalMemberAccess]
        self._half = ((box.high - box.low) / 2).astype(np.float32)  # pyright: ignore[reportOptionalMemberAccess]
        self._spec = int(self.mujoco.mjtState.mjSTATE_INTEGRATION)
        self._integrated = int(self.mujoco.mj_stateSize(self.env.model, self._spec))

    @property
    def obs_size(self) -> int:
        """Numbers ``S`` per observation."""
        return int(self.env.observation_space.shape[0])

    @property
    def action_size(self) -> int:
        """Numbers ``A`` per action."""
        return int(self.env.action_space.shape[0])

    def place(self, qpos: NDArray[np.float64], qvel: NDArray[np.float64]) -> NDArray[np.float64]:
        """Set positions and velocities, everything else as after a reset; return the whole state ``[n]``."""
        self.mujoco.mj_resetData(self.env.model, self.env.data)
        self.env.set_state(qpos, qvel)
        return self.state()

    def state(self) -> NDArray[np.float64]:
        """Return the whole state ``[n]``."""
        # Ant and Humanoid compute their speed from body positions that MuJoCo keeps from one substep ago.
        integrated = np.empty(self._integrated)
        self.mujoco.mj_getState(self.env.model, self.env.data, integrated, self._spec)
        return np.concatenate([integrated, self.env.data.xpos.ravel(), self.env.data.xipos.ravel()])

    def restore(self, state: NDArray[np.float64]) -> None:
        """Set a state from :meth:`state`."""
        data, cut = self.env.data, self._integrated
        self.mujoco.mj_setState(self.env.model, data, state[:cut], self._spec)
        data.xpos[:], data.xipos[:] = state[cut:].reshape(2, *data.xpos.shape)

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool]:
        """Take ``action`` ``[A]`` in [-1, 1]: observation, reward, and whether the task (not the time) ended."""
        obs, reward, terminated, _, _ = self.env.step(self._centre + self._half * action)
        return obs, float(reward), bool(terminated)

    def physics_of(self, obs: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Read ``qpos`` and ``qvel`` from an observation ``[S]``; positions that it omits (x) become 0.

        Hopper and Walker2d clip observed velocities to ±10. Raises SettingError: it holds other numbers than these.
        """
        structure: dict[str, int] = getattr(self.env, "observation_structure", {})
        skipped, positions, velocities = (structure.get(name, 0) for name in ("skipped_qpos", "qpos", "qvel"))
        model = self.env.model
        if (skipped + positions, velocities, positions + velocities) != (model.nq, model.nv, len(obs)):
            raise SettingError(
                f"{type(self.env).__name__}: its observation of {len(obs)} numbers is not its positions and velocities "
                f"(structure {structure}); the state cannot be set from it"
            )
        qpos = np.concatenate([np.zeros(skipped), obs[:positions]]).astype(np.float64)
        return qpos, np.asarray(obs[positions:], dtype=np.float64)


class TrueDynamics:
    """A :class:`~worldrl.core.interfaces.StateWorld` without error; its uncertainty is zero.

    ``qpos`` and ``qvel`` are from before each recorded step. Raises SettingError: shapes that do not fit.
    """

    measures_uncertainty = True  # zero is the true uncertainty, so methods that penalise uncertainty may run here

    def __init__(
        self,
        env_id: str,
        obs: Tensor,
        qpos: NDArray[np.float64] | Tensor,
        qvel: NDArray[np.float64] | Tensor,
        env_kwargs: Mapping[str, Any] | None = None,
    ):
        self.simulator = Simulator(env_id, env_kwargs)
        self.obs = obs
        self.qpos, self.qvel = (np.asarray(value, dtype=np.float64) for value in (qpos, qvel))
        model = self.simulator.env.model
        expected = {"obs": (len(obs), self.obs_size), "qpos": (len(obs), model.nq), "qvel": (len(obs), model.nv)}
        for name, shape in expected.items():
            if tuple(getattr(self, name).shape) != shape:
                received = tuple(getattr(self, name).shape)
                raise SettingError(f"{env_id}: {name} must be {shape}, got {received}; record qpos and qvel per row")

    @property
    def obs_size(self) -> int:
        """Numbers ``S`` per observation."""
        return self.simulator.obs_size

    @property
    def action_size(self) -> int:
        """Numbers ``A`` per action."""
        return self.simulator.action_size

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[NDArray[np.float64], Tensor]:
        """Begin at recorded rows ``index`` int64 ``[B]``; the state is float64 ``[B, n]``. Draws nothing."""
        rows = index.cpu().numpy()
        state = np.stack([self.simulator.place(self.qpos[row], self.qvel[row]) for row in rows])
        return state, self.obs[index.to(self.obs.device)]

    def select(self, state: NDArray[np.float64], index: Tensor) -> NDArray[np.float64]:
        """Keep the rows of ``index``."""
        return state[index.cpu().numpy()]

    def step(
        self, state: NDArray[np.float64], action: Tensor, *, generator: torch.Generator
    ) -> tuple[NDArray[np.float64], Outcome]:
        """Take ``action`` float32 ``[B, A]`` in every row. Draws nothing."""
        check_rows(torch.empty(len(state), self.obs_size), action, self.obs_size, self.action_size)
        actions = action.cpu().numpy()
        after = np.empty_like(state)
        obs = np.empty((len(state), self.obs_size), np.float32)
        reward, terminated = np.empty(len(state), np.float32), np.empty(len(state), np.bool_)
        for row, (before, act) in enumerate(zip(state, actions, strict=True)):
            self.simulator.restore(before)
            obs[row], reward[row], terminated[row] = self.simulator.step(act)
            after[row] = self.simulator.state()
        columns = (torch.from_numpy(column).to(action.device) for column in (obs, reward, terminated))
        return after, Outcome(*columns, uncertainty=torch.zeros(len(state), device=action.device))


def dynamics_error(simulator: Simulator, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """Mean over dimensions of (s' - true s')², ``[B]``: policy-guided diffusion's dynamics error.

    Raises SettingError: the state cannot be set from an observation, see :meth:`Simulator.physics_of`.
    """
    true = np.empty(tuple(next_obs.shape))
    for row, (start, act) in enumerate(zip(obs.cpu().numpy(), action.cpu().numpy(), strict=True)):
        simulator.place(*simulator.physics_of(start))
        true[row], _, _ = simulator.step(act)
    return (next_obs.cpu().double() - torch.from_numpy(true)).square().mean(dim=1).float()
