"""``worldrl extend``: recorded episodes, continued beyond the time limit, to train world models that carry further."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldrl.core.errors import ArtefactError
from worldrl.core.rng import numpy_stream
from worldrl.core.storage.capacity import require_disk
from worldrl.core.storage.log import Progress, console
from worldrl.data.lerobot.dataset import EpisodeDataset, open_recorded
from worldrl.data.lerobot.writer import LeRobotWriter, least_bytes
from worldrl.recipes.run import DATASET, open_run
from worldrl.recipes.world_model.unseen_episodes import continue_all, one_arm
from worldrl.rollout.real.embedded import embedded_options
from worldrl.rollout.real.execution import CONTINUATIONS, Script, TrueRun, true_runs
from worldrl.rollout.real.slots import EmbeddedSlots
from worldrl.settings import non_negative, one_of, positive, setting


@dataclass
class ExtendSettings:
    """Which recording, and how far it continues."""

    data: str = setting("runs/collect/dataset", "dataset folder whose episodes are extended")
    run_dir: str = setting("runs/extend", "where everything is written; the dataset goes to run_dir/dataset")
    seed: int = setting(0, "chooses the episodes and their continuations")
    steps: int = setting(256, "control steps of each extended episode")
    episodes: int = setting(0, "episodes drawn per task; 0 takes all")
    continuation: str = setting(
        "retrace", "what follows the recorded actions: retrace (back, then another episode's) or hold (still)"
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("steps", self.steps)
        non_negative("episodes", self.episodes)
        one_of("continuation", self.continuation, CONTINUATIONS)


def main(settings: ExtendSettings) -> dict[str, Any]:
    """Execute what is missing, write ``result.json`` and print the result.

    Raises ArtefactError (an episode's initial state is unknown, or the simulator did not repeat it).
    """
    recorded = open_recorded(Path(settings.data))
    with open_run("extend", settings) as run:
        folder = run.path / DATASET
        count = extend(recorded, folder, settings)
        metrics = {"episodes": count, "frames": count * (settings.steps + 1)}
        run.write_result(metrics, seed=settings.seed, device="cpu")
        console().print(f"{count} episodes of {settings.steps} control steps in {folder}")
    return metrics


def extend(recorded: EpisodeDataset, folder: Path, settings: ExtendSettings) -> int:
    """Record the extended episodes that ``folder`` does not hold yet; return how many it holds in the end.

    Raises SettingError (they take more than the free disk).
    """
    robot = one_arm(recorded.embodiment)
    drawn, size = draw(recorded, settings.episodes, seed=settings.seed), recorded.image_size
    if not folder.exists():
        need = least_bytes(len(drawn), settings.steps + 1, 1, size[0])
        require_disk(folder, need, f"steps={settings.steps} for each of {len(drawn)} episodes")
    scripts = [Script.of(recorded[row]) for row in drawn]
    actions = continue_all(
        scripts,
        settings.steps,
        continuation=settings.continuation,
        embodiment=robot,
        seed=settings.seed,
    )
    with LeRobotWriter(
        folder,
        fps=recorded.header.fps,
        cameras=("scene",),
        image_size=size,
        embodiment=robot,
        suite=recorded.header.suite,
        fit=recorded.header.fit,
    ) as writer:
        written = len(writer.records)
        if written > len(scripts):
            raise ArtefactError(f"{folder}: holds {written} episodes of {len(scripts)}; choose another run_dir")
        options = embedded_options(recorded.tasks(), size[0])
        with (
            closing(EmbeddedSlots(options)) as slots,
            Progress("extend", total=len(scripts), start=written, unit="episodes") as progress,
        ):
            for run in true_runs(slots, scripts[written:], actions[written:]):
                writer.add_episode(checked(run).episode)
                progress.advance()
    return len(scripts)


def draw(recorded: EpisodeDataset, count: int, *, seed: int) -> list[int]:
    """Choose ``count`` episodes of each task, all for 0, task by task: a simulator serves neighbours of one task."""
    rows: list[int] = []
    for task in recorded.tasks():
        of_task = [row for row, record in enumerate(recorded.records) if record.task == task]
        order = numpy_stream(seed, "prolong", task).permutation(len(of_task))
        rows += [of_task[place] for place in order[: count or None]]
    return rows


def checked(run: TrueRun) -> TrueRun:
    """Return the run, with what it is noted in its provenance.

    Raises ArtefactError (the simulator did not repeat what was recorded).
    """
    meta = run.episode.meta
    if not run.repeated:
        raise ArtefactError(
            f"{meta['task']} episode index {meta['index']}, seed {meta['seed']}: the simulator did not repeat it; "
            "was it recorded by another version?"
        )
    return replace(run, episode=replace(run.episode, meta={**meta, "recorded_steps": run.recorded}))
