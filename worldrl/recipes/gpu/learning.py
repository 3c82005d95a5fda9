"""Updates that learn, measured on a device: offline agents eager, compiled and graphed, and GRPO in imagination."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from worldrl.core.errors import WorldrlError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.evaluation.world_model.throughput import now
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.updates import EAGER, WARM_UP, check_updates, updates_of
from worldrl.methods.rl.config import GrpoConfig, Parts
from worldrl.methods.rl.grpo import grpo, policy_learner
from worldrl.methods.rl.imagination import PolicyImagination, imagined_env
from worldrl.methods.rl.loop import iterate
from worldrl.methods.rl.selection import everything
from worldrl.policies.exploration import Exploration
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.policy import TokenPolicy, TokenPolicyConfig
from worldrl.recipes.gpu.kernels import HOME, ROBOT, SENTENCE, TASK, random_records
from worldrl.recipes.gpu.outcome import Number, median, rate
from worldrl.recipes.gpu.rows import Row, forget_peak, make_model, peak_memory_mb, preset_part
from worldrl.rewards.success import SuccessRule
from worldrl.rollout.imagined.reset_store import ResetStore

S, A, BATCH = 11, 3, 256
"""Hopper's observations and actions, and the rows of a published update."""
TOLERANCE = 1e-2  # Largest relative difference of a logged number between eager and other updates of equal weights
GROUPS = {"full": (8, 8), "tiny": (2, 2)}
"""Groups of a GRPO iteration, and rollouts of each."""


# -- offline agents --------------------------------------------------------------------------------------------------


def make_batch() -> Transitions:
    """Random rows."""
    generator = stream(0, "bench", "batch")
    sizes = {"obs": (BATCH, S), "action": (BATCH, A), "reward": (BATCH,), "next_obs": (BATCH, S)}
    columns = {name: torch.randn(*size, generator=generator) for name, size in sizes.items()}
    columns["action"] = columns["action"].tanh()
    no = torch.zeros(BATCH, dtype=torch.bool)
    return Transitions(**columns, terminated=torch.rand(BATCH, generator=generator) < 0.05, truncated=no)


def make_agent(config: RavlConfig) -> Ravl:
    """RAVL; the last layer is shaken, so that critics differ as trained ones do."""
    facts = Facts(torch.zeros(S), torch.ones(S), A)
    with initial_weights(0, "bench", "agent"):
        agent = Ravl(config, facts)
        with torch.no_grad():
            agent.critic.linears[-1].weight.add_(0.3 * torch.randn_like(agent.critic.linears[-1].weight))
    agent.target_critic.load_state_dict(agent.critic.state_dict())
    return agent


def measure_updates(kind: str, size: str, device: torch.device) -> dict[str, Number]:
    """Time RAVL's updates of one ``kind`` beside eager ones from equal weights, in turn; both must log equal numbers.

    Raises SettingError (this device or machine does not allow the kind); WorldrlError (the numbers differ).
    """
    config = RavlConfig(critics=10) if size == "full" else RavlConfig(critics=2, hidden=(16, 16))
    check_updates(kind, Ravl.name, config, device)
    batch, seconds, logs = make_batch().to(device), {}, {}
    updates = {name: updates_of(make_agent(config).to(device), name) for name in (EAGER, kind)}
    forget_peak(device)
    first: dict[str, float] = {}
    for step in range(WARM_UP + 2 + (200 if size == "full" else 20)):
        for name, update in updates.items():
            began = now(device)
            found = update(batch, generator=stream(0, "bench", step))
            took = now(device) - began
            first.setdefault(name, took)
            if step < 2:  # both have begun alike; later, rounding has its way
                logs[name] = {key: float(value) for key, value in found.items()}
            if step > WARM_UP:
                seconds.setdefault(name, []).append(took)
    apart = furthest(logs[EAGER], logs[kind])
    if not apart <= TOLERANCE:
        raise WorldrlError(f"{kind} updates differ from eager ones by {apart:.2g} of a logged number")
    return {
        **{f"{name} updates": rate(1, taken, "updates/s") for name, taken in seconds.items()},
        "times eager": median([a / b for a, b in zip(seconds[EAGER], seconds[kind], strict=True)], "times as fast"),
        f"first {kind} update": Number(first[kind], "s"),
        "largest difference": Number(apart, "relative"),
        "peak memory": Number(peak_memory_mb(device) / 1e3, "GB"),
    }


def furthest(a: dict[str, float], b: dict[str, float]) -> float:
    """Largest relative difference of equal keys; small numbers count as 1e-3."""
    return max(abs(a[key] - b[key]) / max(abs(a[key]), 1e-3) for key in a)


# -- GRPO ------------------------------------------------------------------------------------------------------------


def make_policy(preset: str, image_size: int, chunk_length: int, device: torch.device) -> TokenPolicy:
    """A policy of a preset's sizes, for the images and chunks of a world model, with random weights."""
    config = preset_part("train-vla", preset, "policy", TokenPolicyConfig)
    config = replace(config, image_size=image_size, chunk_length=chunk_length)
    ones = torch.ones(ROBOT.actions.size)
    with initial_weights(0, "bench", "policy"):
        return TokenPolicy(config, PolicyStatistics(-ones, ones, torch.from_numpy(HOME), ones)).to(device)


def measure_grpo(size: str, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> dict[str, Number]:
    """Time iterations of GRPO: imagined groups of an untrained policy, and gradient steps on all their decisions."""
    preset = "gpu" if size == "full" else "tiny"
    model: Any = make_model(Row(preset, "imagine", 1), size, device).eval()
    model.compute_dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    policy = make_policy(preset, model.config.codec.image_size, model.chunk_length, device)
    groups, of_each = GROUPS[size]
    horizon = (8 if size == "full" else 2) * model.chunk_length
    store = ResetStore(random_records(groups, model.memory_frames, model.config.codec.image_size))
    env = imagined_env(
        model, store, SuccessRule(0.5, horizon), rows=groups * of_each, horizon={TASK: horizon}, stop_at_success=False
    )
    config = GrpoConfig(groups=groups, group_size=of_each)
    source = PolicyImagination(env, policy, Exploration(), 0.0, 0, sentences={TASK: [SENTENCE]})
    method = grpo(source, policy, config, parts=Parts(selection=everything))
    learner, repetitions = policy_learner(policy, config), 5 if size == "full" else 2
    imagining, whole = [], []
    forget_peak(device)
    for iteration in range(1 + repetitions):  # the first does not count
        began = now(device, clock)
        _, spent = iterate(learner, method, iteration)
        whole.append(now(device, clock) - began)
        imagining.append(spent["seconds/imagining"])
    frames = groups * of_each * horizon // model.frame_stride
    return {
        "iteration": median(whole[1:], "s"),
        "imagining": median(imagining[1:], "s"),
        "speed": rate(frames, whole[1:], "frames/s"),
        "rollouts": Number(groups * of_each, ""),
        "peak memory": Number(peak_memory_mb(device) / 1e3, "GB"),
    }
