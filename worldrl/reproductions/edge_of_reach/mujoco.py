"""``edge-of-reach``: the edge-of-reach problem on a MuJoCo task, where the model is the simulator itself.

Sims et al., "The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning" (2024): with true dynamics in place
of learned ones, methods of short rollouts collapse while their values grow. Two agents learn from the same data:

- ``base``: SAC on rollouts of k steps (MBPO). MOPO, MOReL and MOBILE subtract the model's uncertainty, which is 0 in the
  simulator, so they equal base number for number (a test);
- ``ravl``: many diverse critics, pessimistic where they disagree, and no penalty.

The data of a seed are all steps of a short training of SAC, with simulator states.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import NonFiniteError
from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.data.offline.trajectories import DatasetInfo
from worldrl.evaluation.offline.scores import evaluate_offline
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.words import number
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.branches import BranchConfig, Branches
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.ravl import Ravl, RavlConfig
from worldrl.methods.offline.reach import FAR, reach_report
from worldrl.methods.offline.sac import Sac, SacConfig
from worldrl.methods.offline.training import OfflineReport, OfflineTraining, train_offline
from worldrl.recipes.offline.worlds import true_world
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.edge_of_reach.parts import FLOOR, common_settings, padded
from worldrl.reproductions.findings import Claim, Findings, Results, across_seeds, column, over_seeds
from worldrl.reproductions.sac_replay import experience
from worldrl.rollout.vector.episodes import dataset_environment, memoryless

METHODS = ("base", "ravl")


@dataclass(frozen=True)
class SimulatorSettings:
    """Settings of the task and the agents; rollouts and RAVL are the published ones by default."""

    seeds: int = 3
    env: str = "Hopper-v5"
    behaviour_steps: int = 100_000  # steps of the SAC whose experience is the dataset
    behaviour_start: int = 10_000  # its steps of uniform actions
    behaviour_hidden: int = 256  # width of its two hidden layers
    updates: int = 300_000
    refresh: int = 1000  # updates between two generations of rollouts
    starts: int = 10_000  # rollouts per generation
    generations: int = 5  # number of generations in the buffer
    horizon: int = 5  # k
    batch: int = 256  # rows per update, of which `real_ratio` are recorded
    real_ratio: float = 0.05
    hidden: int = 256  # width of the two hidden layers of actor and critics
    rate: float = 3e-4  # learning rate of everything
    polyak: float = 0.005
    discount: float = 0.99
    critics: int = 10  # of RAVL
    diversity: float = 1.0  # η of RAVL
    evaluations: int = 30  # points of the curves
    episodes: int = 10  # true episodes per point
    asked: int = 2000  # rollouts whose final states the critics value at the end


# Ten critics in place of the 50 published for Hopper, which take an hour; a larger diversity makes up for them. An error is
# bootstrapped once per 1 / (τ (1 - γ)) updates, 15 times here; with the published τ it would be three quarters of once.
QUICK = SimulatorSettings(
    behaviour_steps=10_000, behaviour_start=1000, behaviour_hidden=64, updates=15_000, refresh=250, starts=400,
    hidden=64, rate=1e-3, polyak=0.1, diversity=10.0, evaluations=10, episodes=5, asked=500,
)  # fmt: skip
SETTINGS: Mapping[str, SimulatorSettings] = {
    "paper": SimulatorSettings(),
    # Returns differ much between seeds, so the full setting spends its time on seeds
    # (docs/log/offline-reproductions-2.md).
    "full": replace(QUICK, seeds=10, episodes=10, asked=2000),
    "quick": QUICK,
    "tiny": SimulatorSettings(
        seeds=2, behaviour_steps=60, behaviour_start=20, behaviour_hidden=8, updates=4, refresh=2, starts=6, horizon=3,
        batch=40, hidden=8, critics=3, evaluations=2, episodes=1, asked=20,
    ),
}  # fmt: skip


def run(settings: SimulatorSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Train one agent in the simulator and evaluate it at intervals; ``folder`` holds its checkpoints."""
    data = experience(
        settings.env,
        cell.seed,
        folder,
        steps=settings.behaviour_steps,
        start=settings.behaviour_start,
        hidden=settings.behaviour_hidden,
    )
    rows, env = data.transitions(), dataset_environment(data.info)
    with initial_weights(cell.seed, "edge-of-reach", "agent"):
        agent = make_agent(settings, cell.method, Facts.of(rows, data.returns(), updates=settings.updates))
    imagination = Branches(true_world(data, rows), len(rows), BranchConfig(settings.starts, settings.horizon))

    every = max(1, settings.updates // settings.evaluations)  # updates between evaluations, and between checkpoints
    size = Imagining(settings.horizon, settings.real_ratio, settings.starts, settings.refresh, settings.generations)

    def watch(learned: Sac, step: int) -> dict[str, float]:
        return look(settings, learned, env, data.info, rows)

    def train(updates: int) -> OfflineReport:
        return train_offline(
            "edge-of-reach",
            agent,
            rows,
            OfflineTraining(updates, settings.batch, every, every, every),
            seed=cell.seed,
            imagination=imagination,
            imagining=size,
            evaluate=watch,
            folder=folder / "checkpoints",
        )

    try:
        report = train(settings.updates)
    except NonFiniteError:  # values left the range of float32, which is the effect: take the newest checkpoint
        report = train(1)
    curves = padded(report.evaluations, math.ceil(settings.updates / every))
    largest = float(rows.reward.max()) / (1 - settings.discount)
    facts = {"data_return": float(data.returns().mean()), "log10_largest": math.log10(largest)}
    draws = stream(cell.seed, "edge-of-reach", "asked")
    return {**curves, **facts, **reach_report(agent, imagination, rollouts=settings.asked, generator=draws)}


def make_agent(settings: SimulatorSettings, method: str, facts: Facts) -> Sac:
    """Make one method's agent; base has two critics."""
    common = common_settings(settings)
    if method == "ravl":
        return Ravl(RavlConfig(critics=settings.critics, diversity=settings.diversity, **common), facts)
    return Sac(SacConfig(critics=2, **common), facts)


def look(settings: SimulatorSettings, agent: Sac, env: Any, info: DatasetInfo, rows: Transitions) -> dict[str, float]:
    """Measure the true return, the value predicted at episode starts with its discounted return, and the value at the data."""
    found = evaluate_offline(
        memoryless(agent),
        env,
        info,
        seed=0,
        episodes=settings.episodes,
        gamma=settings.discount,
        value=lambda obs, action: agent.value(obs),
        device=agent.device,
    )
    with torch.no_grad():
        q = agent.critic(rows.obs, agent.act(rows.obs, generator=None)).mean()
    earned = float(found.discounted.mean())
    return {
        "return": float(found.returns.mean()),
        "log10_q": math.log10(max(float(q), FLOOR)),
        "log10_earned": math.log10(max(earned, FLOOR)),
    }


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: SimulatorSettings, results: Results) -> Findings:
    """Compare the two agents by their last evaluation, returns by the last half of the evaluations."""
    last = {m: {key: column(results, m, key)[:, -1] for key in ("log10_q", "log10_earned")} for m in METHODS}
    returns = {m: late_returns(results[m]) for m in METHODS}
    largest = column(results, "base", "log10_largest")
    over = {m: last[m]["log10_q"] - last[m]["log10_earned"] for m in METHODS}
    separation = column(results, "ravl", "penalty_auroc") - 0.5
    claims = [
        Claim(
            "base's values grow beyond what any policy can earn",
            "log10 (Q / largest possible)",
            last["base"]["log10_q"] - largest,
        ),
        Claim("RAVL's values do not", "log10 (largest possible / Q)", largest - last["ravl"]["log10_q"]),
        Claim(
            "RAVL promises less beyond what it earns than base",
            "log10 (Q / earned), difference",
            over["base"] - over["ravl"],
        ),
        Claim(
            "RAVL earns more than base, and than every method whose penalty is the world's uncertainty",
            "return over the last half of training, difference",
            returns["ravl"] - returns["base"],
        ),
        Claim("RAVL's effective penalty tells the farthest final states", "AUROC less 0.5", separation),
    ]
    return Findings(claims, [methods_table(results)], curves(results), notes(settings, results))


def late_returns(found: Sequence[dict[str, Any]]) -> NDArray[np.float64]:
    """Return each seed's mean over the last half of the evaluations: a diverged policy's return jumps."""
    return np.array([np.mean(one["return"][len(one["return"]) // 2 :]) for one in found])


def methods_table(results: Results) -> Table:
    """Last evaluation of every method, mean over seeds."""
    rows = []
    for method in METHODS:
        returns, auroc = late_returns(results[method]), column(results, method, "penalty_auroc").mean()
        numbers = [number(float(column(results, method, key)[:, -1].mean())) for key in ("log10_q", "log10_earned")]
        rows.append((method, over_seeds(returns.tolist()), *numbers, f"{auroc:.3f}"))
    data = column(results, "base", "data_return").mean()
    score = "Return over the last half: interquartile mean [95 %], lowest to highest seed"
    headers = ("Method", score, "log10 Q", "log10 earned", "AUROC of mean Q - min Q")
    return Table("At the end of training", headers, rows, f"Mean return of the data: {data:.1f}.")


def curves(results: Results) -> list[Any]:
    """Return, and predicted value beside discounted return, over training."""
    x = list(range(1, len(results["base"][0]["return"]) + 1))

    def of(key: str) -> dict[str, Any]:
        return {m: [found[key] for found in results[m]] for m in METHODS}

    values = {f"{m}, promised": [found["log10_q"] for found in results[m]] for m in METHODS}
    values |= {f"{m}, earned": [found["log10_earned"] for found in results[m]] for m in METHODS}
    return [
        across_seeds("True return", "evaluation", "return", x, of("return")),
        across_seeds("Value at the data, and discounted return", "evaluation", "log10", x, values),
    ]


def notes(settings: SimulatorSettings, results: Results) -> list[str]:
    """Notes on the method."""
    uncertainty = max(found["largest_uncertainty"] for found in results["base"])
    return [
        f"{settings.env}; data: {settings.behaviour_steps} steps of a learning SAC per seed, with simulator states.",
        f"Rollouts of {settings.horizon} steps in the simulator itself. Its largest uncertainty was {uncertainty:g}: what "
        "MOPO, MOReL and MOBILE subtract is that, so each of them equals base.",
        f"The edge: the {FAR:.0%} of final states that lie farthest from all states that rollouts acted from.",
        "The largest possible value is the data's largest reward / (1 - γ).",
    ]
