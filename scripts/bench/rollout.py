"""Measures imagined frames per second of both dynamics backends beside the machine's matrix-product rate.

python scripts/bench.py rollout --threads 1 --json rollout.json

One call imagines one chunk for every row and decodes what the policy would see. The flow transformer has the cpu preset's
size, the U-Net DIAMOND's (3 steps); weights are random. Rows take turns, so that a busy neighbour hits all alike; what
counts is the CPU time of this process, since wall time on a shared machine says little. Square matrix products, and the largest
products and convolutions of each model, are measured in every round too; each row's share of the fastest of them in the same
round is the number that travels to other machines. Where diffusers is installed, its Wan transformer and U-Net run a plain Euler
loop at the same size.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bench.turns import BESIDE, Part, options, pin, take_turns, tell
from worldrl.core.device import autocast
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.tables import print_table
from worldrl.recipes.gpu.kernels import DTYPES, ROBOT, Kernel, count_gflop, kernels_of, random_records, shares, square
from worldrl.world_models.video.config import DynamicsConfig, DynamicsKind, VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel

CPU = torch.device("cpu")
SIDES = (256, 512, 1024, 2048)
"""Sides of the square matrices: which of them reaches the processor's rate depends on its caches and on the number type."""
OWN = 2  # Largest products or convolutions of a model that its rows are measured by


@dataclass(kw_only=True)
class Row(Part):
    """One line of the table; ``units`` are the frames that one call makes, over all rollouts, none of an anchor."""

    dtype: str  # number type
    batch: int = 0  # rollouts side by side
    gflop: float  # of one call
    own: tuple[Kernel, ...] = ()  # the largest products and convolutions of one call

    def rates(self, threads: int) -> list[float]:
        """GFLOP per second on ``threads`` cores, round by round."""
        return [self.gflop * threads / s for s in self.seconds]

    def to_json(self, threads: int, anchors: dict[str, list[float]]) -> dict[str, object]:
        """Frames per second (median, slowest, fastest), GFLOP per frame, and the share of the fastest of ``anchors``."""
        speeds = sorted(self.units * threads / s for s in self.seconds)
        fastest = max(anchors, key=lambda name: statistics.median(anchors[name]))
        return {
            "name": self.what,
            "dtype": self.dtype,
            "batch": self.batch,
            "repetitions": len(speeds),
            "frames_per_s": {"median": statistics.median(speeds), "least": speeds[0], "most": speeds[-1]},
            "frames_per_s_wall": self.units / statistics.median(self.wall),
            "gflop_per_frame": self.gflop / self.units,
            "anchor": {"name": fastest, "gflops": statistics.median(anchors[fastest])},
            "share_of_anchor": statistics.median(shares(self.rates(threads), list(anchors.values()))),
        }


def anchor_rows(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """What the rows are measured by: square products, and their own kernels, each once per number type."""
    kernels = {(str(k), d): k for d in DTYPES for k in map(square, SIDES)}
    kernels |= {(str(kernel), row.dtype): kernel for row in rows for kernel in row.own}
    return {
        (name, dtype): Row(what=name, dtype=dtype, units=0, gflop=kernel.gflop, call=kernel.call(DTYPES[dtype], CPU))
        for (name, dtype), kernel in kernels.items()
    }


def anchors_of(row: Row, anchors: dict[tuple[str, str], Row], threads: int) -> dict[str, list[float]]:
    """Rates of the anchors of one row: the squares, and the row's own kernels."""
    names = [str(kernel) for kernel in (*map(square, SIDES), *row.own)]
    return {name: anchors[name, row.dtype].rates(threads) for name in names}


def world_model(kind: DynamicsKind) -> VideoWorldModel:
    """A model of default size; zero-initialised layers get random weights too, so that nothing is multiplied by zero."""
    with initial_weights(0, "world-model"), torch.no_grad():
        model = VideoWorldModel(VideoWorldModelConfig(dynamics=DynamicsConfig(kind=kind)), ROBOT).eval()
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.requires_grad_(False)  # the FLOP counter trips over parameters with gradient


def rollout(model: VideoWorldModel, dtype: str, batch: int) -> Callable[[], object]:
    """One chunk of ``batch`` rollouts, and the image that the policy sees next."""
    state = model.start(random_records(batch, model.memory_frames, model.config.codec.image_size))
    action = torch.rand(batch, model.chunk_length, 7, generator=stream(0, "action")) * 2 - 1
    generators = row_streams(0, ("bench",), batch)

    def call() -> Tensor:
        model.compute_dtype = DTYPES[dtype]
        after, _ = model.imagine(state, action, generators=generators)
        return model.decode_newest(after, 1)

    return call


def backend_rows(kind: DynamicsKind, batches: list[int]) -> list[Row]:
    """Every number type and batch size of one backend."""
    model = world_model(kind)
    frames = model.config.dynamics.chunk_frames
    size = sum(p.numel() for p in model.dynamics.parameters()) / 1e6
    return rows_of(f"{kind} ({size:.1f} M)", frames, batches, lambda d, b: rollout(model, d, b))


def rows_of(name: str, frames: int, batches: list[int], make: Callable[[str, int], Callable[[], object]]) -> list[Row]:
    """Every number type and batch size of what ``make`` makes, with the work of one rollout counted once."""
    one = make("float32", 1)
    gflop, own = count_gflop(one), kernels_of(one, OWN)
    return [
        Row(
            what=name,
            dtype=d,
            batch=b,
            units=b * frames,
            unit="frames",
            gflop=b * gflop,
            call=make(d, b),
            own=tuple(kernel.widened(b) for kernel in own),
        )
        for b in batches
        for d in DTYPES
    ]


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


def own_sampler() -> tuple[str, Callable[[int], Callable[[], object]], int]:
    """The flow transformer in the same Euler loop as :func:`wan_peer`: what the network alone costs."""
    model = world_model(DynamicsKind.flow_transformer)
    net, c = model.dynamics, model.config
    d, side, channels = c.dynamics, c.latent_size, c.codec.channels

    def make(batch: int) -> Callable[[], object]:
        draw = stream(0, "peer")
        noise, memory, reference = (
            torch.randn(batch, *frames, channels, side, side, generator=draw)
            for frames in ((d.chunk_frames,), (d.memory_frames,), ())
        )
        action = torch.randn(batch, d.chunk_length, 14, generator=draw)

        def call() -> Tensor:
            x = noise
            for sigma, sigma_next in pairwise(torch.linspace(1, 0, d.sampling_steps + 1)):
                x = x + (sigma_next - sigma) * net(x, sigma.expand(batch), reference, memory, action)[0]
            return x

        return call

    return "flow_transformer, sampler only", make, d.chunk_frames


def sampler_rows(batches: list[int], *, peers: bool) -> list[Row]:
    """Samplers only, ours and with diffusers both peers: no heads, no codec, no rounding."""
    samplers = (own_sampler(), *((wan_peer(), unet_peer()) if peers else ()))
    made = [
        rows_of(name, frames, batches, lambda d, b, make=make: _cast(make(b), d)) for name, make, frames in samplers
    ]
    return [row for rows in made for row in rows]


def _cast(work: Callable[[], object], dtype: str) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad(), autocast(CPU, DTYPES[dtype]):
            return work()

    return call


# --- the table ------------------------------------------------------------------------------------------------------


def show(found: list[dict[str, Any]]) -> None:
    """Print the table."""
    rows = []
    for r in found:
        speed, anchor = r["frames_per_s"], f"{r['anchor']['gflops']:.0f}"
        spread = (f"{speed['median']:.3g}", f"{speed['least']:.3g} to {speed['most']:.3g}", str(r["repetitions"]))
        work = (f"{r['gflop_per_frame']:.3g}", anchor, f"{r['share_of_anchor']:.0%}")
        rows.append((r["name"], r["dtype"], str(r["batch"]), *spread, *work))
    title = "imagined frames per second of CPU time, and the share of the fastest anchor's rate (GFLOP/s)"
    headers = ("model", "type", "batch", "frames/s", "least to most", "n", "GFLOP/frame", "anchor", "share")
    print_table(Table(title, headers, rows), BESIDE)


def main(argv: Sequence[str]) -> int:
    """Measure everything, print the table, write the numbers."""
    parser = options("rollout", __doc__, rounds=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--least", type=float, default=0.5, help="CPU seconds of one repetition, at least")
    parser.add_argument("--budget", type=float, default=60.0, help="CPU seconds after which a row repeats no more")
    given = parser.parse_args(argv)
    pin(given.threads)
    rows = [row for kind in DynamicsKind for row in backend_rows(kind, given.batches)]
    diffusers = version("diffusers") if find_spec("diffusers") else None
    rows += sampler_rows(given.batches, peers=diffusers is not None)
    anchors = anchor_rows(rows)
    take_turns([*anchors.values(), *rows], given.rounds, least=given.least, budget=given.budget)
    found = [row.to_json(given.threads, anchors_of(row, anchors, given.threads)) for row in rows]
    rates = {f"{name}, {dtype}": statistics.median(row.rates(given.threads)) for (name, dtype), row in anchors.items()}
    show(found)
    tell(
        given,
        {"diffusers": diffusers or "not installed: its rows were left out", "anchor_gflops": rates, "results": found},
    )
    return 0
