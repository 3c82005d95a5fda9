"""How an actor begins where only success pays: as a clone of the data, for the first ``clone_steps`` updates.

    min_π E_{(s, a)~D} [−log π(a|s)],   on the recorded rows of each batch

A policy at random earns nothing there, and neither does it in imagination, so imagination teaches it nothing. The critics
learn by their own equations meanwhile, of what the clone imagines too: while it is a poor one it does much that fails, which
they have to know before the actor follows them.

Shapes legend: ``B`` rows, ``A`` action.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from worldrl.methods.offline.agent import Facts, require
from worldrl.methods.offline.networks import Gaussian, squashed_log_prob

CLONED_MOST = 0.999
"""Largest number of an action that is cloned; 3.8 before tanh."""
CLONING, LEARNING = range(2)
"""Phases of an actor."""


def cloning_loss(gaussian: Gaussian, action: Tensor) -> Tensor:
    """mean_b −log π(a|s) of recorded actions ``[B, A]``; those at the bounds, which tanh never reaches, count just inside."""
    return -squashed_log_prob(gaussian, action.clamp(-CLONED_MOST, CLONED_MOST)).mean()


def phase_of(updates: int, config: Any) -> int:
    """Return what an actor does after so many updates: it clones, or learns from its critics."""
    return CLONING if updates < config.clone_steps else LEARNING


def require_clone(config: Any) -> None:
    """Check the ranges of how an actor begins."""
    require(config.clone_steps >= 0, "agent.clone_steps", "zero or more", config.clone_steps)
    require(config.clone_rate > 0, "agent.clone_rate", "positive", config.clone_rate)


def require_time_to_learn(config: Any, facts: Facts) -> None:
    """Refuse a training that ends before its actor has begun to learn.

    Raises:
        SettingError: all updates would clone.
    """
    rule = f"below training.steps={facts.updates}, or nothing but cloning is learned"
    require(config.clone_steps < max(facts.updates, 1), "agent.clone_steps", rule, config.clone_steps)
