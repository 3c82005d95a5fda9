"""``worldrl collect suite=...``: the scripted expert, or a policy, recorded in an external suite with its conventions.

Episodes begin at the suite's numbered initial states; ``first_index`` keeps those apart that a benchmark is to measure,
in LIBERO with 50 all of its own.
LIBERO's own demonstrations are read from their files and begin where those did; where nothing else is asked for, no
simulator is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit
from worldrl.core.storage.capacity import require_disk
from worldrl.core.storage.run import RunDirectory
from worldrl.core.types import Episode
from worldrl.data.lerobot.writer import least_bytes
from worldrl.policies.exploration import at_temperature
from worldrl.recipes.planning import planner_of
from worldrl.recipes.run import DATASET, engine_of
from worldrl.recipes.suites.opening import OpenSuite, fit_for, open_suite, suite_layout
from worldrl.rollout.agents.actors import AnyActor, ExpertActor
from worldrl.rollout.agents.planned_policy import policy_with
from worldrl.rollout.agents.policy_actor import PolicyActor
from worldrl.rollout.agents.policy_folder import policy_place
from worldrl.rollout.real.collect import CollectPlan, record_missing
from worldrl.rollout.real.specs import EpisodeOutcome, EpisodeSpec
from worldrl.rollout.suites.libero_files import Demonstration, find_demonstrations, read_demonstration
from worldrl.rollout.suites.names import choose_suite_tasks
from worldrl.rollout.suites.registry import find_suite
from worldrl.rollout.suites.suite import Suite, Workers, require_expert

if TYPE_CHECKING:
    from worldrl.jobs.data.collect import CollectSettings

NOT_HERE = ("noisy_episodes", "blind_episodes", "wander_episodes", "imagined_episodes")
"""Sources that only the embedded suite has."""


def check_settings(settings: CollectSettings) -> None:
    """Refuse what an external suite does not have.

    Raises SettingError (a source, look or domain of the embedded suite).
    """
    given = [name for name in NOT_HERE if getattr(settings, name) > 0]
    if given:
        raise SettingError(f"{given[0]}: {settings.suite} has the sources expert_episodes and policy_episodes")
    if settings.kind is not None or settings.styles != ["default"] or settings.domain != "clean":
        raise SettingError(f"kind, styles and domain are of the embedded suite; leave them out with {settings.suite}")
    if settings.demonstrations is not None and not settings.suite.startswith("libero"):
        raise SettingError("demonstrations: LIBERO's files are read for one of its suites; give suite=libero_...")
    if settings.demonstrations is not None and settings.suite.endswith("@held"):
        own = settings.suite.removesuffix("@held")
        raise SettingError(
            f"demonstrations: actions of LIBERO's files count from the measured pose, those of {settings.suite} from a "
            f"held goal; give suite={own}, or record the expert"
        )
    if settings.instruction_mode != "canonical":
        raise SettingError(f"instruction_mode: {settings.suite} has its own instructions only; leave it canonical")


def record_suite(
    settings: CollectSettings, run: RunDirectory, device: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Record the missing episodes.

    Returns one row per episode of the dataset, and what the result says about assets, physics and drawing. Raises
    SettingError (an unknown task, or more episodes than initial states) and ArtefactError (a file of demonstrations
    cannot be read, or says something else than the suite).
    """
    suite = find_suite(settings.suite, settings.python)
    cameras, names = cameras_of(suite, wrist=settings.wrist), suite.tasks()
    fit = fit_for(suite, policy_place(settings.policy)) if settings.policy else Fit.stretch
    layout = suite_layout(suite, cameras, settings.image_size, fit)
    tasks = choose_suite_tasks(settings.tasks, names)
    if settings.expert_episodes > 0:
        require_expert("expert_episodes", suite, tasks)
    plans = [*read_plans(settings, tasks, names), *make_plans(settings, suite, tasks, device)]
    if not (folder := run.path / DATASET).exists():
        count, size = sum(len(plan.specs) for plan in plans), settings.image_size
        need = least_bytes(count, settings.hold_steps + 1, len(cameras), size)
        require_disk(folder, need, f"{count} episodes with image_size={size}")
    if settings.expert_episodes + settings.policy_episodes == 0:
        rows = record_missing(run.path / DATASET, plans, _player(None, settings, cameras), layout)
        return rows, {"suite": suite.name}
    slots = settings.workers * settings.envs_per_worker
    asked = Workers(cameras, settings.image_size, settings.workers, slots, shadows=settings.shadows, fit=fit)
    with open_suite(suite, asked, timeout_s=settings.timeout_s, engine=engine_of(settings)) as opened:
        rows = record_missing(run.path / DATASET, plans, _player(opened, settings, cameras), layout)
    return rows, {"suite": suite.name, **opened.facts}


def cameras_of(suite: Suite, *, wrist: bool) -> tuple[str, ...]:
    """The main camera, and with ``wrist`` all others; SettingError where there are none."""
    cameras = suite.spec.cameras
    if not cameras or (wrist and len(cameras) < 2):
        raise SettingError(f"wrist: {suite.name} has the cameras {list(cameras)}; leave wrist out")
    return cameras if wrist else cameras[:1]


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
    settings: CollectSettings, suite: Suite, tasks: Sequence[str], device: str
) -> list[CollectPlan[AnyActor | Demonstration]]:
    """Name every episode of both simulated sources.

    Raises SettingError (more episodes than stored states).
    """
    sources: list[tuple[str, AnyActor, int]] = [("expert", ExpertActor(), settings.expert_episodes)]
    if settings.policy is not None:
        sources.append(("policy", collecting_policy(settings, device), settings.policy_episodes))
    return [
        CollectPlan(actor, name_episodes(settings, suite, tasks, source, number, count))
        for number, (source, actor, count) in enumerate(sources)
    ]


def collecting_policy(settings: CollectSettings, device: str) -> PolicyActor:
    """Make the actor of policy_episodes."""
    return policy_with(
        planner_of(settings, settings.policy),
        monitor=settings.monitor,
        intervene=settings.monitor is not None,
        folder=settings.policy,
        exploration=at_temperature(settings.temperature, settings.noise_correlation),
        device=device,
    )


def name_episodes(
    settings: CollectSettings, suite: Suite, tasks: Sequence[str], source: str, number: int, count: int
) -> list[EpisodeSpec]:
    """Specs of one source: consecutive initial states of each task, all with the source's own seed.

    Raises SettingError (more episodes than initial states).
    """
    if settings.first_index + count > suite.stored_states + suite.drawn_states:
        more = f", and draws {suite.drawn_states} more" if suite.drawn_states else ""
        raise SettingError(
            f"{source}_episodes: {suite.name} stores {suite.stored_states} initial states per task{more}; "
            f"first_index {settings.first_index} + {count} is more"
        )
    return [
        # The source is part of an episode's identity: the expert and a policy may record the same stored state.
        EpisodeSpec(task=task, index=index, seed=settings.seed + number, init_id=index, source=source)
        for task in tasks
        for index in range(settings.first_index, settings.first_index + count)
    ]


def _player(opened: OpenSuite | None, settings: CollectSettings, cameras: tuple[str, ...]) -> Any:
    """Return what plays missing episodes in the suite, or reads them, one actor after the other."""

    def play(missing: Sequence[tuple[EpisodeSpec, AnyActor | Demonstration]]) -> Iterator[Episode | EpisodeOutcome]:
        played = [(spec, actor) for spec, actor in missing if not isinstance(actor, Demonstration)]
        read = {"cameras": cameras, "seed": settings.seed, "clip_actions": settings.clip_actions}
        for _, actor in missing:  # read_plans comes before make_plans
            if isinstance(actor, Demonstration):
                yield of_size(read_demonstration(actor, **read), settings.image_size)
        if opened is not None:
            yield from opened.play(played, hold_steps=settings.hold_steps)

    return play


def of_size(episode: Episode, image_size: int) -> Episode:
    """Return a demonstration whose images have the dataset's size.

    Raises SettingError (they have another; files hold images as they were drawn).
    """
    found = episode.frames.shape[2]
    if found != image_size:
        raise SettingError(
            f"image_size: the images of {episode.meta['file']} are {found} pixels, not {image_size}; give image_size={found}"
        )
    return episode
