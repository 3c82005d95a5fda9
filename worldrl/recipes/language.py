"""What can be said about tasks: training sentences, and sentences an episode cannot fulfil.

The embedded suite knows paraphrases of its tasks; of a foreign suite's, what its episodes were told is all there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldrl.core.types import Episode
from worldrl.world_models.video.instructions import TaskInstructions


def is_embedded(task: str) -> bool:
    """Whether a task is one of the embedded suite's."""
    from worldrl_envs.tasks import BIMANUAL, task_names

    return task in (*task_names(), *task_names(BIMANUAL))


def training_instructions(task: str) -> list[str]:
    """Return an embedded task's own sentence and its training paraphrases; the held-out ones stay unseen."""
    from worldrl_envs.tasks import get_task

    spec = get_task(task)
    return [spec.instruction, *spec.phrases.train]


def training_instructions_or_known(episodes: Sequence[Episode]) -> dict[str, list[str]]:
    """Sentences of the tasks in some episodes: an embedded task's training sentences, else what its episodes were told."""
    told: dict[str, list[str]] = {}
    for episode in sorted(episodes, key=lambda episode: (episode.task, episode.instruction)):
        sentences = told.setdefault(
            episode.task, training_instructions(episode.task) if is_embedded(episode.task) else []
        )
        if not is_embedded(episode.task) and episode.instruction not in sentences:
            sentences.append(episode.instruction)
    return told


def exclusive_tasks(task: str) -> list[str]:
    """Return the tasks of the same scene that cannot be fulfilled together with ``task``.

    Picking tasks over the same objects exclude one another, since one gripper holds one object. Other kinds do not:
    an episode that opens a drawer may well begin with a state that fulfils "close the drawer".
    """
    from worldrl_envs.tasks import get_task, task_names

    spec = get_task(task)
    if spec.kind not in ("object", "spatial"):
        return []
    others = [get_task(name) for name in task_names(spec.kind) if name != task]
    return [other.name for other in others if other.objects == spec.objects and other.fixtures == spec.fixtures]


def task_instructions(tasks: Sequence[str]) -> TaskInstructions:
    """Collect both kinds of sentences for the embedded tasks among these; others keep what their episodes were told."""
    tasks = [task for task in tasks if is_embedded(task)]
    return TaskInstructions(
        same={task: training_instructions(task) for task in tasks},
        other={task: [s for other in exclusive_tasks(task) for s in training_instructions(other)] for task in tasks},
    )
