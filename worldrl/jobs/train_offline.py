"""``worldrl train-offline``: a dataset and an algorithm's name to a policy with a score that can be trusted.

The dataset is read and measured, the world learned where one is asked for, the agent trained in the one loop
(:mod:`worldrl.algorithms.offline.training`), saved, and played in the dataset's own environment. The same command goes
on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.table import Table

from worldrl.algorithms.offline.agent import Agent, Facts
from worldrl.algorithms.offline.imagining import Imagining
from worldrl.algorithms.offline.ravl import Ravl, RavlConfig
from worldrl.algorithms.offline.training import Evaluate, OfflineReport, OfflineTraining, train_offline
from worldrl.core.artefact import artefact_hash
from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog, console
from worldrl.core.rng import initial_weights
from worldrl.core.transitions import Transitions
from worldrl.data.offline.trajectories import DatasetInfo, Trajectories
from worldrl.evaluation.offline import OfflineEvaluation, dataset_scores, evaluate_offline
from worldrl.jobs.offline_worlds import AUTO, GUIDED, WORLDS, DiffusionSettings, Imagined, open_data, open_imagined
from worldrl.jobs.opening import open_run
from worldrl.jobs.stages import BUNDLED
from worldrl.registry import ALGORITHMS
from worldrl.rollout.vector_episodes import check_spaces, dataset_environment, memoryless
from worldrl.settings import non_negative, one_of, required, setting
from worldrl.world_models.offline.config import EnsembleConfig, EnsembleTraining, Uncertainty

DEFAULT = "ravl"
WORLD_MEANING = "what is imagined in: none, ensemble, true, diffusion or latent"
NAME = "agent"
"""Of the training's series and streams, and of the folder that holds the agent."""
FINAL_SEED_OFFSET = 1_000_000
"""Final episodes are others than those watched during training, which may have been used to choose settings."""


@dataclass
class TrainOfflineSettings:
    """Which data, which algorithm, in which world."""

    data: str = required("Minari id or folder, D4RL .hdf5 file, or with world=latent a LeRobotDataset folder")
    run_dir: str = setting("runs/train-offline", "where everything is written; the agent goes to run_dir/agent")
    seed: int = setting(0, "root of every random stream")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto")
    algorithm: str = setting(DEFAULT, "registered name of the algorithm; its settings are agent.*")
    world: str = setting("ensemble", WORLD_MEANING)
    world_model: str = setting(BUNDLED, "video world model of world=latent: a folder, or bundled")
    rows: int = setting(0, "learn from the first so many rows; 0 takes all")
    env: str | None = setting(None, "environment to evaluate in; null takes the dataset's own")
    max_episode_steps: int | None = setting(None, "its time limit; null takes the dataset's or the registered one")
    termination: str = setting(
        AUTO, "when the ensemble's steps end the task: auto (the environment's own rule), learned, or a registered rule"
    )
    uncertainty: str = setting("max_sigma", "what imagining.penalty multiplies")
    episodes: int = setting(10, "episodes of the final evaluation; 0 for no evaluation at all")
    watched_episodes: int = setting(2, "episodes of each evaluation during training; 0 for none")
    agent: RavlConfig = field(default_factory=RavlConfig)
    imagining: Imagining = field(default_factory=lambda: Ravl.imagining)
    training: OfflineTraining = field(default_factory=OfflineTraining)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    ensemble_training: EnsembleTraining = field(default_factory=EnsembleTraining)
    diffusion: DiffusionSettings = field(default_factory=DiffusionSettings)

    def __post_init__(self) -> None:
        """Check the names and ranges, and that algorithm and world fit together."""
        one_of("world", self.world, WORLDS)
        one_of("uncertainty", self.uncertainty, [kind.value for kind in Uncertainty if kind is not Uncertainty.none])
        for name in ("rows", "episodes", "watched_episodes"):
            non_negative(name, getattr(self, name))
        if self.world == "latent" and (self.episodes or self.watched_episodes):
            raise SettingError(
                "world=latent: an agent of latents cannot be played in the simulator by this command; give episodes=0 "
                "watched_episodes=0"
            )
        needs = offline_agent(self.algorithm).needs
        if "world" in needs and self.world != "ensemble":
            raise SettingError(f"world: {self.algorithm} asks the members of an ensemble; give world=ensemble")


def offline_agent(name: str) -> type[Agent]:
    """Look an offline agent up.

    Raises:
        SettingError: unknown, with the nearest; or registered, but not an offline agent.
    """
    found: Any = ALGORITHMS.get(name)
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise SettingError(f"algorithm {name!r} does not learn from a dataset of vectors; worldrl train-vla may use it")
    return found


def settings_for(given: Mapping[str, str]) -> type[TrainOfflineSettings]:
    """Make the settings class of a command line: ``agent`` has the chosen algorithm's type and defaults.

    Args:
        given: text by dotted key.

    Raises:
        SettingError: unknown algorithm.
    """
    agent_class = offline_agent(given.get("algorithm", DEFAULT))
    imagines = agent_class.imagining is not None
    world = given.get("world", "ensemble" if imagines else "none")
    imagining = agent_class.imagining or (GUIDED if world == "diffusion" else Imagining())
    changed: list[Any] = [
        ("agent", agent_class.config_class, field(default_factory=agent_class.config_class)),
        ("imagining", Imagining, field(default_factory=lambda: imagining)),
        ("world", str, setting(world, WORLD_MEANING)),
    ]
    return make_dataclass("TrainOfflineSettings", changed, bases=(TrainOfflineSettings,))


def main(settings: TrainOfflineSettings) -> dict[str, Any]:
    """Train, save, evaluate; write ``result.json`` and print the closing table.

    Args:
        settings: which data, which algorithm, in which world.

    Returns:
        The metrics: data, score on every scale with interval, over-estimation, online budget, world, last logs.
    """
    device = resolve_device(settings.device)
    opened = open_data(settings, device)
    data = opened.data
    env = open_environment(settings, data)
    with open_run("train-offline", settings) as run, MetricLog(run.path) as log:
        rows = data.transitions().to(device)
        imagined = open_imagined(settings, opened, rows, folder=run.path / "world", log=log, device=device)
        facts = Facts.of(rows, data.returns(), updates=settings.training.steps)
        parts = {"world": imagined.world, "data": rows, "expert": best_rows(settings, data, rows)}
        agent = make_agent(settings, facts, parts).to(device)
        report = train_offline(
            NAME,
            agent,
            rows,
            settings.training,
            seed=settings.seed,
            imagination=imagined.imagination,
            imagining=None if imagined.imagination is None else settings.imagining,
            evaluate=None if env is None or not settings.watched_episodes else watcher(settings, env, data.info),
            folder=run.path / "checkpoints",
            log=log,
        )
        agent.save(run.path / NAME)
        metrics = summary(settings, data, report, imagined) | final_score(settings, agent, env, data.info)
        metrics["budget"] = online_budget(report, metrics["evaluation"])
        metrics["hash"] = artefact_hash(run.path / NAME)
        run.write_result(metrics, seed=settings.seed, device=str(device))
        show(metrics)
        console().print(f"agent in {run.path / NAME}")
    return metrics


def open_environment(settings: TrainOfflineSettings, data: Trajectories) -> gymnasium.Env[Any, Any] | None:
    """Make the environment to evaluate in, and hold the data's vectors against its spaces; None without evaluation."""
    if not settings.episodes and not settings.watched_episodes:
        return None
    env = dataset_environment(data.info)
    check_spaces(env, data)
    return env


def best_rows(settings: TrainOfflineSettings, data: Trajectories, rows: Transitions) -> Transitions | None:
    """Return the rows of the best episodes, for an algorithm that imitates them; None for the others."""
    fraction: float | None = getattr(settings.agent, "expert_fraction", None)
    if fraction is None:
        return None
    order = np.argsort(-data.returns(), kind="stable")
    kept = order[: max(1, round(fraction * data.episodes))]
    return rows.select(torch.from_numpy(np.flatnonzero(np.isin(data.episode, kept))).to(rows.obs.device))


def make_agent(settings: TrainOfflineSettings, facts: Facts, parts: Mapping[str, Any]) -> Agent:
    """Make the agent with its initial weights; ``parts`` are what some algorithms need besides."""
    made: Any = offline_agent(settings.algorithm)
    with initial_weights(settings.seed, NAME, "weights"):
        return made(settings.agent, facts, **{name: parts[name] for name in made.needs})


def play(
    settings: TrainOfflineSettings,
    agent: Any,
    env: gymnasium.Env[Any, Any],
    info: DatasetInfo,
    seed: int,
    episodes: int,
) -> OfflineEvaluation:
    """Play episodes with the most likely actions; the critic, where there is one, says what it expects of each."""
    value = getattr(agent, "value", None)
    return evaluate_offline(
        memoryless(agent),
        env,
        info,
        seed=seed,
        episodes=episodes,
        gamma=getattr(settings.agent, "discount", 0.99),
        value=None if value is None else lambda obs, action: value(obs),
    )


def watcher(settings: TrainOfflineSettings, env: gymnasium.Env[Any, Any], info: DatasetInfo) -> Evaluate:
    """Return the evaluation during training: mean return, over-estimation, and what it cost."""

    def watch(agent: Any, step: int) -> dict[str, float]:
        found = play(settings, agent, env, info, settings.seed, settings.watched_episodes)
        numbers = {
            "return": float(found.returns.mean()),
            "episodes": len(found.index),
            "steps_played": int(found.lengths.sum()),
        }
        if found.predicted is not None:
            numbers["over_estimation"] = float((found.predicted - found.discounted).mean())
        return numbers

    return watch


def final_score(
    settings: TrainOfflineSettings, agent: Agent, env: gymnasium.Env[Any, Any] | None, info: DatasetInfo
) -> dict[str, Any]:
    """Play the final episodes and put the mean return, with its interval, on every scale."""
    if env is None or not settings.episodes:
        return {"evaluation": None, "scores": {}}
    found = play(settings, agent, env, info, settings.seed + FINAL_SEED_OFFSET, settings.episodes)
    evaluation = found.metrics(info)
    evaluation.pop("scores")
    return {"evaluation": evaluation, "scores": interval_scores(evaluation["return"], info)}


def interval_scores(mean: Mapping[str, Any], info: DatasetInfo) -> dict[str, Any]:
    """Put a mean return and the ends of its interval on every scale; the raw one is always there.

    Args:
        mean: with ``mean``, and ``lo`` and ``hi`` where there were several episodes.
        info: gives the references.
    """
    raw = {"value": mean["mean"], "lo": mean.get("lo"), "hi": mean.get("hi"), "scale": "raw", "min": None, "max": None}
    scaled: dict[str, Any] = {"raw": raw}
    for scale, entry in dataset_scores(mean["mean"], info).items():
        if scale != "raw":
            ends = {
                end: None if mean.get(end) is None else dataset_scores(mean[end], info)[scale]["value"]
                for end in ("lo", "hi")
            }
            scaled[scale] = {**entry, **ends}
    return scaled


def summary(
    settings: TrainOfflineSettings, data: Trajectories, report: OfflineReport, imagined: Imagined
) -> dict[str, Any]:
    """Return what was learned from, and how."""
    return {
        "algorithm": settings.algorithm,
        "world": {"kind": settings.world, **imagined.report},
        "data": {
            "source": data.info.source,
            "dataset_id": data.info.dataset_id,
            "env": data.info.env_id,
            "rows": len(data),
            "episodes": data.episodes,
            "mean_return": float(data.returns().mean()),
        },
        "steps": report.steps,
        "evaluations": report.evaluations,
        "last": report.logs,
    }


def online_budget(report: OfflineReport, evaluation: Mapping[str, Any] | None) -> dict[str, int]:
    """Count what was played in the real environment: knowledge that offline learning has to state."""
    played = [(entry["episodes"], entry["steps_played"]) for entry in report.evaluations]
    played += [(evaluation["episodes"], evaluation["steps"])] if evaluation else []
    return {
        "evaluations": len(played),
        "episodes": int(sum(episodes for episodes, _ in played)),
        "steps": int(sum(steps for _, steps in played)),
    }


def show(metrics: Mapping[str, Any]) -> None:
    """Print the closing table: the score on every scale, the data's own mean return, over-estimation."""
    if not metrics["scores"]:
        console().print(f"{metrics['algorithm']}: trained {metrics['steps']} steps; not evaluated (episodes=0)")
        return
    table = Table(title=f"{metrics['algorithm']} on {metrics['data']['source']}, world {metrics['world']['kind']}")
    for heading, justify in (("scale", "left"), ("score", "right"), ("95 % interval", "right")):
        table.add_column(heading, justify=justify)  # pyright: ignore[reportArgumentType]
    for scale, entry in metrics["scores"].items():
        name = "return (raw)" if scale == "raw" else f"{scale}, 0 to 100"
        table.add_row(name, f"{entry['value']:.1f}", _interval(entry))
    table.add_section()
    table.add_row("mean return of the data", f"{metrics['data']['mean_return']:.1f}", "")
    over = metrics["evaluation"]["over_estimation"]
    if over is not None:
        table.add_row("value over-estimation", f"{over['mean']:.1f}", _interval(over))
    budget = metrics["budget"]
    table.caption = f"{budget['episodes']} episodes ({budget['steps']} steps) were played to evaluate"
    console().print(table)


def _interval(entry: Mapping[str, Any]) -> str:
    lo, hi = entry.get("lo"), entry.get("hi")
    return "" if lo is None or hi is None else f"{lo:.1f} to {hi:.1f}"
