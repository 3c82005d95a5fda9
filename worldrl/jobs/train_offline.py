"""``worldrl train-offline``: a dataset and an algorithm's name to a policy with a score that can be trusted.

The dataset is read and measured, the world learned where one is asked for, the agent trained in the one loop
(:mod:`worldrl.algorithms.offline.training`), saved, and played in the dataset's own environment. The same command goes
on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.algorithms.offline.agent import Agent, Facts
from worldrl.algorithms.offline.imagining import Imagining
from worldrl.algorithms.offline.neubay import Neubay
from worldrl.algorithms.offline.ravl import Ravl, RavlConfig
from worldrl.algorithms.offline.snapshot_resets import SnapshotConfig
from worldrl.algorithms.offline.training import Evaluate, OfflineReport, OfflineTraining, train_offline
from worldrl.algorithms.offline.updates import check_updates
from worldrl.core.artefact import artefact_hash
from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.log import MetricLog, console
from worldrl.core.rng import initial_weights
from worldrl.core.transitions import Transitions
from worldrl.data.offline.trajectories import Trajectories
from worldrl.jobs.latent_actor import LatentArena, embedded_tasks
from worldrl.jobs.offline_diagnosis import diagnose
from worldrl.jobs.offline_scores import Arena, final_score, online_budget, show, watcher
from worldrl.jobs.offline_worlds import (
    AUTO,
    GUIDED,
    LATENT,
    WORLDS,
    DiffusionSettings,
    Imagined,
    Opened,
    open_data,
    open_imagined,
    published_diffusion,
    save_view,
)
from worldrl.jobs.online_phase import OnlineConfig, PlannerConfig, check_online, check_snapshots, online_phase
from worldrl.jobs.opening import open_run
from worldrl.jobs.recurrent_offline import neubay_defaults, train_recurrent
from worldrl.jobs.world_model_start import BUNDLED
from worldrl.registry import ALGORITHMS
from worldrl.rollout.vector_episodes import check_spaces, dataset_environment, time_limit
from worldrl.settings import PUBLISHED, non_negative, one_of, required, setting
from worldrl.world_models.offline.config import EnsembleConfig, EnsembleTraining, Uncertainty, ravl_ensemble

DEFAULT = "ravl"
WORLD_MEANING = "what is imagined in: none, ensemble, true, diffusion or latent"
UNCERTAINTY_MEANING = (
    "what imagining.penalty multiplies and the planner counts; with a planner and no penalty, sample_std"
)
NAME = "agent"
"""Of the training's series and streams, and of the folder that holds the agent."""


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
    keypoints: int = setting(
        0, "with world=latent, learned keypoints that agents see in the latents' place; 0 for none"
    )
    components: int = setting(
        0, "with world=latent, principal components of a chunk that agents choose; 0 for all its numbers"
    )
    stride: int = setting(0, "with world=latent, control steps between trajectories of an episode; 0 takes a chunk's")
    rows: int = setting(0, "learn from the first so many rows; 0 takes all")
    env: str | None = setting(None, "environment to evaluate in; null takes the dataset's own")
    max_episode_steps: int | None = setting(None, "its time limit; null takes the dataset's or the registered one")
    termination: str = setting(
        AUTO, "when the ensemble's steps end the task: auto (the environment's own rule), learned, or a registered rule"
    )
    uncertainty: str = setting("max_sigma", UNCERTAINTY_MEANING)
    worlds: str | None = setting(
        None,
        "folder of ensembles that runs share: same rows, ensemble.* and seed train one together; null, each its own",
    )
    episodes: int = setting(
        10, "episodes of the final evaluation, with world=latent of each task; 0 for no evaluation at all"
    )
    watched_episodes: int = setting(2, "episodes of each evaluation during training, likewise; 0 for none")
    agent: RavlConfig = field(default_factory=RavlConfig)
    imagining: Imagining = field(default_factory=lambda: Ravl.imagining)
    training: OfflineTraining = field(default_factory=OfflineTraining)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    ensemble_training: EnsembleTraining = field(default_factory=EnsembleTraining)
    diffusion: DiffusionSettings = field(default_factory=DiffusionSettings)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    online: OnlineConfig = field(default_factory=OnlineConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)

    def __post_init__(self) -> None:
        """Check the names and ranges, and that algorithm and world fit together."""
        one_of("world", self.world, WORLDS)
        one_of("uncertainty", self.uncertainty, [kind.value for kind in Uncertainty if kind is not Uncertainty.none])
        for name in ("rows", "episodes", "watched_episodes", *LATENT):
            non_negative(name, getattr(self, name))
        for name in LATENT:
            if getattr(self, name) and self.world != "latent":
                raise SettingError(
                    f"{name}={getattr(self, name)}: vectors have no latents; give world=latent, or {name}=0"
                )
        if self.worlds is not None and self.world != "ensemble":
            raise SettingError(f"worlds={self.worlds}: world={self.world} has no ensemble to share; leave it out")
        if self.imagining.penalty and self.world not in ("ensemble", "true"):
            raise SettingError(
                f"imagining.penalty={self.imagining.penalty:g}: world={self.world} measures no uncertainty to multiply; "
                "give world=ensemble, or imagining.penalty=0"
            )
        agent_class = offline_agent(self.algorithm)
        check_online(self, agent_class)
        asks = "world" in agent_class.needs or (agent_class is Neubay and self.world != "latent")
        if asks and self.world != "ensemble":
            raise SettingError(f"world: {self.algorithm} asks the members of an ensemble; give world=ensemble")
        if agent_class is Neubay and self.device != "cpu":
            raise SettingError(f"device={self.device}: neubay's tapes and rollouts live on the CPU; give device=cpu")


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
    if agent_class is Neubay:
        return _neubay_settings(given)
    imagines = agent_class.imagining is not None
    world = given.get("world", "ensemble" if imagines else "none")
    imagining = agent_class.imagining or (GUIDED if world == "diffusion" else Imagining())
    changed: list[Any] = [
        ("agent", agent_class.config_class, field(default_factory=agent_class.config_class)),
        ("imagining", Imagining, field(default_factory=lambda: imagining)),
        ("world", str, setting(world, WORLD_MEANING)),
    ]
    if issubclass(agent_class, Ravl):
        changed.append(("ensemble", EnsembleConfig, field(default_factory=lambda: EnsembleConfig(input_clip=10.0))))
        if given.get("preset") in PUBLISHED:
            changed.append(("ensemble_training", EnsembleTraining, field(default_factory=ravl_ensemble)))
    if given.get("planner.use", "none") != "none" and not imagining.penalty:
        changed.append(("uncertainty", str, setting("sample_std", UNCERTAINTY_MEANING)))  # COPlanner's own
    if world == "diffusion" and given.get("preset") in PUBLISHED:
        changed.append(("diffusion", DiffusionSettings, field(default_factory=published_diffusion)))
    return make_dataclass("TrainOfflineSettings", changed, bases=(TrainOfflineSettings,))


def _neubay_settings(given: Mapping[str, str]) -> type[TrainOfflineSettings]:
    parts = neubay_defaults(given).items()
    changed: list[Any] = [
        *((name, type(part), field(default_factory=lambda part=part: part)) for name, part in parts),
        (
            "tuned",
            str | None,
            setting(
                None, "the paper's κ and α of this dataset, hopper-medium say; with preset=gpu its encoder rate too"
            ),
        ),
        ("uncertainty", str, setting("epistemic_mean", "whose quantile cuts rollouts")),
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
    check_updates(settings.training.updates, settings.algorithm, settings.agent, device)
    opened = open_data(settings, device)
    data = opened.data
    check_snapshots(settings, data)
    recorded = data.transitions()
    facts = Facts.of(recorded, data.returns(), updates=settings.training.steps, limit=time_limit(data.info))
    offline_agent(settings.algorithm).check(settings.agent, facts)
    env = open_environment(settings, opened)
    with open_run("train-offline", settings) as run, MetricLog(run.path) as log:
        rows = recorded.to(device)
        imagined = open_imagined(settings, opened, rows, folder=run.path / "world", log=log, device=device)
        parts = {"world": imagined.world, "data": rows, "expert": best_rows(settings, data, rows)}
        agent = make_agent(settings, facts, parts).to(device)
        watch = None if env is None or not settings.watched_episodes else watcher(settings, env, data.info)
        report = train(settings, agent, data, rows, imagined, watch, folder=run.path / "checkpoints", log=log)
        agent.save(run.path / NAME, space=space_of(data))
        save_view(opened, run.path)
        metrics = summary(settings, data, report, imagined) | final_score(settings, agent, env, data.info)
        metrics |= diagnose(settings, agent, data, imagined.imagination, device)
        if settings.online.steps:
            metrics["online"] = go_online(settings, agent, data, imagined.world, env, run.path, log)
        metrics["budget"] = online_budget(report, metrics)
        metrics["hash"] = artefact_hash(run.path / NAME)
        run.write_result(metrics, seed=settings.seed, device=str(device))
        show(metrics)
        console().print(f"agent in {run.path / NAME}")
    return metrics


def train(
    settings: TrainOfflineSettings,
    agent: Agent,
    data: Trajectories,
    rows: Transitions,
    imagined: Imagined,
    watch: Evaluate | None,
    *,
    folder: Path,
    log: MetricLog,
) -> OfflineReport:
    """Train on batches of rows, or an agent with a memory on tapes."""
    if isinstance(agent, Neubay):
        return train_recurrent(settings, agent, imagined.world, data, rows, evaluate=watch, folder=folder, log=log)
    return train_offline(
        NAME,
        agent,
        rows,
        settings.training,
        seed=settings.seed,
        imagination=imagined.imagination,
        imagining=None if imagined.imagination is None else settings.imagining,
        evaluate=watch,
        folder=folder,
        log=log,
    )


def go_online(
    settings: TrainOfflineSettings,
    agent: Agent,
    data: Trajectories,
    world: Any,
    env: Arena | None,
    folder: Path,
    log: MetricLog,
) -> dict[str, Any]:
    """Go on learning in the environment, save the agent beside the offline one, and score it on the same episodes."""
    learner, report = online_phase(settings, agent, data, world, folder=folder / "online-checkpoints", log=log)
    learner.save(folder / "online", space=space_of(data))
    return report | final_score(settings, learner, env, data.info)


def space_of(data: Trajectories) -> dict[str, Any]:
    """What an agent's folder says of its training: the environment, and the bounds of its actions."""
    info = data.info
    return {
        "trained_on": info.env_id or info.dataset_id or info.source,
        "low": list(info.action_low),
        "high": list(info.action_high),
    }


def open_environment(settings: TrainOfflineSettings, opened: Opened) -> Arena | None:
    """Make the environment to evaluate in, and hold the data's vectors against its spaces; None without evaluation.

    Raises:
        SettingError: latents of tasks that the embedded suite has not, or vectors of another size than the environment's.
    """
    if not settings.episodes and not settings.watched_episodes:
        return None
    if opened.world is not None:
        if foreign := sorted(set(opened.tasks) - embedded_tasks()):
            raise SettingError(
                f"world=latent: {settings.data} holds {foreign[0]!r}, which is no task of the embedded suite, so that its agents "
                "cannot be played; give episodes=0 watched_episodes=0"
            )
        return LatentArena(opened.world.model, opened.tasks, opened.world.encoder, opened.world.basis)
    env = dataset_environment(opened.data.info)
    check_spaces(env, opened.data)
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
