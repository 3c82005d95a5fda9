"""What can be said about the embedded suite's tasks: training sentences, and sentences an episode cannot fulfil."""

from __future__ import annotations

from collections.abc import Sequence

from worldrl.world_models.training import Sentences


def training_sentences(task: str) -> list[str]:
    """Return the task's own sentence and its training paraphrases; the held-out ones stay unseen."""
    from worldrl_envs.tasks import get_task

    spec = get_task(task)
    return [spec.instruction, *spec.phrases.train]


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


def task_sentences(tasks: Sequence[str]) -> Sentences:
    """Collect both kinds of sentences for some tasks."""
    return Sentences(
        same={task: training_sentences(task) for task in tasks},
        other={task: [s for other in exclusive_tasks(task) for s in training_sentences(other)] for task in tasks},
    )
