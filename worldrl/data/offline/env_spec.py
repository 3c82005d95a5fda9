"""The environment that an offline dataset names: data, and never code.

``gymnasium.make`` imports the module before a colon in an id, and hands keyword arguments to a constructor. So an id
from data is a registered one without a module, and arguments are numbers under known names.
"""

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import gymnasium

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.data.offline.trajectories import DatasetInfo

ID = re.compile(r"(?:[-\w]+/)*[-\w.]+")
"""An id of Gymnasium's registry, with or without namespace and version; a colon would name a module."""
WORD = re.compile(r"[A-Za-z][\w -]{0,40}")
"""Texts that may stand in an argument: kinds of reward, names of subtasks, cells of mazes; never a path."""
KEYWORDS = frozenset(
    {
        "agents_obsk", "bounce_reward", "contact_cost_range", "contact_cost_weight", "contact_force_range", "continuing_task",
        "continuous", "contact_force_weight", "control_cost_weight", "ctrl_cost_weight", "discretize", "distance_threshold",
        "domain_randomize", "enable_wind", "exclude_current_positions_from_observation", "forward_reward_weight", "frame_skip",
        "g", "goal_velocity", "gravity", "healthy_angle_range", "healthy_reward", "healthy_state_range", "healthy_z_range",
        "impact_cost_range", "impact_cost_weight", "include_cfrc_ext_in_observation", "include_cinert_in_observation",
        "include_cvel_in_observation", "include_qfrc_actuator_in_observation", "ik_controller", "hardcore", "main_body",
        "max_episode_steps", "maze_map", "object_noise_ratio", "obs_type", "position_noise_range", "remove_task_when_completed",
        "reset_noise_scale", "reset_target", "reward_control_weight", "reward_dist_weight", "reward_near_weight", "reward_type",
        "robot_noise_ratio", "sutton_barto_reward", "tasks_to_complete", "terminate_on_tasks_completed",
        "terminate_when_unhealthy", "turbulence_power", "uph_cost_weight", "use_contact_forces", "wind_power",
    }
)  # fmt: skip
"""Arguments of Gymnasium's and Gymnasium-Robotics' environments that change numbers only."""


def stored_environment(metadata: Mapping[str, Any], where: Path, env_id: str | None) -> dict[str, Any]:
    """Return ``env_id``, ``env_kwargs``, ``max_episode_steps`` and ``env_wrappers`` from a Minari dataset's metadata.

    ``env_id``, named by the user, is made as registered, with the stored arguments where the stored id is the same one
    and they are allowed. ArtefactError where the specification is no object, its id names a module, or an argument is
    not allowed.
    """
    spec = _specification(metadata, where)
    name, kwargs, limit = spec.get("id"), spec.get("kwargs") or {}, spec.get("max_episode_steps")
    wrong = _refused(kwargs, name)
    if env_id is None:
        if name is not None and (not isinstance(name, str) or ID.fullmatch(name) is None):
            raise ArtefactError(
                f"{where}: the environment {name!r} would import code; it is never imported. Give env=MODULE:ID if you trust "
                "it, or episodes=0 to play no episodes"
            )
        if wrong is not None:
            raise ArtefactError(
                f"{where}: argument {wrong} of environment {name!r} is not allowed from data; give env={name} to make the "
                f"environment as it is registered (env=MODULE:{name} where a module registers it)"
            )
    elif env_id.rpartition(":")[2] != name:
        return {"env_id": env_id, "env_kwargs": {}, "max_episode_steps": None, "env_wrappers": ()}
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ArtefactError(f"{where}: max_episode_steps of its env_spec must be a positive number, got {limit!r}")
    return {
        "env_id": env_id or name,
        "env_kwargs": kwargs if wrong is None else {},
        "max_episode_steps": limit,
        "env_wrappers": () if env_id else _wrappers(spec, where),
    }


def registered_spec(info: DatasetInfo) -> Any:
    """Return the specification to write beside recordings: the registered one, with arguments and limit of ``info``.

    A class that was registered as an object is written as ``module:name``; nothing here ever imports it from there.
    SettingError where the environment is not registered, or an argument is no JSON value.
    """
    if info.env_id is None:
        return None
    try:
        spec = copy.deepcopy(gymnasium.spec(info.env_id))
    except gymnasium.error.Error as reason:
        raise SettingError(
            f"env_id: {info.env_id!r} is not registered ({reason}); import what registers it"
        ) from reason
    spec.kwargs.update(info.env_kwargs)
    if info.max_episode_steps is not None:
        spec.max_episode_steps = info.max_episode_steps
    if callable(spec.entry_point):
        spec.entry_point = f"{spec.entry_point.__module__}:{getattr(spec.entry_point, '__qualname__', 'object')}"
    try:
        spec.to_json()
    except (TypeError, ValueError) as reason:
        raise SettingError(
            f"env_id: {info.env_id!r} cannot be written as JSON ({reason}); register it with arguments of numbers and text"
        ) from reason
    return spec


def _wrappers(spec: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    found = spec.get("additional_wrappers") or ()
    if not isinstance(found, list | tuple):
        raise ArtefactError(
            f"{where}: additional_wrappers of its env_spec must be a list, got {found!r}; copy it again"
        )
    return tuple(str(item.get("name")) if isinstance(item, dict) else str(item) for item in cast("list[Any]", found))


def _specification(metadata: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The dataset's evaluation environment before its own."""
    text = metadata.get("eval_env_spec") or metadata.get("env_spec")
    if text is None:
        return {}
    try:
        spec: Any = json.loads(text)
    except (TypeError, ValueError, RecursionError) as reason:
        raise ArtefactError(f"{where}: field 'env_spec' is not JSON ({reason}); copy it again") from reason
    if not isinstance(spec, dict):
        raise ArtefactError(f"{where}: field 'env_spec' is not an object; copy it again")
    return cast("dict[str, Any]", spec)


def _refused(kwargs: Any, name: object) -> str | None:
    """Name the first argument that is not allowed; None where all are. What is registered for the id anyway is allowed."""
    if not isinstance(kwargs, dict):
        return repr(kwargs)
    spec = gymnasium.registry.get(name) if isinstance(name, str) else None
    registered = {} if spec is None else spec.kwargs
    for key, value in cast("dict[str, Any]", kwargs).items():
        if not ((key in KEYWORDS and _harmless(value)) or (key in registered and registered[key] == value)):
            return f"{key}={value!r}"
    return None


def _harmless(value: Any) -> bool:
    """Whether a value is a number, a known word, or a list of such."""
    if isinstance(value, list):
        return all(map(_harmless, cast("list[Any]", value)))
    if isinstance(value, str):
        return WORD.fullmatch(value) is not None
    return value is None or isinstance(value, bool | int | float)
