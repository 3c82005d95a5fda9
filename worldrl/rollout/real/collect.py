"""Real rollouts into a dataset, episode by episode; an interrupted collection continues with what is missing.

Which episodes are on the disk is read from the dataset itself: each carries its :class:`EpisodeSpec`. Episodes are
written in the order of the plan, so an interrupted and continued dataset equals an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import ArtefactError
from worldrl.core.storage.log import Progress
from worldrl.core.types import Episode
from worldrl.data.lerobot.format import EpisodeRecord
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.rollout.agents.actors import AnyActor
from worldrl.rollout.real.embedded import EMBEDDED_SUITE, embedded_embodiment
from worldrl.rollout.real.rollouts import rollout_episodes
from worldrl.rollout.real.specs import EnvOptions, EpisodeOutcome, EpisodeSpec, spec_of

Who = TypeVar("Who")
"""Who acts: an actor, or files of what somebody did."""
Who_co = TypeVar("Who_co", covariant=True)
Play = Callable[[Sequence[tuple[EpisodeSpec, Who]]], Iterator[Episode | EpisodeOutcome]]
"""Plays episodes with their actors and returns them in the order asked for."""


@dataclass(frozen=True)
class CollectPlan(Generic[Who_co]):
    """Episodes of one actor.

    Attributes:
        actor: who acts.
        specs: which episodes.
    """

    actor: Who_co
    specs: Sequence[EpisodeSpec]


def collect_dataset(
    folder: Path,
    plans: Sequence[CollectPlan[AnyActor]],
    *,
    env_options: EnvOptions,
    workers: int,
    envs_per_worker: int = 1,
    hold_steps: int = 0,
    timeout_s: float = 120.0,
) -> list[dict[str, object]]:
    """Record every episode of the plans that the dataset does not hold yet.

    Args:
        folder: the dataset; made if missing.
        plans: what to record, in order.
        env_options: how to make environments.
        workers: simulator processes; 0 runs in this process.
        envs_per_worker: environments per process.
        hold_steps: further steps after the first success, so that data holds frames of fulfilled tasks.
        timeout_s: longest silence of a worker (s).

    Returns:
        One row per episode of the dataset: task, source, length, success, restarted.

    Raises:
        ArtefactError: the folder holds something else, or episodes that are in no plan.
        SettingError: one- and two-armed tasks together.
        WorkerError: a worker failed; the episodes so far are kept.
    """
    embodiment = embedded_embodiment({spec.task for plan in plans for spec in plan.specs})

    def play(missing: Sequence[tuple[EpisodeSpec, AnyActor]]) -> Iterator[Episode | EpisodeOutcome]:
        return rollout_episodes(
            [spec for spec, _ in missing],
            actor=[actor for _, actor in missing],
            env_options=env_options,
            workers=workers,
            envs_per_worker=envs_per_worker,
            timeout_s=timeout_s,
            hold_steps=hold_steps,
        )

    size = env_options.image_size
    return record_missing(
        folder,
        plans,
        play,
        embodiment=embodiment,
        cameras=env_options.cameras,
        image_size=size,
        suite=EMBEDDED_SUITE,
    )


def record_missing(
    folder: Path,
    plans: Sequence[CollectPlan[Who]],
    play: Play[Who],
    *,
    embodiment: AnyEmbodiment,
    cameras: Sequence[str],
    image_size: int,
    suite: str,
) -> list[dict[str, object]]:
    """Write every episode of the plans that the dataset does not hold yet, wherever they are played.

    Args:
        folder: the dataset; made if missing.
        plans: what to record, in order.
        play: plays the missing episodes, in their order.
        embodiment: of the robot that plays them.
        cameras: names, in the order of the frames' axis ``V``.
        image_size: pixels per side.
        suite: whose tasks and initial states they are.

    Returns:
        As :func:`collect_dataset`, and so are the errors.
    """
    with LeRobotWriter(
        folder,
        fps=embodiment.control_hz,
        cameras=cameras,
        image_size=(image_size, image_size),
        embodiment=embodiment,
        suite=suite,
    ) as writer:
        known = {spec_of(record.meta).key for record in writer.records}
        _refuse_strangers(folder, known, plans)
        missing = [(spec, plan.actor) for plan in plans for spec in plan.specs if spec.key not in known]
        with Progress("collect", total=len(known) + len(missing), start=len(known), unit="episodes") as progress:
            for episode in play(missing):
                if isinstance(episode, Episode):
                    writer.add_episode(episode)
                    progress.advance()
        return [_row(record) for record in writer.records]


def _row(record: EpisodeRecord) -> dict[str, object]:
    return {
        "task": record.task,
        "source": record.meta["source"],
        "length": record.length,
        "success": record.success,
        "restarted": record.meta["restarted"],
    }


def _refuse_strangers(folder: Path, known: set[tuple[str, int, int, int]], plans: Sequence[CollectPlan[Who]]) -> None:
    strangers = known - {spec.key for plan in plans for spec in plan.specs}
    if strangers:
        raise ArtefactError(
            f"{folder}: holds {len(strangers)} episodes that this collection does not plan, for example "
            f"{sorted(strangers)[0]}; choose another folder"
        )
