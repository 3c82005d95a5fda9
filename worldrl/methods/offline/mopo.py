"""MOPO (Yu et al. 2020): MBPO with imagined rewards less a multiple of the ensemble's predicted deviation.

    r̃ = r − λ u(s, a),   u = max_i ‖σ_i(s, a)‖₂

:class:`~worldrl.methods.offline.branches.Branches` subtracts the penalty in a world that measures ``max_sigma``, so the
agent is SAC. λ and k per D4RL set, as OfflineRL-Kit runs them: HalfCheetah-medium 0.5 and 5, Hopper-medium 5 and 5,
Walker2d-medium 0.5 and 5, medium-replay 0.5, 2.5, 2.5, medium-expert 2.5, 5, 2.5.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from worldrl.methods.offline.imagining import Imagining
from worldrl.methods.offline.sac import Sac, SacConfig


@dataclass(frozen=True)
class MopoConfig(SacConfig):
    """Settings of :class:`Mopo`; its penalty is ``imagining.penalty``."""


class Mopo(Sac):
    """SAC on imagined rollouts with penalised rewards."""

    name: ClassVar[str] = "mopo"
    config_class: ClassVar[type[Any]] = MopoConfig
    imagining: ClassVar[Imagining] = Imagining(horizon=5, real_ratio=0.05, penalty=0.5)
