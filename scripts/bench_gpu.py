"""Frames per second, share of the arithmetic rate and peak memory of world models on a GPU, over batches until memory ends.

    python scripts/bench_gpu.py                                  everything, to bench_gpu.json and, as a table, bench_gpu.md
    python scripts/bench_gpu.py --models gpu --batches 1 64      some models, some batches
    python scripts/bench_gpu.py --device cpu --size tiny         the same functions on tiny geometries, to see that they run

Models are the gpu preset's and published Wan geometries in the wan preset's layout, all with random weights: nothing is downloaded.
Imagining is one chunk of every row; training is the preset's own loop on made-up episodes. Each row of the table runs in a process
of its own, so that the one that finds no memory ends alone; larger batches of the same work are then left out.

The share is of the fastest of several square matrix products and of the model's own largest products and convolutions, measured
in the same process right after it. Its work is the model's (forward, backward and encoding); what gradient checkpointing computes
again is not counted, as is usual for model FLOP utilisation.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_parts import HOME, ROBOT, SENTENCE, TASK, Kernel, count_gflop, kernels_of, random_records, square
from wan_sizes import GEOMETRIES

from worldrl.cli import compose_command, find_command
from worldrl.core.atomic import write_file
from worldrl.core.device import autocast, peak_device_mb, peak_rss_mb, resolve_device, resolve_dtype
from worldrl.core.errors import SettingError
from worldrl.core.fit import FitReport
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.core.types import Episode
from worldrl.evaluation.throughput import imagined_frames_per_s, now
from worldrl.world_models.loading import AnyVideoModel
from worldrl.world_models.losses import dynamics_loss
from worldrl.world_models.sentences import Sentences
from worldrl.world_models.training import fit_windows, latent_sampler
from worldrl.world_models.video import VideoWorldModel
from worldrl.world_models.wan import WanWorldModel
from worldrl.world_models.wan_fit import fit_wan
from worldrl.world_models.wan_folder import WanBase, blank_transformer, blank_vae
from worldrl.world_models.wan_losses import WanLoss
from worldrl.world_models.wan_training import ClipSource

GPU = "gpu"
WORKS = {GPU: ("imagine", "train"), **dict.fromkeys(GEOMETRIES, ("imagine", "train lora", "train full"))}
"""What each model is asked to do."""
BATCHES = tuple(2**k for k in range(13))
MEASURED, NO_MEMORY = "measured", "out of memory"
OWN = 3
"""Largest products or convolutions of a model that it is measured by."""
STEPS = 32
"""Control steps of a made-up episode."""


@dataclass(frozen=True)
class Size:
    """Which sizes are measured.

    Attributes:
        preset: of train-world-model, for the model without published weights.
        wan: settings of train-world-model beside its wan preset.
        geometry: of transformer and autoencoder in the place of the published one.
        sides: of the square matrices.
    """

    preset: str
    wan: tuple[str, ...]
    geometry: dict[str, Any] | None
    sides: tuple[int, ...]


TINY_GEOMETRY = {
    "transformer": {
        "patch_size": [1, 2, 2],
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 16,
        "ffn_dim": 32,
        "num_layers": 2,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
    },
    "vae": {
        "base_dim": 8,
        "z_dim": 4,
        "dim_mult": [1, 2, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [True, True],
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
    },
}
TINY_WAN = ("codec.image_size=16", "dynamics.lora_rank=2", "success.width=16", "success.heads=2")
SIZES = {
    "full": Size("gpu", (), None, (2048, 4096, 8192)),
    "tiny": Size("tiny", tuple(f"wan.model.{name}" for name in TINY_WAN), TINY_GEOMETRY, (32, 64)),
}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        model: ``gpu`` or a Wan geometry.
        work: ``imagine``, ``train``, ``train lora`` or ``train full``.
        batch: rollouts or training windows at once.
        device: ``cuda``, or ``cpu`` to try the script.
        size: of :data:`SIZES`.
        dtype: ``float32``, ``bfloat16`` or ``auto``.
        repetitions: chunks or training steps that are timed.
    """

    model: str
    work: str
    batch: int
    device: str
    size: str
    dtype: str
    repetitions: int


@dataclass(frozen=True)
class Timing:
    """What running one row took.

    Attributes:
        gflop: model FLOPs of one chunk or step, of all rows.
        frames: predicted in it.
        seconds: of it.
        own: its largest products and convolutions.
        more: further numbers for the result.
    """

    gflop: float
    frames: int
    seconds: float
    own: tuple[Kernel, ...]
    more: dict[str, Any]


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
            "bench", model, sampler, training, sentences=no_others(), seed=0, folder=None, log=None, steps=steps
        )

    work = _work_of_a_step(model, loss, row.batch)
    if training.compile:
        model.dynamics.compile()
    return _timed_steps(row, model, device, fit, *work)


def train_wan(row: Row, model: WanWorldModel, device: torch.device) -> Timing:
    """Time training steps of a Wan world model, encoding included."""
    training = composed(row).wan.training
    episodes = [made_up_episode(model.config.codec.image_size)]
    source = ClipSource(model, episodes, replace(training, batch=1), no_others(), seed=0)
    part = WanLoss(model).train()

    def loss() -> torch.Tensor:
        clip = source.draw(0, 0)
        with autocast(device, resolve_dtype(training.dtype, device)):
            return part(clip)[0]

    def fit(steps: int) -> FitReport:
        return fit_wan(
            model,
            episodes,
            replace(training, steps=steps),
            sentences=no_others(),
            seed=0,
            device=device,
            folder=None,
            log=None,
        )

    return _timed_steps(row, model, device, fit, *_work_of_a_step(model, loss, row.batch))


def no_others() -> Sentences:
    """One sentence, and none that is wrong."""
    return Sentences(same={TASK: (SENTENCE,)}, other={})


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
    """Measure one row in this process.

    Returns:
        The row, ``status``, and where there was memory for it: frames per second, seconds and work of a chunk or step, peak memory,
        and the share of the fastest anchor.
    """
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


def in_a_process(row: Row) -> dict[str, Any]:
    """Measure one row in a process of its own."""
    asked = [sys.executable, __file__, "--row", json.dumps(asdict(row))]
    ended = subprocess.run(asked, capture_output=True, text=True, check=False)
    return {**asdict(row), **outcome(ended.returncode, ended.stdout, ended.stderr)}


def outcome(returncode: int, stdout: str, stderr: str) -> dict[str, Any]:
    """What became of a row's process: its result, no memory left on the host either, or its error."""
    if returncode == 0:
        return json.loads(stdout.splitlines()[-1])
    if returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return {"status": f"{NO_MEMORY} (killed: the host's memory)"}
    return {"status": "failed", "error": "\n".join(stderr.splitlines()[-5:])}


# -- the table -------------------------------------------------------------------------------------------------------


def sweep(rows: Sequence[Row], run: Callable[[Row], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the same work at growing batches, until one does not come through."""
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(run(row))
        print(line(found[-1]), flush=True)
        if found[-1]["status"] != MEASURED:
            break
    return found


HEAD = (
    "| model | work | batch | frames/s | s per chunk or step | TFLOP | anchor, TFLOP/s | share | peak memory, GB |",
    "|---|---|---|---|---|---|---|---|---|",
)


def line(found: dict[str, Any]) -> str:
    """One line of the Markdown table."""
    head = f"| {found['model']} | {found['work']} | {found['batch']} |"
    if found["status"] != MEASURED:
        return f"{head} {found['status']} | | | | | |"
    return (
        f"{head} {found['frames_per_s']:.3g} | {found['seconds']:.3g} | {found['gflop'] / 1e3:.3g} "
        f"| {found['anchor']['gflops'] / 1e3:.3g} | {found['share_of_anchor']:.0%} | {found['peak_memory_mb'] / 1e3:.3g} |"
    )


def machine(device: torch.device) -> dict[str, Any]:
    """What ran."""
    found: dict[str, Any] = {"torch": torch.__version__, "device": str(device)}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {"name": card.name, "memory_gb": card.total_memory / 1e9, "cuda": torch.version.cuda}
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the script")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny: geometries that run anywhere")
    parser.add_argument("--models", nargs="+", choices=WORKS, default=list(WORKS), help="which models")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), help="growing, until memory ends")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, or auto for the faster one")
    parser.add_argument("--repetitions", type=int, default=10, help="chunks or steps timed of each row")
    parser.add_argument("--out", type=Path, default=Path("bench_gpu"), help="result: OUT.json and OUT.md")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, run: Callable[[Row], dict[str, Any]] = in_a_process) -> int:
    """Measure everything, print the table, write both files.

    Returns:
        0, 1 where a row failed otherwise than for want of memory, 2 where the device is missing.
    """
    args = parse(argv)
    if args.row is not None:
        print(json.dumps(measure(Row(**json.loads(args.row)))))
        return 0
    try:
        device = resolve_device(args.device)
    except SettingError as error:
        print(f"bench_gpu: {error} (--device cpu --size tiny tries the script without)", file=sys.stderr)
        return 2
    print("\n".join(HEAD))
    rows: list[dict[str, Any]] = []
    for model in args.models:
        for work in WORKS[model]:
            same = [
                Row(model, work, batch, args.device, args.size, args.dtype, args.repetitions) for batch in args.batches
            ]
            rows += sweep(same, run)
    body = {"machine": machine(device), "size": args.size, "results": rows}
    write_file(args.out.with_suffix(".json"), (json.dumps(body, indent=1) + "\n").encode())
    write_file(args.out.with_suffix(".md"), ("\n".join([*HEAD, *map(line, rows)]) + "\n").encode())
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed:
        print(f"{row['model']}, {row['work']}, batch {row['batch']}: {row['error']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
