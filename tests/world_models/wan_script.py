"""Trains a tiny Wan world model: ``wan_script.py BASE FOLDER DTYPE BASE_DTYPE ADAPTER``, alone or under torchrun."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from worldrl.core.embodiment import Embodiment
from worldrl.core.training.ranks import rank
from worldrl.core.types import Episode
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.wan.config import WanCodecConfig, WanConfig, WanDynamicsConfig, WanSuccessConfig
from worldrl.world_models.wan.fit import fit_wan, is_sharded
from worldrl.world_models.wan.model import WanWorldModel
from worldrl.world_models.wan.training import WanTraining

ROBOT = Embodiment(0.02, 0.1, (0.34, -0.22, 0.012), (0.66, 0.22, 0.24), 0.5, 20.0)


def episode(number: int) -> Episode:
    draw = np.random.default_rng(number)
    action = draw.uniform(-1, 1, (16, 7)).astype(np.float32)
    return Episode(
        frames=draw.integers(0, 256, (17, 1, 16, 16, 3), dtype=np.uint8),
        state=np.zeros((17, 8), np.float32),
        command=np.concatenate([action[:1], action]),
        action=action,
        reward=np.zeros(16, np.float32),
        contact=np.zeros(17, bool),
        terminated=False,
        truncated=True,
        instruction="pick up the red cube",
        task="PickRedCube",
    )


def shard_on_the_cpu() -> None:
    """Make Accelerate take its FSDP path, which it keeps for GPUs, with gloo."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    found = PartialState.__init__

    def pretend(self, *args, **kwargs):
        found(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = pretend


def main(base: str, folder: str, dtype: str, base_dtype: str, adapter: str) -> None:
    if "ACCELERATE_USE_FSDP" in os.environ:
        shard_on_the_cpu()
    config = WanConfig(
        WanCodecConfig(image_size=16),
        WanDynamicsConfig(chunk_length=4, adapter=adapter, lora_rank=2, base_dtype=base_dtype),
        WanSuccessConfig(width=16, heads=2),
    )
    model = WanWorldModel.from_base(base, config, ROBOT, seed=0)
    training = WanTraining(
        steps=4, batch=2, accumulate=2, warmup=1, checkpoint_every=2, dtype=dtype, event_share=0, static_share=0
    )
    report = fit_wan(
        model,
        [episode(number) for number in range(4)],
        training,
        instructions=TaskInstructions({}, {}),
        seed=0,
        device=torch.device("cpu"),
        folder=Path(folder) / "wan",
        log=None,
    )
    trained = {str(p.dtype) for p in model.parameters() if p.requires_grad}
    kept = {str(p.dtype) for p in model.parameters() if not p.requires_grad}
    result = {
        "loss": report.logs.get("loss"),
        "resumed_from": report.resumed_from,
        "sharded": is_sharded(model),
        "trained": sorted(trained),
        "kept": sorted(kept),
    }
    (Path(folder) / f"result-{rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
