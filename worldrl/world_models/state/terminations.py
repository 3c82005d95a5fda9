"""When an imagined step ends the task: Gymnasium's own rules, applied to the next observation.

Their keywords are the environment's own arguments (``healthy_z_range`` and so on). Positions that
``exclude_current_positions_from_observation=False`` adds in front (as in some of NeoRL's tasks) shift every index.
OfflineRL-Kit's Hopper rule computes ``|s < 100|`` instead of ``|s| < 100``; the rule here follows Gymnasium.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.core.transitions import Transitions
from worldrl.data.offline.known_tasks import task_of

Termination = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Observation ``[B, S]``, action ``[B, A]`` and next observation ``[B, S]`` to bool ``[B]``: the task ended here."""
Range = tuple[float, float]
CHUNK = 65_536  # rows that a rule is compared with at once


def within(x: Tensor, bounds: Range) -> Tensor:
    """Return where ``low < x < high``; false where x is NaN."""
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
    """Height, then angle; ``healthy_state_range`` applies to everything after the height."""
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
"""Rule of each task of :mod:`~worldrl.data.offline.known_tasks`."""
REFUSED_SHARE = 0.02
"""Largest share of contradictions among rows that rule or data call terminal; rounding at a border causes some."""


def termination_rule(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> Termination:
    """Find the rule of an environment of Gymnasium (``"Hopper-v5"``), D4RL (``"hopper-medium-v2"``) or Minari.

    Arguments that the rule does not use are ignored. Raises SettingError: no known rule, or an argument is no range.
    """
    task = task_of(env_id)
    if task is None or task not in RULES:
        raise SettingError(
            f"termination=auto: no termination rule is known for environment {env_id!r}. Give termination=never, "
            "termination=learned (a head fitted to the dataset's terminals) or a registered rule, such as termination=hopper. "
            "A function of (obs, action, next_obs) that returns bool [B] is registered in the entry-point group 'worldrl.terminations'"
        )
    known = signature(RULES[task]).parameters
    chosen = {key: _argument(key, value) for key, value in (env_kwargs or {}).items() if key in known}
    return partial(RULES[task], **chosen) if chosen else RULES[task]


def _argument(key: str, value: Any) -> Any:
    if not key.endswith("_range"):
        if isinstance(value, bool):
            return value
    elif isinstance(value, list | tuple):
        bounds = cast("Sequence[Any]", value)
        if len(bounds) == 2 and all(isinstance(x, int | float) for x in bounds):
            return float(bounds[0]), float(bounds[1])
    kind = "two numbers" if key.endswith("_range") else "true or false"
    raise SettingError(f"env: argument {key}={value!r} must be {kind}; give termination=learned or a registered rule")


def check_rule(rule: Termination, rows: Transitions, *, name: str, source: str) -> None:
    """Compare a rule with the terminals of the data, before anything is imagined; SettingError with counts.

    A terminated row without recorded successor (equal to the row's own observation) is left out.
    """
    try:
        called = torch.cat([
            rule(rows.obs[part], rows.action[part], rows.next_obs[part])
            for part in (slice(i, i + CHUNK) for i in range(0, len(rows.obs), CHUNK))
        ])  # fmt: skip
    except (IndexError, RuntimeError) as reason:
        raise SettingError(
            f"termination: the rule {name!r} does not fit observations of {rows.obs.shape[1]} numbers ({reason}); give "
            "termination=never, termination=learned or another rule"
        ) from reason
    known = ~(rows.terminated & (rows.obs == rows.next_obs).all(dim=1))
    ended = rows.terminated & known
    false, missed, either = (
        int(x.sum()) for x in (called & ~rows.terminated, ended & ~called, (called & known) | ended)
    )
    if false + missed > REFUSED_SHARE * either:
        raise SettingError(
            f"termination: the rule {name!r} contradicts {source}: of {len(rows.obs)} rows {int(rows.terminated.sum())} are "
            f"recorded as terminal; the rule calls {false} others terminal and misses {missed}. Give termination=never, "
            "termination=learned or another rule"
        )
