"""The probe of ``worldrl evaluate-world-model``: trained on real frames of other episodes, or given by another run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.errors import SettingError
from worldrl.core.observation import IMAGE, images_among
from worldrl.core.rng import stream_seed
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.core.storage.run import RunDirectory
from worldrl.evaluation.world_model.probe import PositionProbe, ProbeSettings, fit_probe, new_probe
from worldrl.evaluation.world_model.probe_frames import ProbeFrames
from worldrl.rollout.real.embedded import embedded_options
from worldrl.rollout.real.execution import Script, true_runs
from worldrl.rollout.real.scenes import Views, scattered_views
from worldrl.rollout.real.slots import EmbeddedSlots
from worldrl.world_models.loading import AnyVideoModel


def trained_probes(
    run: RunDirectory,
    config: ProbeSettings,
    model: AnyVideoModel,
    scripts: Sequence[Script],
    actions: Sequence[NDArray[np.float32]],
    log: MetricLog,
    *,
    seed: int,
) -> dict[str, PositionProbe]:
    """Train one probe for each view of ``model``, or find it trained; none without ``scripts``.

    They learn the size of its images from other episodes than those that are evaluated: ``scripts``, with their actions
    and what continues them, float32 ``[T, 7]`` each.
    """
    probes: dict[str, PositionProbe] = {}
    for image in images_among(model.more) if scripts else ():
        stage = run.stage("01-probe" if image == IMAGE else f"01-probe-{image}")
        if not stage.finished:
            size = model.config.codec.image_size
            frames = probe_frames(config, scripts, actions, image_size=size, seed=seed, image=image)
            learned = {script.spec.key for script in scripts}
            probe = new_probe(config, frames, seed=seed, learned=learned).to(model.device)
            report = fit_probe(probe, frames, seed=seed, folder=stage.folder / "checkpoints", log=log)
            probe.save(stage.folder / "probe")
            stage.finish({"episodes": len(scripts), "frames": len(frames.frame), **report.logs})
        probes[image] = PositionProbe.load(stage.folder / "probe", model.device)
    return probes


def probe_frames(
    config: ProbeSettings,
    scripts: Sequence[Script],
    actions: Sequence[NDArray[np.float32]],
    *,
    image_size: int,
    seed: int,
    image: str,
) -> ProbeFrames:
    """Execute episodes again, draw scenes in the same looks beside them, and keep frames of one view."""
    tasks, looks = (sorted({getattr(script.spec, name) for script in scripts}) for name in ("task", "style"))
    images = (IMAGE,) if image == IMAGE else (IMAGE, image)
    views: list[Views] = []
    with (
        Progress("probe: real frames", total=len(scripts), unit="episodes") as progress,
        closing(EmbeddedSlots(embedded_options(tasks, image_size, images=images))) as slots,
    ):
        for true_run in true_runs(slots, scripts, actions):
            views.append(Views.of(true_run, config.every, image))
            progress.advance()
    for number, look in enumerate(looks if config.scattered else ()):
        own, count = stream_seed(seed, "scattered", number), -(-config.scattered // len(looks))
        views += scattered_views(tasks, count, image_size=image_size, seed=own, style=look, image=image)
    return ProbeFrames.of(views)


def given_probe(folder: Path, chosen: Sequence[Script], device: torch.device) -> PositionProbe:
    """Load a probe that another run trained.

    Raises ArtefactError (no probe in the folder). Raises SettingError (it was trained on an episode that is
    evaluated, or not on a task that is).
    """
    probe = PositionProbe.load(folder, device)
    if known := [script.spec for script in chosen if script.spec.key in probe.learned]:
        raise SettingError(
            f"probe_from: the probe in {folder} was trained on {len(known)} of the evaluated episodes, such as "
            f"{known[0].describe()}; give probe_from=null, or episodes recorded with another seed"
        )
    for task in sorted({script.spec.task for script in chosen}):
        probe.number(task)
    return probe
