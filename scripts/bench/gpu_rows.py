"""One row of ``gpu``, measured in this process: a model with random weights, its work, its time, memory and anchors.

The work is the model's (forward, backward, encoding) without what checkpointing computes again, as is usual. The anchor
is the fastest of several square matrix products and of the model's own largest products and convolutions.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from wan_geometries import GEOMETRIES, TINY

from bench.kernels import HOME, ROBOT, SENTENCE, TASK, Kernel, count_gflop, kernels_of, random_records, square
from worldrl.cli import compose_command, find_command
from worldrl.core.device import autocast, peak_device_mb, peak_rss_mb, resolve_device, resolve_dtype
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.core.training.fit import FitReport
from worldrl.core.types import Episode
from worldrl.evaluation.world_model.throughput import imagined_frames_per_s, now
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.losses import dynamics_loss
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import WindowLoss, fit_windows, latent_sampler
from worldrl.world_models.wan.fit import TrainedParts, clip_sampler, fit_wan
from worldrl.world_models.wan.folder import WanBase, blank_transformer, blank_vae
from worldrl.world_models.wan.model import WanWorldModel

GPU = "gpu"
WORKS = {GPU: ("imagine", "train"), **dict.fromkeys(GEOMETRIES, ("imagine", "train lora", "train full"))}
"""What each model is asked to do."""
MEASURED, NO_MEMORY = "measured", "out of memory"
OWN = 3  # Largest products or convolutions of a model that it is measured by
STEPS = 32  # Control steps of a made-up episode


@dataclass(frozen=True)
class Size:
    """Which sizes are measured."""

    preset: str  # of train-world-model, for the model without published weights
    wan: tuple[str, ...]  # settings of train-world-model beside its wan preset
    geometry: dict[str, Any] | None  # of transformer and autoencoder in the place of the published one
    sides: tuple[int, ...]  # of the square matrices


TINY_WAN = ("codec.image_size=16", "dynamics.lora_rank=2", "success.width=16", "success.heads=2")
SIZES = {
    "full": Size("gpu", (), None, (2048, 4096, 8192)),
    "tiny": Size("tiny", tuple(f"wan.model.{name}" for name in TINY_WAN), TINY, (32, 64)),
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str  # `gpu` or a Wan geometry
    work: str  # `imagine`, `train`, `train lora` or `train full`
    batch: int  # rollouts or training windows at once
    device: str  # `cuda`, or `cpu` to try the script
    size: str  # of SIZES
    dtype: str  # `float32`, `bfloat16` or `auto`
    repetitions: int  # chunks or training steps that are timed


@dataclass(frozen=True)
class Timing:
    """What running one row took."""

    gflop: float  # model FLOPs of one chunk or step, of all rows
    frames: int  # predicted in it
    seconds: float  # of it
    own: tuple[Kernel, ...]  # its largest products and convolutions
    more: dict[str, Any]  # further numbers for the result


# -- models and data -------------------------------------------------------------------------------------------------


def composed(row: Row) -> Any:
    """Settings of ``train-world-model`` with the row's preset, batch, number type and adapter."""
    size, wan = SIZES[row.size], row.model != GPU
    tokens = ["preset=wan", *size.wan] if wan else [f"preset={size.preset}"]
    if wan:
        tokens += [f"wan.model.dynamics.adapter={'full' if row.work == 'train full' else 'lora'}"]
    part = "wan.training" if wan else "training"
    tokens += [f"{part}.{name}={value}" for name, value in (("batch", row.batch), ("dtype", row.dtype))]
    return compose_command(find_command("train-world-model"), tokens)


def make_model(row: Row, device: torch.device) -> AnyVideoModel:
    """A world model of the row's sizes with random weights."""
    settings = composed(row)
    with initial_weights(0, "bench"):
        if row.model == GPU:
            return VideoWorldModel(settings.model, ROBOT).to(device)
        geometry = SIZES[row.size].geometry or GEOMETRIES[row.model]
        with torch.device(device):  # five billion numbers are drawn faster there
            transformer, vae = blank_transformer(geometry["transformer"]), blank_vae(geometry["vae"])
        base = WanBase(Path(row.model), geometry["transformer"], geometry["vae"], ())
        return WanWorldModel(settings.wan.model, ROBOT, base, transformer, vae).to(device)


def made_up_episode(size: int) -> Episode:
    """Noise in ``size`` pixels while the arm stands still and the gripper closes once."""
    draw = np.random.default_rng(0)
    action = np.tile(ROBOT.actions.hold(HOME), (STEPS, 1))
    action[STEPS // 4 :, -1] = 1
    command = np.tile(HOME, (STEPS + 1, 1))
    command[STEPS // 4 + 1 :, -1] = 1
    return Episode(
        frames=draw.integers(0, 256, (STEPS + 1, 1, size, size, 3), dtype=np.uint8),
        state=np.zeros((STEPS + 1, 8), np.float32),
        command=command,
        action=action,
        reward=np.zeros(STEPS, np.float32),
        contact=np.zeros(STEPS + 1, bool),
        terminated=False,
        truncated=True,
        instruction=SENTENCE,
        task=TASK,
    )


# -- work ------------------------------------------------------------------------------------------------------------


def imagine(row: Row, model: AnyVideoModel, device: torch.device) -> Timing:
    """Time imagined chunks."""
    model.eval().requires_grad_(False)  # the FLOP counter trips over parameters with gradient
    model.compute_dtype = resolve_dtype(row.dtype, device)
    records = random_records(1, model.memory_frames, model.config.codec.image_size)
    state, action = model.start(records), torch.zeros(1, model.chunk_length, ROBOT.actions.size)

    def one() -> object:
        return model.imagine(state, action, generators=row_streams(0, ("bench",), 1))

    gflop, own = row.batch * count_gflop(one), kernels_of(one, OWN)
    forget_peak(device)
    speed = imagined_frames_per_s(model, records[0], row.batch, chunks=row.repetitions)
    frames = row.batch * len(model.frame_steps)
    return Timing(gflop, frames, frames / speed["latent"], tuple(own), {"frames_per_s_decoded": speed["decoded"]})


def train_video(row: Row, model: VideoWorldModel, device: torch.device) -> Timing:
    """Time training steps of the video world model, each on the first chunk of its windows."""
    training = replace(composed(row).training, bootstrap=0.0)
    episodes = [made_up_episode(model.config.codec.image_size)]
    sampler = latent_sampler(model, episodes, training)
    window = sampler.sample(1, stream(0, "bench")).to(device)

    def loss() -> torch.Tensor:
        with autocast(device, resolve_dtype(training.dtype, device)):
            return dynamics_loss(model, window, generator=stream(0, "bench"))[0]

    def fit(steps: int) -> FitReport:
        return fit_windows(
            "bench", model, sampler, training, instructions=no_others(), seed=0, folder=None, log=None, steps=steps
        )

    work = _work_of_a_step(model, loss, row.batch)
    if training.compile:
        model.dynamics.compile()
    return _timed_steps(row, model, device, fit, *work)


def train_wan(row: Row, model: WanWorldModel, device: torch.device) -> Timing:
    """Time training steps of a Wan world model, encoding included."""
    training = composed(row).wan.training
    episodes = [made_up_episode(model.config.codec.image_size)]
    one = replace(training, batch=1)
    sampler = clip_sampler(model, episodes, one)
    window = WindowLoss(model, sampler, one, no_others(), 0, None, TrainedParts(model).train())

    def loss() -> torch.Tensor:
        return window(0)[0]

    def fit(steps: int) -> FitReport:
        return fit_wan(
            model,
            episodes,
            replace(training, steps=steps),
            instructions=no_others(),
            seed=0,
            device=device,
            folder=None,
            log=None,
        )

    return _timed_steps(row, model, device, fit, *_work_of_a_step(model, loss, row.batch))


def no_others() -> TaskInstructions:
    """One sentence, and none that is wrong."""
    return TaskInstructions(same={TASK: (SENTENCE,)}, other={})


def _work_of_a_step(
    model: AnyVideoModel, loss: Callable[[], torch.Tensor], batch: int
) -> tuple[float, tuple[Kernel, ...]]:
    """GFLOP of a step of ``batch`` rows, from one row without recomputation, and its largest kernels."""
    gflop, own = batch * count_gflop(lambda: loss().backward()), kernels_of(loss, OWN)
    model.zero_grad(set_to_none=True)
    return gflop, tuple(own)


def _timed_steps(
    row: Row,
    model: AnyVideoModel,
    device: torch.device,
    fit: Callable[[int], FitReport],
    gflop: float,
    own: tuple[Kernel, ...],
) -> Timing:
    fit(2)  # kernels are chosen and compiled
    forget_peak(device)
    seconds = fit(row.repetitions).wall_s / row.repetitions
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Timing(gflop, row.batch * len(model.frame_steps), seconds, own, {"trained_parameters": trained})


# -- one row ---------------------------------------------------------------------------------------------------------


def measure(row: Row) -> dict[str, Any]:
    """Measure one row: ``status``, and with enough memory its speed, work, peak memory and share of the anchor."""
    device = resolve_device(row.device)
    try:
        model = make_model(row, device)
        parameters = sum(p.numel() for p in model.parameters())
        work = {"imagine": imagine, "train": train_video, "train lora": train_wan, "train full": train_wan}[row.work]
        timing, peak = work(row, model, device), peak_memory_mb(device)
    except torch.OutOfMemoryError:
        return {**asdict(row), "status": NO_MEMORY}
    del model, work
    gc.collect()
    torch.cuda.empty_cache()
    kernels = [*map(square, SIZES[row.size].sides), *(kernel.widened(row.batch) for kernel in timing.own)]
    rates = dict(anchor_rates(kernels, resolve_dtype(row.dtype, device), device))
    return {**asdict(row), "status": MEASURED, "parameters": parameters, "peak_memory_mb": peak, **told(timing, rates)}


def told(timing: Timing, rates: dict[str, float]) -> dict[str, Any]:
    """Numbers of a row from its timing and the anchors' GFLOP per second."""
    fastest = max(rates, key=rates.__getitem__)
    return {
        "frames_per_s": timing.frames / timing.seconds,
        "seconds": timing.seconds,
        "gflop": timing.gflop,
        "anchor": {"name": fastest, "gflops": rates[fastest]},
        "share_of_anchor": timing.gflop / timing.seconds / rates[fastest],
        **timing.more,
    }


def anchor_rates(
    kernels: Sequence[Kernel],
    dtype: torch.dtype,
    device: torch.device,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[str, float]]:
    """GFLOP per second of each kernel, the fastest of some calls; one that finds no memory is left out."""
    for kernel in kernels:
        try:
            call = kernel.call(dtype, device)
            seconds = [_seconds(call, device, clock) for _ in range(10)]
        except torch.OutOfMemoryError:
            continue
        yield str(kernel), kernel.gflop / min(seconds[2:])


def _seconds(call: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    began = now(device, clock)
    call()
    return now(device, clock) - began


def forget_peak(device: torch.device) -> None:
    """Let what was allocated until now not count; what is still held does."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mb(device: torch.device) -> float:
    """Most that was allocated on the device; on the CPU, the process's resident memory."""
    peak = peak_device_mb(device)
    return peak_rss_mb() if peak is None else peak
