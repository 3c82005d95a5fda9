"""Facts of the embedded suite: its name, its robots' constants, their main camera and how environments are made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from worldrl.core.embodiment import AnyEmbodiment, Embodiment, JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.rollout.real.specs import EnvOptions

EMBEDDED_SUITE = "worldrl"
"""Name of the embedded suite in protocols and datasets."""


def embedded_embodiment(tasks: Collection[str]) -> AnyEmbodiment:
    """Constants of the embedded robot of these tasks, as worldrl's own record.

    Raises SettingError (one- and two-armed tasks together; a dataset is of one robot).
    """
    from worldrl_envs.bimanual.control import SIXAXIS_PAIR
    from worldrl_envs.control import PANDA
    from worldrl_envs.tasks import BIMANUAL, task_names

    two_armed = set(tasks) & set(task_names(BIMANUAL))
    if not two_armed:
        return Embodiment.from_json(asdict(PANDA))
    if two_armed < set(tasks):
        raise SettingError(
            f"tasks: {sorted(two_armed)[0]} is of two arms, {sorted(set(tasks) - two_armed)[0]} of one, and a dataset "
            "is of one robot; collect them into two"
        )
    return JointEmbodiment.from_json(asdict(SIXAXIS_PAIR))


def main_camera(robot: AnyEmbodiment) -> str:
    """Name this robot's main camera in the embedded suite."""
    return "head" if isinstance(robot, JointEmbodiment) else "scene"


def embedded_options(tasks: Collection[str], image_size: int, domain: str = "clean") -> EnvOptions:
    """Options of environments of these tasks with their main camera; errors as :func:`embedded_embodiment`."""
    robot = embedded_embodiment(tasks)
    return EnvOptions(image_size=image_size, cameras=(main_camera(robot),), actions=robot.actions, domain=domain)
