"""Measures imagined frames per second of both dynamics backends beside the machine's matrix-product rate.

``python scripts/bench_rollout.py --threads 1 --json rollout.json``

One call imagines one chunk for every row and decodes what the policy would see. The flow transformer has the cpu preset's
size, the U-Net DIAMOND's (3 steps); weights are random. Rows take turns, so that a busy neighbour hits all alike; what
counts is the CPU time of this process, since wall time on a shared machine says little. The matrix product is measured
in every round too, and each row's share of it is the number that travels to other machines. Where diffusers is
installed, its Wan transformer and U-Net run a plain Euler loop at the same size.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from worldrl.core.atomic import write_file
from worldrl.core.device import autocast
from worldrl.core.embodiment import Embodiment
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.core.types import ResetRecord
from worldrl.world_models.config import DynamicsConfig, DynamicsKind, VideoWorldModelConfig
from worldrl.world_models.video import VideoWorldModel

ROBOT = Embodiment(0.02, 0.1, (0.34, -0.22, 0.012), (0.66, 0.22, 0.24), 0.5, 20.0)
HOME = np.array([0.48, 0.0, 0.14, 0.0, 0.0, 0.0, -1.0], np.float32)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CPU = torch.device("cpu")
MATRIX = 1024
"""Side of the square matrices: large enough to reach the processor's rate, small enough to stay in its cache."""


@dataclass
class Row:
    """One line of the table: something that takes turns with the others.

    Attributes:
        name: what runs.
        dtype: number type.
        batch: rollouts side by side.
        frames: frames that one call makes, over all rollouts; 0 for the matrix product.
        gflop: of one call.
        call: makes them.
        seconds: CPU seconds of each measured call.
        wall: wall seconds of each.
    """

    name: str
    dtype: str
    batch: int
    frames: int
    gflop: float
    call: Callable[[], object]
    seconds: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def measure(self, least: float) -> None:
        """Call until ``least`` CPU seconds are over; keep the mean as one repetition."""
        cpu, wall, calls = time.process_time(), time.perf_counter(), 0
        while calls == 0 or time.process_time() - cpu < least:
            self.call()
            calls += 1
        self.seconds.append((time.process_time() - cpu) / calls)
        self.wall.append((time.perf_counter() - wall) / calls)

    def rate(self, threads: int) -> float:
        """Median GFLOP per second on ``threads`` cores."""
        return self.gflop * threads / statistics.median(self.seconds)

    def to_json(self, threads: int, peak: float) -> dict[str, object]:
        """Frames per second (median, slowest, fastest), GFLOP per frame, and the share of the matrix product's rate."""
        speeds = sorted(self.frames * threads / s for s in self.seconds)
        return {
            "name": self.name,
            "dtype": self.dtype,
            "batch": self.batch,
            "repetitions": len(speeds),
            "frames_per_s": {"median": statistics.median(speeds), "least": speeds[0], "most": speeds[-1]},
            "frames_per_s_wall": self.frames / statistics.median(self.wall),
            "gflop_per_frame": self.gflop / self.frames,
            "share_of_matmul": self.rate(threads) / peak,
        }


def count_gflop(call: Callable[[], object]) -> float:
    """GFLOP of one call by torch's counter: matrix products, convolutions and attention; a multiply-add is two."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() / 1e9


def matrix_product(dtype: str) -> Row:
    """The anchor: a square matrix product."""
    a, b = (torch.randn(MATRIX, MATRIX, generator=stream(0, name)).to(DTYPES[dtype]) for name in "ab")
    return Row("matrix product", dtype, 0, 0, 2 * MATRIX**3 / 1e9, lambda: a @ b)


def world_model(kind: DynamicsKind) -> VideoWorldModel:
    """A model of default size; zero-initialised layers get random weights too, so that nothing is multiplied by zero."""
    with initial_weights(0, "world-model"), torch.no_grad():
        model = VideoWorldModel(VideoWorldModelConfig(dynamics=DynamicsConfig(kind=kind)), ROBOT).eval()
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.requires_grad_(False)  # the FLOP counter trips over parameters with gradient


def rollout(model: VideoWorldModel, dtype: str, batch: int) -> Callable[[], object]:
    """One chunk of ``batch`` rollouts, and the picture that the policy sees next."""
    frames = np.random.default_rng(0).integers(0, 256, (batch, 1 + model.memory_frames, 64, 64, 3), dtype=np.uint8)
    records = [ResetRecord(f[0], f[1:], HOME, "pick up the red cube", "PickRedCube", 0, "bench") for f in frames]
    state = model.start(records)
    action = torch.rand(batch, model.chunk_length, 7, generator=stream(0, "action")) * 2 - 1
    generators = row_streams(0, ("bench",), batch)

    def call() -> Tensor:
        model.compute_dtype = DTYPES[dtype]
        after, _ = model.imagine(state, action, generators=generators)
        return model.decode_last(after)

    return call


def backend_rows(kind: DynamicsKind, batches: list[int]) -> list[Row]:
    """Every number type and batch size of one backend."""
    model = world_model(kind)
    frames = model.config.dynamics.chunk_frames
    gflop = count_gflop(rollout(model, "float32", 1))
    size = sum(p.numel() for p in model.dynamics.parameters()) / 1e6
    name = f"{kind} ({size:.1f} M)"
    return [Row(name, d, b, b * frames, b * gflop, rollout(model, d, b)) for b in batches for d in DTYPES]


# --- peers ---------------------------------------------------------------------------------------------------------


def wan_peer() -> tuple[str, Callable[[int], Callable[[], object]], int]:
    """The Wan transformer of diffusers at the flow transformer's width, depth, tokens and steps, in a plain Euler loop."""
    from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

    c = VideoWorldModelConfig()
    d, side = c.dynamics, c.latent_size
    chunk = d.chunk_frames * c.codec.channels
    context = (1 + d.memory_frames) * c.codec.channels
    with initial_weights(0, "wan"):
        net = WanTransformer3DModel(
            patch_size=(1, 1, 1),
            num_attention_heads=d.heads,
            attention_head_dim=d.width // d.heads,
            in_channels=chunk + context,
            out_channels=chunk,
            text_dim=14,
            freq_dim=d.width,
            ffn_dim=4 * d.width,
            num_layers=d.depth,
        ).eval()
    net.requires_grad_(False)

    def make(batch: int) -> Callable[[], object]:
        draw = stream(0, "peer")
        noise = torch.randn(batch, chunk, 1, side, side, generator=draw)
        past = torch.randn(batch, context, 1, side, side, generator=draw)
        action = torch.randn(batch, d.chunk_length, 14, generator=draw)

        def call() -> Tensor:
            x, levels = noise, torch.linspace(1, 0, d.sampling_steps + 1)
            for sigma, sigma_next in pairwise(levels):
                time_step = (1000 * sigma).expand(batch)
                x = x + (sigma_next - sigma) * net(torch.cat([x, past], 1), time_step, action, return_dict=False)[0]
            return x

        return call

    return f"diffusers Wan ({sum(p.numel() for p in net.parameters()) / 1e6:.1f} M)", make, d.chunk_frames


def unet_peer() -> tuple[str, Callable[[int], Callable[[], object]], int]:
    """The U-Net of diffusers with DIAMOND's channels and levels, one frame at a time, in a plain Euler loop."""
    from diffusers.models.unets.unet_2d import UNet2DModel

    c = VideoWorldModelConfig(dynamics=DynamicsConfig(kind=DynamicsKind.edm_unet))
    d, unet, size = c.dynamics, c.dynamics.unet, c.codec.image_size
    with initial_weights(0, "unet"):
        net = UNet2DModel(
            sample_size=size,
            in_channels=3 * (d.memory_frames + 2),
            out_channels=3,
            block_out_channels=(unet.channels,) * unet.levels,
            down_block_types=("DownBlock2D",) * unet.levels,
            up_block_types=("UpBlock2D",) * unet.levels,
            layers_per_block=unet.blocks,
        ).eval()
    net.requires_grad_(False)

    def make(batch: int) -> Callable[[], object]:
        draw = stream(0, "peer")
        noise = torch.randn(batch, 3, size, size, generator=draw)
        past = torch.randn(batch, 3 * (d.memory_frames + 1), size, size, generator=draw)

        def call() -> Tensor:
            for _ in range(d.chunk_frames):
                x = noise
                for step in range(unet.sampling_steps):
                    x = x + net(torch.cat([x, past], 1), step, return_dict=False)[0] / unet.sampling_steps
            return x

        return call

    return f"diffusers U-Net ({sum(p.numel() for p in net.parameters()) / 1e6:.1f} M)", make, d.chunk_frames


def peer_rows(batches: list[int]) -> list[Row]:
    """Both peers, samplers only: no heads, no codec, no rounding."""
    rows: list[Row] = []
    for name, make, frames in (wan_peer(), unet_peer()):
        gflop = count_gflop(make(1))
        for batch in batches:
            rows += [Row(name, d, batch, batch * frames, batch * gflop, _cast(make(batch), d)) for d in DTYPES]
    return rows


def _cast(work: Callable[[], object], dtype: str) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad(), autocast(CPU, DTYPES[dtype]):
            return work()

    return call


# --- taking turns --------------------------------------------------------------------------------------------------


def take_turns(rows: list[Row], rounds: int, least: float, budget: float) -> None:
    """Measure the rows in turn; one whose calls are long repeats less often, but at least twice."""
    for row in rows:
        row.call()
    for turn in range(rounds):
        for row in rows:
            if turn < 2 or sum(row.seconds) < budget:
                row.measure(least)


def show(results: list[dict[str, object]], peaks: dict[str, float]) -> None:
    """Print the table."""
    anchors = ", ".join(f"{dtype} {peak:.0f}" for dtype, peak in peaks.items())
    table = Table(title=f"imagined frames per second of CPU time; matrix product in GFLOP/s: {anchors}")
    for heading in ("", "type", "batch", "frames/s", "least to most", "n", "GFLOP/frame", "of matrix product"):
        table.add_column(heading, justify="left" if heading in ("", "type") else "right")
    for r in results:
        speed: dict[str, float] = r["frames_per_s"]  # type: ignore[assignment]
        spread = f"{speed['least']:.3g} to {speed['most']:.3g}"
        table.add_row(
            str(r["name"]), str(r["dtype"]), str(r["batch"]), f"{speed['median']:.3g}", spread, str(r["repetitions"]),
            f"{r['gflop_per_frame']:.3g}", f"{r['share_of_matmul']:.0%}",
        )  # fmt: skip
    Console(width=140).print(table)


def main() -> None:
    """Measure everything, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch threads, pinned to as many processors")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each row")
    parser.add_argument("--least", type=float, default=0.5, help="CPU seconds of one repetition, at least")
    parser.add_argument("--budget", type=float, default=60.0, help="CPU seconds after which a row repeats no more")
    parser.add_argument("--json", type=Path, default=Path("bench_rollout.json"), help="where the numbers go")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    processors = sorted(os.sched_getaffinity(0))[: args.threads]
    os.sched_setaffinity(0, processors)

    anchors = {dtype: matrix_product(dtype) for dtype in DTYPES}
    rows = [row for kind in DynamicsKind for row in backend_rows(kind, args.batches)]
    diffusers = version("diffusers") if find_spec("diffusers") else None
    rows += peer_rows(args.batches) if diffusers else []
    load = os.getloadavg()[0]
    take_turns([*anchors.values(), *rows], args.rounds, args.least, args.budget)

    peaks = {dtype: row.rate(args.threads) for dtype, row in anchors.items()}
    results = [row.to_json(args.threads, peaks[row.dtype]) for row in rows]
    machine = {"cpus": os.cpu_count(), "threads": args.threads, "processors": processors, "arch": platform.machine()}
    machine["load"] = {"before": load, "after": os.getloadavg()[0]}
    body = {"torch": torch.__version__, "diffusers": diffusers, "machine": machine, "matmul_gflops": peaks}
    write_file(args.json, (json.dumps({**body, "results": results}, indent=1) + "\n").encode())
    show(results, peaks)
    if diffusers is None:
        Console().print("diffusers is not installed: its rows were left out (pip install 'worldrl[diffusers]')")


if __name__ == "__main__":
    main()
