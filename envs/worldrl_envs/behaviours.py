"""Who acts by script in a task of either suite."""

from typing import Any

import numpy as np

from worldrl_envs.bimanual.experts import BimanualExpert, BimanualReach
from worldrl_envs.experts import RandomReach, ScriptedExpert
from worldrl_envs.tasks import BIMANUAL, get_task


def make_expert(task: str, *, generator: np.random.Generator, **options: Any) -> ScriptedExpert | BimanualExpert:
    """The scripted expert of a task; `options` are those of `ScriptedExpert`."""
    kind = BimanualExpert if get_task(task).kind == BIMANUAL else ScriptedExpert
    return kind(task, generator=generator, **options)


def make_explorer(task: str, *, generator: np.random.Generator) -> RandomReach | BimanualReach:
    """The random explorer of a task's robot."""
    return (BimanualReach if get_task(task).kind == BIMANUAL else RandomReach)(generator=generator)
