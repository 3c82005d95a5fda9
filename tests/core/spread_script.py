"""Trains small models through ``fit`` in any number of processes: ``spread_script.py FOLDER WHAT [key=value ...]``.

Alone or as one of several processes, which find each other by torchrun's variables.
"""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from worldrl.core.embodiment import Embodiment
from worldrl.core.errors import WorldrlError
from worldrl.core.rng import draw, own_rows, stream
from worldrl.core.training.ema import Ema
from worldrl.core.training.fit import fit
from worldrl.core.training.optimizer import warmup_cosine
from worldrl.core.training.processes import gather_texts, joined
from worldrl.core.training.ranks import DeviceSettings, rank, world_size
from worldrl.core.training.spread import spread
from worldrl.core.types import Episode
from worldrl.methods.imitation.behaviour_cloning import BehaviourCloning, train_policy
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.motion.idm_stages import learn_idm
from worldrl.rewards.config import IdmConfig, IdmTraining
from worldrl.rewards.motion.readout import choose_columns, recorded_names
from worldrl.world_models.video.config import (
    CodecConfig,
    CodecKind,
    DynamicsConfig,
    OutcomeHeadConfig,
    VideoWorldModelConfig,
)
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.outcome_training import fit_outcome
from worldrl.world_models.video.training import fit_codec, fit_dynamics
from worldrl.world_models.video.training_config import WorldModelTraining

ROBOT = Embodiment(0.02, 0.1, (0.34, -0.22, 0.012), (0.66, 0.22, 0.24), 0.5, 20.0)
DATA = {"event_share": 0.0, "static_share": 0.0}


def episode(number: int) -> Episode:
    """Of unequal lengths, so that windows end beyond the episode and the parts' masks differ."""
    random, steps = np.random.default_rng(number), 6 + 5 * number
    action = random.uniform(-1, 1, (steps, 7)).astype(np.float32)
    reward = np.zeros(steps, np.float32)
    reward[-1] = 1.0
    return Episode(
        frames=random.integers(0, 256, (steps + 1, 1, 16, 16, 3), dtype=np.uint8),
        state=random.normal(size=(steps + 1, 8)).astype(np.float32),
        command=np.concatenate([action[:1], action]),
        action=action,
        reward=reward,
        contact=np.zeros(steps + 1, bool),
        terminated=True,
        truncated=False,
        instruction="pick up the red cube",
        task="PickRedCube",
    )


EPISODES = [episode(number) for number in range(4)]


def toy(
    folder: Path, settings: DeviceSettings, steps: int, dies: int = -1, interrupted: int = -1, breaks: int = -1
) -> nn.Module:
    """A small network of blocks with a masked loss, which may end or interrupt its process."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])
            self.out, self.unused = nn.Linear(5, 1), nn.Linear(2, 2)
            self.memory = nn.GRU(5, 5)  # keeps references to its weights besides

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block(x).tanh()
            return self.out(x + self.memory(x[None])[0][0])

    net = Net()
    for number, parameter in enumerate(net.parameters()):
        nn.init.normal_(parameter, std=0.5, generator=stream(0, "weights", number))
    divided = spread(settings, unused=True, batch=8)
    last = rank() == world_size() - 1

    def loss(step: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if last and step == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if last and step == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        generator = divided.part.stream(0, "toy", step)
        valid = torch.rand(8, generator=generator) < 0.5
        x = draw(torch.randn, (8 // divided.part.count, 5), generator)
        error = (net(x) - x.sum(dim=1, keepdim=True)).square()[:, 0] * own_rows(valid, generator)
        value = error.sum() / (valid.sum().clamp_min(1) / divided.part.count)
        if step == breaks:
            value = value + (0 * net.out.bias).sum().sqrt()  # a gradient of infinity times 0
        return value, {"toy/error": value.detach()}

    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    ema = Ema(net, 0.9)

    def measure(_: int) -> None:
        """End where a process holds more of the weights and moments than its share, but for padding."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        moments = [[of[name] for of in optimizer.state.values()] for name in ("exp_avg", "exp_avg_sq")]
        for tensors in (weights, *moments):
            if sum(held_here(tensor) for tensor in tensors) > 0.6 * sum(tensor.numel() for tensor in tensors):
                sys.exit("a process holds more than its part")

    fit(
        "toy", modules={"net": net}, optimizer=optimizer, loss=loss, steps=steps, folder=folder, every_checkpoint=2,
        schedule=warmup_cosine(100, 2), clip_norm=0.5, ema=ema, processes=divided,
        on_step=measure if settings.sharded else None,
    )  # fmt: skip
    return nn.ModuleDict({"net": net, "ema": ema.module})


def held_here(tensor: torch.Tensor) -> int:
    return tensor.to_local().numel() if isinstance(tensor, DTensor) else tensor.numel()


def policy(folder: Path, settings: DeviceSettings, steps: int) -> nn.Module:
    sizes = {
        "image_size": 16,
        "chunk_length": 2,
        "width": 8,
        "blocks": 1,
        "keypoints": 2,
        "text_width": 8,
        "hidden": 16,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = TokenPolicy(TokenPolicyConfig(**sizes), PolicyStatistics.from_episodes(EPISODES))
    config = BehaviourCloning(
        **vars(settings), steps=steps, batch_size=8, warmup_steps=1, checkpoint_every=2, dtype="float32", ema_decay=0.5
    )
    train_policy(found, EPISODES, config=config, seed=0, folder=folder, log=None, device="cpu")
    return found


def world_model(folder: Path, settings: DeviceSettings, steps: int) -> nn.Module:
    config = VideoWorldModelConfig(
        codec=CodecConfig(kind=CodecKind.patch, image_size=16, patch=8, channels=4, width=16, depth=1, heads=2),
        dynamics=DynamicsConfig(
            chunk_length=4, frame_stride=2, memory_frames=2, width=16, depth=2, heads=2, sampling_steps=1
        ),
        outcome=OutcomeHeadConfig(ensemble_size=1, width=8),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = VideoWorldModel(config, ROBOT)
    training = WorldModelTraining(
        **vars(settings), **DATA, codec_steps=steps, codec_batch=8, steps=steps, batch=8, outcome_steps=steps, outcome_batch=4,
        warmup=1, checkpoint_every=2, dtype="float32",
    )  # fmt: skip
    frames = torch.from_numpy(np.concatenate([one.frames[:, 0] for one in EPISODES]))
    common = {"seed": 0, "log": None}
    fit_codec(model, frames, training, folder=folder / "codec", **common)
    words = TaskInstructions({}, {"PickRedCube": ["push the button"]})
    fit_dynamics(model, EPISODES, training, instructions=words, folder=folder / "dynamics", **common)
    fit_outcome(model, EPISODES, training, instructions=words, folder=folder / "outcome", **common)
    return model


def idm(folder: Path, settings: DeviceSettings, steps: int) -> nn.Module:
    columns = choose_columns(["state"], recorded_names(ROBOT))
    config = IdmConfig(width=8, blocks=1, keypoints=2, value_width=2, hidden=8)
    training = IdmTraining(**vars(settings), steps=steps, batch=8, checkpoint_every=2, dtype="float32")
    return learn_idm(
        folder, EPISODES, EPISODES[:2], columns, config=config, training=training, frame_stride=1, camera="scene",
        restore=None, seed=0, device=torch.device("cpu"), log=None,
    )  # fmt: skip


def run(folder: Path, what: str, given: dict[str, str]) -> None:
    """Train one model and keep its weights, by process."""
    settings = DeviceSettings(int(given.get("accumulate", 1)), "checkpointing" in given, "sharded" in given)
    steps = int(given.get("steps", 4))
    more = {name: int(given[name]) for name in ("dies", "interrupted", "breaks") if name in given}
    model = globals()[what](folder / what, settings, steps, **more)
    state = {
        name: value.detach().cpu() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)
    }
    torch.save(state, folder / f"{what}-{rank()}.pt")


def main() -> int:
    folder, *jobs = sys.argv[1:]
    torch.set_num_threads(1)
    try:
        with joined(torch.device("cpu")) if world_size() > 1 else nullcontext():
            if world_size() > 1 and gather_texts("é" * rank(), torch.device("cpu")) != ["", "é"]:
                return 3
            for job in jobs:
                what, *pairs = job.split(",")
                given = dict(pair.split("=") for pair in pairs)
                place = Path(folder) / given.get("into", "")
                place.mkdir(parents=True, exist_ok=True)
                run(place, what, given)
    except WorldrlError as error:
        sys.stderr.write(f"worldrl: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
