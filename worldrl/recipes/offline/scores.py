"""Measurements of an offline agent in the real environment: during training, the final score, its cost, the table."""

from collections.abc import Mapping
from typing import Any

import gymnasium
from rich.table import Table

from worldrl.core.statistics.intervals import wilson
from worldrl.core.storage.log import console
from worldrl.data.offline.trajectories import DatasetInfo
from worldrl.evaluation.offline.scores import OfflineEvaluation, dataset_scores, evaluate_offline
from worldrl.methods.offline.agent import Agent
from worldrl.methods.offline.neubay.neubay import Neubay
from worldrl.methods.offline.training import Evaluate, OfflineReport
from worldrl.recipes.offline.latent_actor import LatentEnvironment
from worldrl.rollout.vector.episodes import memoryless, remembering

FINAL_SEED_OFFSET = 1_000_000
"""Final episodes differ from those during training, which may have been used to choose settings."""
TrainingSuite = gymnasium.Env[Any, Any] | LatentEnvironment
"""Environment of vectors, or the embedded suite through a codec."""


def play(
    settings: Any, agent: Any, env: TrainingSuite, info: DatasetInfo, seed: int, episodes: int
) -> OfflineEvaluation:
    """Play episodes (in latents, of each task) with the most likely actions; a critic of vectors predicts returns."""
    gamma = getattr(settings.agent, "discount", 0.99)
    if isinstance(env, LatentEnvironment):
        return env.play(agent, seed=seed, episodes=episodes, gamma=gamma)
    value = getattr(agent, "value", None)
    return evaluate_offline(
        remembering(agent, agent.facts.action_size) if isinstance(agent, Neubay) else memoryless(agent),
        env,
        info,
        seed=seed,
        episodes=episodes,
        gamma=gamma,
        value=None if value is None else lambda obs, action: value(obs),
        device=agent.device,
    )


def watcher(settings: Any, env: TrainingSuite, info: DatasetInfo) -> Evaluate:
    """Evaluation during training: mean return, over-estimation, and its cost."""

    def watch(agent: Any, step: int) -> dict[str, float]:
        found = play(settings, agent, env, info, settings.seed, settings.video_episodes)
        numbers = {
            "return": float(found.returns.mean()),
            "episodes": len(found.index),
            "steps_played": int(found.lengths.sum()),
        }
        if found.predicted is not None:
            numbers["over_estimation"] = float((found.predicted - found.discounted).mean())
        return numbers

    return watch


def final_score(settings: Any, agent: Agent, env: TrainingSuite | None, info: DatasetInfo) -> dict[str, Any]:
    """Play the final episodes; mean return with its interval on every scale."""
    if env is None or not settings.episodes:
        return {"evaluation": None, "scores": {}}
    found = play(settings, agent, env, info, settings.seed + FINAL_SEED_OFFSET, settings.episodes)
    evaluation = found.metrics(info)
    evaluation.pop("scores")
    if isinstance(env, LatentEnvironment):
        rate = wilson(int(found.returns.sum()), len(found.returns))  # a success returns 1
        evaluation["return"] = {"n": rate["n"], "mean": rate["rate"], **{k: rate[k] for k in ("lo", "hi", "method")}}
    return {"evaluation": evaluation, "scores": interval_scores(evaluation["return"], info)}


def interval_scores(mean: Mapping[str, Any], info: DatasetInfo) -> dict[str, Any]:
    """Mean return and the ends of its interval (of several episodes) on every scale, always with the raw one."""
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


def online_budget(report: OfflineReport, metrics: Mapping[str, Any]) -> dict[str, int]:
    """Count the use of the real environment, also by an online phase and a diagnosis, which has to be reported."""
    online = metrics.get("online", {})
    played = [(entry["episodes"], entry["steps_played"]) for entry in report.evaluations]
    final = [metrics["evaluation"], online.get("evaluation")]
    played += [(found["episodes"], found["steps"]) for found in final if found]
    return {
        "online_steps": int(online.get("steps", 0)),
        "checked_steps": int(metrics.get("imagined_rollouts", {}).get("rows", 0)),
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
    latent = metrics["world"]["kind"] == "latent"
    digits = 3 if latent else 1  # a return is a success there
    for scale, entry in metrics["scores"].items():
        name = ("success" if latent else "return (raw)") if scale == "raw" else f"{scale}, 0 to 100"
        table.add_row(name, f"{entry['value']:.{digits}f}", _interval(entry, digits))
    table.add_section()
    table.add_row("mean return of the data", f"{metrics['data']['mean_return']:.{digits}f}", "")
    over = metrics["evaluation"]["over_estimation"]
    if over is not None:
        table.add_row("value over-estimation", f"{over['mean']:.1f}", _interval(over, 1))
    budget = metrics["budget"]
    table.caption = f"{budget['episodes']} episodes ({budget['steps']} steps) were played to evaluate"
    console().print(table)


def _interval(entry: Mapping[str, Any], digits: int) -> str:
    lo, hi = entry.get("lo"), entry.get("hi")
    return "" if lo is None or hi is None else f"{lo:.{digits}f} to {hi:.{digits}f}"
