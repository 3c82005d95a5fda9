"""MBPO (Janner et al. 2019) on a fixed dataset: SAC on short imagined rollouts, without pessimism about the world.

The base method of MOPO, MOBILE and RAVL. The online method also refits the world and lengthens its rollouts. Offline,
values can grow without bound; the other methods correct this. Batches hold ⌊B r⌋ recorded rows and imagined ones.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.sac import Sac, SacConfig


@dataclass(frozen=True)
class MbpoConfig(SacConfig):
    """Settings of :class:`Mbpo`."""


class Mbpo(Sac):
    """SAC on imagined rollouts."""

    name: ClassVar[str] = "mbpo"
    config_class: ClassVar[type[Any]] = MbpoConfig
    imagining: ClassVar[Imagining] = Imagining(horizon=5, real_ratio=0.05)
