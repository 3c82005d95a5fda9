from dataclasses import replace

import pytest

from worldrl.recipes.language import (
    exclusive_tasks,
    task_instructions,
    training_instructions,
    training_instructions_or_known,
)
from worldrl_envs.tasks import get_task, task_names


@pytest.mark.parametrize("task", task_names())
def test_held_out_instructions_stay_unseen(task):
    sentences = training_instructions(task)
    assert sentences[0] == get_task(task).instruction
    assert len(sentences) > 1
    assert not set(sentences) & set(get_task(task).phrases.held_out)


@pytest.mark.parametrize("task", task_names())
def test_no_instruction_both_fulfils_and_contradicts(task):
    sentences = task_instructions(task_names())
    assert not set(sentences.same[task]) & set(sentences.other[task])
    for other in exclusive_tasks(task):
        assert task in exclusive_tasks(other)  # both ways
        assert get_task(other).objects == get_task(task).objects


def test_only_picking_over_the_same_objects_excludes():
    assert set(exclusive_tasks("PickRedCube")) == {"PickGreenCylinder", "PickYellowBrick"}
    for task in task_names("goal") + task_names("long"):
        assert exclusive_tasks(task) == []
        assert task_instructions([task]).other[task] == []


def test_an_external_task_has_the_instructions_of_its_episodes(push_episode):
    told = [("put_it_here", "put it here"), ("put_it_here", "here, please"), ("PickRedCube", "pick up the red cube")]
    episodes = [replace(push_episode(0, 8), task=task, instruction=sentence) for task, sentence in [*told, told[0]]]
    known = training_instructions_or_known(episodes)
    assert known["put_it_here"] == ["here, please", "put it here"]
    assert known["PickRedCube"] == training_instructions("PickRedCube")
