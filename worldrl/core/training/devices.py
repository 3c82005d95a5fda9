"""Settings of a training on several devices."""

from dataclasses import dataclass
from enum import StrEnum


class Parallel(StrEnum):
    """How the processes of ``torchrun`` or ``accelerate launch`` share a model."""

    ddp = "ddp"
    fsdp = "fsdp"


@dataclass
class DeviceSettings:
    """How a training is divided; the batch size stays that of all processes together."""

    # with several processes: ``ddp`` keeps the model in each of them, ``fsdp`` a part of it.
    parallel: Parallel = Parallel.ddp
    accumulate: int = 1  # passes per optimiser step, each on an equal part of the batch; fewer rows at once.
    # compute each block again in the backward pass: less memory, about a third more time.
    activation_checkpointing: bool = False
