"""A sharded training that is stopped and resumed, in processes of its own: as many as there are GPUs, or two on a CPU.

``python -m torch.distributed.run ... -m worldrl.recipes.gpu.sharded_resume FOLDER DEVICE SIZE SHARDED`` trains the
dynamics of a world model with random weights, resuming from ``FOLDER``; the first process prints what :class:`Session`
holds.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from worldrl.core.errors import WorldrlError
from worldrl.core.storage.atomic import remove_folder
from worldrl.core.training.processes import joined
from worldrl.core.training.ranks import keep_silent, rank, rank_device, world_size
from worldrl.recipes.gpu.outcome import Number
from worldrl.recipes.gpu.rows import TRAIN, Row, forget_peak, made_up_episode, make_model, no_others, peak_memory_mb
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import fit_windows, latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining

STEPS = 6  # in all; half of them are repeated


@dataclass(frozen=True)
class Session:
    """What one launch did."""

    digest: str  # of the weights at its end
    peak_mb: float  # of the first process
    seconds: float  # of its steps


def measure_resume(size: str, device: torch.device, processes: int) -> dict[str, Number]:
    """Train without a stop, with a repeated half, and with whole weights; WorldrlError where the resumed weights differ."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sharded"
        straight = _launch(folder, device, size, processes)
        remove_folder(folder / f"step-{STEPS:08d}")  # as if killed before the last checkpoint
        resumed = _launch(folder, device, size, processes)
        whole = _launch(Path(place) / "whole", device, size, processes, sharded=False)
    if straight.digest != resumed.digest:
        raise WorldrlError(f"the resumed weights differ: {resumed.digest} instead of {straight.digest}")
    return {
        "processes": Number(processes, ""),
        "time of a step": Number(straight.seconds / STEPS, "s"),
        "time of a step, not sharded": Number(whole.seconds / STEPS, "s"),
        "peak memory": Number(straight.peak_mb / 1e3, "GB"),
        "peak memory, not sharded": Number(whole.peak_mb / 1e3, "GB"),
    }


def _launch(folder: Path, device: torch.device, size: str, processes: int, *, sharded: bool = True) -> Session:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--module", __spec__.name]
    command = [sys.executable, "-m", *launcher, str(folder), device.type, size, str(int(sharded))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        reasons = [line for line in ended.stderr.splitlines() if "Error" in line]
        raise WorldrlError(reasons[0] if reasons else f"the processes ended with status {ended.returncode}")
    return Session(**json.loads(lines[-1]))


def train(folder: Path, device: torch.device, size: str, *, sharded: bool) -> Session:
    """Train in this process, one of several."""
    preset = "gpu" if size == "full" else "tiny"
    model = cast("VideoWorldModel", make_model(Row(preset, TRAIN, 1), size, device))
    training = WorldModelTraining(
        batch=4 * world_size(), dtype="float32", bootstrap=0.0, sharded=sharded, checkpoint_every=STEPS // 2
    )
    sampler = latent_sampler(model, [made_up_episode(model.config.codec.image_size)], training)
    forget_peak(device)
    report = fit_windows(
        "sharded", model, sampler, training, instructions=no_others(), seed=0, folder=folder, log=None, steps=STEPS
    )
    return Session(weights_digest(model.dynamics), peak_memory_mb(device), report.wall_s)


def weights_digest(module: nn.Module) -> str:
    """Digest of all weights, in their order."""
    found = hashlib.sha256()
    for weight in module.parameters():
        found.update(weight.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def main(folder: str, device: str, size: str, sharded: str) -> None:
    """Join the other processes and train."""
    keep_silent()
    own = rank_device(torch.device(device))
    with joined(own):
        session = train(Path(folder), own, size, sharded=sharded == "1")
    if rank() == 0:
        sys.stdout.write(json.dumps(asdict(session)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
