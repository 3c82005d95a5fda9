"""Batches of imagined rollouts, as every algorithm that improves a policy in imagination asks for them."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from worldrl.core.interfaces import Policy
from worldrl.core.rng import stream
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.rollout.imagined.rollouts import ImaginedRollouts, imagine_rollouts
from worldrl.world_models.loading import AnyVideoModel


def imagined_env(
    world_model: AnyVideoModel,
    store: ResetStore,
    rule: SuccessRule,
    *,
    rows: int,
    horizon: dict[str, int],
    stop_at_success: bool = True,
) -> WorldModelVecEnv:
    """Make the environment of training: rows wait, once over, until all are."""
    return WorldModelVecEnv(
        world_model,
        store,
        rule,
        num_envs=rows,
        horizon=horizon,
        stop_at_success=stop_at_success,
        autoreset_mode=AutoresetMode.DISABLED,
    )


def imagine_batch(
    env: WorldModelVecEnv,
    policy: Policy,
    exploration: Exploration,
    *,
    group_size: int,
    p_keyframe: float,
    seed: int,
) -> ImaginedRollouts:
    """Fill the environment's rows with groups of ``group_size`` rollouts from one start each, and let them run."""
    starts = env.store.sample(env.num_envs // group_size, p_keyframe, generator=stream(seed, "starts"))
    return imagine_rollouts(env, policy, starts, group_size=group_size, seed=seed, exploration=exploration)
