"""Measures GRPO in imagination at several lags: throughput beside the synchronous run, and how long the learner waits.

python scripts/bench.py staleness --lags 0 2 8 --json staleness.json

Lag 0 imagines in the learner's process, any other in one of its own (``improvement.grpo.staleness``). All lags take the
same iterations of the same tiny policy in the same tiny world model with random weights, in turn. What counts is wall time
behind twice the largest lag: the other process is running then, and no more batches lie ready than in the long run. A busy
neighbour moves it. Each process has ``--threads`` threads; on one processor for both, nothing can be gained.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.turns import BESIDE, options, ratio, tell
from worldrl.core.interfaces import Logs
from worldrl.core.rng import initial_weights
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.tables import print_table
from worldrl.methods.rl.config import GrpoConfig
from worldrl.methods.rl.grpo import grpo, policy_learner
from worldrl.methods.rl.imagination import PolicyImagination, imagined_env
from worldrl.methods.rl.interfaces import Collected, Request
from worldrl.methods.rl.loop import train
from worldrl.methods.rl.method import Method
from worldrl.methods.rl.staleness import imagined_ahead, imagined_frames
from worldrl.policies.exploration import Exploration
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.gpu.kernels import ROBOT, TASK, random_records
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore
from worldrl.world_models.video.config import CodecConfig, DynamicsConfig, VideoWorldModelConfig
from worldrl.world_models.video.model import VideoWorldModel

PIXELS, CHUNK, HORIZON = 16, 4, 32


class Watch:
    """An arrival of batches that notes when each came, how long it was waited for, and its frames."""

    def __init__(self, method: Method) -> None:
        self._arrival = method.arrival
        self.came, self.waited, self.frames = list[float](), list[float](), list[int]()

    def __call__(self, method: Method, iteration: int, logs: Logs) -> tuple[Request, Collected[Any]]:
        """Let the batch arrive."""
        began = time.perf_counter()
        request, collected = self._arrival(method, iteration, logs)
        self.came.append(time.perf_counter())
        self.waited.append(self.came[-1] - began)
        self.frames.append(imagined_frames(collected.experience))
        return request, collected

    def numbers(self, first: int) -> dict[str, float]:
        """Seconds and frames behind batch ``first``, and the share of the time that was waited."""
        seconds, rest = self.came[-1] - self.came[first], slice(first + 1, None)
        return {"seconds": seconds, "frames": sum(self.frames[rest]), "waited": sum(self.waited[rest]) / seconds}


def run(lag: int, config: GrpoConfig, first: int) -> dict[str, float]:
    """One training at one lag; its numbers behind batch ``first``."""
    codec = CodecConfig(image_size=PIXELS, channels=4, width=16, depth=1, heads=2)
    dynamics = DynamicsConfig(width=16, depth=1, heads=2, chunk_length=CHUNK, memory_frames=2)
    acting = TokenPolicyConfig(image_size=PIXELS, chunk_length=CHUNK, bins=5, width=16, blocks=1, keypoints=4)
    ones = torch.ones(ROBOT.actions.size)
    with initial_weights(0, "staleness"):
        model = VideoWorldModel(VideoWorldModelConfig(codec, dynamics), ROBOT).eval()
        policy = TokenPolicy(acting, PolicyStatistics(-ones, ones, 0 * ones, ones)).eval()
    store = ResetStore(random_records(8, model.memory_frames, PIXELS))
    rows = config.groups * config.group_size
    env = imagined_env(model, store, SuccessRule(0.5, 2), rows=rows, horizon={TASK: HORIZON})
    source = PolicyImagination(env, policy, Exploration(), 0.0, 1)
    method = replace(grpo(source, policy, config), advantage=noise)
    learner = policy_learner(policy, config)

    def watched(method: Method) -> dict[str, float]:
        watch = Watch(method)
        train(learner, replace(method, arrival=watch), folder=None, log=None, series=f"lag {lag}")
        return watch.numbers(first)

    if not lag:
        return watched(method)
    with (
        tempfile.TemporaryDirectory() as folder,
        imagined_ahead(method, policy, lag, config.iterations, Path(folder)) as ahead,
    ):
        return watched(ahead)


def noise(value: Tensor, trace: Any) -> Tensor:
    """Advantages of ±1 by turns, so that an untrained world's rollouts all teach something."""
    sign = 1.0 - 2.0 * (torch.arange(len(value)) % 2)
    return sign.expand(trace.valid.shape)


def main(argv: Sequence[str]) -> int:
    """Measure all lags, print the table, write the numbers."""
    parser = options("staleness", __doc__, rounds=3)
    parser.add_argument(
        "--lags", type=int, nargs="+", default=[0, 2, 8], help="the first is what others are compared with"
    )
    parser.add_argument("--iterations", type=int, default=40, help="of each training")
    parser.add_argument("--epochs", type=int, default=2, help="passes over each batch: how long an update takes")
    given = parser.parse_args(argv)
    first = 2 * max(given.lags)
    if given.iterations < first + 2:
        parser.error(f"--iterations {given.iterations}: lags of {given.lags} need at least {first + 2}")
    torch.set_num_threads(given.threads)
    config = GrpoConfig(
        iterations=given.iterations, groups=8, group_size=8, minibatch=32, epochs=given.epochs, keep_low=0, keep_high=1
    )
    found: dict[int, list[dict[str, float]]] = {lag: [] for lag in given.lags}
    for _ in range(given.rounds):
        for lag in given.lags:
            found[lag].append(run(lag, config, first))
    body = [row_of(lag, rounds, found[given.lags[0]]) for lag, rounds in found.items()]
    show(body)
    tell(given, {"iterations": given.iterations, "results": body})
    return 0


def row_of(lag: int, rounds: list[dict[str, float]], first: list[dict[str, float]]) -> dict[str, Any]:
    """Speeds of one lag, and how many times that of the first one."""
    own, other = ([r["seconds"] / r["frames"] for r in of] for of in (rounds, first))
    return {
        "lag": lag,
        "frames_per_s": [1 / s for s in own],
        "waited_share": [r["waited"] for r in rounds],
        "times_first": ratio(other, own),
    }


def show(body: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    rows = []
    for row in body:
        times = row["times_first"]
        interval = "one round" if times["lo"] is None else f"{times['lo']:.2f} to {times['hi']:.2f}"
        speeds, waited = row["frames_per_s"], row["waited_share"]
        shown = (f"{min(speeds):.0f} to {max(speeds):.0f}", f"{min(waited):.0%} to {max(waited):.0%}")
        rows.append((str(row["lag"]), *shown, f"{times['median']:.2f}", interval))
    headers = ("lag", "imagined frames/s of wall time", "learner waited", "times the first lag", "95 % interval")
    print_table(Table("GRPO in imagination", headers, rows), BESIDE)
