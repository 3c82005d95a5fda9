"""Monitors of running rollouts: fitted to a collection, and checked against the settings of whoever uses one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldrl.core.errors import SettingError
from worldrl.core.statistics.intervals import Rate, wilson
from worldrl.core.storage.artefact import parent, read_config
from worldrl.core.storage.log import console
from worldrl.core.types import Episode, PolicyObs
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.format import RECOVERY
from worldrl.policies.samples import observed
from worldrl.recipes.run import DATASET
from worldrl.rollout.agents.monitor import (
    KIND,
    Embeddings,
    Facts,
    Limits,
    Monitor,
    conformal_limit,
    padded,
    stored_facts,
    unit,
)
from worldrl.rollout.agents.policy_folder import TOKEN, load_policy, policy_facts, policy_place
from worldrl.rollout.suites.names import EMBEDDED

NONE, EXPERT = "none", "expert"


def check_monitor(settings: Any, tasks: Sequence[str]) -> Facts:
    """Facts of the monitor of a command's settings, which fits them.

    Raises SettingError (it is of another policy, timing or temperature, or lacks a task) and ArtefactError.
    """
    folder, policy = Path(settings.monitor), policy_facts(policy_place(settings.policy))
    require_embeddings(settings.policy)
    facts = stored_facts(read_config(folder, kind=KIND), folder)
    made = f"monitor: {folder} was fitted to"
    if facts.policy != policy.hash:
        raise SettingError(f"{made} another policy than {settings.policy}; fit one with collect false_alarms=0.05")
    every = getattr(settings, "replan", None) or policy.chunk_length
    if every != facts.every:
        raise SettingError(f"{made} decisions {facts.every} steps apart, here they are {every}; give replan=null")
    if settings.temperature != facts.temperature:
        given = "null" if facts.temperature is None else facts.temperature
        raise SettingError(f"{made} temperature={given}, got {settings.temperature}; give temperature={given}")
    if missing := [task for task in tasks if task not in facts.tasks]:
        raise SettingError(f"{made} {', '.join(sorted(facts.tasks))}, not to {missing[0]}; give tasks of these")
    return facts


def check_monitored(settings: Any) -> None:
    """Refuse what a monitored episode cannot have, before anything is opened; SettingError with the nearest setting."""
    if settings.monitor is None:
        return
    if settings.suite != EMBEDDED:
        raise SettingError(
            f"monitor: suite={settings.suite} does not return its simulator to an earlier state, and a monitor is fitted "
            f"in the embedded suite; leave monitor out, or give suite={EMBEDDED}"
        )
    if settings.planner != NONE:
        raise SettingError(
            f"monitor: was fitted to the policy alone, not to planner={settings.planner}; give planner=none"
        )
    if getattr(settings, "latency", 0):
        raise SettingError(f"monitor: was fitted to decisions without latency, got {settings.latency}; give latency=0")


def check_collected(settings: Any) -> None:
    """Refuse halves of what goes together in ``collect``; SettingError."""
    if (settings.intervene == EXPERT) != (settings.monitor is not None):
        raise SettingError("intervene=expert and monitor=FOLDER go together: give both, or neither")
    if settings.monitor is not None and not settings.policy_episodes:
        raise SettingError("intervene: corrects policy_episodes; give policy_episodes=N with policy")
    if settings.false_alarms is not None:
        if settings.monitor is not None:
            raise SettingError("false_alarms: a corrected collection fits no monitor; give false_alarms or monitor")
        if not (settings.policy_episodes and settings.expert_episodes) or settings.suite != EMBEDDED:
            raise SettingError(
                f"false_alarms: fits a monitor to expert_episodes and policy_episodes of suite={EMBEDDED}; give both"
            )
        if settings.planner != NONE or settings.noise_correlation:
            raise SettingError(
                "false_alarms: fits a monitor to the policy alone; give planner=none noise_correlation=0"
            )
    check_monitored(settings)


def require_embeddings(policy: str) -> None:
    """Refuse a policy that shows no embeddings, before anything is recorded; SettingError."""
    if (kind := policy_facts(policy_place(policy)).kind) != TOKEN:
        raise SettingError(
            f"monitor: {policy} is a policy of kind {kind}, which shows no embeddings of what it observes; "
            "give a policy of `worldrl train-policy`"
        )


def fit_monitor(settings: Any, episodes: Iterable[Episode], device: str) -> Monitor:
    """Fit to the successes of a collection with ``false_alarms``: the expert's to compare with, the policy's for limits.

    Raises SettingError (a policy without embeddings, no success of the expert, or too few of the policy).
    """
    place = policy_place(settings.policy)
    policy = load_policy(place, device)
    every, horizons, limits, experts = policy.chunk_length, _horizons(), dict[str, Limits](), dict[str, Embeddings]()
    successes = [episode for episode in episodes if episode.success]
    for task in dict.fromkeys(episode.task for episode in successes):
        length, mine = -(-horizons[task] // every), [one for one in successes if one.task == task]
        shown = {
            source: [(one, _embedded(policy, one, every)) for one in mine if one.meta["source"] == source]
            for source in ("expert", "policy")
        }
        if not shown["expert"]:
            raise SettingError(f"false_alarms: no episode of the expert fulfils {task}; give more expert_episodes")
        experts[task] = np.stack([padded(found, length) for _, found in shown["expert"]])
        limits[task] = _limits(settings.false_alarms, task, experts[task], every, shown["policy"])
    facts = Facts(policy_facts(place).hash, every, settings.temperature, settings.false_alarms, limits)
    return Monitor(facts, experts)


def check_fit(settings: Any, tasks: Sequence[str]) -> None:
    """Refuse, before anything is recorded, a policy or a monitor that does not fit ``collect``; errors as above."""
    if settings.monitor is not None:
        check_monitor(settings, tasks)
    elif settings.false_alarms is not None:
        require_embeddings(settings.policy)


def monitored(settings: Any, rows: Sequence[Mapping[str, Any]], run_dir: Path, device: str) -> dict[str, Any]:
    """Fit the monitor that a finished collection asks for; returns what ``result.json`` states of it or of corrections."""
    if settings.monitor is not None:
        return {"corrections": corrected(rows)}
    if settings.false_alarms is None:
        return {}
    monitor = fit_monitor(settings, EpisodeDataset.open(run_dir / DATASET), device)
    monitor.save(run_dir / KIND, parents=[parent(policy_place(settings.policy))])
    return {KIND: {task: vars(limits) for task, limits in monitor.facts.tasks.items()}}


def say_monitored(metrics: Mapping[str, Any]) -> None:
    """Print the same below a closing table."""
    for task, limits in metrics.get(KIND, {}).items():
        console().print(
            f"monitor of {task}: limit {limits['limit']:.4f} from {limits['successes']} successes and {limits['experts']} "
            "experts",
            markup=False,
        )
    if found := metrics.get("corrections"):
        won = found["corrected"]["k"] if found["alarms"] else 0
        console().print(
            f"alarms in {found['alarms']} of {found['watched']} episodes of the policy, {won} of them corrected to a success",
            markup=False,
        )


def _horizons() -> Mapping[str, int]:
    from worldrl_envs.tasks import get_task, task_names

    return {name: get_task(name).horizon for name in task_names()}


def _embedded(policy: Any, episode: Episode, every: int) -> Embeddings:
    """Embeddings of length 1 at an episode's decisions up to its first success, ``[k, d]``."""
    frames = np.arange(0, (episode.first_success or len(episode)), every)
    obs = PolicyObs(
        torch.from_numpy(episode.main_view[frames]),
        torch.from_numpy(episode.command[frames]),
        [episode.instruction] * len(frames),
        {name: torch.from_numpy(observed(episode, name)[frames]) for name in policy.more},
    )
    with torch.inference_mode():
        return unit(policy.embed(obs).float().cpu().numpy())


def _limits(
    false_alarms: float, task: str, experts: Embeddings, every: int, rollouts: Sequence[tuple[Episode, Embeddings]]
) -> Limits:
    needed = int(np.ceil(1 / false_alarms - 1 - 1e-9))
    if len(rollouts) < needed:
        raise SettingError(
            f"false_alarms={false_alarms:g} needs {needed} successful episodes of the policy, {task} has {len(rollouts)}; "
            f"give more policy_episodes, or false_alarms={1 / (len(rollouts) + 1) + 5e-4:.3f}"
        )
    monitor = Monitor(Facts("", every, None, false_alarms, {}), {task: experts})
    highest = [max(_scores(monitor, task, embeddings)) for _, embeddings in rollouts]
    steps = [float(episode.first_success or len(episode)) for episode, _ in rollouts]
    limit, steps_limit = conformal_limit(highest, false_alarms), conformal_limit(steps, false_alarms)
    return Limits(limit, steps_limit, len(rollouts), len(experts))


def _scores(monitor: Monitor, task: str, embeddings: Embeddings) -> Iterator[float]:
    return (monitor.score(task, list(embeddings[: count + 1])) for count in range(len(embeddings)))


def corrected(rows: Sequence[Mapping[str, Any]]) -> dict[str, Rate | int]:
    """What the result of ``collect intervene=expert`` states: alarms, and how many of them were corrected to a success."""
    watched = [row for row in rows if row["source"] == "policy"]
    alarms = [row for row in watched if RECOVERY in row]
    won = {"corrected": wilson(sum(bool(row["success"]) for row in alarms), len(alarms))} if alarms else {}
    return {"alarms": len(alarms), "watched": len(watched), **won}
