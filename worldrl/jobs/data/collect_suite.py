"""``worldrl collect suite=libero_...``: the scripted expert, or a policy, recorded in LIBERO with the suite's conventions.

Episodes begin at the suite's stored initial states; ``first_index`` keeps those apart that a benchmark is to measure.
LIBERO's own demonstrations are read from their files and begin where those did; where nothing else is asked for, no
simulator is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError
from worldrl.core.storage.capacity import require_disk
from worldrl.core.storage.run import RunDirectory
from worldrl.core.types import Episode
from worldrl.data.lerobot.external.libero_robot import libero_embodiment
from worldrl.data.lerobot.writer import least_bytes
from worldrl.recipes.run import DATASET
from worldrl.recipes.suites.opening import OpenSuite, choose_suite_tasks, open_suite
from worldrl.rollout.agents.actors import AnyActor, ExpertActor, PolicyActor
from worldrl.rollout.real.collect import CollectPlan, record_missing
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.suites.episodes import Rules, in_order, play_episodes
from worldrl.rollout.suites.libero import libero_tasks
from worldrl.rollout.suites.libero_files import Demonstration, find_demonstrations, read_demonstration
from worldrl.rollout.suites.registry import require_expert
from worldrl.workers.libero import facts

if TYPE_CHECKING:
    from worldrl.jobs.data.collect import CollectSettings

NOT_HERE = ("noisy_episodes", "blind_episodes", "wander_episodes", "imagined_episodes")
"""Sources that only the embedded suite has."""


def check_settings(settings: CollectSettings) -> None:
    """Refuse what a foreign suite does not have.

    Raises:
        SettingError: a source, look or domain of the embedded suite.
    """
    given = [name for name in NOT_HERE if getattr(settings, name) > 0]
    if given:
        raise SettingError(f"{given[0]}: {settings.suite} has the sources expert_episodes and policy_episodes")
    if settings.kind is not None or settings.styles != ["default"] or settings.domain != "clean":
        raise SettingError(f"kind, styles and domain are of the embedded suite; leave them out with {settings.suite}")
    if settings.instruction_mode != "canonical":
        raise SettingError(f"instruction_mode: {settings.suite} has its own instructions only; leave it canonical")


def record_suite(
    settings: CollectSettings, run: RunDirectory, device: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Record the missing episodes.

    Args:
        settings: what to record.
        run: the run directory; the dataset goes into it.
        device: where a policy runs.

    Returns:
        One row per episode of the dataset, and what the result says about assets, physics and drawing.

    Raises:
        SettingError: an unknown task, or more episodes than stored states.
        ArtefactError: a file of demonstrations that cannot be read, or says something else than the suite.
    """
    cameras, names = ("scene", "wrist") if settings.wrist else ("scene",), libero_tasks(settings.suite)
    tasks = choose_suite_tasks(settings.tasks, names)
    if settings.expert_episodes > 0:
        require_expert("expert_episodes", settings.suite, tasks)
    plans = [*read_plans(settings, tasks, names), *make_plans(settings, tasks, device)]
    if not (folder := run.path / DATASET).exists():
        count, size = sum(len(plan.specs) for plan in plans), settings.image_size
        need = least_bytes(count, settings.hold_steps + 1, len(cameras), size)
        require_disk(folder, need, f"{count} episodes with image_size={size}")
    fields: dict[str, Any] = {
        "embodiment": libero_embodiment(),
        "cameras": cameras,
        "image_size": settings.image_size,
        "suite": settings.suite,
    }
    if settings.expert_episodes + settings.policy_episodes == 0:
        return record_missing(run.path / DATASET, plans, _player(None, settings, cameras), **fields), {
            "suite": settings.suite
        }
    with open_suite(
        settings.suite,
        cameras=cameras,
        image_size=settings.image_size,
        shadows=settings.shadows,
        workers=settings.workers,
        slots=settings.workers * settings.envs_per_worker,
        timeout_s=settings.timeout_s,
    ) as suite:
        rows = record_missing(run.path / DATASET, plans, _player(suite, settings, cameras), **fields)
    return rows, {"suite": settings.suite, **suite.facts}


def read_plans(
    settings: CollectSettings, tasks: Sequence[str], names: Sequence[str]
) -> list[CollectPlan[AnyActor | Demonstration]]:
    """Plan to read the demonstrations of these tasks, one by one, if there are files."""
    if settings.demonstrations is None:
        return []
    found = find_demonstrations(Path(settings.demonstrations), settings.suite, names)
    kept = [item for item in found if item.task in tasks]
    if not kept:
        raise SettingError(f"demonstrations: {settings.demonstrations} has none of {', '.join(tasks)}")
    return [CollectPlan(item, [item.spec(settings.seed)]) for item in kept]


def make_plans(
    settings: CollectSettings, tasks: Sequence[str], device: str
) -> list[CollectPlan[AnyActor | Demonstration]]:
    """Name every episode of both simulated sources.

    Raises:
        SettingError: more episodes than stored states.
    """
    sources: list[tuple[str, AnyActor, int]] = [("expert", ExpertActor(), settings.expert_episodes)]
    if settings.policy is not None:
        policy = PolicyActor(
            folder=settings.policy, temperature=settings.temperature, lasting=settings.noise_correlation, device=device
        )
        sources.append(("policy", policy, settings.policy_episodes))
    return [
        CollectPlan(actor, name_episodes(settings, tasks, source, number, count))
        for number, (source, actor, count) in enumerate(sources)
    ]


def name_episodes(
    settings: CollectSettings, tasks: Sequence[str], source: str, number: int, count: int
) -> list[EpisodeSpec]:
    """Specs of one source: consecutive stored states of each task, all with the source's own seed.

    Raises:
        SettingError: more episodes than stored states.
    """
    if settings.first_index + count > facts.STORED_STATES:
        raise SettingError(
            f"{source}_episodes: {settings.suite} stores {facts.STORED_STATES} initial states per task; "
            f"first_index {settings.first_index} + {count} is more"
        )
    return [
        # The source is part of an episode's identity: the expert and a policy may record the same stored state.
        EpisodeSpec(task=task, index=index, seed=settings.seed + number, init_id=index, source=source)
        for task in tasks
        for index in range(settings.first_index, settings.first_index + count)
    ]


def _player(suite: OpenSuite | None, settings: CollectSettings, cameras: tuple[str, ...]) -> Any:
    """Return what plays missing episodes in the suite, or reads them, one actor after the other."""

    def play(missing: Sequence[tuple[EpisodeSpec, AnyActor | Demonstration]]) -> Iterator[Episode | EpisodeOutcome]:
        for actor, group in groupby(missing, key=lambda pair: pair[1]):
            specs = [spec for spec, _ in group]
            if isinstance(actor, Demonstration):
                yield of_size(read_demonstration(actor, cameras=cameras, seed=settings.seed), settings.image_size)
            elif suite is not None:
                horizon = dict.fromkeys((spec.task for spec in specs), facts.horizon(settings.suite))
                rules = Rules(horizon, cameras, settings.hold_steps, range(len(specs)))
                yield from in_order(play_episodes(suite.pool, specs, actor, rules), specs)

    return play


def of_size(episode: Episode, image_size: int) -> Episode:
    """Return a demonstration whose pictures have the dataset's size.

    Raises:
        SettingError: they have another; files hold pictures as they were drawn.
    """
    found = episode.frames.shape[2]
    if found != image_size:
        raise SettingError(
            f"image_size: the images of {episode.meta['file']} are {found} pixels, not {image_size}; give image_size={found}"
        )
    return episode
