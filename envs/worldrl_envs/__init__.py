"""Tabletop manipulation tasks for Gymnasium: `import worldrl_envs` registers `worldrl/<Task>-v0`.

Twelve tasks for one arm, and `worldrl/Bimanual<Task>-v0` for two (`task_names("bimanual")`). MuJoCo is loaded with the
first environment. Without a display `MUJOCO_GL` is set to `egl`, unless it is set: MuJoCo reads it once, at its import.
"""

import os
import sys

from gymnasium.envs.registration import register, registry

from worldrl_envs.tasks import ALL_TASKS, get_task, kinds, task_names

__all__ = ["env_id", "get_task", "kinds", "register_tasks", "task_names"]

GIVEN_BACKEND = os.environ.get("MUJOCO_GL")  # What `MUJOCO_GL` was before this package had a say
CHOSEN_BACKENDS: set[str] = set()
"""What `MUJOCO_GL` was set to without the user; any other value of it is the user's, whenever it was set."""
if sys.platform == "linux" and GIVEN_BACKEND is None and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
    os.environ["MUJOCO_GL"] = "egl"
    CHOSEN_BACKENDS.add("egl")


def env_id(task: str) -> str:
    """Gymnasium id of a task, such as "worldrl/PickRedCube-v0"; UnknownNameError names the nearest task."""
    return f"worldrl/{get_task(task).name}-v0"


def register_tasks() -> None:
    """Register every task with Gymnasium; those already registered are left alone."""
    for name, spec in ALL_TASKS.items():
        if env_id(name) not in registry:
            register(
                id=env_id(name), entry_point=spec.entry_point, max_episode_steps=spec.horizon, kwargs={"task": name}
            )


register_tasks()
