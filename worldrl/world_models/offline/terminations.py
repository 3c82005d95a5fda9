"""When an imagined step ends the task: Gymnasium's own rules, read off the next observation.

Rules are pure functions of observation, action and next observation; what an environment was made with (``healthy_z_range``
and so on) are their keywords, under Gymnasium's names. Positions that ``exclude_current_positions_from_observation=False``
leaves in front (NeoRL's variants of these tasks have one too) shift every index.

OfflineRL-Kit's Hopper rule takes the absolute value of the comparison ``|s < 100|`` where ``|s| < 100`` is meant, so that
a velocity of -1000 counts as healthy; the one here follows Gymnasium.

Shapes legend: ``B`` rows, ``S`` observation, ``A`` action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from worldrl.core.errors import SettingError, nearest

Termination = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Observation ``[B, S]``, action ``[B, A]`` and next observation ``[B, S]`` to bool ``[B]``: the task ended here."""
Range = tuple[float, float]


def within(x: Tensor, bounds: Range) -> Tensor:
    """Tell where ``low < x < high``; not where x is NaN."""
    low, high = bounds
    return (low < x) & (x < high)


def never(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """HalfCheetah, Swimmer, Reacher, Pusher, HumanoidStandup, Pendulum: only the time limit ends an episode."""
    return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)


def hopper(
    obs: Tensor,
    action: Tensor,
    next_obs: Tensor,
    *,
    terminate_when_unhealthy: bool = True,
    healthy_state_range: Range = (-100.0, 100.0),
    healthy_z_range: Range = (0.7, math.inf),
    healthy_angle_range: Range = (-0.2, 0.2),
    exclude_current_positions_from_observation: bool = True,
) -> Tensor:
    """Height, then angle, then what must stay within ``healthy_state_range`` too, the angle included."""
    first = 0 if exclude_current_positions_from_observation else 1
    healthy = within(next_obs[:, first + 1 :], healthy_state_range).all(dim=1)
    healthy &= within(next_obs[:, first], healthy_z_range) & within(next_obs[:, first + 1], healthy_angle_range)
    return ~healthy & terminate_when_unhealthy


def walker2d(
    obs: Tensor,
    action: Tensor,
    next_obs: Tensor,
    *,
    terminate_when_unhealthy: bool = True,
    healthy_z_range: Range = (0.8, 2.0),
    healthy_angle_range: Range = (-1.0, 1.0),
    exclude_current_positions_from_observation: bool = True,
) -> Tensor:
    """Height, then angle."""
    first = 0 if exclude_current_positions_from_observation else 1
    healthy = within(next_obs[:, first], healthy_z_range) & within(next_obs[:, first + 1], healthy_angle_range)
    return ~healthy & terminate_when_unhealthy


def ant(
    obs: Tensor,
    action: Tensor,
    next_obs: Tensor,
    *,
    terminate_when_unhealthy: bool = True,
    healthy_z_range: Range = (0.2, 1.0),
    exclude_current_positions_from_observation: bool = True,
) -> Tensor:
    """Height within its range, ends included, and everything finite."""
    z = next_obs[:, 0 if exclude_current_positions_from_observation else 2]
    low, high = healthy_z_range
    healthy = next_obs.isfinite().all(dim=1) & (low <= z) & (z <= high)
    return ~healthy & terminate_when_unhealthy


def humanoid(
    obs: Tensor,
    action: Tensor,
    next_obs: Tensor,
    *,
    terminate_when_unhealthy: bool = True,
    healthy_z_range: Range = (1.0, 2.0),
    exclude_current_positions_from_observation: bool = True,
) -> Tensor:
    """Height within its range."""
    z = next_obs[:, 0 if exclude_current_positions_from_observation else 2]
    return ~within(z, healthy_z_range) & terminate_when_unhealthy


def inverted_pendulum(obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """Pole over 0.2 rad, or anything not finite."""
    return ~next_obs.isfinite().all(dim=1) | (next_obs[:, 1].abs() > 0.2)


RULES: Mapping[str, Callable[..., Tensor]] = {
    "ant": ant,
    "halfcheetah": never,
    "hopper": hopper,
    "humanoid": humanoid,
    "humanoidstandup": never,
    "invertedpendulum": inverted_pendulum,
    "pendulum": never,
    "pusher": never,
    "reacher": never,
    "swimmer": never,
    "walker2d": walker2d,
}
"""Rule of each environment, by the first word of its id in small letters."""


def termination_rule(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> Termination:
    """Find the rule of an environment.

    Args:
        env_id: Gymnasium's (``"Hopper-v5"``) or D4RL's (``"hopper-medium-v2"``).
        env_kwargs: what the environment was made with; ranges change the rule, other keywords do not concern it.

    Returns:
        The rule, with the environment's ranges.

    Raises:
        SettingError: no rule is known for it.
    """
    name = env_id.rpartition("/")[2].partition("-")[0].lower()
    if name not in RULES:
        raise SettingError(
            f"no termination rule for environment {env_id!r}{nearest(name, RULES)}. Pass your own rule, a function of "
            "(obs, action, next_obs) that returns bool [B]: register it under a name in the entry-point group "
            "'worldrl.terminations' (or with worldrl.registry.TERMINATIONS.register) and give that name as "
            "'termination'; or give termination=learned to fit a head to the dataset's terminals"
        )
    known = signature(RULES[name]).parameters
    chosen = {key: value for key, value in (env_kwargs or {}).items() if key in known}
    return partial(RULES[name], **chosen) if chosen else RULES[name]
