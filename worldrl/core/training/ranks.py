"""Which of several processes this is, as ``torchrun`` and ``accelerate launch`` tell it through the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldrl.core.errors import SettingError
from worldrl.core.storage.log import WORKER_VARIABLE

if TYPE_CHECKING:
    import torch


@dataclass
class DeviceSettings:
    """How a training is divided; the batch size stays that of all processes together."""

    accumulate: int = 1  # passes per optimiser step, each on an equal part of the batch; fewer rows at once.
    # compute each block again in the backward pass: less memory, about a third more time.
    activation_checkpointing: bool = False
    # divide weights, gradients and the optimizer's state over the processes (FSDP2): less memory of each, more traffic.
    sharded: bool = False


def rank() -> int:
    """This process's number; 0 without a launcher. The first process alone writes."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes were launched together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launcher() -> list[str]:
    """Return the words before a command that launch as many processes again; none for one process."""
    if world_size() == 1:
        return []
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
    nodes = [] if here == world_size() else ["--nnodes", str(world_size() // here)]
    return ["torchrun", *nodes, "--nproc-per-node", str(here), "--module", "worldrl"]


def rank_device(device: torch.device) -> torch.device:
    """Give each process of a machine its own GPU, where the setting says no more than ``cuda``."""
    import torch

    if world_size() > 1 and str(device) == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def refuse_many(what: str, instead: str = "") -> None:
    """SettingError where several processes were launched; ``instead`` says what else would help."""
    if world_size() > 1:
        mend = f"start it without accelerate launch or torchrun{', ' if instead else ''}{instead}"
        raise SettingError(f"{what} runs in one process, {world_size()} were launched; {mend}")


def keep_silent() -> None:
    """Show no progress from this process."""
    os.environ[WORKER_VARIABLE] = "1"
