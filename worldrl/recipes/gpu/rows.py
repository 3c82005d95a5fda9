"""World models with random weights: frames per second, utilisation and memory of imagining and of training.

The work is the model's (forward, backward, encoding) without what checkpointing computes again, as is usual.
Utilisation is its share of the anchor, the fastest of several square matrix products and of the model's own largest
products and convolutions, in the same process and number type. Nothing is downloaded.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml
from torch.optim.optimizer import register_optimizer_step_post_hook

from worldrl.core.device import autocast, peak_device_mb, peak_rss_mb, resolve_dtype
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.core.types import Episode
from worldrl.evaluation.world_model.throughput import imagined_seconds, now
from worldrl.paths import config_dir
from worldrl.recipes.gpu.kernels import (
    HOME,
    ROBOT,
    SENTENCE,
    TASK,
    Kernel,
    count_gflop,
    kernels_of,
    random_records,
    square,
)
from worldrl.recipes.gpu.outcome import Number, median, rate
from worldrl.settings import build
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.video.config import DynamicsKind, VideoWorldModelConfig
from worldrl.world_models.video.instructions import TaskInstructions
from worldrl.world_models.video.losses import dynamics_loss
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.training import WindowLoss, fit_windows, latent_sampler
from worldrl.world_models.video.training_config import WorldModelTraining
from worldrl.world_models.wan.config import WanConfig
from worldrl.world_models.wan.fit import TrainedParts, clip_sampler, fit_wan
from worldrl.world_models.wan.folder import WanBase, blank_transformer, blank_vae
from worldrl.world_models.wan.geometries import GEOMETRIES, TINY
from worldrl.world_models.wan.model import WanWorldModel
from worldrl.world_models.wan.training import WanTraining

IMAGINE, TRAIN, LORA, FULL = "imagine", "train", "train lora", "train full"
OWN = 3  # Largest products or convolutions of a model that it is measured by
STEPS = 32  # Control steps of a made-up episode
WARM = 3  # Training steps that do not count: kernels are chosen and compiled, and the optimiser's state is made


@dataclass(frozen=True)
class Size:
    """Which sizes are measured."""

    geometry: dict[str, Any] | None  # of Wan's transformer and autoencoder in the place of the published one
    sides: tuple[int, ...]  # of the square matrices
    repetitions: int  # chunks or training steps that are timed


SIZES = {"full": Size(None, (2048, 4096, 8192), 10), "tiny": Size(TINY, (32, 64), 3)}


@dataclass(frozen=True)
class Row:
    """What is measured at once."""

    model: str  # a preset of train-world-model, or a Wan geometry
    work: str  # IMAGINE, TRAIN, LORA or FULL
    batch: int  # rollouts or training windows at once
    dtype: str = "bfloat16"
    kind: DynamicsKind = DynamicsKind.flow_transformer  # of a model that is not Wan's
    compiled: bool = False  # training's setting ``compile``

    @property
    def wan(self) -> bool:
        """Whether the model is Wan's."""
        return self.model in GEOMETRIES


@dataclass(frozen=True)
class Timing:
    """What running one row took."""

    gflop: float  # model FLOPs of one chunk or step, of all rows
    frames: int  # predicted in it
    seconds: list[float]  # of each repetition
    own: tuple[Kernel, ...]  # its largest products and convolutions
    more: dict[str, Number] = field(default_factory=dict[str, Number])


# -- models and data -------------------------------------------------------------------------------------------------


def preset_part(command: str, preset: str, group: str, hint: type[Any]) -> Any:
    """Make one group of a command's settings as a preset has it."""
    text = (config_dir() / command / "preset" / f"{preset}.yaml").read_text()
    return build(hint, (yaml.safe_load(text) or {}).get(group) or {})


def video_config(row: Row) -> VideoWorldModelConfig:
    """Sizes of a video world model."""
    config = cast("VideoWorldModelConfig", preset_part("train-world-model", row.model, "model", VideoWorldModelConfig))
    codec = replace(config.codec, image_size=16) if row.model == "tiny" else config.codec
    return replace(config, codec=codec, dynamics=replace(config.dynamics, kind=row.kind))


def wan_config(row: Row, size: str) -> WanConfig:
    """Layout of a Wan world model, with the adapter that the work trains."""
    config = WanConfig()
    dynamics = replace(config.dynamics, adapter="full" if row.work == FULL else "lora")
    if size == "full":
        return replace(config, dynamics=dynamics)
    return replace(
        config,
        codec=replace(config.codec, image_size=16),
        dynamics=replace(dynamics, lora_rank=2),
        success=replace(config.success, width=16, heads=2),
    )


def make_model(row: Row, size: str, device: torch.device) -> AnyVideoModel:
    """A world model of the row's sizes with random weights."""
    with initial_weights(0, "bench"):
        if not row.wan:
            return VideoWorldModel(video_config(row), ROBOT).to(device)
        geometry = SIZES[size].geometry or GEOMETRIES[row.model]
        with torch.device(device):  # five billion numbers are drawn faster there
            transformer, vae = blank_transformer(geometry["transformer"]), blank_vae(geometry["vae"])
        base = WanBase(Path(row.model), geometry["transformer"], geometry["vae"], ())
        return WanWorldModel(wan_config(row, size), ROBOT, base, transformer, vae).to(device)


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


def imagine(row: Row, model: AnyVideoModel, device: torch.device, repetitions: int) -> Timing:
    """Time imagined chunks."""
    model.eval().requires_grad_(False)  # the FLOP counter trips over parameters with gradient
    model.compute_dtype = resolve_dtype(row.dtype, device)
    records = random_records(1, model.memory_frames, model.config.codec.image_size)
    state: Any = model.start(records)
    action = torch.zeros(1, model.chunk_length, ROBOT.actions.size)

    def one() -> object:
        return model.imagine(state, action, generators=row_streams(0, ("bench",), 1))

    gflop, own = row.batch * count_gflop(one), kernels_of(one, OWN)
    forget_peak(device)
    seconds = imagined_seconds(model, records[0], row.batch, chunks=repetitions)
    frames = row.batch * len(model.frame_steps)
    decoded = rate(frames, seconds["decoded"], "frames/s")
    return Timing(gflop, frames, seconds["latent"], tuple(own), {"decoded": decoded})


def train_video(row: Row, model: VideoWorldModel, device: torch.device, repetitions: int) -> Timing:
    """Time training steps of the video world model, each on the first chunk of its windows."""
    training = WorldModelTraining(batch=row.batch, dtype=row.dtype, bootstrap=0.0)
    episodes = [made_up_episode(model.config.codec.image_size)]
    sampler = latent_sampler(model, episodes, training)
    window = sampler.sample(1, stream(0, "bench")).to(device)

    def loss() -> torch.Tensor:
        with autocast(device, resolve_dtype(training.dtype, device)):
            return dynamics_loss(model, window, generator=stream(0, "bench"))[0]

    def fit(steps: int) -> object:
        return fit_windows(
            "bench", model, sampler, training, instructions=no_others(), seed=0, folder=None, log=None, steps=steps
        )

    work = _work_of_a_step(model, loss, row.batch)
    if row.compiled:
        model.dynamics.compile()
    return _timed_steps(row, model, device, fit, *work, repetitions)


def train_wan(row: Row, model: WanWorldModel, device: torch.device, repetitions: int) -> Timing:
    """Time training steps of a Wan world model, encoding included."""
    training = WanTraining(batch=row.batch, dtype=row.dtype, compile=row.compiled)
    episodes = [made_up_episode(model.config.codec.image_size)]
    one = replace(training, batch=1)
    sampler = clip_sampler(model, episodes, one)
    window = WindowLoss(model, sampler, one, no_others(), 0, None, TrainedParts(model).train())

    def loss() -> torch.Tensor:
        return window(0)[0]

    def fit(steps: int) -> object:
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

    return _timed_steps(row, model, device, fit, *_work_of_a_step(model, loss, row.batch), repetitions)


def no_others() -> TaskInstructions:
    """One instruction, and none that is wrong."""
    return TaskInstructions(same={TASK: (SENTENCE,)}, other={})


def _work_of_a_step(
    model: AnyVideoModel, loss: Callable[[], torch.Tensor], batch: int
) -> tuple[float, tuple[Kernel, ...]]:
    """GFLOP of a step of ``batch`` rows, from one row without recomputation, and its largest kernels."""
    gflop, own = batch * count_gflop(lambda: loss().backward()), kernels_of(loss, OWN)
    model.zero_grad(set_to_none=True)
    return gflop, tuple(own)


@contextmanager
def step_ends(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> Iterator[list[float]]:
    """Note the time after each optimiser step of this process, once the device has finished it."""
    ends: list[float] = []
    handle = register_optimizer_step_post_hook(lambda *_: ends.append(now(device, clock)))
    try:
        yield ends
    finally:
        handle.remove()


def _timed_steps(
    row: Row,
    model: AnyVideoModel,
    device: torch.device,
    fit: Callable[[int], object],
    gflop: float,
    own: tuple[Kernel, ...],
    repetitions: int,
) -> Timing:
    forget_peak(device)
    began = now(device)
    with step_ends(device) as ends:
        fit(WARM + repetitions)
    seconds = [after - before for before, after in zip(ends[WARM - 1 :], ends[WARM:], strict=False)]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    more = {"first step": Number(ends[0] - began, "s"), "trained parameters": Number(trained, "")}
    return Timing(gflop, row.batch * len(model.frame_steps), seconds, own, more)


# -- one row ---------------------------------------------------------------------------------------------------------


def measure(row: Row, size: str, device: torch.device) -> dict[str, Number]:
    """Measure one row: its speed, work, utilisation and peak memory."""
    model = make_model(row, size, device)
    parameters = sum(p.numel() for p in model.parameters())
    work = {IMAGINE: imagine, TRAIN: train_video, LORA: train_wan, FULL: train_wan}[row.work]
    timing, peak = work(row, cast("Any", model), device, SIZES[size].repetitions), peak_memory_mb(device)
    del model
    gc.collect()
    torch.cuda.empty_cache()
    kernels = [*map(square, SIZES[size].sides), *(kernel.widened(row.batch) for kernel in timing.own)]
    rates = dict(anchor_rates(kernels, resolve_dtype(row.dtype, device), device))
    counts = {"parameters": Number(parameters, ""), "peak memory": Number(peak / 1e3, "GB")}
    return {**speeds(timing, max(rates.values())), **counts}


def speeds(timing: Timing, anchor: float) -> dict[str, Number]:
    """Numbers of a row from its timing and the anchor's GFLOP per second."""
    return {
        "speed": rate(timing.frames, timing.seconds, "frames/s"),
        "time": median(timing.seconds, "s"),
        "utilisation": rate(timing.gflop / anchor, timing.seconds, "of the anchor"),
        "work": Number(timing.gflop / 1e3, "TFLOP"),
        "anchor": Number(anchor / 1e3, "TFLOP/s"),
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
