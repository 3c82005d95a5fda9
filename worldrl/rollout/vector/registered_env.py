"""Registered Gymnasium environments of vectors: made, checked, and their parts concatenated by key."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldrl.core.errors import MissingExtraError, SettingError
from worldrl.data.offline.layout import Layout, is_sorted, layout_of, ordered_by, places, words
from worldrl.data.offline.trajectories import DatasetInfo

MUJOCO = "gymnasium.envs.mujoco"
"""Environments whose requirements are in the extra 'offline'."""
NEITHER = "or episodes=0 video_episodes=0 to play no episodes"


def make_registered(env_id: str, kwargs: Mapping[str, Any], max_episode_steps: int | None) -> gymnasium.Env[Any, Any]:
    """Make an environment from its id, ``ID`` or ``MODULE:ID``.

    Raises SettingError (the module cannot be imported, the id is not registered, or the environment's class refuses).
    Raises MissingExtraError (a required package is not installed).
    """
    module, name = env_id.rpartition(":")[0], registered_id(env_id)
    given = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    try:
        return gymnasium.make(name, disable_env_checker=True, **given, **kwargs)
    except gymnasium.error.UnregisteredEnv as reason:
        raise SettingError(f"env: {name!r} is not registered{_hint(name, module)}") from reason
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as reason:
        spec = gymnasium.registry.get(name)
        own = spec is not None and str(spec.entry_point).startswith(MUJOCO)
        fix = "the extra 'offline' brings what Gymnasium's MuJoCo environments need" if own else "install what it needs"
        raise MissingExtraError(f"env: {env_id!r} cannot be made: {reason}; {fix}, {NEITHER}") from reason
    except Exception as reason:  # a class may raise anything
        text = " ".join(str(reason).split())[:300]
        raise SettingError(f"env: {env_id!r} cannot be made: {type(reason).__name__}: {text}") from reason


def registered_id(env_id: str) -> str:
    """Return the id without its module, which is imported to register the id; else raise SettingError."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    return name


def _import(module: str, env_id: str) -> None:
    """Import the module that registers an environment; only the user may name it."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as reason:
        if reason.name is not None and (module == reason.name or module.startswith(f"{reason.name}.")):
            raise SettingError(
                f"env: {env_id!r} names the module {module!r}, which is not found; install it, or add its folder to PYTHONPATH"
            ) from reason
        raise SettingError(f"env: module {module!r} cannot be imported: {reason}; install what it needs") from reason
    except Exception as reason:  # an external module may raise anything
        text = " ".join(str(reason).split())[:300]
        raise SettingError(f"env: module {module!r} cannot be imported: {type(reason).__name__}: {text}") from reason


def _hint(name: str, module: str) -> str:
    """Name the nearest id, or ask for the module that registers it."""
    if close := difflib.get_close_matches(name, gymnasium.registry, n=1, cutoff=0.8):
        return f"; did you mean {close[0]!r}? Another package's environment is named with its module, env=MODULE:{name}"
    if module:
        return f" by the module {module!r}; give an id that it registers, {NEITHER}"
    return f"; give env=MODULE:{name} with the Python module that registers it, {NEITHER}"


def check_vectors(env: gymnasium.Env[Any, Any], env_id: str) -> None:
    """Raise SettingError unless spaces are vectors, actions have a bounded range, and there is a time limit."""
    for name, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise SettingError(f"env: {env_id!r} has {name}s in {space}; only vectors of numbers are supported")
    box: Any = env.action_space
    if box.dtype.kind != "f":
        raise SettingError(
            f"env: {env_id!r} has whole numbers as actions, {box}; agents here choose fractions of a range, so wrap it in one "
            "that rounds a Box of floats"
        )
    if not (np.isfinite(box.low).all() and np.isfinite(box.high).all()):
        raise SettingError(f"env: {env_id!r} has unbounded actions {box}; bounds are needed to scale them")
    if (fixed := np.flatnonzero(np.asarray(box.low, np.float32) >= np.asarray(box.high, np.float32))).size:
        raise SettingError(
            f"env: {env_id!r} has the same low and high, {box.low[fixed[0]]:g}, for number {fixed[0]} of its actions; wrap it in "
            "one that leaves the number out"
        )
    if env.spec is None or env.spec.max_episode_steps is None:
        raise SettingError(f"env: {env_id!r} has no time limit, so an episode may never end; give max_episode_steps")


class Flat(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Concatenates the parts of a Dict or Tuple observation, in the order of ``layout``.

    ``order`` gives each number's position in Gymnasium's own flattening; None keeps that order.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], order: NDArray[np.int64] | None, layout: Layout) -> None:
        super().__init__(env)
        box: Any = spaces.flatten_space(env.observation_space)
        self.order, self.layout = order, layout
        low, high = (box.low, box.high) if order is None else (box.low[order], box.high[order])
        self.observation_space = spaces.Box(low, high, dtype=box.dtype)

    def observation(self, observation: Any) -> Any:
        """Return one vector."""
        flat: Any = spaces.flatten(self.env.observation_space, observation)
        return flat if self.order is None else flat[self.order]


def flattened(env: gymnasium.Env[Any, Any], env_id: str, info: DatasetInfo | None) -> gymnasium.Env[Any, Any]:
    """Return an environment of vectors whose numbers are in a dataset's order; without one, in its own.

    Raises SettingError (the parts have other keys or sizes than the dataset's, or no order is known).
    """
    have = _layout(env.observation_space, env_id)
    want = None if info is None else info.obs_parts
    if have is None:
        if info is not None and want is not None and len(want) > 1:
            raise SettingError(
                f"env: observations of {env_id!r} are {env.observation_space}, without keys, those of {info.source} have the parts "
                f"{words(want)}. Give an environment with these parts, {NEITHER}"
            )
        return env
    if info is None:
        return Flat(env, None, have)
    if want is None:
        want = _assumed(have, env_id, info)
    order = places(have, want)
    if order is None:
        raise SettingError(
            f"env: observations of {env_id!r} have the parts {words(have)}, those of {info.source} {words(want)}. Give an "
            f"environment with the same parts, {NEITHER}"
        )
    return Flat(env, None if have == want else order, want)


def parts_of(env: gymnasium.Env[Any, Any]) -> Layout | None:
    """Return the parts of a flattened environment, in the order of its numbers; None where it has no parts."""
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, Flat):
            return inner.layout
        inner = inner.env
    return None


def _layout(space: spaces.Space[Any], env_id: str) -> Layout | None:
    try:
        return layout_of(space)
    except Exception as reason:  # of several types, for a part without a fixed size
        raise SettingError(
            f"env: {env_id!r} has observations in {space}; only vectors of numbers are supported"
        ) from reason


def _assumed(have: Layout, env_id: str, info: DatasetInfo) -> Layout:
    """Return the order of a dataset without keys: the user's, or the environment's where that is sorted."""
    if info.obs_keys:
        return ordered_by(have, info.obs_keys, info.source)
    if not is_sorted(have):
        names = ",".join("/".join(path) for path, _ in have)
        raise SettingError(
            f"env: {info.source} does not name the parts of its observations, and those of {env_id!r} are not in sorted order: "
            f"{words(have)}. Give obs_keys=[{names}] in the order of the dataset's columns"
        )
    return have
