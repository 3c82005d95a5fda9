"""The critic of ``eva``: plans are executed before any alignment, and a critic learns which of them succeed.

The planner learns from successes alone, and EVA's reward knows smoothness alone, so neither can tell a smooth plan that misses. What
can is experience: ``practice`` plans per task, from initial states that are neither tests nor demonstrations, each with what came of
its execution (``rewards.execution_critic``). On a robot these would have to be paid for; the page says how many there were, and
what they and the critic took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.stopwatch import Stopwatch, read_spent
from worldrl.recipes.motion.plan_critic import WORTH, learn_critic
from worldrl.recipes.motion.planned_execution import CollectionSettings, Planning, collect_plans
from worldrl.reproductions.eva.parts import Parts
from worldrl.reproductions.eva.settings import EvaSettings, chunks_to, collection_rows, task_names_of
from worldrl.reproductions.stage_sharing import shared
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic
from worldrl.rewards.mixing import mean_of_terms

TRIED, SPENT = "plans.npz", "spent.json"
Mark = Callable[[], None]
"""Keeps what was spent so far."""


def with_critic(settings: EvaSettings, seed: int, folder: Path, parts: Parts) -> Parts:
    """Add the seed's critic, and what it and its practice took, to parts that have none; made unless another stage has."""
    practice = collection_folder(settings, seed, folder, parts)

    def learn(place: Path, mark: Mark) -> None:
        make_critic(settings, seed, practice, place, mark)

    place = shared(folder, f"critic-seed-{seed}", lambda place: timed(place, learn))
    took = [asdict(read_spent(part / SPENT)) for part in (practice, place)]
    spent = {name: took[0][name] + took[1][name] for name in took[0]}
    rows = {
        "executed": settings.executed_plans * len(task_names_of(settings)),
        "imagined_rows": collection_rows(settings),
    }
    worth = {**read_json(place / WORTH), **rows, **spent}
    return replace(parts, critic=ExecutionCritic.load(place / CRITIC), critic_worth=worth)


def collection_folder(settings: EvaSettings, seed: int, folder: Path, parts: Parts) -> Path:
    """Return where the seed's executed plans lie (:func:`tried_plans`); executed unless another stage has."""

    def keep(place: Path, mark: Mark) -> None:
        keep_collection(settings, seed, parts, place, mark)

    return shared(folder, f"practice-seed-{seed}", lambda place: timed(place, keep))


def timed(place: Path, make: Callable[[Path, Mark], None]) -> None:
    """Make something, and leave in ``place`` how many seconds that took, on the wall and of the processors.

    Seconds before a kill count, as far as ``make`` has called its mark.
    """
    watch = Stopwatch(place / SPENT)
    make(place, watch.mark)
    watch.mark(now=True)


def keep_collection(settings: EvaSettings, seed: int, parts: Parts, place: Path, mark: Mark) -> None:
    """Plan from states of their own and execute the plans; what was executed before a kill is kept."""
    planning = Planning(parts.model, parts.idm, parts.reward, mean_of_terms, seed)
    chunks = {task: chunks_to(settings, task) for task in task_names_of(settings)}
    tried = collect_plans(planning, chunks, settings.executed_plans, place=place, domain=settings.domain, on_part=mark)
    tried.save(place / TRIED)


def tried_plans(place: Path) -> CollectionSettings:
    """Read what :func:`collection_folder` holds: of every task ``practice`` plans, in the order of their initial states."""
    return CollectionSettings.load(place / TRIED)


def make_critic(settings: EvaSettings, seed: int, practice: Path, place: Path, mark: Mark) -> None:
    """Learn from executed plans; SettingError where all came to the same."""
    config = ExecutionConfig(steps=settings.critic_steps)
    learn_critic(tried_plans(practice), config, settings.kept, place, seed=seed, on_step=lambda _: mark())
