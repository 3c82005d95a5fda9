"""Training of an offline agent for ``train-offline`` and ``benchmark-offline``: data, world, agent, evaluation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.device import resolve_device
from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights
from worldrl.core.storage.artefact import artefact_hash
from worldrl.core.storage.capacity import require_layers
from worldrl.core.storage.log import MetricLog, console
from worldrl.core.transitions import Transitions
from worldrl.data.offline.remarks import checks_of
from worldrl.data.offline.trajectories import Trajectories
from worldrl.methods.offline.agent import Agent, Facts
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.methods.offline.training import Evaluate, OfflineReport, train_offline
from worldrl.methods.offline.updates import check_updates
from worldrl.recipes.offline.diagnosis import diagnose
from worldrl.recipes.offline.latent_actor import LatentEnvironment, embedded_tasks
from worldrl.recipes.offline.online_phase import check_snapshots, online_phase
from worldrl.recipes.offline.recurrent import train_recurrent
from worldrl.recipes.offline.scores import TrainingSuite, final_score, online_budget, show, watcher
from worldrl.recipes.offline.settings import TrainOfflineSettings, offline_agent
from worldrl.recipes.offline.worlds import Imagined, Opened, open_data, open_imagined, save_view
from worldrl.recipes.run import open_run
from worldrl.rollout.vector.episodes import check_spaces, dataset_environment, time_limit

NAME = "agent"  # Of the training's series and streams, and of the folder that holds the agent


def run_offline_training(settings: TrainOfflineSettings) -> dict[str, Any]:
    """Train, save, evaluate; write ``result.json``, print the closing table and return the metrics."""
    device = resolve_device(settings.device)
    check_updates(settings.training.updates, settings.algorithm, settings.agent, device)
    opened = open_data(settings, device)
    data = opened.data
    check_snapshots(settings, data)
    recorded = data.transitions()
    facts = Facts.of(recorded, data.returns(), updates=settings.training.steps, limit=time_limit(data.info))
    offline_agent(settings.algorithm).check(settings.agent, facts)
    env = open_environment(settings, opened)
    with open_run("train-offline", settings) as run, MetricLog(run.path, settings.tracker) as log:
        rows = recorded.to(device)
        imagined = open_imagined(settings, opened, rows, folder=run.path / "world", log=log, device=device)
        parts = {"world": imagined.world, "data": rows, "expert": best_rows(settings, data, rows)}
        agent = make_agent(settings, facts, parts).to(device)
        watch = None if env is None or not settings.video_episodes else watcher(settings, env, data.info)
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
    """Train on batches of rows, or an agent with a recurrent state on packed sequences."""
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
    env: TrainingSuite | None,
    folder: Path,
    log: MetricLog,
) -> dict[str, Any]:
    """Continue training in the environment, save the agent beside the offline one, and score it on the same episodes."""
    learner, report = online_phase(settings, agent, data, world, folder=folder / "online-checkpoints", log=log)
    learner.save(folder / "online", space=space_of(data))
    return report | final_score(settings, learner, env, data.info)


def space_of(data: Trajectories) -> dict[str, Any]:
    """Environment and action bounds for an agent's folder."""
    info = data.info
    return {
        "trained_on": info.env_id or info.dataset_id or info.source,
        "low": list(info.action_low),
        "high": list(info.action_high),
    }


def open_environment(settings: TrainOfflineSettings, opened: Opened) -> TrainingSuite | None:
    """Make the environment for the evaluation; None without one.

    SettingError for latents of other tasks than the embedded suite's, or vectors of another size than the
    environment's.
    """
    if not settings.episodes and not settings.video_episodes:
        return None
    if opened.world is not None:
        if is_external := sorted(set(opened.tasks) - embedded_tasks()):
            raise SettingError(
                f"world=latent: {settings.data} holds {is_external[0]!r}, which is no task of the embedded suite, so that its agents "
                "cannot be played; give episodes=0 video_episodes=0"
            )
        return LatentEnvironment(opened.world.model, opened.tasks, opened.world.encoder, opened.world.basis)
    env = dataset_environment(opened.data.info)
    check_spaces(env, opened.data)
    return env


def best_rows(settings: TrainOfflineSettings, data: Trajectories, rows: Transitions) -> Transitions | None:
    """Rows of the best episodes, for an algorithm that imitates them; None for the others."""
    fraction: float | None = getattr(settings.agent, "expert_fraction", None)
    if fraction is None:
        return None
    order = np.argsort(-data.returns(), kind="stable")
    kept = order[: max(1, round(fraction * data.episodes))]
    return rows.select(torch.from_numpy(np.flatnonzero(np.isin(data.episode, kept))).to(rows.obs.device))


def make_agent(settings: TrainOfflineSettings, facts: Facts, parts: Mapping[str, Any]) -> Agent:
    """Make the agent with its initial weights; ``parts`` are additional inputs of some algorithms."""
    made: Any = offline_agent(settings.algorithm)
    require_layers(getattr(settings.agent, "hidden", ()), "agent.hidden")
    with initial_weights(settings.seed, NAME, "weights"):
        return made(settings.agent, facts, **{name: parts[name] for name in made.needs})


def summary(
    settings: TrainOfflineSettings, data: Trajectories, report: OfflineReport, imagined: Imagined
) -> dict[str, Any]:
    """Data and course of the training."""
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
            "checks": checks_of(data),
        },
        "steps": report.steps,
        "evaluations": report.evaluations,
        "last": report.logs,
    }
