"""Facts of the embedded suite: its name, its robots' constants, their main camera and how environments are made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

from worldrl.core.embodiment import AnyEmbodiment, Embodiment, JointEmbodiment
from worldrl.core.errors import SettingError
from worldrl.core.observation import IMAGE, image_name
from worldrl.rollout.real.specs import EnvOptions

EMBEDDED_SUITE = "worldrl"
"""Name of the embedded suite in protocols and datasets."""


def embedded_embodiment(tasks: Collection[str]) -> AnyEmbodiment:
    """Constants of the embedded robot of these tasks, as worldrl's own record.

    Raises SettingError (single-arm and bimanual tasks together; a dataset is of one robot).
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


WRISTS = {False: ("wrist",), True: ("left_wrist", "right_wrist")}
"""Cameras on the hands, of robots without and with joint targets."""


def embedded_cameras(tasks: Collection[str], images: Sequence[str]) -> tuple[str, ...]:
    """Cameras of these tasks' robot whose images have these names, main one first.

    Raises SettingError (it has no such camera).
    """
    robot = embedded_embodiment(tasks)
    own = {image_name(c): c for c in (main_camera(robot), *WRISTS[isinstance(robot, JointEmbodiment)])}
    if unknown := [name for name in images if name not in own]:
        raise SettingError(f"cameras: the embedded suite's robot has {', '.join(own)}, got {unknown[0]}")
    return tuple(own[name] for name in images)


def embedded_options(
    tasks: Collection[str], image_size: int, domain: str = "clean", images: Sequence[str] = (IMAGE,)
) -> EnvOptions:
    """Options of environments of these tasks with the cameras of ``images``; errors as :func:`embedded_cameras`."""
    robot, cameras = embedded_embodiment(tasks), embedded_cameras(tasks, images)
    return EnvOptions(image_size=image_size, cameras=cameras, actions=robot.actions, domain=domain)
