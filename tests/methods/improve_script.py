"""Improves a tiny policy in a tiny video world model; killed where its arguments say.

python improve_script.py ALGORITHM FOLDER MOMENT [STALENESS SIGNAL]
python improve_script.py partial FOLDER MOMENT [STALENESS SIGNAL]
    MOMENT: batch in whose imagination the process kills itself; -1 never
    partial: GRPO of rollouts that last for several iterations (``PARTIAL``)
    STALENESS: of GRPO, above 0 with a process of its own; SIGNAL: what the group of both receives instead of the kill
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from worldrl.core.embodiment import Embodiment
from worldrl.core.rng import initial_weights, stream
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.core.types import ResetRecord
from worldrl.methods.imitation.config import BehaviourCloning
from worldrl.methods.rl import imagination, imagining, partial_rollouts
from worldrl.methods.rl.config import FilteredCloning, GrpoConfig
from worldrl.methods.rl.imagining import Imaginers
from worldrl.methods.rl.improve import Improvement, improve
from worldrl.policies.samples import Samples
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.world_models.video.config import CodecConfig, DynamicsConfig, SuccessHeadConfig, VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel

PARTIAL = {"segment_chunks": 1, "spare_groups": 1, "horizon": 12}
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


def demonstrations() -> Samples:
    draw = stream(0, "demonstrations")
    image = torch.randint(256, (5, 16, 16, 3), generator=draw, dtype=torch.uint8)
    words = ("pick up the red cube",) * 5
    chunk = 2 * torch.rand(5, 4, 7, generator=draw) - 1
    return Samples(image, torch.zeros(5, 7), chunk, words, ("PickRedCube",) * 5, first=torch.arange(5))


def improved(
    algorithm: str,
    folder: Path,
    *,
    processes: int = 1,
    imaginers: Imaginers | None = None,
    horizon: int = 8,
    **settings: int,
) -> tuple[TokenPolicy, list[float]]:
    """Improve the policy, with checkpoints and log in ``folder``; return it and its history. GRPO takes ``settings``."""
    grpo = GrpoConfig(
        iterations=7,
        checkpoint_every=3,
        groups=2,
        group_size=4,
        minibatch=8,
        learning_rate=1e-2,
        keep_low=0,
        keep_high=1,
        kl=0.1,
        **settings,
    )
    cloning = BehaviourCloning(steps=6, batch_size=8, warmup_steps=1, learning_rate=1e-2, checkpoint_every=4)
    training = FilteredCloning(cycles=2, rollouts=28, rows=8, processes=processes, cloning=cloning)
    config = Improvement(algorithm=algorithm, p_keyframe=0, self_training=training, grpo=grpo)
    store = ResetStore([record(grey) for grey in (20, 120, 220)])
    rule = SuccessRule(0.1, 2)  # a level that some of this untrained world's imagined rollouts reach
    env = imagination.imagined_env(world_model(), store, rule, rows=config.rows, horizon={"PickRedCube": horizon})
    learner = policy()
    with MetricLog(folder, tracker=TrackerName.none) as log:
        history = improve(
            learner,
            env,
            config,
            demonstrations=demonstrations(),
            paraphrases={},
            seed=1,
            folder=folder / "checkpoints",
            log=log,
            imaginers=imaginers,
        )
    return learner, list(history)


def main() -> None:
    torch.set_num_threads(1)
    algorithm, folder, moment, *ahead = sys.argv[1:]
    settings = PARTIAL if algorithm == "partial" else {}
    here = (partial_rollouts.Slots, "take") if settings else (imagination, "imagine_rollouts")
    owner, name = (imagining.ImaginingProcess, "take") if ahead else here
    calls, imagine = 0, getattr(owner, name)

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        if ahead:
            (Path(folder) / "imagining.pid").write_text(str(args[0]._process.pid))
        if calls == int(moment):
            os.killpg(os.getpgrp(), int(ahead[1])) if ahead else os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return imagine(*args, **kwargs)

    setattr(owner, name, counted)
    settings = {**settings, "staleness": int(ahead[0]) if ahead else 0} if algorithm != "self_training" else {}
    learner, history = improved("grpo" if algorithm == "partial" else algorithm, Path(folder), **settings)
    learner.save(Path(folder) / "policy")
    (Path(folder) / "history.json").write_text(json.dumps(history))


if __name__ == "__main__":
    main()
