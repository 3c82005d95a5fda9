"""``worldrl restyle``: shows recorded episodes in other looks, to train world models that bear them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import numpy_stream
from worldrl.core.storage.capacity import require_disk
from worldrl.core.storage.log import Progress, console
from worldrl.data.lerobot.dataset import EpisodeDataset, open_recorded
from worldrl.data.lerobot.writer import LeRobotWriter, least_bytes
from worldrl.data.windows.recolour import Recolouring, recolour_episode
from worldrl.recipes.run import DATASET, open_run
from worldrl.rollout.real.restyle import SAMPLED, restyle_dataset
from worldrl.rollout.real.specs import COPY_OF, require_styles
from worldrl.settings import one_of, positive, setting

SIMULATOR, IMAGE = "simulator", "image"


@dataclass
class RestyleSettings:
    """Which recording, and how its other looks are made."""

    data: str = setting("runs/collect/dataset", "dataset folder to redraw")
    run_dir: str = setting("runs/restyle", "where everything is written; the dataset goes to run_dir/dataset")
    seed: int = setting(0, "chooses the visual styles; another seed makes another copy")
    by: str = setting(
        SIMULATOR,
        "simulator (recorded actions replayed, structure exact) or image (segments recoloured; needs no simulator)",
    )
    styles: list[str] = setting(
        [SAMPLED],
        "by simulator: visual styles to draw from, one per episode; sampled draws light, colours, camera and props",
    )
    image: Recolouring = field(default_factory=Recolouring)
    workers: int = setting(2, "simulator processes; 0 runs in this process")
    envs_per_worker: int = setting(4, "environments per process, stepped in lock-step")
    timeout_s: float = setting(120.0, "longest silence of a worker before it is restarted (s)")

    def __post_init__(self) -> None:
        """Check the ranges."""
        one_of("by", self.by, (SIMULATOR, IMAGE))
        if self.by == SIMULATOR and (not self.styles or set(self.styles) - {SAMPLED}):
            require_styles([style for style in self.styles if style != SAMPLED], field="styles")
        for name in ("envs_per_worker", "timeout_s"):
            positive(name, getattr(self, name))


def main(settings: RestyleSettings) -> dict[str, Any]:
    """Restyle what is missing, write ``result.json`` and print how many episodes each look got.

    Returns the metrics: episodes, frames and episodes per look.
    """
    source = Path(settings.data)
    recorded = open_recorded(source)
    with open_run("restyle", settings) as run:
        folder = run.path / DATASET
        if not folder.exists():
            frames, side = sum(record.rows for record in recorded.records), min(recorded.image_size)
            need = least_bytes(1, frames, len(recorded.cameras), side)
            require_disk(folder, need, f"data={settings.data}: {frames:,} frames are drawn again")
        looks = (
            by_simulator(settings, source, folder) if settings.by == SIMULATOR else by_image(settings, recorded, folder)
        )
        metrics = {
            "episodes": len(recorded),
            "frames": sum(record.length + 1 for record in recorded.records),
            "visual_styles": dict(Counter(looks)),
        }
        run.write_result(metrics, seed=settings.seed, device="cpu")
        show(metrics, folder)
    return metrics


def by_simulator(settings: RestyleSettings, source: Path, folder: Path) -> list[str]:
    """Replay the recording; return each episode's look, all sampled ones under one name."""
    specs = restyle_dataset(
        source,
        folder,
        settings.styles,
        seed=settings.seed,
        workers=settings.workers,
        envs_per_worker=settings.envs_per_worker,
        timeout_s=settings.timeout_s,
    )
    return [spec.style.partition("-")[0] for spec in specs]


def by_image(settings: RestyleSettings, recorded: EpisodeDataset, folder: Path) -> list[str]:
    """Recolour the recording, continuing after the episodes that an earlier session wrote; return each one's look."""
    header = recorded.header
    with LeRobotWriter(
        folder,
        fps=header.fps,
        cameras=header.cameras,
        image_size=header.image_size,
        embodiment=header.embodiment,
        suite=header.suite,
        fit=header.fit,
    ) as writer:
        written = len(writer.records)
        if written > len(recorded):
            raise ArtefactError(
                f"{folder}: holds {written} episodes, the recording {len(recorded)}; choose another folder"
            )
        with Progress("restyle", total=len(recorded), start=written, unit="episodes") as progress:
            for number in range(written, len(recorded)):
                episode, source = recorded[number], recorded.records[number].content
                look = recolour_episode(
                    episode, settings.image, generator=numpy_stream(settings.seed, "recolour", number)
                )
                writer.add_episode(replace(look, meta={COPY_OF: source, **episode.meta, "style": IMAGE}))
                progress.advance()
    return [IMAGE] * len(recorded)


def show(metrics: dict[str, Any], dataset: Path) -> None:
    """Print the closing table."""
    table = Table(title=f"{metrics['episodes']} episodes, {metrics['frames']} frames in {dataset}")
    table.add_column("visual style")
    table.add_column("episodes", justify="right")
    for look, count in metrics["visual_styles"].items():
        table.add_row(look, str(count))
    console().print(table)
