"""``suite=recordings`` of ``worldrl train-vla``: a dataset of recordings as a suite that nothing can act in.

Everything that recordings cannot give is refused here, before any training. Episodes are held out by their outcome, so
that successes and failures are on every side. Success is measured in imagination only, from held-out start frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldrl.core.errors import GateError, SettingError
from worldrl.core.observation import STATE, images_among
from worldrl.core.rng import numpy_stream, stream_seed
from worldrl.core.storage.learned import Learned
from worldrl.core.types import Episode, ResetRecord
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.jobs.vla.artefacts import Recording
from worldrl.jobs.vla.settings import TrainVlaSettings
from worldrl.jobs.vla.training_suite import SuiteOptions, TrainingSuite
from worldrl.recipes.imagined_success import LEAST_OUTCOMES, NOTES, longest, too_few
from worldrl.recipes.stages import held_out_places
from worldrl.recipes.training_data import open_datasets, require_cameras, require_image_size, require_instructions
from worldrl.recipes.world_model.start import SCRATCH, weights_folder
from worldrl.rollout.agents.policy_folder import policy_facts
from worldrl.rollout.imagined.reset_store import initial_record
from worldrl.rollout.real.specs import scene_digest
from worldrl.rollout.suites.names import RECORDINGS, choose_suite_tasks

LIMITS = (
    *NOTES,
    "The world model that improved the policy also measures it. The imagined difference may be too large; real trials decide.",
)


@dataclass(frozen=True)
class Split:
    """Places of a dataset's episodes: of training, of calibration and of the gates."""

    training: list[int]
    calibration: list[int]
    gates: list[int]

    @property
    def held_out(self) -> list[int]:
        """Those that neither the policy nor the world model learns from."""
        return sorted([*self.calibration, *self.gates])


class RecordedSuite(TrainingSuite):
    """Recordings ``data``, split for training and tests; ``reasons`` say why imagined success cannot be trusted."""

    name = RECORDINGS
    loop = "worldrl.jobs.vla.recordings:run_recordings"
    limits = LIMITS

    def __init__(self, data: EpisodeDataset, options: SuiteOptions, split: Split, reasons: Sequence[str]) -> None:
        self.data, self.options, self.parts, self.reasons = data, options, split, list(reasons)
        self.tasks, self.embodiment = data.tasks(), data.embodiment

    @property
    def horizons(self) -> dict[str, int]:
        """The longest recorded episode of each task."""
        return longest(self.data)

    def starts(self, recorded: Sequence[Episode], count: int, *, seed: int, **layout: Any) -> list[ResetRecord]:
        """First frames of recorded episodes, drawn task by task; all of them where there are no more."""
        records, more = list[ResetRecord](), layout["more"]
        for task in self.tasks:
            among = [episode for episode in recorded if episode.task == task]
            drawn = numpy_stream(seed, "recorded starts", task).permutation(len(among))[:count]
            for place in sorted(drawn.tolist()):
                episode = among[place]
                record = initial_record(
                    episode.sheet(images_among(more), slice(1))[0],
                    episode.command[0],
                    instruction=episode.instruction,
                    task=task,
                    memory_frames=layout["memory_frames"],
                    source=f"recorded start {place}",
                    state=episode.state[0] if STATE in more else None,
                )
                records.append(record)
        return records

    def split(
        self, recording: Recording, share: float, *, seed: int
    ) -> tuple[Sequence[Episode], list[Episode], list[Episode]]:
        """By the places that were checked; ``share`` and ``seed`` have decided them."""
        training, calibration, gates = (
            [recording.episodes[place] for place in part]
            for part in (self.parts.training, self.parts.calibration, self.parts.gates)
        )
        return training, calibration, gates


def recorded_suite(settings: TrainVlaSettings, options: SuiteOptions) -> RecordedSuite:
    """Open the recordings and check them.

    Raises SettingError (images, cameras, tasks or a given policy that do not fit, or too few episodes) and ArtefactError
    (damaged). Raises GateError (they cannot test a success head, and ``gates=stop``).
    """
    (data,) = open_datasets([str(settings.data)])
    require_instructions([data])
    tasks = choose_suite_tasks(settings.tasks, data.tasks())
    data = data.subset(lambda record: record.task in tasks)
    require_image_size(data, settings.policy.image_size, "policy.image_size")
    require_cameras([data], settings.cameras)
    if settings.supervised:
        _require_actions(data, Path(settings.supervised))
    split = split_recordings(data, settings.held_out, seed=stream_seed(settings.seed, "train-vla", "held-out") % 2**31)
    _require_enough(data, split, settings)
    reasons = [*untestable(data, split), *_learned(data, split, settings.start)]
    if reasons and settings.gates == "stop":
        raise GateError(
            f"data: imagined success cannot be trusted: {'; '.join(reasons)}. Record more failures and successes, raise "
            "held_out, or continue with gates=warn"
        )
    return RecordedSuite(data, options, split, reasons)


def split_recordings(data: EpisodeDataset, share: float, *, seed: int) -> Split:
    """Hold out a share of the successes and of the failures each, half for calibration, half for the gates."""
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for success in (True, False):
        rows = [row for row, record in enumerate(data.records) if record.success is success]
        found = held_out_places(data.subset(rows), share, seed=seed)
        for part, places in zip(parts, found, strict=True):
            part += [rows[place] for place in places]
    return Split(*(sorted(part) for part in parts))


def untestable(data: EpisodeDataset, split: Split) -> list[str]:
    """Why nothing would test a success head; nothing where the held-out recordings do."""
    whole = [record.success for record in data.records]
    if len(set(whole)) == 1:
        none = "fails" if whole[0] else "succeeds"
        return [f"none of the {len(whole)} recordings {none}, so no success head can be calibrated"]
    parts = {"calibration": split.calibration, "the gates": split.gates}
    found = {name: too_few([data.records[row] for row in rows]) for name, rows in parts.items()}
    return [
        f"of the {len(parts[name])} recordings held out for {name} only {few} (at least {LEAST_OUTCOMES} are needed)"
        for name, few in found.items()
        if few
    ]


def _require_enough(data: EpisodeDataset, split: Split, settings: TrainVlaSettings) -> None:
    """SettingError where a part of the split, or of a task in it, is empty."""
    records, won = data.records, sum(record.success for record in data.records)
    if not split.calibration or not split.gates:
        raise SettingError(
            f"held_out: {settings.held_out} of {len(records)} recordings ({won} succeed, {len(records) - won} fail) is not one "
            "each for calibration and gates; raise held_out or record more"
        )
    for task in data.tasks():
        learned = sum(records[row].task == task and records[row].success for row in split.training)
        tested = sum(records[row].task == task for row in split.held_out)
        if (not learned and not settings.supervised) or not tested:
            raise SettingError(
                f"data: of task {task} {learned} successes are left to learn from and {tested} recordings are held out, at least "
                "1 each is needed; record more of it, change held_out, or leave it out with tasks"
            )


def _require_actions(data: EpisodeDataset, folder: Path) -> None:
    if policy_facts(folder).actions != data.embodiment.actions:
        raise SettingError(
            f"supervised: the policy in {folder} has other actions than the robot of {data.source}; give one that was trained "
            "on its recordings"
        )


def _learned(data: EpisodeDataset, split: Split, start: str) -> list[str]:
    """What a world model that is given has seen of the held-out recordings."""
    if start == SCRATCH:
        return []
    learned = Learned.read(weights_folder(start))
    every = data.fingerprint in learned.datasets
    seen = sum(every or scene_digest(data.records[row]) in learned.episodes for row in split.held_out)
    return [f"start={start} has learned from {seen} of the {len(split.held_out)} held-out recordings"] if seen else []
