"""Instructions of tasks for training, and those that an episode cannot fulfil; other suites' are their episodes'."""

from collections.abc import Sequence

from worldrl.core.types import Episode
from worldrl.world_models.video.instructions import TaskInstructions


def is_embedded(task: str) -> bool:
    """Whether a task is one of the embedded suite's."""
    from worldrl_envs.tasks import BIMANUAL, task_names

    return task in (*task_names(), *task_names(BIMANUAL))


def training_instructions(task: str) -> list[str]:
    """An embedded task's own instruction and its training paraphrases, without the held-out ones."""
    from worldrl_envs.tasks import get_task

    spec = get_task(task)
    return [spec.instruction, *spec.phrases.train]


def training_instructions_or_known(episodes: Sequence[Episode]) -> dict[str, list[str]]:
    """Instructions of the tasks in some episodes: training paraphrases of embedded tasks, else those of the episodes."""
    found: dict[str, list[str]] = {}
    for episode in sorted(episodes, key=lambda episode: (episode.task, episode.instruction)):
        if is_embedded(episode.task):
            found.setdefault(episode.task, training_instructions(episode.task))
        elif episode.instruction not in found.setdefault(episode.task, []):
            found[episode.task].append(episode.instruction)
    return found


def exclusive_tasks(task: str) -> list[str]:
    """Tasks of the same scene that cannot be fulfilled together with ``task``: picking others of the same objects."""
    from worldrl_envs.tasks import get_task, task_names

    spec = get_task(task)
    if spec.kind not in ("object", "spatial"):
        return []
    others = [get_task(name) for name in task_names(spec.kind) if name != task]
    return [other.name for other in others if other.objects == spec.objects and other.fixtures == spec.fixtures]


def task_instructions(tasks: Sequence[str]) -> TaskInstructions:
    """Both kinds of instructions for the embedded tasks among these; others keep their episodes' instructions."""
    tasks = [task for task in tasks if is_embedded(task)]
    return TaskInstructions(
        same={task: training_instructions(task) for task in tasks},
        other={task: [s for other in exclusive_tasks(task) for s in training_instructions(other)] for task in tasks},
    )
