"""Where a command's simulator processes run: the settings ``engine`` and ``ray``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldrl.core.errors import SettingError
from worldrl.settings import non_negative, one_of, setting

if TYPE_CHECKING:
    from worldrl.simulators.process import Engine

LOCAL, RAY = "local", "ray"
ENGINE = "where simulator processes run: local, or ray for the nodes of a Ray cluster; results are equal"
WITH_RAY = f"engine={RAY}"


@dataclass
class RayOptions:
    """Which Ray cluster, and what each simulator process takes of it besides one core."""

    address: str = setting("auto", "HOST:PORT, auto (RAY_ADDRESS, or this machine's cluster), or local for a new one")
    gpus: float = setting(0.0, "GPUs of each process, also a fraction: where a policy decides in it on cuda")

    def __post_init__(self) -> None:
        """Check the ranges."""
        non_negative("gpus", self.gpus)
        if not self.address or "://" in self.address:
            raise SettingError(
                f"ray.address: must be HOST:PORT, auto or local, got {self.address!r}; a program that runs outside the "
                "cluster is sent into it with `ray job submit`"
            )


def check_engine(settings: Any, *, plays: bool = True) -> None:
    """Refuse an unknown engine, and Ray without processes or where nothing ``plays`` in a simulator; SettingError."""
    one_of("engine", settings.engine, (LOCAL, RAY))
    if settings.engine == RAY and not plays:
        raise SettingError(f"engine={RAY}: suite={settings.suite} plays in no simulator; leave engine out")
    if settings.engine == RAY and not settings.workers:
        raise SettingError("workers: 0 plays in this process, engine=ray on the cluster; give workers=1 or more")


def engine_of(settings: Any) -> Engine:
    """The engine of a command's settings; MissingExtraError where Ray is not installed."""
    if settings.engine == LOCAL:
        from worldrl.simulators.process import LOCAL as LOCAL_ENGINE

        return LOCAL_ENGINE
    from worldrl.simulators.ray_engine import RayEngine

    return RayEngine(settings.ray.address, settings.ray.gpus)
