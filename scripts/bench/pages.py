"""Measures what large memory pages save: the same work in two processes, with small pages and with large ones.

python scripts/bench.py pages --json pages.json

The sizes are those of the cpu preset, the weights and inputs random. The processes take turns; what counts is their CPU
time. ``worldrl`` starts itself with large pages where Linux offers them; see ``worldrl/core/memory_pages.py``.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from bench.rollout import rollout, world_model
from bench.turns import Part, options, pin, results, show, take_turns, tell
from worldrl.core.device import autocast
from worldrl.core.errors import SettingError
from worldrl.core.memory_pages import PAGES, TUNABLES, VARIABLE, glibc, offered
from worldrl.core.rng import initial_weights, stream
from worldrl.core.types import PolicyObs
from worldrl.methods.imitation.behaviour_cloning import set_encoders_dtype
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.gpu.kernels import ROBOT, SENTENCE, random_records
from worldrl.world_models.video.config import DynamicsKind

POLICY_ROWS, WINDOWS, ROLLOUTS = 96, 32, 32
WORK = ("training step of the policy", "training step of the world model", "imagined chunk of 32 rollouts")


def policy_step() -> Callable[[], object]:
    """One training step of a policy on images of noise."""
    ones = torch.ones(ROBOT.actions.size)
    with initial_weights(0, "pages"):
        policy = TokenPolicy(
            TokenPolicyConfig(waypoint=True), PolicyStatistics(-ones, ones, 0 * ones, ones, ROBOT.actions)
        )
    set_encoders_dtype(policy, torch.bfloat16)
    optimizer = policy.make_optimizer(1e-3, 1e-3)
    image = torch.randint(0, 256, (POLICY_ROWS, 64, 64, 3), dtype=torch.uint8, generator=stream(0, "image"))
    obs = PolicyObs(image, torch.zeros(POLICY_ROWS, ROBOT.actions.size), [SENTENCE] * POLICY_ROWS, {})

    def step() -> None:
        policy.train().log_softmax(obs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def world_model_step() -> Callable[[], object]:
    """One training step of the flow transformer on latents of noise."""
    model = world_model(DynamicsKind("flow_transformer")).train().requires_grad_(True)
    state = model.start(random_records(WINDOWS, model.memory_frames, model.config.codec.image_size))
    generator = stream(0, "pages")
    condition, _ = model.chunk_condition(state, torch.rand(WINDOWS, model.chunk_length, 7, generator=generator) * 2 - 1)
    frames = model.config.dynamics.chunk_frames
    clean, valid = state.memory[:, :frames], torch.ones(WINDOWS, frames, dtype=torch.bool)
    optimizer = torch.optim.AdamW(model.dynamics.parameters(), 1e-4, fused=True)

    def step() -> None:
        with autocast(model.device, torch.bfloat16):
            found = model.dynamics.loss(
                clean, valid, state.reference, state.memory, condition.detach(), generator=generator
            )
        found.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def chunk() -> Callable[[], object]:
    """One imagined chunk of all rollouts, decoded."""
    call = rollout(world_model(DynamicsKind("flow_transformer")), "bfloat16", ROLLOUTS)
    return torch.no_grad()(call)


def serve(threads: int) -> None:
    """Do the work that each line of the standard input names; answer with the CPU seconds of this process so far."""
    pin(threads)
    work = dict(zip(WORK, (policy_step(), world_model_step(), chunk()), strict=True))
    for line in sys.stdin:
        work[line.strip()]()
        print(time.process_time(), flush=True)


class Worker:
    """A process with pages of one size that works on request."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process, self.seconds = process, 0.0

    def __call__(self, what: str) -> None:
        """Let it do ``what`` once."""
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise SettingError("pages: the process has no pipes")
        print(what, file=stdin, flush=True)
        self.seconds = float(stdout.readline())


@contextmanager
def worker(threads: int, tunables: Mapping[str, str]) -> Iterator[Worker]:
    """Start a process with these tunables, and end it."""
    environment = {key: text for key, text in os.environ.items() if key != VARIABLE} | dict(tunables)
    line = [sys.executable, sys.argv[0], "pages", "--serve", "--threads", str(threads)]
    with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Worker(process)


def main(argv: Sequence[str]) -> int:
    """Print or write CPU seconds of each kind of work with both sizes of pages, and their ratio."""
    parser = options("pages", __doc__, rounds=20)
    parser.add_argument("--serve", action="store_true", help="work on request; the benchmark starts these itself")
    given = parser.parse_args(argv)
    if given.serve:
        serve(given.threads)
        return 0
    if not offered(glibc(), PAGES):
        raise SettingError(f"this machine offers no large pages (glibc 2.35 and {PAGES} are needed)")
    with ExitStack() as stack:
        ways = {"large": {VARIABLE: TUNABLES}, "small": {}}
        workers = {who: stack.enter_context(worker(given.threads, way)) for who, way in ways.items()}
        parts = [
            Part(what=what, who=who, call=partial(at, what), clock=partial(getattr, at, "seconds"))
            for what in WORK
            for who, at in workers.items()
        ]
        take_turns(parts, given.rounds, warm_up=3)
    found = results(parts, "large")
    show(found, "large")
    tell(given, {"tunables": TUNABLES, "rows": found})
    return 0
