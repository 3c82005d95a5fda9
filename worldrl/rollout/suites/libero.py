"""How a LIBERO worker is started, and ``worldrl/Libero-v0``: a suite's tasks as a Gymnasium vector environment.

Importing this module registers the id::

    import gymnasium, worldrl.rollout.suites.libero

    env = gymnasium.make_vec("worldrl/Libero-v0", num_envs=4, suite="libero_goal", workers=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from worldrl.core.errors import SettingError, WorkerEnvironmentError, nearest
from worldrl.rollout.suites.env import SuiteVecEnv
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
    suite: str,
    *,
    cameras: Sequence[str] = ("scene",),
    image_size: int = 256,
    shadows: bool = True,
    assets: str = "",
) -> Launch:
    """Say how a LIBERO worker is started.

    Args:
        suite: name, with or without a variant such as ``@lerobot``.
        cameras: ``scene`` and ``wrist``, the scene camera first; empty renders nothing, eight times faster.
        image_size: pixels of the square pictures.
        shadows: the vendor's shadows and anti-aliasing.
        assets: folder of LIBERO's assets; empty takes the one that setup was told, else the package's own.

    Raises:
        SettingError: unknown suite or camera.
        WorkerEnvironmentError: not set up, or nothing renders there.
    """
    name, _ = facts.split_suite(suite)
    if suite not in facts.suite_names():
        raise SettingError(f"suite: unknown value {suite!r}{nearest(suite, facts.suite_names())}")
    for camera in cameras:
        if camera not in facts.CAMERAS:
            raise SettingError(f"cameras: unknown camera {camera!r}{nearest(camera, facts.CAMERAS)}")
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

    Raises:
        WorkerEnvironmentError: not set up, or the stored states are damaged.
    """
    name, _ = facts.split_suite(suite)
    try:
        return list(load_suite(find_environment("libero").folder / "initial_states" / f"{name}.npz", name))
    except StatesError as error:
        raise WorkerEnvironmentError(f"libero: {error}") from error


def render_backend(python: str | Path) -> str:
    """Choose the GL back end: MUJOCO_GL where the user has set it, else the first that renders there.

    Raises:
        WorkerEnvironmentError: none does.
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
    tasks: Sequence[str] = (),
    cameras: Sequence[str] = ("scene", "wrist"),
    image_size: int = 256,
    shadows: bool = True,
    assets: str = "",
    seed: int = 0,
    timeout_s: float = 300.0,
    recycle_after: int | None = 50,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
) -> SuiteVecEnv:
    """Make ``worldrl/Libero-v0``.

    Args:
        num_envs: environments in all.
        suite: name, with or without a variant.
        workers: processes that hold them.
        tasks: names; empty takes all of the suite.
        cameras: see :func:`libero_launch`.
        image_size: pixels.
        shadows: the vendor's shadows and anti-aliasing.
        assets: folder of LIBERO's assets.
        seed: root of which episodes are played, until ``reset(seed=...)`` gives another.
        timeout_s: longest silence of a worker (s).
        recycle_after: episodes after which a worker is replaced.
        autoreset_mode: ``NEXT_STEP`` or ``DISABLED``.
    """
    launch = libero_launch(suite, cameras=cameras, image_size=image_size, shadows=shadows, assets=assets)
    return SuiteVecEnv(
        launch,
        num_envs=num_envs,
        workers=workers,
        horizon=facts.horizon(suite),
        tasks=tasks,
        cameras=tuple(cameras),
        image_size=image_size,
        seed=seed,
        timeout_s=timeout_s,
        recycle_after=recycle_after,
        autoreset_mode=autoreset_mode,
    )


def _no_single_environment(**_: Any) -> Any:
    raise SettingError(
        f"{ENV_ID} is a vector environment; make it with gymnasium.make_vec({ENV_ID!r}, num_envs=1, suite=...)"
    )


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point=_no_single_environment,
        vector_entry_point="worldrl.rollout.suites.libero:make_vec",
    )
