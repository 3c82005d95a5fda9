"""Improves a tiny policy in a tiny video world model; killed where it is told.

python improve_script.py FOLDER MOMENT    MOMENT: iteration in whose imagination the process kills itself; -1 never
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from worldrl.algorithms import improve as module
from worldrl.algorithms.grpo import GrpoConfig
from worldrl.algorithms.improve import Improvement, imagined_env, improve
from worldrl.core.embodiment import Embodiment
from worldrl.core.log import MetricLog
from worldrl.core.rng import initial_weights
from worldrl.core.types import ResetRecord
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token_policy import TokenPolicy, TokenPolicyConfig
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.reset_store import ResetStore
from worldrl.world_models.config import CodecConfig, DynamicsConfig, SuccessHeadConfig, VideoWorldModelConfig
from worldrl.world_models.video import VideoWorldModel

ROBOT = Embodiment(0.02, 0.1, (0.34, -0.22, 0.012), (0.66, 0.22, 0.24), 0.5, 20.0)


def world_model() -> VideoWorldModel:
    codec = CodecConfig(image_size=16, channels=4, width=16, depth=1, heads=2)
    dynamics = DynamicsConfig(width=16, depth=1, heads=2, chunk_length=4, memory_frames=2)
    with initial_weights(0, "world"):
        model = VideoWorldModel(VideoWorldModelConfig(codec, dynamics, SuccessHeadConfig()), ROBOT).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def record(grey: int) -> ResetRecord:
    picture = np.full((16, 16, 3), grey, np.uint8)
    command = np.array([0.48, 0, 0.14, 0, 0, 0, -1], np.float32)
    return ResetRecord(picture, np.stack([picture] * 2), command, "pick up the red cube", "PickRedCube", 0, f"{grey}")


def policy() -> TokenPolicy:
    config = TokenPolicyConfig(image_size=16, chunk_length=4, bins=5, width=8, blocks=1, keypoints=2, hidden=16)
    ones = torch.ones(7)
    with initial_weights(0, "policy"):
        return TokenPolicy(config, PolicyStatistics(-ones, ones, 0 * ones, ones))


def main() -> None:
    torch.set_num_threads(1)
    folder, moment = Path(sys.argv[1]), int(sys.argv[2])
    grpo = GrpoConfig(groups=2, group_size=4, minibatch=8, learning_rate=1e-2, keep_low=0, keep_high=1, kl=0.1)
    config = Improvement(iterations=7, p_keyframe=0, checkpoint_every=3, grpo=grpo)
    store = ResetStore([record(grey) for grey in (20, 120, 220)])
    rule = SuccessRule(0.1, 2)  # a level that some of this untrained world's dreams reach
    env = imagined_env(world_model(), store, rule, rows=8, horizon={"PickRedCube": 8})
    calls, imagine = 0, module.imagine_rollouts

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return imagine(*args, **kwargs)

    module.imagine_rollouts = counted
    learner = policy()
    with MetricLog(folder, tensorboard=False) as log:
        history = improve(learner, env, config, seed=1, folder=folder / "checkpoints", log=log)
    learner.save(folder / "policy")
    (folder / "history.json").write_text(json.dumps(history))


if __name__ == "__main__":
    main()
