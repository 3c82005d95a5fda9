"""How a LIBERO worker is started, and ``worldrl/Libero-v0``: a suite's tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.libero

    env = gymnasium.make_vec("worldrl/Libero-v0", num_envs=4, suite="libero_goal", workers=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.rollout.suites.env import SuiteVecEnv, check_names, register_vector
from worldrl.simulators.environments import find_environment
from worldrl.simulators.process import Launch
from worldrl.simulators.renderer import given_backend
from worldrl.workers.libero import facts
from worldrl.workers.libero.states import StatesError, load_suite
from worldrl.workers.link.rendering import BACKENDS, choose_backend

ENV_ID = "worldrl/Libero-v0"
TARGET = "worldrl.workers.libero.worker:Libero"
RENDER_TIMEOUT_S = 120.0


def libero_launch(
    suite: str, *, cameras: Sequence[str] = ("scene",), image_size: int = 256, shadows: bool = True, assets: str = ""
) -> Launch:
    """Return how a LIBERO worker is started.

    ``suite`` may have a variant such as ``@lerobot``. ``cameras`` are ``scene`` and ``wrist``, the scene camera first;
    empty renders nothing, eight times faster. ``image_size`` is the side of the images (pixels), ``shadows`` the
    vendor's shadows and anti-aliasing. Empty ``assets`` takes the folder of LIBERO's assets given at setup, else the
    package's own. Raises SettingError (unknown suite or camera). Raises WorkerEnvironmentError (not set up, or nothing
    renders there).
    """
    name, _ = facts.split_suite(suite)
    check_names(suite, facts.suite_names(), cameras, facts.CAMERAS)
    environment = find_environment("libero")
    variables = {"LIBERO_CONFIG_PATH": str(environment.folder / "libero_config")}
    if cameras:
        variables["MUJOCO_GL"] = render_backend(environment.python)
    return Launch(
        name=suite,
        python=environment.python,
        target=TARGET,
        options={
            "suite": name,
            "states": str(environment.folder / "initial_states"),
            "assets": assets or str(environment.record.get("assets", "")),
            "image_size": image_size,
            "cameras": list(cameras),
            "shadows": shadows,
        },
        variables=variables,
    )


def libero_tasks(suite: str) -> list[str]:
    """Names of a suite's tasks in its order, from the stored states; no worker is started.

    Raises WorkerEnvironmentError (not set up, or the stored states are damaged).
    """
    name, _ = facts.split_suite(suite)
    try:
        return list(load_suite(find_environment("libero").folder / "initial_states" / f"{name}.npz", name))
    except StatesError as error:
        raise WorkerEnvironmentError(f"libero: {error}") from error


def render_backend(python: str | Path) -> str:
    """Choose the GL back end: the user's MUJOCO_GL, else the first that renders there.

    Raises WorkerEnvironmentError (none renders).
    """
    given = given_backend()
    backend, reasons = choose_backend(python, RENDER_TIMEOUT_S, (given,) if given else BACKENDS)
    if backend is None:
        raise WorkerEnvironmentError(
            f"libero: nothing renders in its environment ({'; '.join(reasons)}); install EGL or OSMesa: "
            "apt-get install -y libegl1 libgl1-mesa-dri libglvnd0"
        )
    return backend


def make_vec(
    *,
    num_envs: int,
    suite: str = "libero_spatial",
    workers: int = 1,
    cameras: Sequence[str] = ("scene", "wrist"),
    image_size: int = 256,
    shadows: bool = True,
    assets: str = "",
    **settings: Any,
) -> SuiteVecEnv:
    """Make ``worldrl/Libero-v0`` with the settings of :func:`libero_launch`.

    The other settings are those of :class:`~worldrl.rollout.suites.env.SuiteVecEnv`.
    """
    launch = libero_launch(suite, cameras=cameras, image_size=image_size, shadows=shadows, assets=assets)
    return SuiteVecEnv(
        launch,
        num_envs=num_envs,
        workers=workers,
        horizon=facts.horizon(suite),
        cameras=tuple(cameras),
        image_size=image_size,
        **settings,
    )


register_vector(ENV_ID, "worldrl.rollout.suites.libero:make_vec")
