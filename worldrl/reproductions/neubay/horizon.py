"""``neubay-horizon``: the longer the rollouts, the smaller the over-estimation.

Ni et al., "Long-Horizon Model-Based Offline RL Without Conservatism" (2025). In a target of H imagined steps the
bootstrapped, over-estimated value counts γ^H. NEUBAY is trained on a pendulum's data with rollouts of at most H steps, for
several H. Its prediction at the start of an episode is compared with the true discounted return. The last H is the time
limit: only the uncertainty cuts these rollouts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.words import number
from worldrl.methods.offline.agent import Facts
from worldrl.methods.offline.neubay.long_rollouts import Episodes, LongRolloutConfig, long_rollouts
from worldrl.methods.offline.neubay.lru import MemoryConfig
from worldrl.methods.offline.neubay.neubay import Neubay, NeubayConfig
from worldrl.methods.offline.neubay.training import NeubayTraining, train_neubay
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.findings import Claim, Findings, Results, across_seeds, column
from worldrl.reproductions.neubay.pendulum import REWARD_SCALE, STEPS, hang, observe, record, swing
from worldrl.reproductions.stage_sharing import shared
from worldrl.world_models.state.config import MemberChoice, Uncertainty, neubay_ensemble
from worldrl.world_models.state.ensemble import Ensemble
from worldrl.world_models.state.ensemble_training import fit_ensemble
from worldrl.world_models.state.ensemble_world import (
    EnsembleWorld,
    EnsembleWorldConfig,
    dataset_uncertainty,
    uncertainty_threshold,
)
from worldrl.world_models.state.terminations import never

HORIZONS = (1, 5, 20, STEPS)
METHODS = tuple(f"horizon-{horizon}" for horizon in HORIZONS)


@dataclass(frozen=True)
class HorizonSettings:
    """Settings of the sweep."""

    seeds: int = 3
    episodes: int = 100  # recorded, of 200 steps
    # Of the ensemble, with `elites`, layers of `model_width` and at most `epochs` epochs. Patience should end the
    # training, since long rollouts amplify the model's errors.
    members: int = 128
    elites: int = 100
    model_width: int = 200
    epochs: int = 1200
    updates: int = 50_000
    rows: int = 2048  # packed rows per update
    rollouts: int = 100  # per generation
    updates_per_step: float = 0.05  # gradient steps per step of a generation
    width: int = 256  # features of the agent's memory
    states: int = 128  # complex states of its layers
    hidden: int = 256  # width of its heads
    encoder_rate: float = 1e-5
    head_rate: float = 1e-4
    polyak: float = 0.005
    discount: float = 0.97
    temperature: float = 0.005  # α, fixed and small, so that values are returns
    quantile: float = 1.0  # ζ of the uncertainty at which rollouts are cut
    tests: int = 50  # true episodes


QUICK = HorizonSettings(
    episodes=8,
    members=16,
    elites=12,
    model_width=64,
    updates=2000,
    rows=1000,
    rollouts=50,
    width=64,
    states=32,
    hidden=64,
    encoder_rate=1e-4,
    head_rate=1e-3,
    polyak=0.3,
)
SETTINGS: Mapping[str, HorizonSettings] = {
    "paper": HorizonSettings(),
    # Where data are plenty, or targets follow a few times only, rollouts of one step promise no more than they earn. How much they
    # over-estimate differs so much between seeds that these are what the full setting spends its time on
    # (docs/log/offline-reproductions-2.md).
    "full": replace(QUICK, seeds=10, tests=200),
    "quick": QUICK,
    "tiny": HorizonSettings(
        seeds=2, episodes=3, members=3, elites=2, model_width=8, epochs=1, updates=2, rows=30, rollouts=2,
        updates_per_step=0.003, width=8, states=4, hidden=8, tests=2,
    ),
}  # fmt: skip


def run(settings: HorizonSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Train the ensemble and one agent; every horizon of a seed has the same data and ensemble."""
    rows, episode = record(settings.episodes, generator=stream(cell.seed, "pendulum", "data"))
    world = learned_world(settings, rows, cell.seed, folder)
    horizon = int(cell.method.removeprefix("horizon-"))
    threshold = uncertainty_threshold(dataset_uncertainty(world, rows), settings.quantile)
    rollouts = LongRolloutConfig(settings.rollouts, STEPS, None if horizon == STEPS else horizon, threshold)
    facts = Facts(rows.obs.mean(0), rows.obs.std(0), 1, updates=settings.updates)
    with initial_weights(cell.seed, "pendulum", "agent"):
        agent = Neubay(
            NeubayConfig(
                memory=MemoryConfig(settings.width, settings.states),
                hidden=(settings.hidden, settings.hidden),
                discount=settings.discount,
                polyak=settings.polyak,
                encoder_rate=settings.encoder_rate,
                head_rate=settings.head_rate,
                temperature=settings.temperature,
            ),
            facts,
        )
    training = NeubayTraining(
        updates=settings.updates,
        rows=settings.rows,
        buffer=settings.updates * 2 * STEPS,
        updates_per_step=settings.updates_per_step,
        rollouts=rollouts,
    )
    episodes = Episodes.of(rows, episode)
    train_neubay(agent, world, episodes, training, seed=cell.seed, folder=folder / "checkpoints")
    _, logs = long_rollouts(agent, world, episodes, rollouts, generator=stream(cell.seed, "pendulum", "last"))
    imagined = float(logs["rollouts/imagined_median"])
    return {"imagined_median": imagined, **tested(settings, agent, cell.seed)}


def learned_world(settings: HorizonSettings, rows: Transitions, seed: int, stage: Path) -> EnsembleWorld:
    """Train NEUBAY's ensemble (layer norm, a member per rollout, elites' means), unless another stage has."""
    sizes, training = neubay_ensemble()
    sizes = replace(sizes, members=settings.members, elites=settings.elites, width=settings.model_width)
    training = replace(training, max_epochs=settings.epochs)

    def fitted(folder: Path) -> Ensemble:
        return fit_ensemble("pendulum-ensemble", rows, sizes, training, seed=seed, folder=folder)[0]

    place = shared(stage, f"ensemble-seed-{seed}", lambda folder: fitted(folder / "checkpoints").save(folder / "model"))
    config = EnsembleWorldConfig(MemberChoice.rollout, Uncertainty.epistemic_mean, "elites")
    return EnsembleWorld(Ensemble.load(place / "model"), rows.obs, never, config)


@torch.no_grad()
def tested(settings: HorizonSettings, agent: Neubay, seed: int) -> dict[str, float]:
    """Play true episodes greedily; compare the prediction at their start with the discounted return."""
    angle, speed = hang(settings.tests, generator=stream(seed, "pendulum", "test"))
    obs, action, reward = observe(angle, speed), torch.zeros(settings.tests, 1), torch.zeros(settings.tests)
    memory, predicted = agent.begin(settings.tests), agent.value(obs)
    total, discounted = torch.zeros(settings.tests), torch.zeros(settings.tests)
    for step in range(STEPS):
        action, memory = agent.step(obs, action, reward, memory, generator=None)
        angle, speed, reward = swing(angle, speed, action)
        obs = observe(angle, speed)
        total, discounted = total + reward, discounted + settings.discount**step * reward
    return {
        "predicted": float(predicted.mean()),
        "realised": float(discounted.mean()),
        "over_estimation": float((predicted - discounted).mean()),
        "return": float(total.mean()) / REWARD_SCALE,
    }


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: HorizonSettings, results: Results) -> Findings:
    """Compare the horizons."""
    over = np.stack([column(results, m, "over_estimation") for m in METHODS])  # [horizon, seed]
    slope = np.polyfit(np.log10(HORIZONS), over, 1)[0]
    claims = [
        Claim(
            f"rollouts up to the time limit over-estimate less than rollouts of {HORIZONS[0]} step",
            "over-estimation, difference",
            over[0] - over[-1],
        ),
        Claim("over-estimation falls with the horizon", "fall per factor of 10 in H", -slope),
    ]
    by_seed = {
        key: [[results[m][seed][key] for m in METHODS] for seed in range(over.shape[1])]
        for key in ("predicted", "realised", "return")
    }
    x = [math.log10(horizon) for horizon in HORIZONS]
    figure = [
        across_seeds("Value at the start", "log10 of the horizon", "discounted return / 10", x, {k: by_seed[k] for k in ("predicted", "realised")}),
        across_seeds("Return in the true pendulum", "log10 of the horizon", "return", x, {"return": by_seed["return"]}),
    ]  # fmt: skip
    return Findings(claims, [horizon_table(results)], figure, notes(settings))


def horizon_table(results: Results) -> Table:
    """Every horizon, mean over seeds."""
    keys = ("imagined_median", "predicted", "realised", "over_estimation", "return")
    rows = []
    for method in METHODS:
        rows.append((method, *(number(float(column(results, method, key).mean())) for key in keys)))
    headers = ("Rollouts", "Imagined steps, median", "Predicted", "Realised", "Over-estimation", "Return")
    note = "Mean over seeds; medians are those of one more generation after training."
    return Table("By horizon", headers, rows, note)


def notes(settings: HorizonSettings) -> list[str]:
    """Notes on the method."""
    return [
        f"Pendulum-v1, {settings.episodes} episodes of a noisy controller; rewards divided by 10, except in the column of returns.",
        f"Discount {settings.discount}: after 200 steps a reward counts {settings.discount**STEPS:.1g}.",
        "A stand-in: the paper sweeps D4RL's locomotion tasks.",
    ]
