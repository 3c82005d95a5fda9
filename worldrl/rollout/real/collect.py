"""Real rollouts into a dataset, episode by episode; an interrupted collection continues with what is missing.

Each stored episode carries its :class:`EpisodeSpec`, so the dataset itself shows what is missing. Episodes are written
in the order of the plan: an interrupted and continued dataset equals an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from worldrl.core.errors import ArtefactError
from worldrl.core.storage.log import Progress
from worldrl.core.types import Episode
from worldrl.data.lerobot.format import RECOVERY, EpisodeRecord
from worldrl.data.lerobot.writer import LeRobotWriter
from worldrl.rollout.agents.actors import AnyActor
from worldrl.rollout.real.episodes import DatasetLayout, Player, Result
from worldrl.rollout.real.specs import PLANNED, EpisodeSpec, spec_of

Who = TypeVar("Who")
"""An actor, or files of recorded actions."""
Who_co = TypeVar("Who_co", covariant=True)
Play = Callable[[Sequence[tuple[EpisodeSpec, Who]]], Iterator[Result]]
"""Plays episodes with their actors and returns them in the given order."""


@dataclass(frozen=True)
class CollectPlan(Generic[Who_co]):
    """Episodes of one actor."""

    actor: Who_co
    specs: Sequence[EpisodeSpec]


def collect_dataset(
    folder: Path, plans: Sequence[CollectPlan[AnyActor]], player: Player, *, hold_steps: int = 0
) -> list[dict[str, object]]:
    """Record every episode of the plans that the dataset ``folder`` does not hold yet.

    ``hold_steps`` are further steps after the first success, so that data holds frames of fulfilled tasks. Returns one
    row per episode of the dataset: task, source, length, success, restarted, ``planned`` with a planner and ``recovery``
    where it was corrected. Raises ArtefactError (the folder holds something else, or episodes that are in no plan). Raises SettingError (single-arm and bimanual tasks together). Raises
    WorkerError (a worker failed; the episodes so far are stored).
    """
    layout = player.layout({spec.task for plan in plans for spec in plan.specs})
    return record_missing(folder, plans, lambda missing: player.play(missing, hold_steps=hold_steps), layout)


def record_missing(
    folder: Path,
    plans: Sequence[CollectPlan[Who]],
    play: Play[Who],
    layout: DatasetLayout,
) -> list[dict[str, object]]:
    """Write every episode of the plans that the dataset ``folder`` does not hold yet, wherever they are played.

    ``play`` runs the missing episodes in their order. Result and errors are those of :func:`collect_dataset`.
    """
    square, fps = (layout["image_size"], layout["image_size"]), layout["embodiment"].control_hz
    with LeRobotWriter(folder, **{**layout, "fps": fps, "image_size": square}) as writer:
        known = {spec_of(record.meta).key for record in writer.records}
        _refuse_unplanned(folder, known, plans)
        missing = [(spec, plan.actor) for plan in plans for spec in plan.specs if spec.key not in known]
        with Progress("collect", total=len(known) + len(missing), start=len(known), unit="episodes") as progress:
            for episode in play(missing):
                if isinstance(episode, Episode):
                    writer.add_episode(episode)
                    progress.advance()
        return [_row(record) for record in writer.records]


def _row(record: EpisodeRecord) -> dict[str, object]:
    row = {"task": record.task, "source": record.meta["source"], "length": record.length, "success": record.success}
    more = {name: record.meta[name] for name in (PLANNED, RECOVERY) if name in record.meta}
    return {**row, "restarted": record.meta["restarted"], **more}


def _refuse_unplanned(folder: Path, known: set[tuple[str, int, int, int]], plans: Sequence[CollectPlan[Who]]) -> None:
    if unplanned := sorted(known - {spec.key for plan in plans for spec in plan.specs}):
        raise ArtefactError(
            f"{folder}: holds {len(unplanned)} episodes that this collection does not plan, for example "
            f"{unplanned[0]}; choose another folder"
        )
