"""MBPO (Janner et al. 2019) on a fixed dataset: SAC on short imagined rollouts, without any pessimism about the world.

The base method of MOPO, MOBILE and RAVL. Online it refits the world and lengthens its rollouts as data comes in; here
neither happens. What it shows offline is the failure the others mend: values that grow without bound.

Equations as in :mod:`worldrl.methods.offline.sac`, batches of ⌊B r⌋ recorded rows and imagined ones.
"""

from __future__ import annotations

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
