"""Cloning phase of an actor: for the first ``clone_steps`` updates it clones the recorded rows of each batch.

    min_π E_{(s, a)~D} [−log π(a|s)]

Where only success is rewarded, a random policy earns nothing, neither recorded nor imagined, and learns nothing. The
critics learn by their own equations meanwhile, so they value the clone's failures before the actor follows them.
"""

from typing import Any

from torch import Tensor

from worldrl.core.errors import require_value
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.networks import Gaussian, squashed_log_prob

CLONED_MOST = 0.999  # largest number of an action that is cloned; 3.8 before tanh
CLONING, LEARNING = range(2)  # phases of an actor


def cloning_loss(gaussian: Gaussian, action: Tensor) -> Tensor:
    """mean_b −log π(a|s) of actions ``[B, A]``; those at the bounds, which tanh never reaches, count as just inside."""
    return -squashed_log_prob(gaussian, action.clamp(-CLONED_MOST, CLONED_MOST)).mean()


def phase_of(updates: int, config: Any) -> int:
    """Return CLONING or LEARNING after so many updates."""
    return CLONING if updates < config.clone_steps else LEARNING


def require_time_to_learn(config: Any, facts: Facts) -> None:
    """SettingError where all updates would clone."""
    rule = f"below training.steps={facts.updates}, or nothing but cloning is learned"
    require_value(config.clone_steps < max(facts.updates, 1), "agent.clone_steps", rule, config.clone_steps)
