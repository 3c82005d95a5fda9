"""Control steps per second of the embedded suite in MuJoCo Warp."""

from __future__ import annotations

import torch

from worldrl.core.extras import require
from worldrl.evaluation.world_model.throughput import now
from worldrl.recipes.gpu.kernels import TASK
from worldrl.recipes.gpu.outcome import Number, rate

COPIES, STEPS = {"full": 1024, "tiny": 2}, {"full": 40, "tiny": 2}


def measure_warp(size: str, device: torch.device) -> dict[str, Number]:
    """Time control steps of many copies under random actions; MissingExtraError: the package is not installed."""
    require("mujoco_warp", extra="warp")
    from worldrl.rollout.suites.warp import WarpVecEnv

    copies = COPIES[size]
    env = WarpVecEnv(TASK, num_envs=copies, device=str(device))
    try:
        began = now(device)
        env.reset(seed=0)
        env.action_space.seed(0)
        env.step(env.action_space.sample())  # kernels are compiled
        first, seconds = now(device) - began, []
        for _ in range(STEPS[size]):
            action = env.action_space.sample()
            began = now(device)
            env.step(action)
            seconds.append(now(device) - began)
    finally:
        env.close()
    return {
        "speed": rate(copies, seconds, "control steps/s"),
        "copies": Number(copies, ""),
        "first step": Number(first, "s"),
    }
