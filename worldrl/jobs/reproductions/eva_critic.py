"""The critic of ``eva``: plans are executed before any alignment, and a critic learns which of them succeed.

The planner learns from successes alone, and EVA's reward knows smoothness alone, so neither can tell a smooth plan that misses. What
can is experience: ``practice`` plans per task, from initial states that are neither tests nor demonstrations, each with what came of
its execution (``rewards.execution_critic``). On a robot these would have to be paid for; the page says how many there were.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worldrl.core.jsonfile import read_json
from worldrl.jobs.planned_execution import WORTH, Planning, learn_critic, practise
from worldrl.jobs.reproductions.eva_parts import Parts
from worldrl.jobs.reproductions.eva_settings import EvaSettings, chunks_to, task_names_of
from worldrl.jobs.reproductions.shared import shared
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic
from worldrl.rewards.mixing import mean_of_terms


def with_critic(settings: EvaSettings, seed: int, folder: Path, parts: Parts) -> Parts:
    """Add the seed's critic to parts that have none; made unless another stage has."""
    place = shared(folder, f"critic-seed-{seed}", lambda place: make_critic(settings, seed, parts, place))
    return replace(parts, critic=ExecutionCritic.load(place / CRITIC), critic_worth=read_json(place / WORTH))


def make_critic(settings: EvaSettings, seed: int, parts: Parts, place: Path) -> None:
    """Practise and learn; SettingError where all plans came to the same."""
    planning = Planning(parts.model, parts.idm, parts.reward, mean_of_terms, seed)
    chunks = {task: chunks_to(settings, task) for task in task_names_of(settings)}
    tried = practise(planning, chunks, settings.practice)
    learn_critic(tried, ExecutionConfig(steps=settings.critic_steps), settings.kept, place, seed=seed)
