"""Trains a small network through ``fit``; run as a process it kills or interrupts itself where its arguments say.

python fit_script.py FOLDER WHAT MOMENT    WHAT: none, loss, replace, fsync, interrupt
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from worldrl.core.rng import stream
from worldrl.core.storage.log import MetricLog, TrackerName
from worldrl.core.training.ema import Ema
from worldrl.core.training.fit import FitReport, fit
from worldrl.core.training.optimizer import warmup_cosine

STEPS = 20


def weights(module: nn.Module) -> None:
    generator = stream(0, "weights")
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)


def train(folder: Path, on_loss: Callable[[int], None] = lambda step: None) -> FitReport:
    torch.set_num_threads(1)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 2))
    weights(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)

    def loss(step: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        on_loss(step)
        x = torch.randn(16, 4, generator=stream(0, "toy", step))
        error = (module(x) - x[:, :2] * x[:, 2:]).square()
        return error.mean(), {"toy/worst": error.detach().max()}

    with MetricLog(folder, tracker=TrackerName.none) as log:
        return fit(
            "toy",
            modules={"net": module},
            optimizer=optimizer,
            loss=loss,
            steps=STEPS,
            folder=folder / "checkpoints",
            every_checkpoint=6,
            schedule=warmup_cosine(STEPS, 4),
            clip_norm=1.0,
            log=log,
            ema=Ema(module, 0.9),
        )


def main() -> None:
    folder, what, moment = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    calls = 0

    def deadly(function: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    def on_loss(step: int) -> None:
        if step == moment and what in ("loss", "interrupt"):
            os.kill(os.getpid(), signal.SIGKILL if what == "loss" else signal.SIGINT)

    if what in ("replace", "fsync"):
        setattr(os, what, deadly(getattr(os, what)))
    train(folder, on_loss)


if __name__ == "__main__":
    main()
