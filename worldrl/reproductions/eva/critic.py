"""The critic of ``eva``: plans are executed before any alignment, and a critic learns which of them succeed.

The planner learns from successes alone and EVA's reward measures smoothness alone: neither recognises a smooth plan
that misses. The collection starts from states of its own; the report states its cost, which a robot would pay in time.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from worldrl.core.storage.jsonfile import read_json
from worldrl.core.storage.log import MetricLog
from worldrl.core.storage.stopwatch import Stopwatch, read_spent
from worldrl.recipes.motion.plan_critic import WORTH, learn_critic
from worldrl.recipes.motion.planned_execution import CollectionSettings, Planning, collect_plans
from worldrl.reproductions.eva.parts import Parts
from worldrl.reproductions.eva.settings import EvaSettings, chunks_to, collection_rows, task_names_of
from worldrl.reproductions.stage_sharing import shared
from worldrl.rewards.execution_critic import CRITIC, ExecutionConfig, ExecutionCritic
from worldrl.rewards.mixing import mean_of_terms

TRIED, SPENT = "plans.npz", "spent.json"
Mark = Callable[[], None]  # Stores the seconds spent so far


def with_critic(settings: EvaSettings, seed: int, folder: Path, parts: Parts) -> Parts:
    """Add the seed's critic, and its cost, to parts without one; made unless another stage has."""
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
    """Return the folder of the seed's executed plans (:func:`tried_plans`); executed unless another stage has."""

    def keep(place: Path, mark: Mark) -> None:
        keep_collection(settings, seed, parts, place, mark)

    return shared(folder, f"practice-seed-{seed}", lambda place: timed(place, keep))


def timed(place: Path, make: Callable[[Path, Mark], None]) -> None:
    """Call ``make`` and store its wall and processor seconds in ``place``; a killed call's count up to its mark."""
    watch = Stopwatch(place / SPENT)
    make(place, watch.mark)
    watch.mark(now=True)


def keep_collection(settings: EvaSettings, seed: int, parts: Parts, place: Path, mark: Mark) -> None:
    """Plan from separate states and execute the plans; plans executed before a kill are not repeated."""
    planning = Planning(parts.model, parts.idm, parts.reward, mean_of_terms, seed)
    chunks = {task: chunks_to(settings, task) for task in task_names_of(settings)}
    tried = collect_plans(planning, chunks, settings.executed_plans, place=place, domain=settings.domain, on_part=mark)
    tried.save(place / TRIED)


def tried_plans(place: Path) -> CollectionSettings:
    """Read the collection of :func:`collection_folder`: each task's plans in the order of their initial states."""
    return CollectionSettings.load(place / TRIED)


def make_critic(settings: EvaSettings, seed: int, practice: Path, place: Path, mark: Mark) -> None:
    """Learn from executed plans; SettingError where all have the same outcome."""
    config = ExecutionConfig(steps=settings.critic_steps)
    with MetricLog(place) as log:
        learn_critic(tried_plans(practice), config, settings.kept, place, seed=seed, log=log, on_step=lambda _: mark())
