"""Other looks of what ``worldrl train-vla`` recorded, for its world model: style augmentation as ``worldrl restyle`` does it.

Each recording is replayed in sampled looks once, in a stage of its own. Copies of held-out episodes are never learned from;
calibration, gates, imagined starts and the policy know the recorded look alone, in which the policy is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worldrl.core.types import Episode
from worldrl.jobs.vla.loop import DATASET, Loop, load
from worldrl.rollout.real.restyle import SAMPLED, restyle_dataset
from worldrl.rollout.real.specs import motion_key


def restyled(loop: Loop, demos: Path, practices: Sequence[Path]) -> list[Path]:
    """Return ``settings.styles`` datasets in other looks for each recording, making those that are missing."""
    named = {"01-looks": demos, **{f"round-{number}-1-looks": folder for number, folder in enumerate(practices, 1)}}
    return [look for name, folder in named.items() for look in _styles(loop, name, folder)]


def _styles(loop: Loop, name: str, recording: Path) -> list[Path]:
    if not loop.settings.styles:
        return []
    stage = loop.run.stage(name)
    folders = [stage.folder / f"{DATASET}-{copy}" for copy in range(loop.settings.styles)]
    if not stage.finished:
        for copy, folder in enumerate(folders):
            restyle_dataset(
                recording,
                folder,
                [SAMPLED],
                seed=loop.seed("looks", name, copy),
                workers=loop.settings.workers,
                envs_per_worker=loop.settings.envs_per_worker,
            )
        loop.finish(stage, {"visual_styles": len(folders)})
    return folders


def copies(looks: Sequence[Path], episodes: Sequence[Episode]) -> list[Episode]:
    """Load from datasets in other looks those episodes that show a motion of ``episodes``."""
    motions = {motion_key(episode) for episode in episodes}
    return [copy for folder in looks for copy in load(folder) if motion_key(copy) in motions]
