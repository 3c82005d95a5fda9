"""RAVL (Sims et al. 2024, "The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning").

Imagined rollouts are cut at k steps. A state that is reached only at step k occurs as s' in targets and never as s, so no
update corrects its value. RAVL detects such states by the critics' disagreement instead of penalising the dynamics:
N critics on the same pessimistic target, kept diverse by EDAC's term, no penalty.

    y = r + γ (1 − terminated) [min_{i≤N} Q̄_i(s', a') − α log π(a'|s')],   a' ~ π(·|s')
    critic:  Σ_i mean_b (Q_i(s, a) − y)² + η L_div;   actor:  mean_b α log π(a|s) − min_i Q_i(s, a)

Order of an update: temperature, actor, critics, targets. Batches hold a share r of recorded rows.
:mod:`~worldrl.methods.offline.reach` measures the detection.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from worldrl.methods.offline.edac import Edac, EdacConfig
from worldrl.methods.offline.imagining import Imagining


@dataclass(frozen=True)
class RavlConfig(EdacConfig):
    """Settings of :class:`Ravl`; defaults are those of the published code (N = 10, η = 1, 3 × 256, 3e-4)."""


class Ravl(Edac):
    """EDAC's agent on imagined rollouts without penalty."""

    name: ClassVar[str] = "ravl"
    config_class: ClassVar[type[Any]] = RavlConfig
    imagining: ClassVar[Imagining] = Imagining(horizon=5, real_ratio=0.05)
