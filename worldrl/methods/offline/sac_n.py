"""SAC-N (An et al. 2021): :mod:`~worldrl.methods.offline.sac` with many critics, whose minimum is its only pessimism."""

from dataclasses import dataclass
from typing import Any, ClassVar

from worldrl.methods.offline.sac import Sac, SacConfig


@dataclass(frozen=True)
class SacNConfig(SacConfig):
    """Settings of :class:`SacN`; defaults as CORL's (N from 10 on HalfCheetah to 500 on Hopper)."""

    hidden: tuple[int, ...] = (256, 256, 256)  # widths of hidden layers, actor and critics.
    critics: int = 10  # members N.
    actor_rate: float = 3e-4
    temperature_rate: float = 3e-4
    largest_temperature: float | None = None
    actor_cosine: bool = False


class SacN(Sac):
    """SAC with the minimum of ``N`` critics."""

    name: ClassVar[str] = "sac_n"
    config_class: ClassVar[type[Any]] = SacNConfig
