"""The embedded suite's renderer: tried in a child process, once, before a worker needs it; and the user's choice of it.

A broken driver crashes or hangs instead of raising, and would end one worker after the other.
"""

from __future__ import annotations

import os
import sys
from functools import cache

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.core.storage.log import console
from worldrl.workers.link.rendering import BACKENDS, choose_backend, renderer_name

TIMEOUT_S = 300.0
"""Time limit of a back end for one small image (s): minutes on a busy machine."""


def given_backend() -> str:
    """The user's ``MUJOCO_GL``; empty where unset, or set by the embedded suite.

    Importing ``worldrl_envs`` sets the variable, and so does :func:`embedded_drawing`. Their choice for this Python
    does not apply to an external suite, which has its own MuJoCo and drivers. Any other value is the user's, even one
    set in Python after that import.
    """
    from worldrl_envs import CHOSEN_BACKENDS, GIVEN_BACKEND

    present = os.environ.get("MUJOCO_GL", "")
    return (GIVEN_BACKEND or "") if present in CHOSEN_BACKENDS else present


@cache
def embedded_drawing() -> dict[str, str]:
    """Back end and renderer of the embedded suite; workers that start later use this back end.

    The user's ``MUJOCO_GL`` decides; else the first of EGL and OSMesa that renders. A change is printed, since images
    of two back ends differ a little. Raises WorkerEnvironmentError (nothing renders).
    """
    from worldrl_envs import CHOSEN_BACKENDS

    given = given_backend()
    present = os.environ.get("MUJOCO_GL", "")
    if renderer := renderer_name(sys.executable, TIMEOUT_S):
        return {"render": present, "renderer": renderer}
    backend, reasons = choose_backend(sys.executable, TIMEOUT_S, (given,) if given else BACKENDS)
    if backend is None:
        raise WorkerEnvironmentError(
            f"rendering: nothing renders here ({'; '.join(reasons)}); install EGL or OSMesa, and let MUJOCO_GL name it where it is "
            "set: apt-get install -y libegl1 libgl1-mesa-dri libglvnd0"
        )
    if backend != present:
        console().print(f"rendering with {backend} ({'; '.join(reasons)})", markup=False, highlight=False)
    os.environ["MUJOCO_GL"] = backend
    CHOSEN_BACKENDS.add(backend)
    return {"render": backend, "renderer": renderer_name(sys.executable, TIMEOUT_S)}
