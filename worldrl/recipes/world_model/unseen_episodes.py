"""Episodes that a world model has not seen: which are evaluated, which train the probe, and what continues them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldrl.core.embodiment import AnyEmbodiment, Embodiment
from worldrl.core.errors import SettingError, nearest
from worldrl.core.rng import numpy_stream
from worldrl.core.storage.learned import Learned
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.recipes.training_data import open_datasets
from worldrl.recipes.world_model.start import images_of
from worldrl.rollout.real.embedded import EMBEDDED_SUITE
from worldrl.rollout.real.execution import Script, continued
from worldrl.rollout.real.specs import scene_digest, spec_of
from worldrl.rollout.suites.suite import Suite


def open_unseen(folders: Sequence[str], world_model: Path, suite: Suite | None = None) -> EpisodeDataset:
    """Open datasets as one, unless the world model or its initial weights learned from one or from an episode of it.

    They are of ``suite``, None for the embedded one. SettingError else, and for another robot or another suite's task;
    ArtefactError for damaged or unlike datasets.
    """
    datasets = open_datasets(folders, images_of(str(world_model)))
    learned = Learned.read(world_model)
    for folder, dataset in zip(folders, datasets, strict=True):
        require_suite(folder, dataset, suite)
        refuse_seen(folder, dataset, learned, world_model)
    return datasets[0].concatenate(*datasets[1:])


def require_suite(folder: str, dataset: EpisodeDataset, suite: Suite | None) -> None:
    """SettingError where a dataset is not of ``suite``, or, for None, not of one arm of the embedded suite."""
    from worldrl_envs.tasks import task_names

    name, tasks = (EMBEDDED_SUITE, task_names()) if suite is None else (suite.name, suite.tasks())
    recorded = dataset.header.suite
    if recorded != name and (recorded or suite):
        raise SettingError(
            f"suite: {folder} was recorded in {recorded or 'an unnamed suite'}, not in {name}; give its own with suite="
        )
    if suite is None:
        one_arm(dataset.embodiment)
    for task in dataset.tasks():
        if task not in tasks:
            raise SettingError(f"data: task {task!r} is not of the suite {name}{nearest(task, tasks)}")


def refuse_seen(folder: str, dataset: EpisodeDataset, learned: Learned, world_model: Path) -> None:
    """Raise SettingError where a world model has learned from a dataset, or from an episode of it in any look."""
    who = f"data: the world model in {world_model}, or weights that it began with,"
    if dataset.fingerprint in learned.datasets:
        raise SettingError(f"{who} was trained on {folder}; record episodes with another seed")
    known = [record for record in dataset.records if scene_digest(record) in learned.episodes]
    if known:
        raise SettingError(
            f"{who} was trained on {len(known)} of the {len(dataset)} episodes of {folder}, such as its episode "
            f"{known[0].index}, maybe in another visual style; record episodes with another seed"
        )


def one_arm(robot: AnyEmbodiment) -> Embodiment:
    """Return the constants of a single-arm robot; SettingError for another."""
    if not isinstance(robot, Embodiment):
        raise SettingError(
            f"data: episodes are continued along the path of one tool, and this robot takes "
            f"{', '.join(robot.actions.names)}; give a dataset of tasks of one arm"
        )
    return robot


def draw_scripts(data: EpisodeDataset, count: int, spare: int, *, seed: int) -> tuple[list[Script], list[Script]]:
    """Draw the episodes to evaluate and ``spare`` others, by task; no initial state is on both sides.

    SettingError where a task has no others left, ArtefactError where an initial state is unknown.
    """
    chosen: list[int] = []
    others: list[int] = []
    for task in data.tasks():
        rows = [row for row, record in enumerate(data.records) if record.task == task]
        order = [rows[place] for place in numpy_stream(seed, "unseen", task).permutation(len(rows))]
        keys = {spec_of(data.records[row].meta, f"{data.source}: episode {row}").key for row in order[:count]}
        rest = [row for row in order[count:] if spec_of(data.records[row].meta).key not in keys]
        if spare and not rest:
            raise SettingError(
                f"episodes: all {len(rows)} of {task} are evaluated, which leaves none to train the probe on; lower "
                "episodes, record more, or switch the probe off with probe.steps=0"
            )
        chosen += order[:count]
        others += rest[:spare]
    return [Script.of(data[row]) for row in chosen], [Script.of(data[row]) for row in others]


def continue_all(
    scripts: Sequence[Script], steps: int, *, continuation: str, embodiment: AnyEmbodiment, seed: int
) -> list[NDArray[np.float32]]:
    """Continue every script to float32 ``[steps, A]`` actions, with those of the scripts of its task."""
    same = {task: [s for s in scripts if s.spec.task == task] for task in {s.spec.task for s in scripts}}
    return [
        continued(
            script,
            same[script.spec.task],
            steps,
            continuation=continuation,
            embodiment=embodiment,
            generator=numpy_stream(seed, "continuation", *script.spec.key),
        )
        for script in scripts
    ]
