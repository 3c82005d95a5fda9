"""Other looks of what ``worldrl train-vla`` recorded, for its world model: style augmentation as ``worldrl restyle`` does it.

Each recording is replayed in sampled looks once, in a stage of its own. Copies of held-out episodes are never learned from;
calibration, gates, imagined starts and the policy know the recorded look alone, in which the policy is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldrl.core.types import Episode
from worldrl.jobs.vla.artefacts import Recording
from worldrl.jobs.vla.loop import DATASET, Loop
from worldrl.rollout.real.restyle import SAMPLED, restyle_dataset
from worldrl.rollout.real.specs import motion_key


def restyled(loop: Loop, demos: Recording, practices: Sequence[Recording]) -> list[Recording]:
    """Return ``styles`` datasets in other looks for each recording, making those that are missing."""
    named = {"01-looks": demos, **{f"round-{number}-1-looks": practice for number, practice in enumerate(practices, 1)}}
    return [look for name, recording in named.items() for look in _styles(loop, name, recording)]


def _styles(loop: Loop, name: str, recording: Recording) -> list[Recording]:
    if not loop.plan.styles:
        return []
    stage = loop.run.stage(name)
    folders = [stage.folder / f"{DATASET}-{copy}" for copy in range(loop.plan.styles)]
    if not stage.finished:
        for copy, folder in enumerate(folders):
            restyle_dataset(
                recording.folder,
                folder,
                [SAMPLED],
                seed=loop.plan.seed_of("looks", name, copy),
                workers=loop.plan.suite.options.workers,
                envs_per_worker=loop.plan.suite.options.envs_per_worker,
            )
        loop.finish(stage, {"visual_styles": len(folders)})
    return [Recording(folder) for folder in folders]


def copies(looks: Sequence[Recording], episodes: Sequence[Episode]) -> list[Episode]:
    """Load from datasets in other looks those episodes that show a motion of ``episodes``."""
    motions = {motion_key(episode) for episode in episodes}
    return [copy for look in looks for copy in look.episodes if motion_key(copy) in motions]
