"""Whole episodes of vectors in a Gymnasium environment, each a function of its seed and its policy alone.

One row is decided at a time: the last bits of a matrix product depend on its number of rows, and a thousand steps of
contact dynamics turn them into another episode. The result therefore does not depend on other episodes, their order, or
the number of processes.

Shapes legend: ``T`` steps, ``S`` observation, ``A`` action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from worldrl.core.errors import ActionError, SettingError
from worldrl.data.offline.resets import check_limit
from worldrl.data.offline.resets import time_limit as time_limit
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories, VectorEpisode, env_action
from worldrl.rollout.vector.registered_env import check_vectors, flattened, make_registered, parts_of

Decide = Callable[[Tensor, float, torch.Generator | None], Tensor]
"""Maps obs float32 ``[S]`` on the policy's device, its reward (0 at the start) and the noise's generator (None: most likely
action) to an action float32 ``[A]`` in [-1, 1]. Called once per step, in order, so it may have a memory."""
EpisodePolicy = Callable[[], Decide]
"""Begins an episode: a new :data:`Decide` without memory of the episode before."""


class Acts(Protocol):
    """Chooses actions for rows of observations, such as an offline agent."""

    def act(self, obs: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Choose actions ``[B, A]`` for ``obs`` ``[B, S]``; ``generator=None`` takes the most likely ones."""
        ...


def memoryless(agent: Acts) -> EpisodePolicy:
    """Return the policy of an agent that uses only the newest observation."""

    def decide(obs: Tensor, reward: float, generator: torch.Generator | None) -> Tensor:
        return agent.act(obs[None], generator=generator)[0]

    return lambda: decide


class Remembers(Protocol):
    """Acts by an episode's history, such as NEUBAY's agent; ``begin`` gives the empty memory of ``B`` rows."""

    def begin(self, rollouts: int) -> Any:
        """Return empty memories."""
        ...

    def step(
        self, obs: Tensor, action: Tensor, reward: Tensor, memory: Any, *, generator: torch.Generator | None
    ) -> tuple[Tensor, Any]:
        """Choose actions ``[B, A]`` from an observation, the action that led to it and its reward."""
        ...


def remembering(agent: Remembers, action_size: int) -> EpisodePolicy:
    """Return the policy of an agent with a memory of its episode."""

    def begin() -> Decide:
        memory, last = agent.begin(1), torch.zeros(1, action_size)

        def decide(obs: Tensor, reward: float, generator: torch.Generator | None) -> Tensor:
            nonlocal memory, last
            last, memory = agent.step(obs[None], last, torch.tensor([reward]), memory, generator=generator)
            return last[0]

        return decide

    return begin


def uniform_policy(size: int) -> EpisodePolicy:
    """Return the policy that draws ``size`` action numbers uniformly from [-1, 1]; it needs a generator."""

    def decide(obs: Tensor, reward: float, generator: torch.Generator | None) -> Tensor:
        if generator is None:
            raise SettingError("generator: the uniform policy has no most likely action; give a generator")
        return 2 * torch.rand(size, generator=generator) - 1

    return lambda: decide


def make_environment(
    env_id: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    like: DatasetInfo | None = None,
) -> gymnasium.Env[Any, Any]:
    """Make a registered environment of vectors; dictionaries and tuples are flattened.

    ``env_id`` is a Gymnasium id, or ``module:ID`` with the module that registers it. ``max_episode_steps=None`` takes
    the registered time limit. The parts of observations are in the order of the dataset ``like``, or the environment's.
    Raises SettingError (not registered (the message names the nearest), no time limit, spaces that are not vectors, or
    parts that are not the dataset's). Raises MissingExtraError (a required package is not installed).
    """
    env = flattened(make_registered(env_id, kwargs or {}, max_episode_steps), env_id, like)
    check_vectors(env, env_id)
    return env


def dataset_environment(info: DatasetInfo) -> gymnasium.Env[Any, Any]:
    """Make a dataset's environment, with its keyword arguments, time limit and order of parts.

    Raises SettingError (it names none, or one with wrappers, which cannot be made from their names; or as
    :func:`make_environment`).
    """
    if info.env_id is None:
        raise SettingError(
            f"env: {info.source} names no environment; give env=ID of a registered one, or env=MODULE:ID"
        )
    if info.env_wrappers:
        raise SettingError(
            f"env: {info.source} was wrapped in {', '.join(info.env_wrappers)}; give env={info.env_id} to make it without them"
        )
    return make_environment(info.env_id, kwargs=info.env_kwargs, max_episode_steps=info.max_episode_steps, like=info)


def check_spaces(env: gymnasium.Env[Any, Any], data: Trajectories) -> None:
    """Require that a dataset's vectors and episodes are those of an environment.

    Raises SettingError (observations or actions differ in size, or actions in bounds). Raises ArtefactError (an episode
    is longer than the environment's time limit).
    """
    source, box = data.info.source, env.action_space
    sizes = {"obs": (data.obs.shape[1], env.observation_space), "action": (data.action.shape[1], box)}
    for name, (size, space) in sizes.items():
        if (size,) != space.shape:
            raise SettingError(
                f"{source}: field {name!r} has {size} numbers, the environment's space is {space}; give the "
                "environment that it was recorded in"
            )
    for name, bound in (("low", data.info.action_low), ("high", data.info.action_high)):
        if not np.allclose(bound, getattr(box, name), rtol=1e-5):
            raise SettingError(
                f"{source}: action {name} is {bound}, the environment's is {getattr(box, name)}; give the environment that it "
                "was recorded in, or the environment's bounds as action_low and action_high"
            )
    check_limit(np.diff(data.bounds()), None if env.spec is None else env.spec.max_episode_steps, source)


def environment_info(env: gymnasium.Env[Any, Any], source: str) -> DatasetInfo:
    """Describe recordings made in an environment of :func:`make_environment`."""
    box, spec = env.action_space, env.spec
    if spec is None or not isinstance(box, spaces.Box):
        raise SettingError(f"env: {env} must come from make_environment")
    return DatasetInfo(
        source=source,
        action_low=tuple(float(x) for x in box.low),
        action_high=tuple(float(x) for x in box.high),
        env_id=spec.id,
        env_kwargs=dict(spec.kwargs),
        max_episode_steps=spec.max_episode_steps,
        obs_parts=parts_of(env),
    )


def play_episode(
    env: gymnasium.Env[Any, Any],
    info: DatasetInfo,
    policy: EpisodePolicy,
    *,
    seed: int,
    generator: torch.Generator | None,
    device: torch.device | str = "cpu",
) -> VectorEpisode:
    """Play one episode of :func:`make_environment` to its end.

    ``info`` holds the action bounds (:func:`environment_info`); ``seed`` in [0, 2**31) is the environment's. Without a
    ``generator`` of noise the policy takes the most likely actions; ``device`` is the policy's. Raises ActionError (the
    policy's action is not finite or not ``[A]``).
    """
    observation, _ = env.reset(seed=seed)
    decide, reward = policy(), 0.0
    obs, actions, rewards, states = [np.array(observation, np.float32)], [], [], [simulator_state(env)]
    terminated = truncated = False
    while not (terminated or truncated):
        chosen = decide(torch.from_numpy(obs[-1]).to(device), reward, generator)
        actions.append(env_action(_checked(chosen, len(info.action_low), len(actions)), info))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        reward = float(reward)
        obs.append(np.array(observation, np.float32))
        rewards.append(reward)
        states.append(simulator_state(env))
    before = [state for state in states[:-1] if state is not None]
    return VectorEpisode(
        obs=np.stack(obs),
        action=np.stack(actions),
        reward=np.array(rewards, np.float32),
        terminated=bool(terminated),
        truncated=bool(truncated),
        qpos=np.stack([qpos for qpos, _ in before]) if before else None,
        qvel=np.stack([qvel for _, qvel in before]) if before else None,
        seed=seed,
    )


def simulator_state(env: gymnasium.Env[Any, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Copy MuJoCo's positions and velocities; None where the environment is not a MuJoCo one."""
    data: Any = getattr(env.unwrapped, "data", None)
    if not (hasattr(data, "qpos") and hasattr(data, "qvel")):
        return None
    return np.array(data.qpos, np.float64), np.array(data.qvel, np.float64)


class StateInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds data to each step's info that other packages' training loops do not store.

    ``info["executed"]`` is the action of the simulator, ``info["qpos"]`` and ``info["qvel"]`` the simulator's state
    before the step, in MuJoCo environments.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and add the state before."""
        state = simulator_state(self)
        obs, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "executed": np.array(action, np.float32)}
        if state is not None:
            info |= {"qpos": state[0], "qvel": state[1]}
        return obs, reward, terminated, truncated, info


def _checked(action: Tensor, size: int, step: int) -> NDArray[np.float32]:
    value = action.detach().cpu().numpy()
    if value.shape != (size,) or not np.isfinite(value).all():
        raise ActionError(f"step {step}: the policy's action {value} must be {size} finite numbers; check its weights")
    return np.clip(value.astype(np.float32), -1, 1)
