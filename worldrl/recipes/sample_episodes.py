"""Episodes that a command records for itself without a dataset."""

from collections.abc import Sequence
from pathlib import Path

from worldrl.core.embodiment import AnyEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.observation import IMAGE
from worldrl.core.rng import stream_seed
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.evaluation.policy.protocol import instruction_of
from worldrl.recipes.run import choose_tasks
from worldrl.rollout.agents.actors import AnyActor, ExpertActor
from worldrl.rollout.real.collect import CollectPlan, collect_dataset
from worldrl.rollout.real.embedded import embedded_embodiment, embedded_options
from worldrl.rollout.real.rollouts import EmbeddedPlayer
from worldrl.rollout.real.specs import EpisodeSpec

KIND = "object"  # Kind of the tasks that the bundled world model was trained on
HOLD_STEPS = 8
NEAR_MISS = ExpertActor(noise=0.3, goal_offset=0.02, blind=True)
"""An expert with noise and one attempt per skill: failures that start like successes."""
SOURCES: tuple[tuple[str, AnyActor], ...] = (("expert", ExpertActor()), ("blind_expert", NEAR_MISS))


def check_samples(tasks: Sequence[str], robot: AnyEmbodiment) -> list[str]:
    """Tasks to record, the Pick tasks without names; SettingError for unknown ones or another robot's."""
    chosen = choose_tasks(tasks, None if tasks else KIND)
    if embedded_embodiment(chosen) != robot:
        raise SettingError(
            f"data: must be a dataset of the world model's robot, got none; the tasks {', '.join(chosen)} have another "
            "robot. Record one with `worldrl collect`, and give data=FOLDER"
        )
    return chosen


def record_samples(
    folder: Path, tasks: Sequence[str], count: int, *, seed: int, image_size: int, images: Sequence[str] = (IMAGE,)
) -> EpisodeDataset:
    """Record ``count`` episodes of tasks in turn, half by the expert and half near misses; resumes in ``folder``."""
    plans = [
        CollectPlan(actor, [_spec(source, tasks, number, seed) for number in range(first, count, 2)])
        for first, (source, actor) in enumerate(SOURCES)
    ]
    collect_dataset(
        folder,
        [plan for plan in plans if plan.specs],
        EmbeddedPlayer(embedded_options(tasks, image_size, images=images), workers=0),
        hold_steps=HOLD_STEPS,
    )
    return EpisodeDataset.open(folder)


def _spec(source: str, tasks: Sequence[str], number: int, seed: int) -> EpisodeSpec:
    task, index = tasks[number // 2 % len(tasks)], number // 2 // len(tasks)
    own = stream_seed(seed, "samples", source) % 2**31
    instruction = instruction_of("canonical", task, index, own)
    return EpisodeSpec(task=task, index=index, seed=own, instruction=instruction, source=source)
