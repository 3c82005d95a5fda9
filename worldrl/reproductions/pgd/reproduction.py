"""``pgd``: trajectories of a diffusion model, guided towards the policy that learns from them.

Jackson et al., "Policy-Guided Diffusion" (RLC 2024), two statements, here on a pendulum whose true dynamics are known:

- at equal likelihood under the target policy, steps of guided trajectories are nearer to the true dynamics than those
  of an autoregressive ensemble rolled out as long (stage ``quality``);
- TD3+BC and IQL trained on 15 parts of guided trajectories and one part of recorded rows do better than on the
  recorded rows alone.

All stages of a seed share the data, the diffusion model and the target policy (TD3+BC on the data alone).

Shapes legend: ``B`` rows, ``L`` steps of a trajectory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from worldrl.core.rng import initial_weights, stream
from worldrl.core.transitions import Transitions
from worldrl.evaluation.report.model import Curve, Table
from worldrl.evaluation.report.words import number
from worldrl.methods.offline.agent import Agent, Facts, load_agent
from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.iql import Iql, IqlConfig
from worldrl.methods.offline.td3_bc import Td3Bc, Td3BcConfig
from worldrl.methods.offline.training import OfflineTraining, train_offline
from worldrl.recipes.offline.worlds import FirstUnguided
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.findings import Claim, Findings, Results, column, side_by_side
from worldrl.reproductions.neubay.pendulum import STEPS, play, record
from worldrl.reproductions.pgd.quality import KINDS, NOISES, SHARES, log_ratio, measure
from worldrl.reproductions.stage_sharing import shared
from worldrl.world_models.state.config import EnsembleConfig, EnsembleTraining
from worldrl.world_models.state.ensemble_training import fit_ensemble
from worldrl.world_models.state.ensemble_world import EnsembleWorld
from worldrl.world_models.state.guided_rollouts import GuidedRolloutConfig, GuidedRollouts
from worldrl.world_models.state.terminations import never
from worldrl.world_models.state.trajectory_diffusion import (
    TrajectoryDiffusion,
    TrajectoryDiffusionConfig,
    TrajectoryTraining,
    fit_trajectories,
)
from worldrl.world_models.state.trajectory_sampling import GuidanceConfig, SamplerConfig

AGENTS: Mapping[str, tuple[type[Agent], type[Any]]] = {"td3_bc": (Td3Bc, Td3BcConfig), "iql": (Iql, IqlConfig)}
MORE = "earns more with guided trajectories than from the data alone"
AXES = ("log_prob", "error")
METHODS = ("quality", *(f"{agent}-{rows}" for agent in AGENTS for rows in ("real", "guided")))


@dataclass(frozen=True)
class GuidedSettings:
    """Settings of the models and agents."""

    seeds: int = 3
    episodes: int = 50  # recorded, of 200 steps
    length: int = 32  # L
    features: int = 64  # of the diffusion model's first level
    # Of its training. After a few thousand its steps are worse than the ensemble's
    # (docs/log/offline-reproductions-2.md).
    model_steps: int = 100_000
    sampler_steps: int = 32  # Heun steps of a draw
    guidance: float = 1.0  # coefficient c of the agents' trajectories
    trajectories: int = 2048  # per generation
    refresh: int = 10_000  # updates between two generations
    members: int = 7  # of the ensemble, with `elites` and layers of `model_width`
    elites: int = 5
    model_width: int = 200
    epochs: int = 1000  # of its training, at most; patience should end it, or the comparison is unfair
    judged: int = 1024  # trajectories, or rollouts, of each point of the comparison
    updates: int = 100_000  # gradient steps of an agent
    hidden: int = 256  # width of its two hidden layers
    temperature: float = 3.0  # β of IQL
    discount: float = 0.97
    tests: int = 50  # true episodes


SETTINGS: Mapping[str, GuidedSettings] = {
    "paper": GuidedSettings(),
    # After so few updates advantages are mostly the critics' errors, and β = 3 lets IQL fall below the data
    # (docs/log/offline-grids.md).
    "full": GuidedSettings(
        seeds=10, episodes=30, features=48, model_steps=40_000, trajectories=1024, refresh=5000, model_width=100, updates=40_000, hidden=128,
        temperature=0.5,
    ),
    "quick": GuidedSettings(
        episodes=20, length=16, features=32, model_steps=4000, sampler_steps=16, trajectories=512, refresh=2500,
        model_width=64, judged=256, updates=10_000, hidden=64, temperature=0.5,
    ),
    "tiny": GuidedSettings(
        seeds=2, episodes=2, length=4, features=8, model_steps=2, sampler_steps=2, trajectories=4, refresh=2, members=2,
        elites=1, model_width=8, epochs=1, judged=4, updates=3, hidden=8, tests=2,
    ),
}  # fmt: skip


def run(settings: GuidedSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Compare the models, or train one agent and play it; ``folder`` holds its checkpoints."""
    rows, episode = record(settings.episodes, generator=stream(cell.seed, "pgd", "data"))
    if cell.method == "quality":
        return quality(settings, cell.seed, folder, rows, episode)
    name, source = cell.method.split("-")
    if cell.method == "td3_bc-real":
        return tested(settings, target_policy(settings, cell.seed, folder, rows), cell.seed)
    policy_rollouts = None
    if source == "guided":
        model = trajectory_model(settings, cell.seed, folder, rows, episode)
        policy_rollouts = FirstUnguided(guided_rollouts_of(settings, model, settings.trajectories, settings.guidance))
    agent = trained(settings, name, rows, policy_rollouts, seed=cell.seed, folder=folder / "checkpoints")
    return tested(settings, agent, cell.seed)


# --- what a seed's stages share -------------------------------------------------------------------------------------


def target_policy(settings: GuidedSettings, seed: int, folder: Path, rows: Transitions) -> Td3Bc:
    """Return TD3+BC on the recorded rows."""

    def make(place: Path) -> None:
        trained(settings, "td3_bc", rows, None, seed=seed, folder=place / "checkpoints").save(place / "agent")

    found: Any = load_agent(shared(folder, f"target-seed-{seed}", make) / "agent", Td3Bc)
    return found


def trajectory_model(
    settings: GuidedSettings, seed: int, folder: Path, rows: Transitions, episode: Tensor
) -> TrajectoryDiffusion:
    """Return the diffusion model of the recorded trajectories."""
    config = TrajectoryDiffusionConfig(length=settings.length, features=settings.features)
    training = TrajectoryTraining(
        steps=settings.model_steps, stride=2, checkpoint_steps=max(1, settings.model_steps // 10)
    )

    def make(place: Path) -> None:
        model, _ = fit_trajectories(
            "pgd-model", rows, episode, config, training, seed=seed, folder=place / "checkpoints"
        )
        model.save(place / "model")

    return TrajectoryDiffusion.load(shared(folder, f"model-seed-{seed}", make) / "model")


def guided_rollouts_of(
    settings: GuidedSettings, model: TrajectoryDiffusion, count: int, coefficient: float
) -> GuidedRollouts:
    """Return a source of ``count`` trajectories at a time, with a guidance of this coefficient."""
    sampler = SamplerConfig(steps=settings.sampler_steps, churn=80 / 256 * settings.sampler_steps)
    return GuidedRollouts(model, GuidedRolloutConfig(count), sampler, GuidanceConfig(coefficient=coefficient))


def trained(
    settings: GuidedSettings, name: str, rows: Transitions, policy_rollouts: Any, *, seed: int, folder: Path
) -> Agent:
    """Train one agent, on the recorded rows alone without ``policy_rollouts``."""
    agent_class, config_class = AGENTS[name]
    returns = rows.reward.reshape(-1, STEPS).sum(1).numpy()
    made: Any = agent_class
    with initial_weights(seed, "pgd", name):
        own: dict[str, Any] = {"temperature": settings.temperature} if config_class is IqlConfig else {}
        config = config_class(hidden=(settings.hidden,) * 2, discount=settings.discount, **own)
        agent: Agent = made(config, Facts.of(rows, returns, updates=settings.updates, limit=STEPS))
    imagining = Imagining(settings.length, 1 / 16, settings.trajectories, settings.refresh, 1)
    every = max(1, settings.updates // 10)
    train_offline(
        f"pgd-{name}",
        agent,
        rows,
        OfflineTraining(settings.updates, 256, settings.updates, every, every),
        seed=seed,
        imagination=policy_rollouts,
        imagining=None if policy_rollouts is None else imagining,
        folder=folder,
    )
    return agent


def tested(settings: GuidedSettings, agent: Agent, seed: int) -> dict[str, float]:
    """Play true episodes with the most likely actions: mean return, in Gymnasium's units."""
    starts = stream(seed, "pgd", "test")
    return {"return": float(play(partial(agent.act, generator=None), settings.tests, generator=starts).mean())}


def quality(settings: GuidedSettings, seed: int, folder: Path, rows: Transitions, episode: Tensor) -> dict[str, Any]:
    """Compare the diffusion model with an autoregressive ensemble (:mod:`~worldrl.reproductions.pgd.quality`)."""
    model = trajectory_model(settings, seed, folder, rows, episode)
    found = measure(
        target_policy(settings, seed, folder, rows),
        learned_world(settings, rows, seed, folder),
        lambda share: guided_rollouts_of(settings, model, settings.judged, share * settings.guidance),
        rows.obs.std(0),
        rollouts=settings.judged,
        length=settings.length,
        seed=seed,
    )
    return {**found, "log10_ratio": log_ratio(found)}


def learned_world(settings: GuidedSettings, rows: Transitions, seed: int, folder: Path) -> EnsembleWorld:
    """Train the autoregressive model, a probabilistic ensemble with a random elite per step."""
    sizes = EnsembleConfig(members=settings.members, elites=settings.elites, width=settings.model_width)
    training = EnsembleTraining(max_epochs=settings.epochs)
    ensemble, _ = fit_ensemble("pgd-ensemble", rows, sizes, training, seed=seed, folder=folder / "ensemble")
    return EnsembleWorld(ensemble, rows.obs, never)


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: GuidedSettings, results: Results) -> Findings:
    """Compare the models, and each agent with and without guided trajectories."""
    score = {m: column(results, m, "return") for m in METHODS[1:]}
    ratio = Claim(
        "at equal likelihood, guided steps are nearer to the true dynamics than the ensemble's",
        "log10 (ensemble's error / guided error)",
        column(results, "quality", "log10_ratio"),
    )
    gains = [
        Claim(f"{name} {MORE}", "return, difference", score[f"{name}-guided"] - score[f"{name}-real"])
        for name in AGENTS
    ]
    return Findings([ratio, *gains], tables(results), curves(results), notes(settings))


def tables(results: Results) -> list[Table]:
    """Returns of the agents, and both models' curves, mean over seeds."""
    scores = {m: column(results, m, "return") for m in METHODS[1:]}
    returns = [(m, f"{x.mean():.1f}", f"{x.min():.1f}", f"{x.max():.1f}") for m, x in scores.items()]
    mean = {key: column(results, "quality", key).mean(0) for key in results["quality"][0] if key != "log10_ratio"}
    judged = [
        (f"{kind}, {what} {value:g}", *(number(float(mean[f"{kind}_{key}"][i])) for key in AXES))
        for kind, what, values in (("ensemble", "noise", NOISES), ("guided", "share of the guidance", SHARES))
        for i, value in enumerate(values)
    ]
    return [
        Table("Return in the true pendulum", ("Agent and rows", "Mean", "Lowest seed", "Highest"), returns),
        Table("Imagined steps", ("Source", "Log-likelihood", "log10 dynamics error"), judged, "Means over seeds."),
    ]


def curves(results: Results) -> list[Curve]:
    """Dynamics error over likelihood, and the returns."""
    mean = {f"{k}_{key}": column(results, "quality", f"{k}_{key}").mean(0).tolist() for k in KINDS for key in AXES}
    lines = {kind: sorted(zip(*(mean[f"{kind}_{key}"] for key in AXES), strict=True)) for kind in KINDS}
    by_agent = {
        rows: np.stack([column(results, f"{name}-{rows}", "return") for name in AGENTS], axis=1).tolist()
        for rows in ("real", "guided")
    }
    return [
        Curve("Dynamics error", "log-likelihood under the target policy", "log10 of the error", lines, {}),
        side_by_side("Return by agent", "return", list(AGENTS), by_agent),
    ]


def notes(settings: GuidedSettings) -> list[str]:
    """Notes on the method."""
    return [
        f"Pendulum-v1, {settings.episodes} episodes of a noisy controller; windows of {settings.length} steps.",
        "The target policy is TD3+BC on the data alone; its density is a unit Gaussian around its action, as in the paper.",
        "Dynamics error: squared distance of s' from the true successor of (s, a), in deviations of the data.",
        "A stand-in: the paper measures on D4RL's locomotion tasks and on Maze2d.",
    ]
